#include "io/safetensors.h"
#include "io/tensor_values.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <random>

#include "engine/error.h"
#include "io/checksum.h"
#include "io/weights_file.h"
#include "temporary_directory.h"
#include "tensors.h"

using namespace convoy;

namespace {

std::string file_with(const std::string& header, size_t value_bytes) {
  const uint64_t length = header.size();
  std::string file(reinterpret_cast<const char*>(&length), 8);
  return file + header + std::string(value_bytes, '\1');
}

const ElementType kAll[] = {ElementType::kF32, ElementType::kF16, ElementType::kBF16, ElementType::kF64,
                            ElementType::kI64, ElementType::kI32, ElementType::kU8};

std::vector<NamedTensor> one_of_each() {
  std::vector<NamedTensor> tensors;
  uint32_t seed = 1;
  for (ElementType dtype : kAll) {
    tensors.push_back(random_tensor(std::string("layer.") + element_name(dtype), dtype, {3, 1, 5}, seed++));
    tensors.push_back(random_tensor(std::string("scalar.") + element_name(dtype), dtype, {}, seed++));
    tensors.push_back(random_tensor(std::string("empty.") + element_name(dtype), dtype, {2, 0, 3}, seed++));
  }
  return tensors;
}

}  // namespace

TEST_CASE("checksums have their published check values") {
  CHECK(crc64("123456789", 9) == 0x995DC9BBDF1939FAu);
  CHECK(crc32c("123456789", 9) == 0xE3069283u);
  const std::string text = "a checksum taken in parts equals the one of the whole";
  for (size_t cut = 0; cut <= text.size(); ++cut)
    CHECK(crc64(text.data() + cut, text.size() - cut, crc64(text.data(), cut)) == crc64(text.data(), text.size()));
}

TEST_CASE("safetensors round trip of every element type") {
  TemporaryDirectory directory;
  const auto tensors = one_of_each();
  const auto written = write_safetensors(directory / "a.safetensors", tensors, {{"format", "pt"}, {"note", "ä \"b\""}});
  const std::string bytes = slurp(directory / "a.safetensors");
  CHECK(written.bytes == bytes.size());
  CHECK(written.crc64 == crc64(bytes.data(), bytes.size()));
  CHECK_FALSE(std::filesystem::exists(directory / "a.safetensors.tmp"));

  const SafetensorsFile file(directory / "a.safetensors");
  CHECK(file.metadata() == SafetensorsMetadata{{"format", "pt"}, {"note", "ä \"b\""}});
  REQUIRE(file.entries().size() == tensors.size());
  for (const auto& tensor : tensors) {
    CAPTURE(tensor.name);
    CHECK(same(file.tensor(tensor.name), tensor));
    CHECK(file.find(tensor.name)->offset % element_size(tensor.dtype) == 0);
  }
  CHECK(file.find("absent") == nullptr);
  CHECK_THROWS_WITH(file.tensor("absent"), Catch::Contains("absent"));
}

TEST_CASE("safetensors of foreign writers: misaligned values and any order of the header") {
  TemporaryDirectory directory;
  spill(directory / "f", file_with(R"({"z":{"data_offsets":[3,11],"dtype":"F32","shape":[2]},)"
                                   R"("a":{"shape":[3],"dtype":"U8","data_offsets":[0,3]}})",
                                   11));
  const SafetensorsFile file(directory / "f");
  CHECK(file.entries()[0].name == "a");
  const NamedTensor z = file.tensor("z");
  CHECK(reinterpret_cast<uintptr_t>(z.values()) % 4 == 0);
  CHECK(std::string(static_cast<const char*>(z.values()), 8) == std::string(8, '\1'));
}

