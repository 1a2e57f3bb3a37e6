#include "io/log.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <ctime>

#include "engine/error.h"

namespace convoy {
namespace {

const char* level_name(LogLevel level) {
  return level == LogLevel::kInfo ? "INFO" : level == LogLevel::kWarning ? "WARNING" : "ERROR";
}

// A log that cannot be written (closed pipe, full disk) must not stop the training it reports on.
void write_line(int descriptor, const std::string& line) {
  size_t done = 0;
  while (done < line.size()) {
    const ssize_t now = ::write(descriptor, line.data() + done, line.size() - done);
    if (now < 0 && errno == EINTR) continue;
    if (now <= 0) return;
    done += static_cast<size_t>(now);
  }
}

}  // namespace

std::string timestamp() {
  const auto now = std::chrono::system_clock::now();
  const std::time_t seconds = std::chrono::system_clock::to_time_t(now);
  const auto whole = std::chrono::duration_cast<std::chrono::milliseconds>(now.time_since_epoch()).count();
  std::tm local{};
  ::localtime_r(&seconds, &local);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%d %H:%M:%S", &local);
  return fmt::format("{}.{:03d}", text, whole % 1000);
}

Log::Log(const std::filesystem::path& file) {
  descriptor_ = ::open(file.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  if (descriptor_ < 0) fail("{}: cannot be opened for writing: {}", file.string(), std::strerror(errno));
}

Log::~Log() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

void Log::write(LogLevel level, std::string_view message) {
  if (level < lowest_) return;
  const std::string line = fmt::format("{} {} {}\n", timestamp(), level_name(level), message);
  const std::lock_guard guard(mutex_);
  if (console_) write_line(level == LogLevel::kInfo ? STDOUT_FILENO : STDERR_FILENO, line);
  if (descriptor_ >= 0) write_line(descriptor_, line);
}

}  // namespace convoy
