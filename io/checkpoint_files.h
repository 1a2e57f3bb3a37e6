// What is on the disk of a checkpoints directory; shared by the writer and the reader of checkpoints.
#pragma once
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string_view>
#include <vector>

namespace convoy {

constexpr const char* kTensorsFile = "tensors.safetensors";
constexpr const char* kStateFile = "state.json";
constexpr const char* kBestFile = "best.json";
constexpr const char* kCheckpointFormat = "convoy-checkpoint";
constexpr int kCheckpointVersion = 1;
constexpr int kMaxMetaDepth = 64;  ///< nesting of objects and arrays in CheckpointState::meta

/// The steps of the complete checkpoints (names only, nothing is opened), ascending; empty without the directory.
std::vector<int64_t> list_steps(const std::filesystem::path& checkpoints_directory);

/// The text of a JSON object with its own checksum in the key "crc64".
std::string seal_json(nlohmann::json object);

/// The object back, without "crc64". Throws Error naming `path` when the text is not such an object.
nlohmann::json open_sealed_json(std::string_view text, const std::filesystem::path& path);

/// Sixteen hexadecimal digits.
std::string crc64_text(uint64_t crc);

}  // namespace convoy
