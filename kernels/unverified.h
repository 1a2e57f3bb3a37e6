// Device code that no check on the CPU has run: what only a GPU can run, where the emulator takes another path.
#pragma once
#include <string>
#include <vector>

namespace convoy {

/// "kernel: what is not checked", one line each; `convoy --version` shows them. A kernel with a path for GPUs alone
/// adds its line here.
inline std::vector<std::string> unverified_device_paths() {
  return {};
}

}  // namespace convoy
