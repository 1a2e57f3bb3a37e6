// Our own launcher: this program again, once per rank of this host.
#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <optional>
#include <utility>

#include "comm/join.h"
#include "comm/rank_output.h"
#include "comm/ranks.h"
#include "engine/error.h"

namespace convoy {

namespace {

using Clock = std::chrono::steady_clock;

constexpr int kInterrupted = 75;
constexpr int kCannotStart = 127;
/// How long the other ranks get to end by themselves once one has failed.
constexpr std::chrono::seconds kGrace{15};
constexpr int kPassedOn[] = {SIGTERM, SIGINT, SIGUSR1, SIGHUP};

class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int descriptor) : descriptor_(descriptor) {}
  Descriptor(Descriptor&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(descriptor_, other.descriptor_);
    return *this;
  }
  ~Descriptor() { close(); }
  void close() {
    if (descriptor_ >= 0) ::close(descriptor_);
    descriptor_ = -1;
  }
  int get() const { return descriptor_; }

 private:
  int descriptor_ = -1;
};

struct Pipe {
  Descriptor read, write;
};

struct Stream {
  Descriptor pipe;
  RankOutput output;
};

struct Child {
  int rank;
  pid_t pid;
  Stream out, err;
  bool ended = false;
  bool killed = false;  ///< by us, because it would not end
};

std::vector<std::string> own_arguments() {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  std::vector<std::string> arguments;
  for (std::string argument; std::getline(file, argument, '\0');) arguments.push_back(argument);
  CONVOY_CHECK(!arguments.empty(), "ranks cannot be started: /proc/self/cmdline cannot be read; is /proc mounted?");
  return arguments;
}

/// The program's own path, so that `ps` shows its name; the link itself when the file was replaced meanwhile.
std::string own_program() {
  std::error_code error;
  const std::filesystem::path path = std::filesystem::read_symlink("/proc/self/exe", error);
  return error || !std::filesystem::exists(path, error) ? "/proc/self/exe" : path.string();
}

/// The environment of a rank: ours, with the variables by which join_ranks knows it.
std::vector<std::string> rank_environment(int rank, int ranks, const std::string& job) {
  std::vector<std::string> variables;
  for (char** variable = environ; *variable; ++variable) {
    if (std::strncmp(*variable, "CONVOY_RANK=", 12) != 0 && std::strncmp(*variable, "CONVOY_RANKS=", 13) != 0 &&
        std::strncmp(*variable, "CONVOY_JOB=", 11) != 0) {
      variables.emplace_back(*variable);
    }
  }
  variables.push_back(fmt::format("CONVOY_RANK={}", rank));
  variables.push_back(fmt::format("CONVOY_RANKS={}", ranks));
  variables.push_back("CONVOY_JOB=" + job);
  return variables;
}

std::vector<char*> pointers(std::vector<std::string>& strings) {
  std::vector<char*> result;
  for (std::string& string : strings) result.push_back(string.data());
  result.push_back(nullptr);
  return result;
}

class Launcher {
 public:
  Launcher(int ranks, LostOutput lost_output);
  ~Launcher();
  Launcher(const Launcher&) = delete;
  Launcher& operator=(const Launcher&) = delete;

  int run();

 private:
  Pipe make_pipe(int rank) const;
  void start(int rank);
  [[noreturn]] void become_rank(char* const* arguments, char* const* environment, int out, int err, int report);
  void handle_signals();
  void reap();
  void note_end(Child& child, int status);
  void kill_late();
  bool forward(Stream& stream);
  void say(const std::string& line) const { write_fully(STDERR_FILENO, line + "\n"); }
  int running() const;

  int ranks_;
  LostOutput lost_output_;
  pid_t own_pid_ = ::getpid();
  std::string job_ = random_token(), program_ = own_program();
  std::vector<std::string> arguments_ = own_arguments();
  sigset_t handled_, old_mask_, rank_mask_;
  struct sigaction old_child_action_, old_pipe_action_;
  Descriptor signals_, no_input_;
  HostMemory memory_;  ///< made here, so that no rank has to wait for another one's
  std::unique_ptr<Liveness> liveness_;
  std::vector<Child> children_;
  std::optional<Clock::time_point> kill_at_;
  bool failed_ = false, interrupted_ = false;
  int output_error_ = 0;  ///< of standard output, as errno
};

