// The checker's entry, called by the hooks that the compiler puts at every load and store (check_hooks.cpp).
#pragma once
#include <cstddef>
#include <cstdint>

namespace convoy::emulator {

/// A kernel's access to [address, address + bytes) from the instruction at `pc`. Ends the kernel on a fault.
void check_access(const void* address, size_t bytes, bool write, bool atomic, uintptr_t pc);

}  // namespace convoy::emulator
