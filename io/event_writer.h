// TensorBoard event files: scalars over steps.
#pragma once
#include <filesystem>
#include <string>
#include <string_view>

namespace convoy {

/// Writes one events.out.tfevents.* file in `directory`: TFRecords (length, masked CRC-32C, data, masked CRC-32C) of
/// Event messages (tensorflow/core/util/event.proto). Each record is one write.
class EventWriter {
 public:
  /// `first_step` > 0 says that the run goes on from there: TensorBoard then drops what older files have from it on.
  explicit EventWriter(const std::filesystem::path& directory, int64_t first_step = 0);
  ~EventWriter();
  EventWriter(const EventWriter&) = delete;
  EventWriter& operator=(const EventWriter&) = delete;

  /// Throws Error when it cannot be written.
  void add_scalar(std::string_view tag, double value, int64_t step);

  const std::filesystem::path& path() const { return path_; }

 private:
  void write_record(const std::string& data);

  std::filesystem::path path_;
  int descriptor_ = -1;
};

}  // namespace convoy
