// What is known of CUDA where no CUDA header is: the stream argument of the launchers, and how kernels/<op>.h declares
// them, so that CPU-only builds can include it.
#pragma once

// The same types as in cuda_runtime_api.h.
struct CUstream_st;
using cudaStream_t = CUstream_st*;
struct CUevent_st;
using cudaEvent_t = CUevent_st*;

/// Declares launchers of CUDA kernels for both ways of running them: `cuda`, compiled by nvcc for GPUs, and `emulated`,
/// compiled by g++ for the emulator (kernels/emulator/README.md). All pointers and views are device memory; work is
/// enqueued on `stream`, the first argument.
#define CONVOY_CUDA_KERNELS(...) \
  namespace convoy::cuda {       \
  __VA_ARGS__                    \
  }                              \
  namespace convoy::emulated {   \
  __VA_ARGS__                    \
  }
