// Tensors as another element type and in another layout. Bytes: 6 per element. Numerics: one rounding.
#include "kernels/cast.h"

#include <stdexcept>

#include "kernels/blocked.h"
#include "kernels/narrow.h"

namespace convoy::cpu::CONVOY_ISA {
namespace {

constexpr int64_t kTile = 64;  // pixels; a tile's lines stay in the first-level cache

template <class To, class From, class Convert>
void cast_elements(const View& from, const View& to, const Convert& convert) {
  const bool in_nhwc = from.layout == Layout::kNhwc, out_nhwc = to.layout == Layout::kNhwc;
  const int64_t pixels = to.pixels(), tiles = ceil_div(pixels, kTile);
  const int64_t in_pixel = in_nhwc ? from.pitch : 1, in_channel = in_nhwc ? 1 : pixels;
  const int64_t padded = out_nhwc ? to.blocks() * to.block : to.c;
  parallel_for(to.n * tiles, kTile * padded, [&](int64_t task) {
    const int64_t n = task / tiles, first = task % tiles * kTile, last = smaller(pixels, first + kTile);
    const From* in = static_cast<const From*>(from.data) + n * from.image_stride();
    To* out = static_cast<To*>(to.data) + n * to.image_stride();
    if (out_nhwc) {
      for (int64_t p = first; p < last; ++p) {
        for (int64_t c = 0; c < to.c; ++c) out[p * to.pitch + c] = convert(in[p * in_pixel + c * in_channel]);
        for (int64_t c = to.c; c < padded; ++c) out[p * to.pitch + c] = To{};
      }
    } else {
      for (int64_t c = 0; c < to.c; ++c)
        for (int64_t p = first; p < last; ++p) out[c * pixels + p] = convert(in[p * in_pixel + c * in_channel]);
    }
  });
}

}  // namespace

void cast(const View& from, const View& to) {
  const auto fits = [](const View& v) {
    return v.layout == Layout::kNhwc || (v.layout == Layout::kNchw && v.pitch == v.c);
  };
  if (!fits(from) || !fits(to) || from.n != to.n || from.c != to.c || from.pixels() != to.pixels())
    throw std::invalid_argument("cpu::cast: tensors of one shape, nhwc or dense nchw, are expected");
  const DType a = from.dtype, b = to.dtype;
  if (a == DType::kF32 && b == DType::kF16)
    return cast_elements<uint16_t, float>(from, to, [](float x) { return to_f16_bits(x); });
  if (a == DType::kF32 && b == DType::kBF16)
    return cast_elements<uint16_t, float>(from, to, [](float x) { return to_bf16_bits(x); });
  if (a == DType::kF16 && b == DType::kF32)
    return cast_elements<float, uint16_t>(from, to, [](uint16_t x) { return from_f16_bits(x); });
  if (a == DType::kBF16 && b == DType::kF32)
    return cast_elements<float, uint16_t>(from, to, [](uint16_t x) { return from_bf16_bits(x); });
  throw std::invalid_argument("cpu::cast: f32 and one of f16 and bf16 are expected");
}

}  // namespace convoy::cpu::CONVOY_ISA
