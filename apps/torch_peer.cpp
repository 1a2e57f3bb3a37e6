#include "apps/torch_peer.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <thread>

#include "engine/error.h"

namespace convoy {

namespace {

using Clock = std::chrono::steady_clock;

Clock::time_point in_seconds(double seconds) {
  return Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
}

/// Whether there is something to read by then.
bool readable(int fd, Clock::time_point deadline) {
  for (;;) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
    pollfd entry{.fd = fd, .events = POLLIN, .revents = 0};
    const int ready = poll(&entry, 1, static_cast<int>(std::clamp<int64_t>(left, 0, 60'000)));
    if (ready > 0) return true;
    if (left <= 0 && !(ready < 0 && errno == EINTR)) return false;
  }
}

}  // namespace

TorchPeer::TorchPeer(const std::vector<std::string>& command_line, double timeout_seconds)
    : program_(fmt::format("{}", fmt::join(command_line, " "))), timeout_seconds_(timeout_seconds) {
  std::signal(SIGPIPE, SIG_IGN);  // a peer that ends is noticed by its missing answer
  int to_peer[2], from_peer[2];   // closed on exec, or a second peer would keep the first one's input open
  CONVOY_CHECK(pipe2(to_peer, O_CLOEXEC) == 0 && pipe2(from_peer, O_CLOEXEC) == 0,
               "no pipe could be made for the PyTorch peer");
  std::vector<std::string> arguments = command_line;
  std::vector<char*> argv;
  for (std::string& a : arguments) argv.push_back(a.data());
  argv.push_back(nullptr);
  pid_ = fork();
  if (pid_ == 0) {
    dup2(to_peer[0], STDIN_FILENO);
    dup2(from_peer[1], STDOUT_FILENO);
    execvp(argv[0], argv.data());
    _exit(127);
  }
  close(to_peer[0]);
  close(from_peer[1]);
  to_ = to_peer[1], from_ = from_peer[0];
  CONVOY_CHECK(pid_ > 0, "the PyTorch peer could not be started");
  try {
    announcement_ = read_answer("its announcement");
  } catch (...) {
    end(0);
    throw;
  }
}

TorchPeer::~TorchPeer() {
  end(10);
}

void TorchPeer::end(double patience_seconds) {
  if (to_ >= 0) close(to_);
  if (from_ >= 0) close(from_);
  to_ = from_ = -1;
  if (pid_ <= 0) return;
  const auto deadline = in_seconds(patience_seconds);
  while (waitpid(pid_, nullptr, WNOHANG) == 0) {
    if (Clock::now() >= deadline) {
      kill(pid_, SIGKILL);
      waitpid(pid_, nullptr, 0);
      break;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  pid_ = -1;
}

nlohmann::json TorchPeer::ask(const std::string& command) {
  const std::string line = command + "\n";
  CONVOY_CHECK(to_ >= 0 && write(to_, line.data(), line.size()) == static_cast<ssize_t>(line.size()),
               "the PyTorch peer takes no command '{}' any more; run it by hand to see why: {}", command, program_);
  return read_answer(command);
}

nlohmann::json TorchPeer::read_answer(const std::string& what) {
  const auto deadline = in_seconds(timeout_seconds_);
  size_t end_of_line;
  while ((end_of_line = received_.find('\n')) == std::string::npos) {
    if (!readable(from_, deadline)) {
      end(0);
      fail("the PyTorch peer has not answered '{}' within {} s and was ended: {}", what, timeout_seconds_, program_);
    }
    char buffer[4096];
    const ssize_t count = read(from_, buffer, sizeof(buffer));
    if (count < 0 && errno == EINTR) continue;
    CONVOY_CHECK(count > 0, "the PyTorch peer ended instead of answering '{}'; run it by hand to see why: {}", what,
                 program_);
    received_.append(buffer, static_cast<size_t>(count));
  }
  const std::string line = received_.substr(0, end_of_line);
  received_.erase(0, end_of_line + 1);
  nlohmann::json answer = nlohmann::json::parse(line, nullptr, false);
  CONVOY_CHECK(answer.is_object(), "the PyTorch peer answered '{}' with '{}', which is no JSON object", what,
               line.substr(0, 200));
  CONVOY_CHECK(!answer.contains("error"), "the PyTorch peer answered '{}' with an error: {}", what,
               answer.at("error").dump());
  return answer;
}

}  // namespace convoy
