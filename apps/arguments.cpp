#include <charconv>
#include <fstream>

#include "apps/commands.h"
#include "engine/error.h"

namespace convoy {

std::vector<std::string> command_line() {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  std::vector<std::string> words;
  for (std::string word; std::getline(file, word, '\0');) words.push_back(word);
  return words;
}

ConfigArguments::ConfigArguments(CLI::App& command) : command_(command) {
  command.add_option("--config-file", file_, "recipe in YAML")->type_name("FILE");
  // CLI11 would take lists in brackets apart, so the pairs are left to overrides().
  command.allow_extras();
  command.footer(
      "KEY VALUE ... behind the options override the recipe, as in SOLVER.LR 0.01 TRAIN.CROP_SIZE \"(128, 256)\".");
}

std::vector<std::string> ConfigArguments::overrides() const {
  const std::vector<std::string> words = command_.remaining();
  for (const std::string& word : words) {
    if (!word.starts_with("--")) continue;
    std::vector<std::string> known;
    for (const CLI::Option* option : command_.get_options())
      for (const std::string& name : option->get_lnames()) known.push_back("--" + name);
    fail("{}: unknown option {}; the nearest is {}", command_.get_name(), word, nearest_name(word, known));
  }
  CONVOY_CHECK(words.size() % 2 == 0, "overrides come in pairs KEY VALUE; '{}' at the end has no value", words.back());
  return words;
}

Config ConfigArguments::load(const std::vector<std::string>& more) const {
  std::vector<std::string> pairs = overrides();
  pairs.insert(pairs.end(), more.begin(), more.end());
  return load_config(file_, pairs);
}

ContextArguments::ContextArguments(CLI::App& command) {
  command.add_option("--device", device_, "cpu")->capture_default_str();
  command.add_option("--precision", precision_, "fp32")->capture_default_str();
  command.add_option("--threads", threads_, "compute threads; 0: all cores this process may use")
      ->capture_default_str()
      ->check(CLI::Range(0, 4096));
  command.add_flag("--direct-conv", direct_conv_, "dense convolutions by the plain kernel");
  command.add_flag("--check-values", check_values_, "look for NaN and infinity after every operator");
}

ContextOptions ContextArguments::options() const {
  if (device_ == "cuda" || device_ == "emulated") fail("--device {} is not in this build; use cpu", device_);
  CONVOY_CHECK(device_ == "cpu", "--device {}: unknown device; known are cpu, cuda and emulated, this build has cpu",
               device_);
  CONVOY_CHECK(precision_ == "fp32", "--precision {}: not available yet; use fp32", precision_);
  return {.threads = threads_, .direct_conv = direct_conv_, .check_values = check_values_};
}

SizeHW parse_size(const std::string& text) {
  SizeHW size;
  const char* end = text.data() + text.size();
  const auto height = std::from_chars(text.data(), end, size.height);
  CONVOY_CHECK(height.ec == std::errc() && height.ptr != end && *height.ptr == 'x',
               "'{}' is no size; write HEIGHTxWIDTH, as in 128x256", text);
  const auto width = std::from_chars(height.ptr + 1, end, size.width);
  CONVOY_CHECK(width.ec == std::errc() && width.ptr == end && size.height > 0 && size.width > 0,
               "'{}' is no size; write HEIGHTxWIDTH, as in 128x256", text);
  constexpr int64_t kMaxSide = 32768;
  CONVOY_CHECK(size.height <= kMaxSide && size.width <= kMaxSide,
               "the size {} is too large; a side has at most {} pixels", text, kMaxSide);
  return size;
}

}  // namespace convoy
