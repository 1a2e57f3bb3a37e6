// Small programs on several streams, each with one planted bug and its corrected twin.
#pragma once
#include <string>
#include <vector>

namespace convoy::test {

struct StreamBug {
  const char* name;
  /// The checker finds it by the order of streams alone, however the work was executed.
  bool by_order;
  /// Runs the program, with the bug or corrected. False when its result is wrong; throws when the runtime or the
  /// checker reports a fault.
  bool (*run)(bool corrected);
};

const std::vector<StreamBug>& stream_bugs();

/// Launches a kernel that waits at a barrier which half of its threads do not reach, does something else and
/// synchronises. The messages of all calls from the first that fails on; `line`: where the launch stands.
std::vector<std::string> deferred_fault(int& line);

}  // namespace convoy::test
