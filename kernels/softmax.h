// Softmax and its logarithm, over the channels of an image or along rows.
#pragma once
#include "kernels/isa.h"
#include "kernels/view.h"

// softmax_channels            y = softmax over c of each pixel of x; blocked (N,C,H,W), each perhaps a slice
// softmax_channels_backward   dx = y * (dy - sum over c of y * dy)
// softmax_rows                the same over each of `rows` contiguous rows of `length` values
// softmax_rows_backward
// `log`: y is the logarithm of the softmax, and dx = dy - exp(y) * sum of dy. y may alias x, dx may alias dy.
CONVOY_CPU_KERNELS(void softmax_channels(const View& x, bool log, const View& y);
                   void softmax_channels_backward(const View& dy, const View& y, bool log, const View& dx);
                   void softmax_rows(const float* x, int64_t rows, int64_t length, bool log, float* y);
                   void softmax_rows_backward(const float* dy, const float* y, int64_t rows, int64_t length, bool log,
                                              float* dx);)
