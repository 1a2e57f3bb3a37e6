// What the tests of the CUDA twins share: nhwc images in device memory, in every dtype and every way of lying there;
// runs in several orders of execution; comparison with the CPU twins.
#pragma once
#include <cstring>
#include <functional>

#include "kernels/emulator/emulator.h"
#include "tests/emulator/device_buffer.h"
#include "tests/kernels/blocked_tensor.h"

namespace convoy::test {

namespace device = CONVOY_DEVICE;

/// How an nhwc image lies in its buffer.
enum class Placement {
  kDense,         ///< pitch = channels
  kPadded,        ///< channels padded to 8, pads are part of the tensor
  kSlice,         ///< odd channels of a neighbour on both sides: no 16-byte accesses
  kAlignedSlice,  ///< 8 channels of a neighbour on both sides, pitch a multiple of 8
};
constexpr Placement kPlacements[] = {Placement::kDense, Placement::kPadded, Placement::kSlice,
                                     Placement::kAlignedSlice};
constexpr DType kFloatTypes[] = {DType::kF32, DType::kF16, DType::kBF16};

/// Largest error allowed relative to the largest value: a rounding of the storage type, and sums in fp32.
inline double tolerance(DType t) {
  return t == DType::kF32 ? 3e-6 : t == DType::kF16 ? 6e-4 : 5e-3;
}

/// One channel, counts that fill no vector and no warp, whole vectors; single pixels, odd sizes, one image and several.
inline std::vector<Shape> twin_shapes() {
  return {{1, 1, 1, 1}, {2, 3, 5, 7}, {1, 19, 9, 5}, {2, 33, 7, 3}, {1, 64, 5, 11}, {3, 8, 1, 3}, {1, 300, 2, 3}};
}

/// An image in device memory. Everything that is not an element is poison: NaN in the pads, and uninitialised memory,
/// which the checked flavour reports when it is read, around the tensor.
class DeviceImage {
 public:
  /// An output: every byte is 0xff, NaN in every dtype.
  DeviceImage(Shape shape, DType dtype, Placement placement)
      : shape_(shape), size_(dtype_size(dtype)), buffer_(buffer_bytes(shape, dtype, placement)) {
    const int64_t before = placement == Placement::kSlice ? 5 : placement == Placement::kAlignedSlice ? 8 : 0;
    view_.data = buffer_.data() + before * static_cast<int64_t>(size_);
    view_.dtype = dtype;
    view_.layout = Layout::kNhwc;
    view_.n = shape.n, view_.c = shape.c, view_.h = shape.h, view_.w = shape.w;
    view_.block = placement == Placement::kPadded ? 8 : 1;
    view_.pitch = pitch(shape, placement);
  }
  /// An input that holds NCHW values rounded to the dtype.
  DeviceImage(Shape shape, DType dtype, Placement placement, const std::vector<float>& values)
      : DeviceImage(shape, dtype, placement) {
    const size_t lanes = static_cast<size_t>(view_.blocks() * view_.block);
    std::vector<unsigned char> pixel(lanes * size_, 0xff);
    for (int64_t n = 0; n < shape.n; ++n)
      for (int64_t p = 0; p < view_.pixels(); ++p) {
        for (int64_t c = 0; c < shape.c; ++c) encode(values[index(n, c, p)], &pixel[static_cast<size_t>(c) * size_]);
        cudaMemcpy(address(view_.data, n, p), pixel.data(), pixel.size(), cudaMemcpyHostToDevice);
      }
  }

  const View& view() const { return view_; }

  /// NCHW values. Fails the test where a pad lane is not zero or a byte outside of the tensor was written.
  std::vector<float> values() const {
    std::vector<unsigned char> bytes = buffer_.host();
    unsigned char* data = bytes.data() + (static_cast<unsigned char*>(view_.data) - buffer_.data());
    std::vector<float> result(static_cast<size_t>(shape_.count()));
    int64_t bad_pads = 0, bad_outside = 0;
    for (int64_t n = 0; n < shape_.n; ++n)
      for (int64_t p = 0; p < view_.pixels(); ++p) {
        unsigned char* pixel = static_cast<unsigned char*>(address(data, n, p));
        for (int64_t c = 0; c < view_.blocks() * view_.block; ++c) {
          const float value = decode(pixel + static_cast<size_t>(c) * size_);
          if (c < shape_.c)
            result[index(n, c, p)] = value;
          else
            bad_pads += value != 0;
        }
        std::memset(pixel, 0xff, static_cast<size_t>(view_.blocks() * view_.block) * size_);
      }
    for (const unsigned char b : bytes) bad_outside += b != 0xff;
    CHECK(bad_pads == 0);
    CHECK(bad_outside == 0);
    return result;
  }

