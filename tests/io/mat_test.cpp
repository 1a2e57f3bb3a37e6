#include "io/mat.h"

#include <catch2/catch.hpp>

#include "engine/rng.h"
#include "tests/io/mat_writer.h"
#include "tests/io/support.h"

using namespace convoy;
using convoy::testing::error_of;
using convoy::testing::mat_file;
using convoy::testing::MatOptions;

namespace {

LabelMap read(const std::string& bytes) {
  return decode_mat_labels({reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()}, "x.mat", "GTcls",
                           "Segmentation");
}

LabelMap some_labels() {
  LabelMap labels{3, 5, {}};
  for (int32_t i = 0; i < 15; ++i) labels.data.push_back(i == 14 ? 20 : i);
  return labels;
}

}  // namespace

TEST_CASE("MATLAB label maps are read in both orders, packed or not, from any integer type", "[io][mat]") {
  const LabelMap labels = some_labels();
  for (const bool big_endian : {false, true}) {
    for (const bool compressed : {false, true}) {
      for (const auto& [type, bytes] :
           std::vector<std::pair<uint32_t, int>>{{1, 1}, {2, 1}, {3, 2}, {4, 2}, {5, 4}, {6, 4}, {12, 8}, {13, 8}}) {
        MatOptions options;
        options.big_endian = big_endian;
        options.compressed = compressed;
        options.value_type = type;
        options.value_bytes = bytes;
        const LabelMap found = read(mat_file(labels, options));
        REQUIRE(found.height == 3);
        REQUIRE(found.width == 5);
        REQUIRE(found.data == labels.data);
      }
    }
  }
  // Few values stand in the small form of an element.
  CHECK(read(mat_file({2, 2, {1, 2, 3, 4}})).data == std::vector<int32_t>{1, 2, 3, 4});
}

TEST_CASE("other files and variables are refused by name", "[io][mat]") {
  const LabelMap labels = some_labels();
  MatOptions options;
  options.variable = "GTinst";
  CHECK_THAT(error_of([&] { read(mat_file(labels, options)); }),
             Catch::Contains("x.mat: has no variable GTcls; found GTinst"));
  options = {};
  options.field = "Masks";
  CHECK_THAT(error_of([&] { read(mat_file(labels, options)); }),
             Catch::Contains("no field Segmentation; found Boundaries, Masks"));
  options = {};
  options.value_class = 4;
  CHECK_THAT(error_of([&] { read(mat_file(labels, options)); }), Catch::Contains("no array of real numbers (class 4)"));
  options = {};
  options.value_bytes = 2;  // twice as many bytes as the type says
  CHECK_THAT(error_of([&] { read(mat_file(labels, options)); }), Catch::Contains("30 bytes for 3 x 5 values"));
  options = {};
  options.value_type = 9;
  options.value_bytes = 8;  // denormal doubles
  CHECK_THAT(error_of([&] { read(mat_file(labels, options)); }), Catch::Contains("which is no label"));
  CHECK_THAT(error_of([&] { read("MATLAB"); }), Catch::Contains("no MATLAB 5 file"));
  CHECK_THAT(error_of([&] { read("\x89HDF\r\n\x1a\n" + std::string(300, 'x')); }), Catch::Contains("HDF5"));
  std::string file = mat_file(labels);
  file[125] = 2;
  CHECK_THAT(error_of([&] { read(file); }), Catch::Contains("7.3"));
  file[126] = 'x';
  CHECK_THAT(error_of([&] { read(file); }), Catch::Contains("byte order"));
}

TEST_CASE("damaged MATLAB files are errors, never crashes", "[io][mat]") {
  for (const bool compressed : {false, true}) {
    MatOptions options;
    options.compressed = compressed;
    const std::string good = mat_file(some_labels(), options);
    for (size_t length = 0; length < good.size(); ++length) {
      const std::string message = error_of([&] { read(good.substr(0, length)); });
      // What follows the labels is not needed when nothing is packed.
      if (compressed) REQUIRE_THAT(message, Catch::Contains("x.mat"));
    }
    for (uint64_t trial = 0; trial < 20000; ++trial) {
      RandomStream random(9, "mat", trial);
      std::string bad = good;
      for (int64_t k = random.integer(1, 3); k > 0; --k)
        bad[static_cast<size_t>(random.integer(124, static_cast<int64_t>(bad.size()) - 1))] =
            static_cast<char>(random.next_word());
      const std::string message = error_of([&] { read(bad); });
      if (message != "(no error)") REQUIRE_THAT(message, Catch::Contains("x.mat"));
    }
  }
}
