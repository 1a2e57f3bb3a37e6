// The subcommands of `convoy`. Each is added by one function that declares its options and what it does; main.cpp calls
// them all. A command that fails throws Error; one that ends with another exit code than 0 or 1 throws Exit.
#pragma once
#include <CLI/CLI.hpp>
#include <optional>
#include <string>
#include <vector>

#include "apps/pictures.h"
#include "comm/ranks.h"
#include "engine/context.h"
#include "io/config.h"

namespace convoy {

/// Exit codes: 0 success, 1 error, 75 interrupted and resumable.
struct Exit {
  int code;
};
inline constexpr int kExitResumable = 75;

/// Above this a number on the command line is a slip of the pen, and products of it would leave 64 bits.
inline constexpr int64_t kLargestCount = 1'000'000;

/// A number from `least` to `greatest`. CLI::Range takes "nan" for one.
CLI::Validator number_between(double least, double greatest);

void add_train_command(CLI::App& app);
void add_eval_command(CLI::App& app);
void add_predict_command(CLI::App& app);
void add_synth_command(CLI::App& app);
void add_doctor_command(CLI::App& app);
void add_plan_command(CLI::App& app);
void add_report_command(CLI::App& app);
void add_verify_command(CLI::App& app);
void add_bench_command(CLI::App& app);
void add_bench_op_command(CLI::App& bench);
void add_weights_command(CLI::App& app);

/// The words of this process's command line, for the records of a run.
std::vector<std::string> command_line();

/// --config-file and the trailing KEY VALUE pairs.
class ConfigArguments {
 public:
  explicit ConfigArguments(CLI::App& command);
  /// The KEY VALUE words. Throws Error for an unknown option (naming the nearest) and for a key without value.
  std::vector<std::string> overrides() const;
  /// The file and the pairs; `more` pairs come from the command's own options and win.
  Config load(const std::vector<std::string>& more = {}) const;
  const std::string& file() const { return file_; }

 private:
  CLI::App& command_;
  std::string file_;
};

/// --bucket-mb.
class BucketSize {
 public:
  void add_to(CLI::App& command);
  size_t bytes() const { return static_cast<size_t>(mebibytes_ * (1 << 20)); }

 private:
  double mebibytes_ = static_cast<double>(ContextOptions{}.bucket_bytes) / (1 << 20);
};

/// --device, --precision, --threads, --direct-conv, --check-values, --exact-ranks, --bucket-mb: what a graph runs in.
class ContextArguments {
 public:
  explicit ContextArguments(CLI::App& command);
  /// Adds --exact-ranks.
  void add_exact_ranks(CLI::App& command);
  /// Adds --bucket-mb.
  void add_bucket_size(CLI::App& command);
  /// Throws Error for a device or precision that is not in this build.
  ContextOptions options() const;

 private:
  std::string device_ = "cpu", precision_ = "fp32";
  int threads_ = 0;
  bool direct_conv_ = false, check_values_ = false, exact_ranks_ = false;
  BucketSize bucket_size_;
};

/// --ranks, --comm-timeout: the processes that share the work of a command.
class RankArguments {
 public:
  explicit RankArguments(CLI::App& command);
  /// Whether this process is to start ranks, not to be one.
  bool is_launcher() const;
  /// Starts the ranks, waits for them and throws Exit with their code.
  [[noreturn]] void launch(LostOutput lost_output = LostOutput::kIsError) const;
  /// Makes this process a rank. Throws Error when a launcher has started another number of them than --ranks says.
  JoinedRanks join() const;

 private:
  std::optional<int> ranks_;
  RanksOptions options_;
};

/// --as, --alpha, --ids: what predictions are written as.
class PictureArguments {
 public:
  void add_to(CLI::App& command);
  /// Throws Error naming `needed` when an option is given without it.
  void require_use(bool used, const std::string& needed) const;
  PictureWriter::Options options() const;

 private:
  const CLI::Option *kinds_ = nullptr, *alpha_ = nullptr, *ids_ = nullptr;
  std::string ids_text_ = "class";
  PictureWriter::Options options_;
};

/// "128x256" as height and width, each from 1 to 32768. Throws Error.
SizeHW parse_size(const std::string& text);

}  // namespace convoy
