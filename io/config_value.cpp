#include "io/config_value.h"

#include <fmt/format.h>

#include <cctype>
#include <charconv>
#include <cmath>
#include <optional>

namespace convoy {
namespace {

/// Nesting deeper than this is text, not a literal.
constexpr int kMaxDepth = 16;

/// Recursive descent over one literal; an empty result means "not a literal".
class LiteralParser {
 public:
  explicit LiteralParser(const std::string& text) : text_(text) {}

  std::optional<ConfigValue> parse() {
    std::optional<ConfigValue> value = parse_item(0);
    skip_space();
    if (value && !at_end() && text_[position_] == ',') value = parse_bare_tuple(*value);
    skip_space();
    return at_end() ? value : std::nullopt;
  }

 private:
  bool at_end() const { return position_ == text_.size(); }
  void skip_space() {
    while (!at_end() && std::isspace(static_cast<unsigned char>(text_[position_]))) ++position_;
  }

  std::optional<ConfigValue> parse_bare_tuple(ConfigValue first) {
    ConfigValue::List items = {std::move(first)};
    while (!at_end() && text_[position_] == ',') {
      ++position_;
      skip_space();
      if (at_end()) break;
      std::optional<ConfigValue> item = parse_item(1);
      if (!item) return std::nullopt;
      items.push_back(std::move(*item));
      skip_space();
    }
    return ConfigValue{std::move(items), text_};
  }

  std::optional<ConfigValue> parse_item(int depth) {
    skip_space();
    if (at_end() || depth > kMaxDepth) return std::nullopt;
    const char c = text_[position_];
    if (c == '(' || c == '[') return parse_list(c == '(' ? ')' : ']', depth);
    if (c == '\'' || c == '"') return parse_quoted(c);
    return parse_word();
  }

  std::optional<ConfigValue> parse_list(char closing, int depth) {
    const size_t start = position_++;
    ConfigValue::List items;
    bool comma = false;
    for (;;) {
      skip_space();
      if (at_end()) return std::nullopt;
      if (text_[position_] == closing) break;
      if (!items.empty() && !comma) return std::nullopt;
      std::optional<ConfigValue> item = parse_item(depth + 1);
      if (!item) return std::nullopt;
      items.push_back(std::move(*item));
      skip_space();
      comma = !at_end() && text_[position_] == ',';
      if (comma) ++position_;
    }
    ++position_;
    if (closing == ')' && items.size() == 1 && !comma) return items[0];  // (x) is x, (x,) is a tuple
    return ConfigValue{std::move(items), text_.substr(start, position_ - start)};
  }

  std::optional<ConfigValue> parse_quoted(char quote) {
    const size_t start = ++position_;
    const size_t end = text_.find(quote, start);
    if (end == std::string::npos || text_.substr(start, end - start).find('\\') != std::string::npos)
      return std::nullopt;
    position_ = end + 1;
    const std::string content = text_.substr(start, end - start);
    return ConfigValue{content, content};
  }

  std::optional<ConfigValue> parse_word() {
    const size_t start = position_;
    while (!at_end() && !std::isspace(static_cast<unsigned char>(text_[position_])) &&
           std::string_view(",()[]'\"").find(text_[position_]) == std::string_view::npos) {
      ++position_;
    }
    const std::string word = text_.substr(start, position_ - start);
    if (word == "None") return ConfigValue{ConfigValue::None{}, word};
    if (word == "True" || word == "False") return ConfigValue{word == "True", word};
    return parse_number(word);
  }

  static std::optional<ConfigValue> parse_number(const std::string& word) {
    std::string digits;
    for (size_t i = 0; i < word.size(); ++i) {
      const bool separator = word[i] == '_' && i > 0 && i + 1 < word.size() &&
                             std::isdigit(static_cast<unsigned char>(word[i - 1])) &&
                             std::isdigit(static_cast<unsigned char>(word[i + 1]));
      if (!separator) digits += word[i];
    }
    const char* first = digits.data();
    const char* last = first + digits.size();
    if (first != last && *first == '+') ++first;
    const char* body = first != last && *first == '-' && first == digits.data() ? first + 1 : first;
    if (body == last || !(std::isdigit(static_cast<unsigned char>(*body)) || *body == '.')) return std::nullopt;
    int64_t integer = 0;
    if (const auto [end, error] = std::from_chars(first, last, integer); error == std::errc() && end == last) {
      return ConfigValue{integer, word};
    }
    double real = 0;
    if (const auto [end, error] = std::from_chars(first, last, real); error == std::errc() && end == last) {
      return ConfigValue{real, word};
    }
    return std::nullopt;
  }

  const std::string& text_;
  size_t position_ = 0;
};

}  // namespace

ConfigValue parse_python_literal(const std::string& text) {
  std::optional<ConfigValue> value = LiteralParser(text).parse();
  if (!value) return {text, text};
  value->source = text;
  return std::move(*value);
}

ConfigValue parse_plain_scalar(const std::string& text) {
  for (const char* null : {"", "~", "null", "Null", "NULL"}) {
    if (text == null) return {ConfigValue::None{}, text};
  }
  for (const char* yes : {"true", "True", "TRUE", "yes", "Yes", "YES", "on", "On", "ON"}) {
    if (text == yes) return {true, text};
  }
  for (const char* no : {"false", "False", "FALSE", "no", "No", "NO", "off", "Off", "OFF"}) {
    if (text == no) return {false, text};
  }
  return parse_python_literal(text);
}

namespace {

/// The text, or its start where it is longer than a message should be.
std::string shortened(const std::string& text) {
  constexpr size_t kShown = 200;
  return text.size() <= kShown ? text : fmt::format("{}... ({} characters)", text.substr(0, kShown), text.size());
}

}  // namespace

std::string describe(const ConfigValue& value) {
  if (value.is_none()) return "None";
  if (const bool* flag = value.get_if<bool>()) return *flag ? "True" : "False";
  if (value.get_if<int64_t>()) return fmt::format("the integer {}", shortened(value.source));
  if (value.get_if<double>()) return fmt::format("the number {}", shortened(value.source));
  if (const std::string* text = value.get_if<std::string>()) return fmt::format("the text '{}'", shortened(*text));
  return fmt::format("the list {}", shortened(value.source));
}

}  // namespace convoy
