// The device of tests that run on any: CONVOY_TEST_DEVICE=cpu|emulated in the environment, cpu without it. Such test
// cases carry the tag [device].
#pragma once
#include <cstdlib>
#include <stdexcept>
#include <string>

#include "engine/context.h"

namespace convoy::test {

inline DeviceKind test_device() {
  const char* name = std::getenv("CONVOY_TEST_DEVICE");
  if (!name || std::string(name) == "cpu") return DeviceKind::kCpu;
  if (std::string(name) == "emulated") return DeviceKind::kEmulated;
  throw std::runtime_error(std::string("CONVOY_TEST_DEVICE is cpu or emulated, not ") + name);
}

inline ContextOptions on_test_device(ContextOptions options = {}) {
  options.device = test_device();
  return options;
}

}  // namespace convoy::test
