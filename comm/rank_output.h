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

 private:
  void write_line(std::string_view line);

  int descriptor_;
  std::string prefix_, pending_, line_;
};

/// Writes everything, also to a descriptor that is full for now; gives up silently when nobody reads any more.
void write_fully(int descriptor, std::string_view bytes);

}  // namespace convoy
