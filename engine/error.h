// Errors. A message names the thing at fault, what was found and what to do; nothing is reported by a bare code.
#pragma once
#include <fmt/format.h>

#include <stdexcept>
#include <string>

namespace convoy {

/// Thrown for everything a user or caller can put right: bad input, a full disk, a wrong key.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Throws Error with a formatted message.
template <class... Args>
[[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) {
  throw Error(fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace convoy

/// Throws convoy::Error with the formatted message unless `condition` holds.
#define CONVOY_CHECK(condition, ...)               \
  do {                                             \
    if (!(condition)) ::convoy::fail(__VA_ARGS__); \
  } while (false)
