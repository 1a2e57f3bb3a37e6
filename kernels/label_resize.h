// Labels resized as numbers.
#pragma once
#include "kernels/cuda_stream.h"
#include "kernels/isa.h"
#include "kernels/view.h"

// y (N,OH,OW) = labels (N,H,W), i32, mixed bilinearly (align_corners) in float32 and truncated toward zero; the ignore
// label is a number like any other. The order of the roundings is part of the result: 2.9999998 becomes 2.
CONVOY_CPU_KERNELS(void label_resize(const View& labels, const View& y);)

// On the GPU: the same values, in device memory, work enqueued on `stream`.
CONVOY_CUDA_KERNELS(void label_resize(cudaStream_t stream, const View& labels, const View& y);)
