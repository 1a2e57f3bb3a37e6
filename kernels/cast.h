// Tensors as another element type and in another layout, in one pass.
#pragma once
#include "kernels/cuda_stream.h"
#include "kernels/isa.h"
#include "kernels/view.h"

// cast   copies `from` to `to`, which has the same shape; one is f32, the other f16 or bf16, each dense nchw
//        (or plain) or nhwc with a pitch of its own. Rounds to the nearest, ties to even; too large a value becomes
//        infinite, NaN stays NaN. Pad lanes of an nhwc `to` become zero. Throws std::invalid_argument on other views.
CONVOY_CPU_KERNELS(void cast(const View& from, const View& to);)
CONVOY_CUDA_KERNELS(void cast(cudaStream_t stream, const View& from, const View& to);)
