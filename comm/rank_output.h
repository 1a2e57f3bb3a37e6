// What the ranks of our own launcher print, merged line by line.
#pragma once
#include <string>
#include <string_view>

namespace convoy {

/// One stream of one rank: takes the bytes as they come and writes complete lines to a descriptor, each with the
/// prefix and in one write, so that lines of different ranks never mix.
class RankOutput {
 public:
  /// Longer lines come out in pieces of this many bytes, each as a line.
  static constexpr size_t kLongestLine = size_t{1} << 20;

  RankOutput(int descriptor, std::string prefix) : descriptor_(descriptor), prefix_(std::move(prefix)) {}
  void take(std::string_view bytes);
  /// Writes what came without a newline at its end.
  void flush();
  /// The error number of the first line that could not be written; 0: none was lost.
  int error() const { return error_; }

 private:
  void write_line(std::string_view line);

  int descriptor_, error_ = 0;
  std::string prefix_, pending_, line_;
};

/// Writes everything, also to a descriptor that is full for now. Returns 0, or the error number where that cannot be
/// done: nobody reads any more (the caller ignores SIGPIPE), or a disk is full.
int write_fully(int descriptor, std::string_view bytes);

}  // namespace convoy
