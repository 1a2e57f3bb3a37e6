// Losses of whole regions: overlap of predicted and labelled pixels, class by class.
#pragma once
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
