// The functions that GCC calls in code compiled with -fsanitize=thread,alignment,bounds,signed-integer-overflow,shift,
// defined here in place of libtsan and libubsan. Names and argument layouts are those of the compiler's interface.
#include <string>

#include "kernels/emulator/check.h"
#include "kernels/emulator/device_language.h"

using convoy::emulator::check_access;
using convoy::emulator::fail;

namespace {

struct Location {
  const char* file;
  unsigned line, column;
};
struct TypeName {
  uint16_t kind, info;
  char name[1];
};
struct TypeMismatch {
  Location location;
  const TypeName* type;
  unsigned char log_align, kind;
};
struct OutOfBounds {
  Location location;
  const TypeName *array, *index;
};
struct Overflow {
  Location location;
  const TypeName* type;
};

std::string at(const Location& l) {
  return std::string("\n  at ") + l.file + ":" + std::to_string(l.line);
}

}  // namespace

#define CALLER_PC reinterpret_cast<uintptr_t>(__builtin_return_address(0))
#define ACCESS_HOOKS(n)                          \
  void __tsan_read##n(void* p) {                 \
    check_access(p, n, false, false, CALLER_PC); \
  }                                              \
  void __tsan_write##n(void* p) {                \
    check_access(p, n, true, false, CALLER_PC);  \
  }                                              \
  void __tsan_unaligned_read##n(void* p) {       \
    check_access(p, n, false, false, CALLER_PC); \
  }                                              \
  void __tsan_unaligned_write##n(void* p) {      \
    check_access(p, n, true, false, CALLER_PC);  \
  }                                              \
  void __tsan_volatile_read##n(void* p) {        \
    check_access(p, n, false, true, CALLER_PC);  \
  }                                              \
  void __tsan_volatile_write##n(void* p) {       \
    check_access(p, n, true, true, CALLER_PC);   \
  }

extern "C" {
ACCESS_HOOKS(1)
ACCESS_HOOKS(2)
ACCESS_HOOKS(4)
ACCESS_HOOKS(8)
ACCESS_HOOKS(16)
void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_read_range(void* p, size_t n) {
  check_access(p, n, false, false, CALLER_PC);
}
void __tsan_write_range(void* p, size_t n) {
  check_access(p, n, true, false, CALLER_PC);
}
void __tsan_vptr_update(void**, void*) {}
void __tsan_vptr_read(void**) {}
// The guard of a local static of a launcher.
uint8_t __tsan_atomic8_load(const volatile uint8_t* p, int) {
  return __atomic_load_n(p, __ATOMIC_SEQ_CST);
}

void __ubsan_handle_type_mismatch_v1(TypeMismatch* m, uintptr_t address) {
  const uintptr_t align = uintptr_t{1} << m->log_align;
  if (address % align == 0) fail("null pointer access" + at(m->location));
  fail("misaligned access: type " + std::string(m->type->name) + " needs " + std::to_string(align) +
       "-byte alignment, address is " + std::to_string(address % align) + " bytes off" + at(m->location));
}
void __ubsan_handle_out_of_bounds(OutOfBounds* d, uintptr_t index) {
  fail("index " + std::to_string(static_cast<long>(index)) + " is out of bounds for " + d->array->name +
       at(d->location));
}
void __ubsan_handle_add_overflow(Overflow* d, uintptr_t, uintptr_t) {
  fail("signed overflow in addition" + at(d->location));
}
void __ubsan_handle_sub_overflow(Overflow* d, uintptr_t, uintptr_t) {
  fail("signed overflow in subtraction" + at(d->location));
}
void __ubsan_handle_mul_overflow(Overflow* d, uintptr_t, uintptr_t) {
  fail("signed overflow in multiplication" + at(d->location));
}
void __ubsan_handle_divrem_overflow(Overflow* d, uintptr_t, uintptr_t) {
  fail("division by zero or signed overflow in division" + at(d->location));
}
void __ubsan_handle_negate_overflow(Overflow* d, uintptr_t) {
  fail("signed overflow in negation" + at(d->location));
}
void __ubsan_handle_shift_out_of_bounds(Overflow* d, uintptr_t, uintptr_t) {
  fail("shift out of bounds" + at(d->location));
}
}
