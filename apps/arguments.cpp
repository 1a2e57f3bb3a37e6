#include <algorithm>
#include <charconv>
#include <fstream>

#include "apps/commands.h"
#include "apps/ranks.h"
#include "engine/error.h"

namespace convoy {

std::vector<std::string> command_line() {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  std::vector<std::string> words;
  for (std::string word; std::getline(file, word, '\0');) words.push_back(word);
  return words;
}

CLI::Validator number_between(double least, double greatest) {
  const auto check = [least, greatest](const std::string& text) -> std::string {
    double value = 0;
    if (CLI::detail::lexical_cast(text, value) && value >= least && value <= greatest) return {};
    return fmt::format("'{}' is no number from {} to {}", text, least, greatest);
  };
  return {check, fmt::format("FROM {} TO {}", least, greatest), "number"};
}

ConfigArguments::ConfigArguments(CLI::App& command) : command_(command) {
  command.add_option("--config-file", file_, "recipe in YAML")->type_name("FILE");
  // CLI11 would take lists in brackets apart, so the pairs are left to overrides().
  command.allow_extras();
  // Before the command asks for what it misses: that may be a misspelt option.
  command.parse_complete_callback([this] { overrides(); });
  command.footer(
      "KEY VALUE ... behind the options override the recipe, as in SOLVER.LR 0.01 TRAIN.CROP_SIZE \"(128, 256)\".");
}

std::vector<std::string> ConfigArguments::overrides() const {
  const std::vector<std::string> words = command_.remaining();
  for (const std::string& word : words) {
    if (!word.starts_with("--")) continue;
    std::vector<std::string> known;
    for (const CLI::Option* option : command_.get_options())
      for (const std::string& name : option->get_lnames()) known.push_back("--" + name);
    fail("{}: unknown option {}{}; see convoy {} --help", command_.get_name(), word, nearest_hint(word, known),
         command_.get_name());
  }
  // The names of pictures behind a blank would be taken for keys.
  const std::vector<std::string>& kinds = PictureWriter::kinds_known();
  if (command_.get_option_no_throw("--as") != nullptr)
    for (size_t i = 0; i < words.size(); i += 2)
      CONVOY_CHECK(std::find(kinds.begin(), kinds.end(), words[i]) == kinds.end(),
                   "--as: '{}' stands behind a blank; write commas and no blanks between kinds, as in --as {}",
                   words[i], fmt::join(kinds, ","));
  CONVOY_CHECK(words.size() % 2 == 0, "overrides come in pairs KEY VALUE; '{}' at the end has no value", words.back());
  return words;
}

Config ConfigArguments::load(const std::vector<std::string>& more) const {
  std::vector<std::string> pairs = overrides();
  pairs.insert(pairs.end(), more.begin(), more.end());
  return load_config(file_, pairs);
}

void BucketSize::add_to(CLI::App& command) {
  command
      .add_option("--bucket-mb", mebibytes_,
                  "MiB of gradients in one exchange between ranks (convoy bench comm says which size suits a machine)")
      ->capture_default_str()
      ->check(number_between(0.001, 1e6));
}

ContextArguments::ContextArguments(CLI::App& command) {
  command
      .add_option("--device", device_,
                  "cpu, or emulated: the CUDA kernels on the CPU, thread by thread, to test them (very slow)")
      ->capture_default_str();
  command.add_option("--precision", precision_, "fp32")->capture_default_str();
  command
      .add_option("--threads", threads_,
                  "compute threads of each process; 0: one for each core it may use; the ranks of a host divide them")
      ->capture_default_str()
      ->check(CLI::Range(0, 4096));
  command.add_flag("--direct-conv", direct_conv_, "dense convolutions by the plain kernel");
  command.add_flag("--check-values", check_values_, "look for NaN and infinity after every operator");
}

void ContextArguments::add_exact_ranks(CLI::App& command) {
  command.add_flag("--exact-ranks", exact_ranks_,
                   "add up over images as whole numbers: the same bits on any number of ranks (slow)");
}

void ContextArguments::add_bucket_size(CLI::App& command) {
  bucket_size_.add_to(command);
}

ContextOptions ContextArguments::options() const {
  CONVOY_CHECK(device_ != "cuda", "--device cuda is not in this build; use cpu (or emulated, which tests kernels)");
  CONVOY_CHECK(device_ == "cpu" || device_ == "emulated",
               "--device {}: unknown device; known are cpu, cuda and emulated, this build has cpu and emulated",
               device_);
  CONVOY_CHECK(precision_ == "fp32", "--precision {}: not available yet; use fp32", precision_);
  return {.device = device_ == "cpu" ? DeviceKind::kCpu : DeviceKind::kEmulated,
          .threads = threads_,
          .direct_conv = direct_conv_,
          .exact_ranks = exact_ranks_,
          .check_values = check_values_,
          .bucket_bytes = bucket_size_.bytes()};
}

RankArguments::RankArguments(CLI::App& command) {
  command
      .add_option(
          "--ranks", ranks_,
          "processes to start on this host, which share the work (default: this one alone). Leave it out behind "
          "mpirun or srun, which start them")
      ->check(CLI::Range(1, 1024));
  command
      .add_option("--comm-timeout", options_.timeout_seconds,
                  "seconds that ranks wait for one of them; then all end with a message that names it")
      ->capture_default_str()
      ->check(number_between(1, 1e6));
}

bool RankArguments::is_launcher() const {
  return ranks_.value_or(1) > 1 && !is_rank();
}

void RankArguments::launch(LostOutput lost_output) const {
  throw Exit{start_ranks(*ranks_, lost_output)};
}

JoinedRanks RankArguments::join() const {
  JoinedRanks joined = join_ranks(options_);
  Communicator& communicator = *joined.communicator;
  if (ranks_ && *ranks_ != communicator.size())
    fail_together(communicator, fmt::format("--ranks {}, but the launcher has started {} ranks; leave --ranks out, or "
                                            "start as many",
                                            *ranks_, communicator.size()));
  return joined;
}

void PictureArguments::add_to(CLI::App& command) {
  kinds_ = command
               .add_option("--as", options_.kinds,
                           "kinds of pictures, with commas and no blanks between: index (class of each pixel), "
                           "palette (the same in the classes' colours), overlay (over the image)")
               ->delimiter(',')
               ->allow_extra_args(false)
               ->check(CLI::IsMember(PictureWriter::kinds_known()))
               ->option_text(fmt::format("KIND,...={}", fmt::join(PictureWriter::kinds_known(), ",")));
  alpha_ = command.add_option("--alpha", options_.alpha, "share of the colours in an overlay")
               ->capture_default_str()
               ->check(number_between(0, 1));
  ids_ = command
             .add_option("--ids", ids_text_,
                         "values in index pictures: class (0, 1, ...) or dataset (those of the data set's "
                         "label files)")
             ->capture_default_str()
             ->check(CLI::IsMember({"class", "dataset"}));
}

PictureWriter::Options PictureArguments::options() const {
  PictureWriter::Options options = options_;
  options.file_values = ids_text_ == "dataset";
  return options;
}

void PictureArguments::require_use(bool used, const std::string& needed) const {
  for (const CLI::Option* option : {kinds_, alpha_, ids_})
    CONVOY_CHECK(used || option->count() == 0, "{} is for pictures; it needs {}", option->get_name(), needed);
}

SizeHW parse_size(const std::string& text) {
  SizeHW size;
  const char* end = text.data() + text.size();
  const auto height = std::from_chars(text.data(), end, size.height);
  CONVOY_CHECK(height.ec == std::errc() && height.ptr != end && *height.ptr == 'x',
               "'{}' is no size; write HEIGHTxWIDTH, as in 128x256", text);
  const auto width = std::from_chars(height.ptr + 1, end, size.width);
  CONVOY_CHECK(width.ec == std::errc() && width.ptr == end && size.height > 0 && size.width > 0,
               "'{}' is no size; write HEIGHTxWIDTH, as in 128x256", text);
  constexpr int64_t kMaxSide = 32768;
  CONVOY_CHECK(size.height <= kMaxSide && size.width <= kMaxSide,
               "the size {} is too large; a side has at most {} pixels", text, kMaxSide);
  return size;
}

}  // namespace convoy
