// Softmax and its logarithm, over the channels of an image or along rows.
#pragma once
#include "kernels/cuda_stream.h"
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

// On the GPU: nhwc images of fp32, fp16 or bf16, rows as dense plain arrays of them, in device memory, work enqueued on
// `stream`. Throws std::invalid_argument on another layout or dtype.
CONVOY_CUDA_KERNELS(void softmax_channels(cudaStream_t stream, const View& x, bool log, const View& y);
                    void softmax_channels_backward(cudaStream_t stream, const View& dy, const View& y, bool log,
                                                   const View& dx);
                    void softmax_rows(cudaStream_t stream, const View& x, int64_t rows, int64_t length, bool log,
                                      const View& y);
                    void softmax_rows_backward(cudaStream_t stream, const View& dy, const View& y, int64_t rows,
                                               int64_t length, bool log, const View& dx);)
