// kernels/augment.cu in the emulator against the CPU twin.
#include "kernels/augment.h"
#include "kernels/augment_axis.h"
#include "tests/emulator/twins.h"

namespace convoy::test {
namespace {

std::vector<uint8_t> random_bytes(const std::string& name, int64_t count) {
  const golden::Stream u(name);
  std::vector<uint8_t> bytes;
  for (int64_t i = 0; i < count; ++i) bytes.push_back(static_cast<uint8_t>(256 * u[static_cast<uint64_t>(i)]));
  return bytes;
}

/// One axis: resized from `in` to `out`, of which `length` from `begin` on land at `place` of the crop.
struct Axis {
  int64_t in, out, begin, length, place;
};

struct Case {
  Axis rows, columns;
  int64_t height, width;  // of the crop
  bool mirrored;
  std::vector<ColorStep> steps;
};

using Kind = ColorStep::Kind;

const std::vector<Case>& cases() {
  static const std::vector<Case> all{
      {{1, 1, 0, 1, 0}, {1, 1, 0, 1, 0}, 1, 1, false, {}},
      {{9, 17, 3, 11, 0}, {13, 40, 5, 33, 0}, 11, 33, true, {{Kind::kBrightness, 1.3}, {Kind::kHue, 1.7}}},
      {{20, 7, 0, 7, 0}, {33, 12, 0, 12, 0}, 10, 15, false, {{Kind::kSaturation, 0.4}, {Kind::kContrast, 1.6}}},
      {{12, 12, 2, 9, 1},
       {10, 10, 0, 10, 3},
       11,
       14,
       true,
       {{Kind::kHue, -2.9}, {Kind::kContrast, 0.5}, {Kind::kSaturation, 1.8}, {Kind::kBrightness, 0.7}}},
      {{5, 300, 40, 19, 0}, {6, 9, 1, 7, 1}, 19, 9, false, {{Kind::kContrast, 0}}},
  };
  return all;
}

Augmentation plan_of(const Case& k, int64_t row_taps, int64_t column_taps) {
  Augmentation a;
  a.rows = {.source = k.rows.in, .place = k.rows.place, .length = k.rows.length, .taps = row_taps};
  a.columns = {.source = k.columns.in, .place = k.columns.place, .length = k.columns.length, .taps = column_taps};
  a.mirrored = k.mirrored;
  a.steps = static_cast<int>(k.steps.size());
  for (size_t s = 0; s < k.steps.size(); ++s) a.step[s] = k.steps[s];
  a.ignore = 255;
  return a;
}

void set_tables(AugmentAxis& axis, const int32_t* first, const int32_t* weights, const int32_t* nearest) {
  axis.first = first;
  axis.weights = weights;
  axis.nearest = nearest;
}

TEST_CASE("augmented images and labels equal the CPU's", "[augment]") {
  std::vector<int32_t> label_table;
  for (int32_t v = 0; v < 256; ++v) label_table.push_back(v % 7 == 0 ? -1 : v % 19);
  std::vector<float> normalized;
  for (int c = 0; c < 3; ++c)
    for (int v = 0; v < 256; ++v)
      normalized.push_back((static_cast<float>(v) / 255 - 0.4f) / (0.2f + 0.01f * static_cast<float>(c)));
  size_t i = 0;
  for (const Case& k : cases())
    for (size_t dtype = 0; dtype < 3; ++dtype) {
      const Placement p = kPlacements[i++ % 4];
      const DType t = kFloatTypes[dtype];
      const Shape s{1, 3, k.height, k.width};
      INFO(describe(s, t, p));
      const auto image = random_bytes("image", k.rows.in * k.columns.in * 3),
                 labels = random_bytes("labels", k.rows.in * k.columns.in);
      const AugmentTables rows = augment_tables(k.rows.in, k.rows.out, k.rows.begin, k.rows.length),
                          columns = augment_tables(k.columns.in, k.columns.out, k.columns.begin, k.columns.length);
      Augmentation a = plan_of(k, rows.taps, columns.taps);
      const Results got = over_orders([&] {
        const DeviceBuffer<uint8_t> dimage(image), dlabels(labels);
        const DeviceBuffer<int32_t> row_first(rows.first), row_weights(rows.weights), row_nearest(rows.nearest),
            column_first(columns.first), column_weights(columns.weights), column_nearest(columns.nearest),
            table(label_table), out_labels(static_cast<size_t>(s.h * s.w));
        const DeviceBuffer<float> dnormalized(normalized);
        const DeviceBuffer<int64_t> luma(1);
        const DeviceImage out(s, t, p);
        Augmentation on_device = a;
        set_tables(on_device.rows, row_first.data(), row_weights.data(), row_nearest.data());
        set_tables(on_device.columns, column_first.data(), column_weights.data(), column_nearest.data());
        on_device.normalized = dnormalized.data();
        on_device.label_table = table.data();
        device::augment(nullptr, dimage.data(), dlabels.data(), on_device, out.view(), out_labels.data(), luma.data());
        const auto of_pixels = out_labels.host();
        return Results{out.values(), std::vector<float>(of_pixels.begin(), of_pixels.end())};
      });
      set_tables(a.rows, rows.first.data(), rows.weights.data(), rows.nearest.data());
      set_tables(a.columns, columns.first.data(), columns.weights.data(), columns.nearest.data());
      a.normalized = normalized.data();
      a.label_table = label_table.data();
      const TestTensor out = cpu_tensor(s);
      std::vector<int32_t> out_labels(static_cast<size_t>(s.h * s.w));
      int64_t luma = 0;
      CONVOY_CPU(augment, image.data(), labels.data(), a, out.view(), out_labels.data(), &luma);
      CHECK(bits(got[0]) == bits(rounded(out.values(), t)));
      CHECK(got[1] == std::vector<float>(out_labels.begin(), out_labels.end()));
    }
}

TEST_CASE("labels may be left out of an augmentation", "[augment]") {
  const Shape s{1, 3, 2, 2};
  const DeviceImage out(s, DType::kF32, Placement::kPadded);
  const AugmentTables tables = augment_tables(2, 2, 0, 2);
  const DeviceBuffer<int32_t> first(tables.first), weights(tables.weights);
  std::vector<float> identity;
  for (int v = 0; v < 3 * 256; ++v) identity.push_back(static_cast<float>(v % 256));
  const DeviceBuffer<float> normalized(identity);
  const DeviceBuffer<uint8_t> image(std::vector<uint8_t>{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12});
  Augmentation a;
  a.rows = a.columns = {2, 0, 2, tables.taps, first.data(), weights.data(), nullptr};
  a.normalized = normalized.data();
  device::augment(nullptr, image.data(), nullptr, a, out.view(), nullptr, nullptr);
  CHECK(out.values() == std::vector<float>{1, 4, 7, 10, 2, 5, 8, 11, 3, 6, 9, 12});
  View wrong = out.view();
  wrong.c = 4;
  CHECK_THROWS_AS(device::augment(nullptr, image.data(), nullptr, a, wrong, nullptr, nullptr), std::invalid_argument);
}

}  // namespace
}  // namespace convoy::test