TEST_CASE("safetensors whose header length begins like another kind of file") {
  TemporaryDirectory directory;
  for (const size_t length : {0x3c, 0x227b, 0x8b1f, 0x2850}) {  // '<', "{\"", gzip, 'P' and a pickle's '('
    std::string header = R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})";
    header.resize(length, ' ');
    uint64_t number = length;
    std::string bytes(reinterpret_cast<const char*>(&number), sizeof(number));
    spill(directory / "h.safetensors", bytes + header + "\7");
    const WeightsFile file(directory / "h.safetensors");
    REQUIRE(file.format() == "safetensors");
    CHECK(static_cast<const char*>(file.tensor(0).values())[0] == 7);
  }
}

TEST_CASE("safetensors summaries") {
  TemporaryDirectory directory;
  const float values[] = {3, -4, 0, 0, 12};
  const uint16_t halves[] = {0x3c00, 0xc000, 0x0001, 0x7c00};  // 1, -2, 2^-24, infinity
  const uint16_t brains[] = {0x3f80, 0xc000};                  // 1, -2
  write_safetensors(directory / "a", {{"w", ElementType::kF32, {5}, values, {}},
                                      {"h", ElementType::kF16, {3}, halves, {}},
                                      {"inf", ElementType::kF16, {1}, halves + 3, {}},
                                      {"b", ElementType::kBF16, {2}, brains, {}}});
  const SafetensorsFile file(directory / "a");
  std::vector<TensorSummary> list;
  for (const char* name : {"b", "h", "inf", "w"}) list.push_back(summarize(file.tensor(name)));
  REQUIRE(list.size() == 4);
  CHECK(list[0].name == "b");
  CHECK(list[0].first == std::vector<double>{1, -2});
  CHECK(list[1].first == std::vector<double>{1, -2, std::ldexp(1.0, -24)});
  CHECK(std::isinf(list[2].first[0]));
  CHECK(list[3].name == "w");
  CHECK(list[3].l2 == 13);
  CHECK(list[3].first == std::vector<double>{3, -4, 0, 0});
}

TEST_CASE("safetensors that cannot be written leave nothing behind") {
  TemporaryDirectory directory;
  const auto path = directory / "a";
  const auto a = random_tensor("a", ElementType::kF32, {2}, 1);
  CHECK_THROWS_WITH(write_safetensors(path, {a, a}), Catch::Contains("two tensors have the name \"a\""));
  CHECK_THROWS_AS(write_safetensors(path, {random_tensor("__metadata__", ElementType::kU8, {1}, 1)}), Error);
  CHECK_THROWS_AS(write_safetensors(path, {random_tensor("\xff", ElementType::kU8, {1}, 1)}), Error);
  CHECK_THROWS_AS(write_safetensors(path, {{"n", ElementType::kF32, {-1}, &path, {}}}), Error);
  CHECK_THROWS_WITH(write_safetensors(path, {{"n", ElementType::kF32, {4}, nullptr, {}}}),
                    Catch::Contains("no values"));
  CHECK_THROWS_WITH(write_safetensors(path, {{"n", ElementType::kF32, {int64_t{1} << 62, 4}, &path, {}}}),
                    Catch::Contains("overflows"));
  CHECK_THROWS_WITH(write_safetensors(directory / "no/such/place", {a}),
                    Catch::Contains("no/such/place") && Catch::Contains("No such file"));
  CHECK(std::filesystem::is_empty(directory.path()));
}

