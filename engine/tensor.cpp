#include "engine/tensor.h"

#include <algorithm>
#include <cstring>

#include "kernels/isa.h"
#include "kernels/reorder.h"

namespace convoy {

View plain_view(void* data, DType dtype, const Shape& shape) {
  View v;
  v.data = data;
  v.dtype = dtype;
  if (shape.rank() > 0) v.n = shape[0];
  if (shape.rank() > 1) v.c = shape[1];
  if (shape.rank() > 2) v.h = shape[2];
  if (shape.rank() > 3) v.w = shape[3];
  if (shape.rank() > 4) v.w *= shape[4];
  v.pitch = v.c;
  return v;
}

View blocked_view(void* data, const Shape& shape, int64_t block, int64_t pitch) {
  CONVOY_CHECK(shape.rank() == 4, "only image tensors (N,C,H,W) can be blocked, this one is {}", shape.str());
  View v = plain_view(data, DType::kF32, shape);
  v.layout = Layout::kBlocked;
  v.block = block;
  v.pitch = pitch ? pitch : (v.c + block - 1) / block * block;
  return v;
}

View nhwc_view(void* data, const Shape& shape) {
  View v = blocked_view(data, shape, kDeviceChannelBlock);
  v.layout = Layout::kNhwc;
  return v;
}

size_t dense_bytes(const View& view) {
  const int64_t channels = view.blocks() * view.block;
  return static_cast<size_t>(view.n * channels * view.h * view.w) * dtype_size(view.dtype);
}

size_t channel_offset_bytes(const View& image, int64_t first) {
  const int64_t step = image.layout == Layout::kNhwc ? 1 : image.pixels();
  return static_cast<size_t>(first * step) * dtype_size(image.dtype);
}

Tensor Tensor::empty(DType dtype, const Shape& shape) {
  Tensor t;
  t.dtype_ = dtype;
  t.shape_ = shape;
  t.channel_pitch_ = shape.rank() > 1 ? shape[1] : 1;
  t.storage_ = default_allocator()->allocate(static_cast<size_t>(shape.count()) * dtype_size(dtype));
  return t;
}

Tensor Tensor::on(std::shared_ptr<Storage> storage, DType dtype, const Shape& shape) {
  const size_t bytes = static_cast<size_t>(shape.count()) * dtype_size(dtype);
  CONVOY_CHECK(storage->bytes >= bytes, "a tensor {} needs {} bytes, its memory has {}", shape.str(), bytes,
               storage->bytes);
  Tensor t;
  t.dtype_ = dtype;
  t.shape_ = shape;
  t.channel_pitch_ = shape.rank() > 1 ? shape[1] : 1;
  t.storage_ = std::move(storage);
  return t;
}

Tensor Tensor::zeros(DType dtype, const Shape& shape) {
  Tensor t = empty(dtype, shape);
  std::memset(t.storage_->data, 0, t.storage_->bytes);
  return t;
}

Tensor Tensor::of(const Shape& shape, std::span<const float> values) {
  CONVOY_CHECK(shape.count() == static_cast<int64_t>(values.size()), "{} values given for a tensor of shape {}",
               values.size(), shape.str());
  Tensor t = empty(DType::kF32, shape);
  std::copy(values.begin(), values.end(), t.f32());
  return t;
}

Tensor Tensor::of(const Shape& shape, std::span<const int32_t> values) {
  CONVOY_CHECK(shape.count() == static_cast<int64_t>(values.size()), "{} values given for a tensor of shape {}",
               values.size(), shape.str());
  Tensor t = empty(DType::kI32, shape);
  std::copy(values.begin(), values.end(), t.i32());
  return t;
}

Tensor Tensor::scalar(float value) {
  return of(Shape{}, std::span<const float>(&value, 1));
}

Tensor Tensor::empty_blocked(const Shape& shape) {
  const View geometry = blocked_view(nullptr, shape, cpu::channel_block());
  Tensor t;
  t.shape_ = shape;
  t.layout_ = Layout::kBlocked;
  t.channel_pitch_ = geometry.pitch;
  t.storage_ = default_allocator()->allocate(dense_bytes(geometry));
  std::memset(t.storage_->data, 0, t.storage_->bytes);
  return t;
}

View Tensor::view() const {
  CONVOY_CHECK(defined(), "a tensor without storage was used");
  auto* base = static_cast<char*>(storage_->data);
  const size_t offset =
      static_cast<size_t>(channel_offset_ * (shape_.rank() == 4 ? shape_[2] * shape_[3] : 1)) * dtype_size(dtype_);
  View v = layout_ == Layout::kBlocked ? blocked_view(base + offset, shape_, cpu::channel_block(), channel_pitch_)
                                       : plain_view(base + offset, dtype_, shape_);
  v.pitch = channel_pitch_;
  return v;
}

Tensor Tensor::channels(int64_t first, int64_t count) const {
  CONVOY_CHECK(shape_.rank() == 4 && first >= 0 && count > 0 && first + count <= shape_[1],
               "channels {}..{} do not lie inside a tensor of shape {}", first, first + count, shape_.str());
  CONVOY_CHECK(layout_ != Layout::kBlocked || first % cpu::channel_block() == 0,
               "a slice of a blocked tensor starts at a multiple of {} channels, not at {}", cpu::channel_block(),
               first);
  Tensor t = *this;
  t.shape_[1] = count;
  t.channel_offset_ += first;
  return t;
}

Tensor Tensor::plain() const {
  if (layout_ == Layout::kNchw && (shape_.rank() < 2 || channel_pitch_ == shape_[1])) return *this;
  Tensor t = empty(dtype_, shape_);
  CONVOY_CPU(reorder, view(), t.view());
  return t;
}

std::vector<float> Tensor::to_floats() const {
  const Tensor flat = plain();
  const int64_t count = shape_.count();
  std::vector<float> values(static_cast<size_t>(count));
  switch (dtype_) {
    case DType::kF32:
      std::copy_n(flat.f32(), count, values.begin());
      break;
    case DType::kI32:
      std::transform(flat.i32(), flat.i32() + count, values.begin(), [](int32_t x) { return float(x); });
      break;
    case DType::kI64:
      std::transform(flat.i64(), flat.i64() + count, values.begin(), [](int64_t x) { return float(x); });
      break;
    default:
      fail("a tensor of type {} cannot be read as floats", dtype_name(dtype_));
  }
  return values;
}

float Tensor::item() const {
  CONVOY_CHECK(shape_.count() == 1, "a single value was asked of a tensor of shape {}", shape_.str());
  return to_floats()[0];
}

float* Tensor::f32() const {
  CONVOY_CHECK(dtype_ == DType::kF32, "a {} tensor was read as f32", dtype_name(dtype_));
  return static_cast<float*>(view().data);
}
int32_t* Tensor::i32() const {
  CONVOY_CHECK(dtype_ == DType::kI32, "a {} tensor was read as i32", dtype_name(dtype_));
  return static_cast<int32_t*>(view().data);
}
int64_t* Tensor::i64() const {
  CONVOY_CHECK(dtype_ == DType::kI64, "a {} tensor was read as i64", dtype_name(dtype_));
  return static_cast<int64_t*>(view().data);
}

}  // namespace convoy