 private:
  static int64_t pitch(Shape s, Placement placement) {
    const int64_t padded = (s.c + 7) / 8 * 8;
    switch (placement) {
      case Placement::kDense:
        return s.c;
      case Placement::kPadded:
        return padded;
      case Placement::kSlice:
        return s.c + 12;
      case Placement::kAlignedSlice:
        return padded + 16;
    }
    return 0;
  }
  static size_t buffer_bytes(Shape s, DType dtype, Placement placement) {
    return static_cast<size_t>(s.n * s.h * s.w * pitch(s, placement)) * dtype_size(dtype);
  }
  size_t index(int64_t n, int64_t c, int64_t p) const {
    return static_cast<size_t>((n * shape_.c + c) * view_.pixels() + p);
  }
  void* address(void* data, int64_t n, int64_t p) const {
    return static_cast<unsigned char*>(data) + static_cast<size_t>((n * view_.pixels() + p) * view_.pitch) * size_;
  }
  template <class T>
  static void encode_as(float value, unsigned char* to) {
    const T element(value);
    std::memcpy(to, &element, sizeof element);
  }
  template <class T>
  static float decode_as(const unsigned char* from) {
    T element;
    std::memcpy(&element, from, sizeof element);
    return static_cast<float>(element);
  }
  void encode(float value, unsigned char* to) const {
    if (view_.dtype == DType::kF32) encode_as<float>(value, to);
    if (view_.dtype == DType::kF16) encode_as<__half>(value, to);
    if (view_.dtype == DType::kBF16) encode_as<__nv_bfloat16>(value, to);
  }
  float decode(const unsigned char* from) const {
    if (view_.dtype == DType::kF16) return decode_as<__half>(from);
    if (view_.dtype == DType::kBF16) return decode_as<__nv_bfloat16>(from);
    return decode_as<float>(from);
  }

  Shape shape_;
  size_t size_;
  DeviceBuffer<unsigned char> buffer_;
  View view_;
};

/// Values as the dtype can hold them, so that both twins start from the same numbers.
inline std::vector<float> rounded(std::vector<float> values, DType dtype) {
  for (float& v : values) {
    if (dtype == DType::kF16) v = static_cast<float>(__half(v));
    if (dtype == DType::kBF16) v = static_cast<float>(__nv_bfloat16(v));
  }
  return values;
}
inline std::vector<float> typed_values(const std::string& name, int64_t count, DType dtype, double scale = 1,
                                       double offset = 0) {
  return rounded(random_values(name, count, scale, offset), dtype);
}

using Results = std::vector<std::vector<float>>;

/// Runs `launches` in four orders of threads and blocks and demands the same bits from all. The random orders also
/// share the blocks between two OS threads, where the flavour allows it.
inline Results over_orders(const std::function<Results()>& launches) {
  using emulator::Order;
  const emulator::Options before = emulator::options;
  Results first;
  for (int k = 0; k < 4; ++k) {
    emulator::options.order = k == 0 ? Order::kForward : k == 1 ? Order::kReverse : Order::kRandom;
    emulator::options.seed = static_cast<uint64_t>(k);
    emulator::options.os_threads = k == 3 ? 2 : 1;
    const Results other = launches();
    if (k == 0) first = other;
    REQUIRE(other.size() == first.size());
    for (size_t i = 0; i < first.size(); ++i) {
      INFO("order " << k << " result " << i);
      CHECK(bits(first[i]) == bits(other[i]));
    }
  }
  emulator::options = before;
  return first;
}

/// A blocked tensor for the CPU twin, empty or filled with NCHW values.
inline TestTensor cpu_tensor(Shape shape) {
  return TestTensor(shape, Layout::kBlocked, cpu::channel_block());
}
inline TestTensor cpu_tensor(Shape shape, const std::vector<float>& values) {
  return cpu_tensor(shape).fill(values);
}

inline std::string describe(Shape shape, DType dtype, Placement placement) {
  return shape.text() + " " + dtype_name(dtype) + " placement " + std::to_string(static_cast<int>(placement));
}

/// Calls f(shape, dtype, placement) for every combination.
template <class F>
void for_all_images(const std::vector<Shape>& shapes, F f) {
  for (const Shape shape : shapes)
    for (const DType dtype : kFloatTypes)
      for (const Placement placement : kPlacements) {
        INFO(describe(shape, dtype, placement));
        f(shape, dtype, placement);
      }
}

}  // namespace convoy::test
