// Copies of image tensors between layouts.
#pragma once
#include "kernels/cuda_stream.h"
#include "kernels/isa.h"
#include "kernels/view.h"

// reorder   copies `from` to `to`, which has the same shape, any of the three layouts and its own pitch; elements of
//           4 bytes. Pad lanes of a blocked `to` become zero. Equal layouts: the copy of a slice (a part of a concat).
CONVOY_CPU_KERNELS(void reorder(const View& from, const View& to);)

// On the GPU: nchw and nhwc, elements of 2 or 4 bytes; pad lanes of an nhwc `to` become zero.
// insert_channels   to = from's channels from channel `first` on, zeros before and behind them; both nhwc
CONVOY_CUDA_KERNELS(void reorder(cudaStream_t stream, const View& from, const View& to);
                    void insert_channels(cudaStream_t stream, const View& from, int64_t first, const View& to);)
