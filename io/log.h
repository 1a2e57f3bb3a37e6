// A run's log: lines with time and level, to the console and to a file.
#pragma once
#include <fmt/format.h>

#include <filesystem>
#include <mutex>
#include <string_view>

namespace convoy {

enum class LogLevel { kInfo, kWarning, kError };

/// Writes "2026-01-31 14:05:09.123 INFO message" lines; may be used from several threads. Info goes to stdout, warnings
/// and errors to stderr, everything to the file where there is one. Each line is one write, so that lines of several
/// processes never mix and nothing is lost when the process is killed.
class Log {
 public:
  Log() = default;
  /// Appends to `file`. Throws Error when it cannot be opened.
  explicit Log(const std::filesystem::path& file);
  ~Log();
  Log(const Log&) = delete;
  Log& operator=(const Log&) = delete;

  template <class... Args>
  void info(fmt::format_string<Args...> format, Args&&... args) {
    write(LogLevel::kInfo, fmt::format(format, std::forward<Args>(args)...));
  }
  template <class... Args>
  void warning(fmt::format_string<Args...> format, Args&&... args) {
    write(LogLevel::kWarning, fmt::format(format, std::forward<Args>(args)...));
  }
  template <class... Args>
  void error(fmt::format_string<Args...> format, Args&&... args) {
    write(LogLevel::kError, fmt::format(format, std::forward<Args>(args)...));
  }
  void write(LogLevel level, std::string_view message);

  /// false: to the file only.
  void set_console(bool on) { console_ = on; }
  /// Drops lines of lower levels.
  void set_lowest(LogLevel level) { lowest_ = level; }

 private:
  std::mutex mutex_;
  int descriptor_ = -1;
  bool console_ = true;
  LogLevel lowest_ = LogLevel::kInfo;
};

/// Local time now, "2026-01-31 14:05:09.123".
std::string timestamp();

}  // namespace convoy
