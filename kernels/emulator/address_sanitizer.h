// AddressSanitizer's calls, empty in the other flavours.
#pragma once
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#define CONVOY_ASAN 1
#else
#define CONVOY_ASAN 0
#define ASAN_POISON_MEMORY_REGION(p, n) (static_cast<void>(0))
#define ASAN_UNPOISON_MEMORY_REGION(p, n) (static_cast<void>(0))
#endif
