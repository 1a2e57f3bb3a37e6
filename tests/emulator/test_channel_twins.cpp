// Copies of channels: kernels/reorder.cu in the emulator against plain loops.
#include "kernels/reorder.h"
#include "tests/emulator/twins.h"

namespace convoy::test {
namespace {

TEST_CASE("images copied between placements and layouts keep their values", "[reorder]") {
  size_t turn = 0;
  for (const Shape s : twin_shapes())
    for (const DType t : kFloatTypes)
      for (const Placement to : kPlacements) {
        const Placement from = kPlacements[turn++ % 4];
        INFO(describe(s, t, to) << " from placement " << static_cast<int>(from));
        const auto x = typed_values("x", s.count(), t);
        const Results got = over_orders([&] {
          const DeviceImage in(s, t, from, x), direct(s, t, to), back(s, t, to);
          const DeviceBuffer<unsigned char> planes(static_cast<size_t>(s.count()) * dtype_size(t));
          View nchw = in.view();
          nchw.data = planes.data(), nchw.layout = Layout::kNchw, nchw.pitch = s.c, nchw.block = 1;
          device::reorder(nullptr, in.view(), direct.view());
          device::reorder(nullptr, in.view(), nchw);
          device::reorder(nullptr, nchw, back.view());
          return Results{direct.values(), back.values()};
        });
        CHECK(bits(got[0]) == bits(x));
        CHECK(bits(got[1]) == bits(x));
      }
}

TEST_CASE("channels inserted among zeros", "[reorder]") {
  size_t turn = 0;
  for (const auto& [channels, first, total] :
       {std::array<int64_t, 3>{1, 0, 1}, {3, 5, 19}, {8, 8, 24}, {16, 4, 20}, {19, 0, 33}, {33, 31, 64}, {24, 40, 64}})
    for (const DType t : kFloatTypes)
      for (const Placement to : kPlacements) {
        const Placement from = kPlacements[turn++ % 4];
        const Shape s{2, channels, 3, 3}, whole{2, total, 3, 3};
        INFO(describe(s, t, to) << " from placement " << static_cast<int>(from) << " at " << first << " of " << total);
        const auto x = typed_values("x", s.count(), t);
        const Results got = over_orders([&] {
          const DeviceImage in(s, t, from, x), out(whole, t, to);
          device::insert_channels(nullptr, in.view(), first, out.view());
          return Results{out.values()};
        });
        std::vector<float> wanted(static_cast<size_t>(whole.count()));
        for (int64_t n = 0; n < s.n; ++n)
          std::copy_n(x.begin() + n * channels * 9, channels * 9, wanted.begin() + (n * total + first) * 9);
        CHECK(bits(got[0]) == bits(wanted));
      }
}

TEST_CASE("parts beside each other leave their neighbours alone", "[reorder]") {
  // Channels 3 + 8 + 5 + 3 of a tensor padded to 24: only the last part may write the pads.
  const int64_t parts[] = {3, 8, 5, 3};
  const Shape whole{1, 19, 2, 3};
  for (const DType t : kFloatTypes) {
    INFO(dtype_name(t));
    std::vector<float> wanted;
    const DeviceImage out(whole, t, Placement::kPadded);
    int64_t first = 0;
    for (const int64_t c : parts) {
      const Shape s{1, c, 2, 3};
      const auto x = typed_values("x" + std::to_string(first), s.count(), t);
      wanted.insert(wanted.end(), x.begin(), x.end());
      View to = out.view();
      to.c = c;
      to.data = static_cast<char*>(to.data) + static_cast<size_t>(first) * dtype_size(t);
      to.block = first + c == whole.c ? 24 - first : 1;
      device::reorder(nullptr, DeviceImage(s, t, Placement::kPadded, x).view(), to);
      first += c;
    }
    CHECK(bits(out.values()) == bits(wanted));
  }
}

TEST_CASE("elements of other sizes are refused", "[reorder]") {
  const DeviceImage x({1, 8, 2, 2}, DType::kF32, Placement::kDense);
  View wide = x.view();
  wide.dtype = DType::kI64;
  CHECK_THROWS_AS(device::reorder(nullptr, wide, wide), std::invalid_argument);
  CHECK_THROWS_AS(device::reorder(nullptr, wide, x.view()), std::invalid_argument);
}

}  // namespace
}  // namespace convoy::test
