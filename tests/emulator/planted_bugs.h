// Kernels with one planted bug each: the emulator's self-test.
#pragma once
#include <vector>

namespace convoy::test {

struct PlantedBug {
  const char* name;
  /// Part of the checked flavour's report; nullptr for the control, which has no bug.
  const char* report;
  /// Found without the checker: by a wrong result, a deadlock or a launch limit.
  bool plain;
  /// Found by AddressSanitizer and the alignment and bounds sanitizers.
  bool asan;
  /// Launches the kernel. Throws when the launch reports a fault or the result is not a correct kernel's.
  void (*run)();
};

const std::vector<PlantedBug>& planted_bugs();

/// A sum of floats of very different size by atomicAdd from many blocks: its bits depend on the order of execution.
float float_atomic_sum();

}  // namespace convoy::test
