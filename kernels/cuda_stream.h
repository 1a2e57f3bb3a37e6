// The stream argument of the CUDA launchers, declared without any CUDA header, so that kernels/<op>.h can be included
// by CPU-only builds. The same type as in cuda_runtime_api.h.
#pragma once

struct CUstream_st;
using cudaStream_t = CUstream_st*;
