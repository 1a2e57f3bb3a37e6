// The convoy command line: declares the subcommands, runs the one that is named, turns exceptions into messages.
// Exit codes: 0 success, 1 error, 75 interrupted and resumable.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <iostream>
#include <nlohmann/json.hpp>

#include "apps/commands.h"
#include "engine/error.h"
#include "engine/version.h"
#include "kernels/conv2d_onednn.h"
#include "kernels/isa.h"
#include "kernels/unverified.h"

namespace {

void print_version(bool json) {
#ifdef CONVOY_WITH_MPI
  const bool mpi = true;
#else
  const bool mpi = false;
#endif
  const std::string onednn = convoy::onednn_version();
  if (json) {
    fmt::print("{}\n", nlohmann::ordered_json{{"version", convoy::kVersion},
                                              {"isa", convoy::cpu::isa_name()},
                                              {"onednn", onednn},
                                              {"mpi", mpi},
                                              {"devices", {"cpu", "emulated"}},
                                              {"unverified_kernels", convoy::unverified_device_paths()}}
                           .dump());
    return;
  }
  fmt::print("convoy {} (instruction set {}, oneDNN {}, MPI {}, devices: cpu, emulated)\n", convoy::kVersion,
             convoy::cpu::isa_name(), onednn.empty() ? "no" : onednn, mpi ? "yes" : "no");
  for (const std::string& path : convoy::unverified_device_paths())
    fmt::print("device code that no check has run: {}\n", path);
}

/// A closed standard stream would give its number to the next file that is opened, and messages would land in that.
void reserve_standard_streams() {
  int descriptor;
  do {
    descriptor = ::open("/dev/null", O_RDWR);
  } while (descriptor >= 0 && descriptor <= STDERR_FILENO);
  if (descriptor >= 0) ::close(descriptor);
}

/// Threads that spin while they wait slow a busy machine down tenfold and cost ranks each other's cores. OpenMP reads
/// the policy when it is loaded, before main: the program starts itself once more with it. What the user has set stays.
void wait_without_spinning(char** argv) {
  std::error_code error;
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error || ::setenv("OMP_WAIT_POLICY", "passive", 0) != 0) return;
  ::execv(program.c_str(), argv);  // returns where that cannot be done; then threads spin
}

/// Says it without throwing, whatever state stderr is in.
void report(const char* message) {
  std::fprintf(stderr, "error: %s\n", message);
}

/// An answer that did not reach its reader is no success.
int flush_answer(int code) {
  errno = 0;
  if (std::cout.flush() && std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return code;
  report(fmt::format("standard output cannot be written: {}", std::strerror(errno)).c_str());
  return 1;
}

std::vector<std::string> command_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands({})) names.push_back(command->get_name());
  return names;
}

/// Throws Error where `word` stands in the place of a command of `app`, which is called `above`, and is none.
void require_command(const CLI::App& app, const std::string& above, const std::string& word) {
  const std::vector<std::string> names = command_names(app);
  if (names.empty() || word.starts_with("-") || std::find(names.begin(), names.end(), word) != names.end()) return;
  convoy::fail("there is no command '{}{}'{}. Commands: {}", above.empty() ? "" : above + " ", word,
               convoy::nearest_hint(word, names), fmt::join(names, ", "));
}

int run(int argc, char** argv) {
  CLI::App app("Convoy trains vision networks.", "convoy");
  bool version = false, json = false;
  app.add_flag("--version", version, "print the version");
  app.add_flag("--json", json, "with --version: as JSON");
  convoy::add_train_command(app);
  convoy::add_eval_command(app);
  convoy::add_predict_command(app);
  convoy::add_plan_command(app);
  convoy::add_doctor_command(app);
  convoy::add_synth_command(app);
  convoy::add_report_command(app);
  convoy::add_verify_command(app);
  convoy::add_bench_command(app);
  convoy::add_weights_command(app);
  app.require_subcommand(0, 1);

  if (argc > 1) require_command(app, "", argv[1]);
  if (argc > 2 && argv[1][0] != '-') require_command(*app.get_subcommand(argv[1]), argv[1], argv[2]);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);  // --help
    const auto used = app.get_subcommands();
    convoy::fail("{}; see convoy {}--help", error.what(), used.empty() ? "" : used[0]->get_name() + " ");
  }
  if (version)
    print_version(json);
  else if (app.get_subcommands().empty())
    convoy::fail("a command is needed: {}; see convoy --help", fmt::join(command_names(app), ", "));
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (!std::getenv("OMP_WAIT_POLICY")) wait_without_spinning(argv);
  reserve_standard_streams();
  std::signal(SIGXFSZ, SIG_IGN);  // a file size limit is reported by write(2), like a full disk
  try {
    return flush_answer(run(argc, argv));
  } catch (const convoy::Exit& exit) {
    return flush_answer(exit.code);
  } catch (const std::bad_alloc&) {
    report("out of memory; a smaller batch or crop needs less (convoy plan shows how much)");
  } catch (const std::exception& error) {
    report(error.what());
  } catch (...) {
    report("an unknown exception");
  }
  return 1;
}
