// Dropout whose mask is a function of the sample and the element, not of layout, threads or ranks.
#pragma once
#include "kernels/cuda_stream.h"
#include "kernels/isa.h"
#include "kernels/philox.h"
#include "kernels/view.h"

// dropout   y = keep ? x / (1 - p) : 0 with 0 <= p <= 1. Image n is slot s = first_slot + n of the global batch; its
//           element e = (c*H + h)*W + w (e = c with whole_channels: Dropout2d) uses word e % 4 of
//           philox(key, global_step, s << 32 | e / 4) and is kept when unit_float(word) >= p. The backward is the same
//           call on dy. Images in any layout, and plain arrays (N, C); y may alias x. s and e/4 stay below 2^32.
CONVOY_CPU_KERNELS(void dropout(const View& x, float p, uint64_t key, uint64_t global_step, int64_t first_slot,
                                bool whole_channels, const View& y);)

// On the GPU: the same bits for nhwc images and plain arrays of fp32, fp16 or bf16 in device memory, work enqueued on
// `stream`. Throws std::invalid_argument on another layout or dtype.
CONVOY_CUDA_KERNELS(void dropout(cudaStream_t stream, const View& x, float p, uint64_t key, uint64_t global_step,
                                 int64_t first_slot, bool whole_channels, const View& y);)
