// A tensor: type, shape, layout and a piece of storage. It computes nothing and knows nothing of gradients.
#pragma once
#include <memory>
#include <span>
#include <vector>

#include "engine/memory.h"
#include "engine/shape.h"
#include "kernels/view.h"

namespace convoy {

/// A value in host memory. Image tensors (rank 4, (N,C,H,W)) may be blocked and may be a slice of a wider tensor:
/// channel_pitch is the number of channels that one pixel of the storage holds, channel_offset the first one of ours.
/// Copying a Tensor shares the storage.
class Tensor {
 public:
  Tensor() = default;
  /// Uninitialised, plain row-major.
  static Tensor empty(DType dtype, const Shape& shape);
  static Tensor zeros(DType dtype, const Shape& shape);
  /// On memory that is there already, plain row-major.
  static Tensor on(std::shared_ptr<Storage> storage, DType dtype, const Shape& shape);
  static Tensor of(const Shape& shape, std::span<const float> values);
  static Tensor of(const Shape& shape, std::span<const int32_t> values);
  static Tensor scalar(float value);
  /// Uninitialised image tensor in the blocked layout of this CPU's instruction set, pad lanes zeroed.
  static Tensor empty_blocked(const Shape& shape);

  bool defined() const { return storage_ != nullptr; }
  DType dtype() const { return dtype_; }
  const Shape& shape() const { return shape_; }
  Layout layout() const { return layout_; }
  int64_t channel_pitch() const { return channel_pitch_; }
  int64_t channel_offset() const { return channel_offset_; }
  const std::shared_ptr<Storage>& storage() const { return storage_; }

  /// The kernel's picture of this tensor.
  View view() const;
  /// Channels [first, first+count) of an image tensor, sharing the storage. `first` is a multiple of the block.
  Tensor channels(int64_t first, int64_t count) const;
  /// The same values in plain row-major order (a copy when they are not).
  Tensor plain() const;
  /// Values in logical row-major order, converted to float.
  std::vector<float> to_floats() const;
  /// The value of a tensor with one element.
  float item() const;
  float* f32() const;
  int32_t* i32() const;
  int64_t* i64() const;

 private:
  DType dtype_ = DType::kF32;
  Shape shape_;
  Layout layout_ = Layout::kNchw;
  int64_t channel_pitch_ = 1, channel_offset_ = 0;
  std::shared_ptr<Storage> storage_;
};

/// The view of a plain row-major array of this shape; an image tensor's (N,C,H,W) stay apart, other ranks are padded
/// with ones on the right (rank 5 folds its last two extents).
View plain_view(void* data, DType dtype, const Shape& shape);
/// The view of an image tensor in the blocked layout. `pitch` 0 means dense.
View blocked_view(void* data, const Shape& shape, int64_t block, int64_t pitch = 0);
/// The view of a dense image tensor in a device's layout: nhwc, channels padded to kDeviceChannelBlock.
View nhwc_view(void* data, const Shape& shape);
constexpr int64_t kDeviceChannelBlock = 8;
/// Bytes that a view's geometry needs when it is dense.
size_t dense_bytes(const View& view);
/// Bytes from channel 0 of an image to channel `first`, a whole block where the layout is blocked.
size_t channel_offset_bytes(const View& image, int64_t first);

}  // namespace convoy
