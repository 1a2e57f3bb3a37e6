// Losses of whole regions: overlap of predicted and labelled pixels, class by class.
#pragma once
#include <algorithm>

#include "kernels/cuda_stream.h"
#include "kernels/isa.h"
#include "kernels/view.h"

namespace convoy {

/// Pixels of one unit of work of the region losses; a function of the shape alone.
constexpr int64_t kRegionChunk = 4096;

/// Bytes of `workspace` for dice_loss.
inline size_t dice_workspace_bytes(const View& logits) {
  const int64_t chunks = (logits.pixels() + kRegionChunk - 1) / kRegionChunk;
  return static_cast<size_t>(logits.n * (chunks + 1) * 3 * logits.blocks() * logits.block + logits.n * chunks) *
         sizeof(double);
}

/// Classes that lovasz_loss works on at a time.
constexpr int64_t lovasz_slots(int64_t classes, int64_t threads) {
  return classes < threads ? classes : threads;
}
/// Bytes of `workspace` for lovasz_loss.
inline size_t lovasz_workspace_bytes(const View& logits, bool per_image, int64_t slots) {
  const int64_t pixels = logits.pixels() * (per_image ? 1 : logits.n);
  return static_cast<size_t>(pixels * 16 + slots * pixels * 16 + 16 * logits.blocks() * logits.block + 64);
}

/// Pixels of an image that a block of the GPU's dice_loss sums.
constexpr int64_t kDicePart = 2048;

/// Bytes of `workspace` for the GPU's dice_loss.
inline size_t dice_cuda_workspace_bytes(const View& logits) {
  const int64_t parts = (logits.pixels() + kDicePart - 1) / kDicePart;
  return static_cast<size_t>(logits.n) *
         (static_cast<size_t>(parts * 3 * logits.c + 1) * sizeof(double) + static_cast<size_t>(2 * logits.c) * 4);
}

/// How the GPU's lovasz_loss works: a list of the errors of one class of one group (image, or whole batch) each, of
/// which `slots` are sorted at a time, in blocks of kBlock errors.
struct LovaszLists {
  static constexpr int64_t kBlock = 4096, kErrorsAtATime = int64_t{1} << 23, kMostSlots = 256;
  int64_t groups, pixels, lists, slots, blocks;  ///< pixels: of a group; blocks: of a list
};
inline LovaszLists lovasz_lists(const View& logits, bool per_image) {
  LovaszLists l{per_image ? logits.n : 1, logits.pixels() * (per_image ? 1 : logits.n), 0, 0, 0};
  l.lists = l.groups * logits.c;
  l.slots = std::clamp<int64_t>(LovaszLists::kErrorsAtATime / l.pixels, 1,
                                std::min<int64_t>(l.lists, LovaszLists::kMostSlots));
  l.blocks = (l.pixels + LovaszLists::kBlock - 1) / LovaszLists::kBlock;
  return l;
}

/// Bytes of `workspace` for the GPU's lovasz_loss: of all lists the gradients of probabilities, partial losses and
/// counts, of those being sorted two buffers of errors and the counts of digits.
inline size_t lovasz_cuda_workspace_bytes(const View& logits, bool per_image) {
  const LovaszLists l = lovasz_lists(logits, per_image);
  const int64_t of_all = l.lists * (8 * l.blocks + 8 + 4 * l.pixels) + l.groups * (8 + 8 * l.pixels);
  const int64_t of_slots = l.slots * (2 * 8 * l.pixels + 256 * 4 * (l.blocks + 1) + 4 * (l.blocks + 1));
  return static_cast<size_t>(of_all + of_slots + 256);
}

}  // namespace convoy

CONVOY_CPU_KERNELS(
    /// Soft Dice loss with squared denominator (Milletari et al. 2016, V-Net, eq. 3) of p = softmax(logits) over the
    /// pixels whose target is not ignore_index: scale * sum over images and over the first `classes` classes of
    /// 1 - (2 sum p t + smooth) / (sum p^2 + sum t + smooth), t = 1 where the target is the class. logits (N,C,H,W)
    /// blocked, target (N,H,W). d_logits: gradient, same shape; null data: not wanted. *bad_index: the first flat index
    /// whose target is neither a class nor ignore_index (skipped), -1 where all are good. workspace aligned to 64.
    void dice_loss(const View& logits, const int32_t* target, int32_t ignore_index, int64_t classes, float smooth,
                   float scale, float* loss, const View& d_logits, int64_t* bad_index, void* workspace);

    /// Lovasz-Softmax (Berman et al. 2018, algorithm 1 and eq. 11) of p = softmax(logits) over the pixels whose target
    /// is not ignore_index: the mean over the classes that the targets have, of each image, or of the batch as a whole
    /// (per_image false); scale * sum over images. A group without labelled pixels adds 0. Equal errors keep the order
    /// of pixels. Arguments as above. slots: lovasz_slots.
    void lovasz_loss(const View& logits, const int32_t* target, int32_t ignore_index, bool per_image, float scale,
                     float* loss, const View& d_logits, int64_t* bad_index, int64_t slots, void* workspace);)

// On the GPU: logits and d_logits nhwc of fp32, fp16 or bf16, all pointers to device memory; else as above. A wrong
// label lowers *fault to its flat index. Throws std::invalid_argument on another layout or dtype.
CONVOY_CUDA_KERNELS(
    /// scale = 1 / (images * classes); classes: up to the last one with a label count other than 0, all where
    /// label_counts is null. workspace: dice_cuda_workspace_bytes, aligned to 8.
    void dice_loss(cudaStream_t stream, const View& logits, const int32_t* target, int32_t ignore_index,
                   const float* label_counts, float smooth, double images, float* loss, const View& d_logits,
                   int64_t* fault, void* workspace);

    /// workspace: lovasz_cuda_workspace_bytes, aligned to 8. At most 2^31 - 1 pixels of a group.
    void lovasz_loss(cudaStream_t stream, const View& logits, const int32_t* target, int32_t ignore_index,
                     bool per_image, float scale, float* loss, const View& d_logits, int64_t* fault, void* workspace);)