Launcher::Launcher(int ranks, LostOutput lost_output) : ranks_(ranks), lost_output_(lost_output) {
  rlimit files{};
  const rlim_t wanted = 2 * static_cast<rlim_t>(ranks) + 32;
  if (::getrlimit(RLIMIT_NOFILE, &files) == 0 && files.rlim_cur < wanted) {
    const rlim_t found = files.rlim_cur;
    files.rlim_cur = std::min(wanted, files.rlim_max);
    CONVOY_CHECK(files.rlim_cur == wanted && ::setrlimit(RLIMIT_NOFILE, &files) == 0,
                 "{} ranks need {} open files, and the limit is {} (ulimit -n)", ranks, wanted, found);
  }
  memory_ = HostMemory::create(job_, ranks);
  liveness_ = std::make_unique<Liveness>(memory_.liveness, Liveness::kObserver, ranks);
  no_input_ = Descriptor(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  CONVOY_CHECK(no_input_.get() >= 0, "ranks cannot be started: /dev/null: {}", std::strerror(errno));

  struct sigaction action {};
  action.sa_handler = SIG_DFL;  // a parent that ignored SIGCHLD would leave us without exit codes
  ::sigaction(SIGCHLD, &action, &old_child_action_);
  action.sa_handler = SIG_IGN;  // readers of the output that go away end no rank
  ::sigaction(SIGPIPE, &action, &old_pipe_action_);
  sigemptyset(&handled_);
  sigaddset(&handled_, SIGCHLD);
  for (const int signal : kPassedOn) {
    struct sigaction current {};
    ::sigaction(signal, nullptr, &current);
    const bool nohup = signal == SIGHUP && current.sa_handler == SIG_IGN;
    if (!nohup) sigaddset(&handled_, signal);
  }
  ::sigprocmask(SIG_BLOCK, &handled_, &old_mask_);
  rank_mask_ = old_mask_;
  for (const int signal : kHeldUntilJoined) sigaddset(&rank_mask_, signal);
  signals_ = Descriptor(::signalfd(-1, &handled_, SFD_CLOEXEC | SFD_NONBLOCK));
  if (signals_.get() < 0) {
    const int error = errno;
    ::sigprocmask(SIG_SETMASK, &old_mask_, nullptr);
    fail("ranks cannot be started: signalfd: {}", std::strerror(error));
  }
}

Launcher::~Launcher() {
  for (Child& child : children_) {
    if (child.ended) continue;
    ::kill(child.pid, SIGKILL);
    ::waitpid(child.pid, nullptr, 0);
  }
  // Ranks take the names away themselves as soon as all have met; those that died before cannot.
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/dev/shm", error)) {
    if (entry.path().filename().string().starts_with(HostMemory::prefix(job_)))
      std::filesystem::remove(entry.path(), error);
  }
  ::sigaction(SIGCHLD, &old_child_action_, nullptr);
  ::sigaction(SIGPIPE, &old_pipe_action_, nullptr);
  ::sigprocmask(SIG_SETMASK, &old_mask_, nullptr);
}

Pipe Launcher::make_pipe(int rank) const {
  int ends[2];
  CONVOY_CHECK(::pipe2(ends, O_CLOEXEC) == 0, "rank {} of {} could not be started: pipe: {}", rank, ranks_,
               std::strerror(errno));
  return {Descriptor(ends[0]), Descriptor(ends[1])};
}

void Launcher::start(int rank) {
  Pipe out = make_pipe(rank), err = make_pipe(rank), report = make_pipe(rank);
  std::vector<std::string> variables = rank_environment(rank, ranks_, job_);
  const std::vector<char*> arguments = pointers(arguments_), environment = pointers(variables);
  const pid_t pid = ::fork();
  CONVOY_CHECK(pid >= 0, "rank {} of {} could not be started: fork: {}{}", rank, ranks_, std::strerror(errno),
               errno == EAGAIN ? " (the limit of processes, ulimit -u or the container's, may be reached)" : "");
  if (pid == 0) {
    become_rank(arguments.data(), environment.data(), out.write.get(), err.write.get(), report.write.get());
  }
  ::setpgid(pid, pid);  // as the child does: whoever comes first
  const std::string prefix = rank == 0 ? "" : fmt::format("[{}] ", rank);
  children_.push_back({.rank = rank,
                       .pid = pid,
                       .out = {std::move(out.read), RankOutput(STDOUT_FILENO, prefix)},
                       .err = {std::move(err.read), RankOutput(STDERR_FILENO, prefix)}});
  report.write.close();
  int error = 0;
  ssize_t got;
  while ((got = ::read(report.read.get(), &error, sizeof error)) < 0 && errno == EINTR) continue;
  CONVOY_CHECK(got != sizeof error, "rank {} of {} could not be started: {}: {}", rank, ranks_, program_,
               std::strerror(error));
  for (const Descriptor* pipe : {&children_.back().out.pipe, &children_.back().err.pipe}) {
    ::fcntl(pipe->get(), F_SETFL, O_NONBLOCK);
  }
}

/// Between fork and exec: system calls only.
void Launcher::become_rank(char* const* arguments, char* const* environment, int out, int err, int report) {
  // A group of its own: Ctrl-C in a terminal reaches the launcher alone, which passes it on once.
  ::setpgid(0, 0);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != own_pid_) ::_exit(kCannotStart);  // the launcher was gone before prctl
  ::sigaction(SIGCHLD, &old_child_action_, nullptr);
  ::sigaction(SIGPIPE, &old_pipe_action_, nullptr);
  ::sigprocmask(SIG_SETMASK, &rank_mask_, nullptr);
  if (::dup2(no_input_.get(), STDIN_FILENO) >= 0 && ::dup2(out, STDOUT_FILENO) >= 0 &&
      ::dup2(err, STDERR_FILENO) >= 0) {
    ::execve(program_.c_str(), arguments, environment);
  }
  const int error = errno;
  [[maybe_unused]] const ssize_t written = ::write(report, &error, sizeof error);
  ::_exit(kCannotStart);
}

