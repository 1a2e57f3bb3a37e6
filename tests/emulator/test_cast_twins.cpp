// kernels/cast.cu in the emulator and the CPU twin against single conversions.
#include <cmath>

#include "kernels/cast.h"
#include "tests/emulator/twins.h"

namespace convoy::test {
namespace {

constexpr DType kNarrow[] = {DType::kF16, DType::kBF16};

/// Random values among which are NaN, infinities, ties, values that are too large or too small for a narrow type.
std::vector<float> hard_values(const Shape& s, const std::string& name) {
  const float hard[] = {-0.f,    std::nanf(""), INFINITY,   -INFINITY,     65519.99f,         65520.f,
                        -1e30f,  0x1p-25f,      0x1.8p-24f, 1 + 0x1p-11f,  1 + 0x1.8p-10f,    1 + 0x1p-8f,
                        3.4e38f, 0x1p-140f,     1e-6f,      -0x1.004p-15f, 1 + 0x1.0002p-11f, 1 + 0x1.8p-7f};
  std::vector<float> values = random_values(name, s.count(), 3);
  for (size_t i = 0; i < values.size(); i += 3) values[i] = hard[i / 3 % std::size(hard)];
  return values;
}

/// As bits, all NaN the same.
std::vector<uint32_t> comparable(std::vector<float> values) {
  for (float& v : values)
    if (std::isnan(v)) v = std::nanf("");
  return bits(values);
}

View plain_view(const Shape& s, DType dtype, void* data) {
  View v;
  v.data = data;
  v.dtype = dtype;
  v.n = s.n, v.c = v.pitch = s.c, v.h = s.h, v.w = s.w;
  return v;
}

TEST_CASE("casts that change the layout round once", "[cast]") {
  int turn = 0;
  for (const Shape& s : {Shape{1, 1, 1, 1}, Shape{2, 3, 5, 7}, Shape{1, 19, 9, 5}, Shape{2, 33, 11, 6},
                         Shape{1, 64, 1, 3}, Shape{3, 300, 1, 2}})
    for (const DType t : kNarrow)
      for (int k = 0; k < 2; ++k) {
        const Placement p = kPlacements[turn++ % 4], other = kPlacements[(turn + k) % 4];
        INFO(describe(s, t, p));
        const std::vector<float> values = hard_values(s, "x"), narrow = rounded(values, t);
        const Results got = over_orders([&] {
          const DeviceBuffer<float> plain(values), widened(values.size());
          const DeviceImage wide(s, DType::kF32, other, values), image(s, t, p), same_layout(s, t, p);
          const DeviceImage wide_from_image(s, DType::kF32, p);
          const DeviceBuffer<uint16_t> narrow_plain(values.size());
          device::cast(nullptr, plain_view(s, DType::kF32, plain.data()), image.view());
          device::cast(nullptr, image.view(), plain_view(s, DType::kF32, widened.data()));
          device::cast(nullptr, wide.view(), same_layout.view());
          device::cast(nullptr, wide.view(), plain_view(s, t, narrow_plain.data()));
          device::cast(nullptr, plain_view(s, t, narrow_plain.data()), wide_from_image.view());
          return Results{image.values(), widened.host(), same_layout.values(), wide_from_image.values()};
        });
        for (const std::vector<float>& g : got) CHECK(comparable(g) == comparable(narrow));
      }
}

TEST_CASE("casts within a layout round once", "[cast]") {
  for (const Shape& s : {Shape{1, 1, 1, 1}, Shape{2, 3, 5, 7}, Shape{1, 64, 3, 5}})
    for (const DType t : kNarrow)
      for (const Placement p : kPlacements) {
        INFO(describe(s, t, p));
        const std::vector<float> values = hard_values(s, "x");
        const Results got = over_orders([&] {
          const DeviceBuffer<float> plain(values), widened(values.size());
          const DeviceBuffer<uint16_t> narrow(values.size());
          const DeviceImage image(s, t, p, values), wide(s, DType::kF32, p);
          device::cast(nullptr, plain_view(s, DType::kF32, plain.data()), plain_view(s, t, narrow.data()));
          device::cast(nullptr, plain_view(s, t, narrow.data()), plain_view(s, DType::kF32, widened.data()));
          device::cast(nullptr, image.view(), wide.view());
          return Results{widened.host(), wide.values()};
        });
        for (const std::vector<float>& g : got) CHECK(comparable(g) == comparable(rounded(values, t)));
      }
}

TEST_CASE("the CPU's casts give the same", "[cast]") {
  for (const Shape& s : {Shape{1, 1, 1, 1}, Shape{2, 3, 5, 7}, Shape{1, 19, 13, 9}})
    for (const DType t : kNarrow) {
      INFO(describe(s, t, Placement::kPadded));
      std::vector<float> values = hard_values(s, "x"), back(values.size()), wide_pixels;
      const int64_t pitch = (s.c + 7) / 8 * 8 + 8;
      std::vector<uint16_t> pixels(static_cast<size_t>(s.n * pitch * s.h * s.w), 0xffff), plain(values.size());
      wide_pixels.assign(pixels.size(), -1);
      View image = plain_view(s, t, pixels.data());
      image.layout = Layout::kNhwc, image.block = 8, image.pitch = pitch;
      View wide = image;
      wide.data = wide_pixels.data(), wide.dtype = DType::kF32;
      CONVOY_CPU(cast, plain_view(s, DType::kF32, values.data()), image);
      CONVOY_CPU(cast, image, plain_view(s, DType::kF32, back.data()));
      CHECK(comparable(back) == comparable(rounded(values, t)));
      for (size_t i = 0; i < pixels.size(); ++i) {
        const auto c = static_cast<int64_t>(i) % pitch;
        if (c >= s.c) CHECK(pixels[i] == (c < pitch - 8 ? 0 : 0xffff));
      }
      CONVOY_CPU(cast, image, wide);
      pixels.assign(pixels.size(), 0xffff);
      CONVOY_CPU(cast, wide, image);
      CONVOY_CPU(cast, plain_view(s, DType::kF32, back.data()), plain_view(s, t, plain.data()));
      CONVOY_CPU(cast, plain_view(s, t, plain.data()), plain_view(s, DType::kF32, values.data()));
      CHECK(comparable(values) == comparable(back));
      CONVOY_CPU(cast, image, plain_view(s, DType::kF32, values.data()));
      CHECK(comparable(values) == comparable(back));
    }
}

TEST_CASE("every 16-bit number survives the way to float and back", "[cast]") {
  const Shape s{1, 1, 256, 256};
  for (const DType t : kNarrow) {
    std::vector<uint16_t> all(65536), back(65536);
    for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<uint16_t>(i);
    std::vector<float> wide(all.size());
    CONVOY_CPU(cast, plain_view(s, t, all.data()), plain_view(s, DType::kF32, wide.data()));
    CONVOY_CPU(cast, plain_view(s, DType::kF32, wide.data()), plain_view(s, t, back.data()));
    int64_t changed = 0;
    for (size_t i = 0; i < all.size(); ++i) changed += std::isnan(wide[i]) ? back[i] != 0x7fff : back[i] != all[i];
    CHECK(changed == 0);
    const DeviceBuffer<uint16_t> narrow(all);
    const DeviceBuffer<float> device_wide(all.size());
    device::cast(nullptr, plain_view(s, t, narrow.data()), plain_view(s, DType::kF32, device_wide.data()));
    CHECK(comparable(device_wide.host()) == comparable(wide));
  }
}

TEST_CASE("casts name types that they do not take", "[cast]") {
  const DeviceImage a({1, 4, 2, 2}, DType::kF16, Placement::kDense), b({1, 4, 2, 2}, DType::kBF16, Placement::kDense);
  CHECK_THROWS_WITH(device::cast(nullptr, a.view(), b.view()), Catch::Contains("f16 to bf16"));
  CHECK_THROWS_WITH(CONVOY_CPU(cast, a.view(), b.view()), Catch::Contains("one of f16 and bf16"));
}

}  // namespace
}  // namespace convoy::test
