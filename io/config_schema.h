// The schema: every key with the field of Config it sets. config.cpp reads and writes through this table alone.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "io/config.h"
#include "io/config_value.h"

namespace convoy {

struct ConfigField {
  std::string key;       ///< "TRAIN.CROP_SIZE"
  std::string expected;  ///< "an integer or (height, width)"
  /// Sets the field; false where the value is not of the expected kind or outside its range.
  std::function<bool(Config&, const ConfigValue&)> set;
  std::function<std::string(const Config&)> dump;  ///< the value as YAML
  std::vector<std::string> choices;                ///< of a key whose value is one of a few words
  std::string note;                                ///< why the key has no effect; empty for keys that have one
};

/// All keys, in the order in which they are dumped.
const std::vector<ConfigField>& config_schema();

/// Second spellings of keys: {"MODEL.DEEPLABV3_PLUS.ENCODER_WITH_ASPP", "MODEL.DEEPLABV3_PLUS.USE_ASPP"}.
const std::vector<std::pair<std::string, std::string>>& config_key_aliases();

}  // namespace convoy
