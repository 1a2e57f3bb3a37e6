// Values between text and schema: what a YAML node or a command-line word means by Python's literal rules.
#pragma once
#include <cstdint>
#include <string>
#include <variant>
#include <vector>

namespace convoy {

/// None, True/False, an integer, a real number, text, or a list (a tuple is a list).
struct ConfigValue {
  using List = std::vector<ConfigValue>;
  struct None {};

  std::variant<None, bool, int64_t, double, std::string, List> content;
  std::string source;  ///< as written, for text fields and messages

  template <class T>
  const T* get_if() const {
    return std::get_if<T>(&content);
  }
  bool is_none() const { return std::holds_alternative<None>(content); }
};

/// Python's literal_eval for None, booleans, numbers, quoted text, tuples and lists; anything else is the text itself.
ConfigValue parse_python_literal(const std::string& text);

/// A plain (unquoted) YAML scalar: YAML 1.1 null and booleans, else as parse_python_literal.
ConfigValue parse_plain_scalar(const std::string& text);

/// "the text 'abc'", "the list [1, 2]", ... for messages.
std::string describe(const ConfigValue& value);

}  // namespace convoy
