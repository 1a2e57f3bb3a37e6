#include "io/event_writer.h"

#include <catch2/catch.hpp>
#include <cstring>
#include <map>
#include <variant>
#include <vector>

#include "engine/error.h"
#include "io/checksum.h"
#include "temporary_directory.h"

using namespace convoy;
namespace fs = std::filesystem;

namespace {

template <class T>
T take(std::string_view& in) {
  REQUIRE(in.size() >= sizeof(T));
  T value;
  std::memcpy(&value, in.data(), sizeof(T));
  in.remove_prefix(sizeof(T));
  return value;
}

uint64_t take_varint(std::string_view& in) {
  uint64_t value = 0;
  for (int shift = 0;; shift += 7) {
    const auto byte = take<uint8_t>(in);
    value |= static_cast<uint64_t>(byte & 0x7f) << shift;
    if (!(byte & 0x80)) return value;
  }
}

using Field = std::variant<uint64_t, double, float, std::string>;

std::map<int, Field> parse_message(std::string_view in) {
  std::map<int, Field> fields;
  while (!in.empty()) {
    const uint64_t key = take_varint(in);
    Field value;
    switch (key & 7) {
      case 0:
        value = take_varint(in);
        break;
      case 1:
        value = take<double>(in);
        break;
      case 5:
        value = take<float>(in);
        break;
      default: {
        REQUIRE((key & 7) == 2);
        const uint64_t size = take_varint(in);
        REQUIRE(size <= in.size());
        value = std::string(in.substr(0, size));
        in.remove_prefix(size);
      }
    }
    REQUIRE(fields.emplace(static_cast<int>(key >> 3), value).second);
  }
  return fields;
}

std::vector<std::map<int, Field>> read_events(const fs::path& path) {
  const std::string bytes = slurp(path);
  std::string_view in = bytes;
  std::vector<std::map<int, Field>> events;
  while (!in.empty()) {
    const auto length = take<uint64_t>(in);
    CHECK(take<uint32_t>(in) == masked_crc32c(&length, 8));
    REQUIRE(length <= in.size());
    const std::string data(in.substr(0, length));
    in.remove_prefix(length);
    CHECK(take<uint32_t>(in) == masked_crc32c(data.data(), data.size()));
    events.push_back(parse_message(data));
  }
  return events;
}

}  // namespace

TEST_CASE("event files are TFRecords of Event messages") {
  // The masking of the TFRecord format, from its definition ((crc >> 15 | crc << 17) + 0xa282ead8).
  const uint32_t crc = 0xE3069283u;
  CHECK(masked_crc32c("123456789", 9) == static_cast<uint32_t>(((crc >> 15) | (crc << 17)) + 0xa282ead8u));

  TemporaryDirectory directory;
  fs::path path;
  {
    EventWriter writer(directory / "events");
    path = writer.path();
    writer.add_scalar("train/loss", 0.75, 300);
    writer.add_scalar(std::string(200, 't'), -1e-9, int64_t{1} << 40);
  }
  CHECK_THAT(path.filename().string(), Catch::StartsWith("events.out.tfevents."));
  const auto events = read_events(path);
  REQUIRE(events.size() == 3);
  CHECK(std::get<std::string>(events[0].at(3)) == "brain.Event:2");
  CHECK(std::get<double>(events[1].at(1)) > 1.6e9);
  CHECK(std::get<uint64_t>(events[1].at(2)) == 300);
  const auto value_of = [&](size_t i) {
    const auto summary = parse_message(std::get<std::string>(events[i].at(5)));
    return parse_message(std::get<std::string>(summary.at(1)));
  };
  CHECK(std::get<std::string>(value_of(1).at(1)) == "train/loss");
  CHECK(std::get<float>(value_of(1).at(2)) == 0.75f);
  CHECK(std::get<std::string>(value_of(2).at(1)) == std::string(200, 't'));
  CHECK(std::get<float>(value_of(2).at(2)) == -1e-9f);
  CHECK(std::get<uint64_t>(events[2].at(2)) == uint64_t{1} << 40);
}

TEST_CASE("a run that goes on says so in a new event file") {
  TemporaryDirectory directory;
  const EventWriter first(directory.path());
  const EventWriter second(directory.path(), 50);
  CHECK(first.path() != second.path());
  CHECK(first.path().filename() < second.path().filename());
  const auto events = read_events(second.path());
  REQUIRE(events.size() == 2);
  CHECK(std::get<uint64_t>(events[1].at(2)) == 50);
  CHECK(std::get<uint64_t>(parse_message(std::get<std::string>(events[1].at(7))).at(1)) == 1);
  spill(directory / "file", "");
  CHECK_THROWS_WITH(EventWriter(directory / "file/x"), Catch::Contains("file/x"));
}
