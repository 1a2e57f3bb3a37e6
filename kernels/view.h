// What a kernel sees of a tensor: a pointer and its geometry, nothing that owns memory.
#pragma once
#include "kernels/dtype.h"

namespace convoy {

/// How an image tensor (N,C,H,W) lies in memory.
///   kNchw    element (n,c,h,w) at ((n*P + c)*H + h)*W + w
///   kNhwc    ((n*H + h)*W + w)*P + c
///   kBlocked ((n*P/B + c/B)*H + h)*W + w)*B + c%B, B = the block of the instruction set (8 or 16)
/// P is the channel pitch: the channels that one pixel of the buffer holds. P > C where C is padded to a whole block
/// or where the tensor is a slice of a wider one (a part of a concat).
enum class Layout : uint8_t { kNchw, kNhwc, kBlocked };

constexpr const char* layout_name(Layout l) {
  return l == Layout::kNchw ? "nchw" : l == Layout::kNhwc ? "nhwc" : "blocked";
}

/// One tensor argument of a kernel. An image tensor has rank 4 and extents n, c, h, w; any other tensor is a plain
/// row-major array of `count` elements (then layout is kNchw and n, c, h, w hold its extents, padded with 1 on the
/// right: a matrix (R,C) is n=R, c=C, h=w=1).
///
/// `data` points at the first channel of this tensor; a slice of a wider tensor differs only in data and pitch.
/// Pad lanes (channels from c up to the next whole block) hold zeros in every tensor that a kernel reads, and every
/// kernel writes zeros there.
struct View {
  void* data = nullptr;
  DType dtype = DType::kF32;
  Layout layout = Layout::kNchw;
  int64_t n = 1, c = 1, h = 1, w = 1;
  int64_t pitch = 1;  ///< channels that one pixel of the buffer holds, P above
  int64_t block = 1;  ///< B above; of kNhwc: what channels are padded to; else 1

  int64_t pixels() const { return h * w; }
  int64_t count() const { return n * c * h * w; }
  int64_t blocks() const { return (c + block - 1) / block; }  ///< channel blocks of this tensor
  int64_t image_stride() const { return pitch * h * w; }      ///< elements from one image to the next
  bool dense() const { return pitch == blocks() * block; }    ///< not a slice of a wider tensor
  float* f32() const { return static_cast<float*>(data); }
  int32_t* i32() const { return static_cast<int32_t*>(data); }
  int64_t* i64() const { return static_cast<int64_t*>(data); }
};

}  // namespace convoy