int Launcher::running() const {
  int count = 0;
  for (const Child& child : children_) count += !child.ended;
  return count;
}

int Launcher::run() {
  std::fflush(stdout);
  std::cout.flush();
  for (int rank = 0; rank < ranks_; ++rank) start(rank);

  std::vector<pollfd> watched;
  std::vector<Stream*> streams;
  while (running() > 0) {
    watched.assign(1, {signals_.get(), POLLIN, 0});
    streams.assign(1, nullptr);
    for (Child& child : children_) {
      for (Stream* stream : {&child.out, &child.err}) {
        if (stream->pipe.get() < 0) continue;
        watched.push_back({stream->pipe.get(), POLLIN, 0});
        streams.push_back(stream);
      }
    }
    int timeout = -1;
    if (kill_at_) {
      const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(*kill_at_ - Clock::now()).count();
      timeout = static_cast<int>(std::max<int64_t>(0, left + 1));
    }
    if (::poll(watched.data(), watched.size(), timeout) < 0) {
      CONVOY_CHECK(errno == EINTR, "waiting for the ranks: poll: {}", std::strerror(errno));
      continue;
    }
    for (size_t i = 1; i < watched.size(); ++i) {
      if (watched[i].revents) forward(*streams[i]);
    }
    if (watched[0].revents) handle_signals();
    kill_late();
  }
  if (!failed_ && output_error_ != 0 && lost_output_ == LostOutput::kIsError) {
    say(fmt::format("error: standard output cannot be written: {}", std::strerror(output_error_)));
    failed_ = true;
  }
  return failed_ ? 1 : interrupted_ ? kInterrupted : 0;
}

/// Passes on what is there. False when there is nothing now.
bool Launcher::forward(Stream& stream) {
  char buffer[64 << 10];
  const ssize_t got = ::read(stream.pipe.get(), buffer, sizeof buffer);
  if (got > 0) {
    stream.output.take({buffer, static_cast<size_t>(got)});
    return true;
  }
  if (got == 0 || (errno != EAGAIN && errno != EINTR)) {
    stream.output.flush();
    stream.pipe.close();
  }
  return false;
}

void Launcher::handle_signals() {
  signalfd_siginfo info;
  while (::read(signals_.get(), &info, sizeof info) == sizeof info) {
    const int signal = static_cast<int>(info.ssi_signo);
    if (signal == SIGCHLD) continue;
    for (const Child& child : children_) {
      if (!child.ended) ::kill(child.pid, signal);
    }
  }
  reap();
}

void Launcher::reap() {
  for (Child& child : children_) {
    int status = 0;
    if (child.ended || ::waitpid(child.pid, &status, WNOHANG) != child.pid) continue;
    child.ended = true;
    for (Stream* stream : {&child.out, &child.err}) {  // its last words, before ours about its end
      while (stream->pipe.get() >= 0 && forward(*stream)) continue;
      stream->output.flush();
      stream->pipe.close();
    }
    if (output_error_ == 0) output_error_ = child.out.output.error();
    note_end(child, status);
  }
}

void Launcher::note_end(Child& child, int status) {
  const bool exited = WIFEXITED(status);
  if (exited && WEXITSTATUS(status) == 0) return;
  if (exited && WEXITSTATUS(status) == kInterrupted) {
    interrupted_ = true;
    return;
  }
  if (!child.killed) {
    const int number = exited ? WEXITSTATUS(status) : WTERMSIG(status);
    const std::string end =
        exited ? fmt::format("rank {} (process {}) ended with exit code {}", child.rank, child.pid, number)
               : fmt::format("rank {} (process {}) was ended by signal {} ({}){}", child.rank, child.pid, number,
                             strsignal(number),
                             number == SIGKILL ? "; perhaps the system had no memory left, see dmesg" : "");
    // One that failed in order has said why itself.
    if (!exited || number != 1 || !failed_) say(end);
    // Those that have joined are missed by the others' watchdogs, which know more.
    if (liveness_->record(child.rank).process.pid == 0) liveness_->fail(end + " before it joined the others");
  }
  failed_ = true;
  if (!kill_at_) kill_at_ = Clock::now() + kGrace;
}

void Launcher::kill_late() {
  if (!kill_at_ || Clock::now() < *kill_at_) return;
  for (Child& child : children_) {
    if (child.ended || child.killed) continue;
    say(fmt::format("rank {} (process {}) is killed: it did not end within {} s of the first failure", child.rank,
                    child.pid, kGrace.count()));
    child.killed = true;
    ::kill(child.pid, SIGKILL);
  }
  kill_at_ = Clock::now() + kGrace;
}

}  // namespace

int start_ranks(int ranks, LostOutput lost_output) {
  CONVOY_CHECK(ranks >= 1, "the number of ranks must be at least 1, not {}", ranks);
  CONVOY_CHECK(!is_rank(), "this process is a rank already: either mpirun or --ranks starts the ranks, not both");
  return Launcher(ranks, lost_output).run();
}

}  // namespace convoy
