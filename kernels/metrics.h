// Labels from logits, and the counts that segmentation metrics are made of. Plain code, the same on every CPU.
#pragma once
#include "kernels/view.h"

namespace convoy {

/// labels (N,H,W) = channel of the largest logit (N,C,H,W, nchw, nhwc or blocked, fp32); the lowest of equals. NaN is
/// never largest.
void argmax_channels(const View& logits, int32_t* labels);

/// matrix (classes x classes, row = target, column = prediction) += pixel counts, over pixels whose target is not
/// ignore_index. Returns -1, or the first flat index where target or prediction is no class; such pixels are skipped.
int64_t confusion_matrix(const int32_t* prediction, const int32_t* target, int64_t count, int64_t classes,
                         int32_t ignore_index, int64_t* matrix);

}  // namespace convoy
