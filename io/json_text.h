// JSON as text, whatever the bytes in it.
#pragma once
#include <string>

namespace convoy {

/// The text of an nlohmann JSON value, on one line or, with `indent` >= 0, on several. Names of files are any bytes to
/// the system; those that are not UTF-8 become U+FFFD, so that a name cannot end a command.
template <class Json>
std::string json_text(const Json& json, int indent = -1) {
  return json.dump(indent, ' ', false, Json::error_handler_t::replace);
}

}  // namespace convoy