TEST_CASE("malformed safetensors are named, never accepted") {
  TemporaryDirectory directory;
  const auto path = directory / "bad.safetensors";
  const auto refused = [&](const std::string& header, size_t value_bytes, const std::string& reason) {
    CAPTURE(header, reason);
    spill(path, file_with(header, value_bytes));
    const std::string message = message_of<Error>([&] { SafetensorsFile file(path); });
    CHECK_THAT(message, Catch::Contains("bad.safetensors") && Catch::Contains(reason));
  };
  refused("", 0, "no JSON object");
  refused("[]", 0, "no JSON object");
  refused("{", 0, "not valid JSON");
  refused("{} {}", 0, "not valid JSON");
  refused(R"({"a":1})", 0, "a number");
  refused(R"({"a":{"dtype":"F32","shape":[1]}})", 4, "\"a\" has no data_offsets");
  refused(R"({"a":{"dtype":"F8","shape":[1],"data_offsets":[0,4]}})", 4, "dtype of tensor \"a\" is \"F8\"");
  refused(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}})", 4, "needs 8 bytes");
  refused(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4,0]}})", 4, "not a pair");
  refused(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0]}})", 4, "not a pair");
  refused(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4,8]}})", 4, "more than 2");
  refused(R"({"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}})", 4, "negative");
  refused(R"({"a":{"dtype":"F32","shape":[1.5],"data_offsets":[0,4]}})", 4, "fraction");
  refused(R"({"a":{"dtype":"F32","shape":[[1]],"data_offsets":[0,4]}})", 4, "an array");
  refused(R"({"a":{"dtype":"F32","shape":{},"data_offsets":[0,4]}})", 4, "an object");
  refused(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4],"x":"y"}})", 4, "unknown");
  refused(R"({"a":{"dtype":"F32","dtype":"F32","shape":[1],"data_offsets":[0,4]}})", 4, "twice");
  refused(
      R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})", 2,
      "twice");
  refused(R"({"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]}})", 0, "overflows");
  refused(R"({"a":{"dtype":"F32","shape":[99999999999999999999],"data_offsets":[0,0]}})", 0, "fraction");
  refused(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 4, "truncated");
  refused(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", 5, "1 bytes follow");
  refused(
      R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}})", 3,
      "overlap");
  refused(R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}})", 3, "unused");
  refused(R"({"__metadata__":{"a":1}})", 0, "a number");
  refused(R"({"__metadata__":[]})", 0, "an array");
  refused(std::string(200000, '{'), 0, "not valid JSON");
  refused(R"({"a":)" + std::string(200000, '['), 0, "an array");

  spill(path, std::string(7, '\0'));
  CHECK_THROWS_WITH(SafetensorsFile(path), Catch::Contains("7 bytes"));
  spill(path, std::string(8, '\xff'));
  CHECK_THROWS_WITH(SafetensorsFile(path), Catch::Contains("truncated"));
  CHECK_THROWS_WITH(SafetensorsFile(directory / "absent"),
                    Catch::Contains("absent") && Catch::Contains("No such file"));
  CHECK_THROWS_WITH(SafetensorsFile(directory.path()), Catch::Contains("not a regular file"));
}

TEST_CASE("every damaged byte and every truncation of a safetensors file: an Error or a valid file") {
  TemporaryDirectory directory;
  const auto path = directory / "a.safetensors";
  const auto tensors = std::vector<NamedTensor>{random_tensor("conv.weight", ElementType::kF32, {2, 3}, 1),
                                                random_tensor("count", ElementType::kI64, {}, 2)};
  write_safetensors(path, tensors, {{"format", "pt"}});
  const std::string good = slurp(path);
  const auto read_all = [&] {
    const SafetensorsFile file(path);
    uint64_t bytes = 0;
    for (const auto& entry : file.entries()) bytes += summarize(file.tensor(entry)).name.size();
    return bytes;
  };
  for (size_t length = 0; length < good.size(); ++length) {
    CAPTURE(length);
    spill(path, good.substr(0, length));
    CHECK_THROWS_AS(read_all(), Error);
  }
  size_t refused = 0;
  for (size_t at = 0; at < good.size(); ++at) {
    for (int flip : {0x01, 0x10, 0x80, 0xff}) {
      std::string bad = good;
      bad[at] = static_cast<char>(bad[at] ^ flip);
      spill(path, bad);
      try {
        read_all();
      } catch (const Error&) {
        ++refused;
      }
    }
  }
  CHECK(refused > good.size());
  std::mt19937 random(7);
  for (int round = 0; round < 2000; ++round) {
    std::string bad = good;
    for (int i = 0; i < 1 + round % 6; ++i) bad[random() % bad.size()] = static_cast<char>(random());
    spill(path, bad);
    CHECK_NOTHROW(message_of<Error>(read_all));  // anything but an Error escapes and fails
  }
}
