// Pointwise kernels. Bytes: every operand once; all are bound by memory, sigmoid included.
// Numerics: float; sums over h, w form chunks of 512 pixels in float and merge them in double, per image and channel
// block in one fixed order. Pads: add, mul, scale, relu and the gates map zeros to zeros; sigmoid and fill mask them.
#include "kernels/elementwise.h"

#include "kernels/blocked.h"
#include "kernels/simd_activation.h"

namespace convoy::cpu::CONVOY_ISA {

/// The contiguous runs of floats that a tensor consists of: run i starts at i * stride.
struct Runs {
  int64_t count, length, stride;
};

static inline bool is_plain(const View& x) {
  return x.layout != Layout::kBlocked;
}

static Runs runs_of(const View& x) {
  Runs r{x.n, x.pixels() * (is_plain(x) ? x.c : x.blocks() * kBlock), x.image_stride()};
  if (x.layout == Layout::kNhwc) r = {x.n * x.pixels(), x.c, x.pitch};
  return r;
}

constexpr int64_t kPiece = 16384;

/// y[i] = body(operands[0][i], ...) for views of one shape and layout, vector by vector. The rest of a run is padded
/// with zeros to a whole vector.
template <int kOperands, class Body>
static inline void pointwise(const View* const (&operands)[kOperands], const View& y, const Body& body) {
  Runs to = runs_of(y), from[kOperands];
  bool joined = to.stride == to.length;
  for (int k = 0; k < kOperands; ++k) {
    from[k] = runs_of(*operands[k]);
    joined = joined && from[k].stride == to.length;
  }
  if (joined) to = {1, to.count * to.length, 0};
  const int64_t pieces = ceil_div(to.length, kPiece);
  parallel_for(to.count * pieces, smaller(kPiece, to.length), [&](int64_t piece) {
    const int64_t run = piece / pieces, first = piece % pieces * kPiece, last = smaller(first + kPiece, to.length);
    float* out = y.f32() + run * to.stride;
    const float* in[kOperands];
    for (int k = 0; k < kOperands; ++k) in[k] = operands[k]->f32() + run * from[k].stride;
    Vec v[kOperands];
    int64_t i = first;
    for (; i + kBlock <= last; i += kBlock) {
      for (int k = 0; k < kOperands; ++k) v[k] = load(in[k] + i);
      store(out + i, body(v));
    }
    if (i < last) {
      for (int k = 0; k < kOperands; ++k) v[k] = load_partial(in[k] + i, last - i);
      store_partial(out + i, body(v), last - i);
    }
  });
}

void add(const View& a, const View& b, const View& y) {
  pointwise({&a, &b}, y, [](const Vec* v) { return v[0] + v[1]; });
}
void mul(const View& a, const View& b, const View& y) {
  pointwise({&a, &b}, y, [](const Vec* v) { return v[0] * v[1]; });
}
void accumulate(const View& x, const View& y) {
  add(y, x, y);
}
void scale(const View& x, float factor, const View& y) {
  pointwise({&x}, y, [factor](const Vec* v) { return v[0] * factor; });
}
void scale_by_scalar(const View& x, const float* factor, const View& y) {
  scale(x, *factor, y);
}

/// y = body(x) on a blocked tensor, with zeros in the pad lanes.
template <class Body>
static inline void masked_pointwise(const View& x, const View& y, const Body& body) {
  for_each_chunk(y, kSumChunk, [&](int64_t n, int64_t b, int64_t first, int64_t last) {
    const IVec mask = channel_mask(y.c, b);
    const float* in = block_at(x, n, b);
    float* out = block_at(y, n, b);
    for (int64_t i = first * kBlock; i < last * kBlock; i += kBlock)
      store(out + i, zero_pads(body(load(in + i)), mask));
  });
}

void fill(const View& y, float value) {
  const Vec v = splat(value);
  if (is_plain(y))
    pointwise({&y}, y, [v](const Vec*) { return v; });
  else
    masked_pointwise(y, y, [v](Vec) { return v; });
}

void activation(const View& x, Activation act, const View& y) {
  const auto sigmoid = [](Vec v) { return activate<Activation::kSigmoid>(v); };
  if (act == Activation::kRelu)
    pointwise({&x}, y, [](const Vec* v) { return activate<Activation::kRelu>(v[0]); });
  else if (act == Activation::kRelu6)
    pointwise({&x}, y, [](const Vec* v) { return activate<Activation::kRelu6>(v[0]); });
  else if (act == Activation::kNone)
    pointwise({&x}, y, [](const Vec* v) { return v[0]; });
  else if (is_plain(x))
    pointwise({&x}, y, [sigmoid](const Vec* v) { return sigmoid(v[0]); });
  else
    masked_pointwise(x, y, sigmoid);
}

void activation_backward(const View& dy, const View& y, Activation act, const View& dx) {
  if (act == Activation::kRelu)
    pointwise({&dy, &y}, dx, [](const Vec* v) { return activate_backward<Activation::kRelu>(v[0], v[1]); });
  else if (act == Activation::kRelu6)
    pointwise({&dy, &y}, dx, [](const Vec* v) { return activate_backward<Activation::kRelu6>(v[0], v[1]); });
  else if (act == Activation::kSigmoid)
    pointwise({&dy, &y}, dx, [](const Vec* v) { return activate_backward<Activation::kSigmoid>(v[0], v[1]); });
  else
    pointwise({&dy}, dx, [](const Vec* v) { return v[0]; });
}

void leaky_relu(const View& x, float slope, const View& y) {
  pointwise({&x}, y, [slope](const Vec* v) { return v[0] > 0.0f ? v[0] : v[0] * slope; });
}
void leaky_relu_backward(const View& dy, const View& x, float slope, const View& dx) {
  pointwise({&dy, &x}, dx, [slope](const Vec* v) { return v[1] > 0.0f ? v[0] : v[0] * slope; });
}
void hardswish(const View& x, const View& y) {
  pointwise({&x}, y, [](const Vec* v) {
    const Vec gate = activate<Activation::kRelu6>(v[0] + 3.0f);
    return v[0] * gate * (1.0f / 6);
  });
}
void hardswish_backward(const View& dy, const View& x, const View& dx) {
  pointwise({&dy, &x}, dx, [](const Vec* v) {
    const Vec inside = v[0] * (v[1] * (1.0f / 3) + 0.5f);
    return v[1] < -3.0f ? Vec{} : (v[1] > 3.0f ? v[0] : inside);
  });
}

void add_bias(const View& x, const float* bias, const View& y) {
  for_each_chunk(x, 2 * kSumChunk, [&](int64_t n, int64_t b, int64_t first, int64_t last) {
    const Vec shift = load_channels(bias, x.c, b);
    const float* in = block_at(x, n, b);
    float* out = block_at(y, n, b);
    for (int64_t i = first * kBlock; i < last * kBlock; i += kBlock) store(out + i, load(in + i) + shift);
  });
}

/// y = body(x, v) with v the vector of the image and channel block.
template <class Body>
static inline void per_channel(const View& x, const View& v, const View& y, const Body& body) {
  for_each_chunk(x, 2 * kSumChunk, [&](int64_t n, int64_t b, int64_t first, int64_t last) {
    const Vec channel = load_gate(v, n, b);
    const float* in = block_at(x, n, b);
    float* out = block_at(y, n, b);
    for (int64_t i = first * kBlock; i < last * kBlock; i += kBlock) store(out + i, body(load(in + i), channel));
  });
}

void add_channel(const View& x, const View& v, const View& y) {
  per_channel(x, v, y, [](Vec a, Vec b) { return a + b; });
}
void mul_channel(const View& x, const View& gate, const View& y) {
  per_channel(x, gate, y, [](Vec a, Vec b) { return a * b; });
}

void mul_channel_backward_gate(const View& dy, const View& x, const View& dgate) {
  const int64_t blocks = x.blocks(), pixels = x.pixels();
  parallel_for(x.n * blocks, pixels * kBlock, [&](int64_t i) {
    const int64_t n = i / blocks, b = i % blocks;
    const float *gradient = block_at(dy, n, b), *in = block_at(x, n, b);
    DVec total{};
    for (int64_t first = 0; first < pixels; first += kSumChunk) {
      const int64_t last = smaller(first + kSumChunk, pixels);
      Vec s0{}, s1{};
      int64_t p = first;
      for (; p + 2 <= last; p += 2) {
        s0 += load(gradient + p * kBlock) * load(in + p * kBlock);
        s1 += load(gradient + (p + 1) * kBlock) * load(in + (p + 1) * kBlock);
      }
      if (p < last) s0 += load(gradient + p * kBlock) * load(in + p * kBlock);
      total += to_double(s0 + s1);
    }
    store_gate(dgate, n, b, to_float(total));
  });
}

void dot(const View& a, const View& b, float* result) {
  double sum = 0;
  for (int64_t i = 0; i < a.count(); ++i) sum += static_cast<double>(a.f32()[i]) * static_cast<double>(b.f32()[i]);
  *result = static_cast<float>(sum);
}

}  // namespace convoy::cpu::CONVOY_ISA
