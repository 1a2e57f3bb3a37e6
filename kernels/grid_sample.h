// Sampling of images at given places, as PyTorch's grid_sample with zeros outside.
#pragma once
#include "kernels/cuda_stream.h"
#include "kernels/isa.h"
#include "kernels/view.h"

namespace convoy {

/// Place (gx, gy) of the grid, -1..1 over the image, is pixel ((gx + 1) / 2 (W - 1), ...) with align_corners, else
/// (((gx + 1) W - 1) / 2, ...). `nearest` rounds it, halves to the even pixel; otherwise four pixels are mixed.
struct GridSampleParams {
  bool align_corners = false;
  bool nearest = false;
};

}  // namespace convoy

// x, y, dy, dx blocked, each perhaps a slice; grid, dgrid plain (N,OH,OW,2), x before y. Places that are not finite
// read nothing.
//
// grid_sample                 y (N,C,OH,OW) from x (N,C,H,W)
// grid_sample_backward_x      dx = for each pixel the sum over what read it, in the order of the grid
// grid_sample_backward_grid   dgrid; zeros for `nearest`
CONVOY_CPU_KERNELS(void grid_sample(const View& x, const View& grid, const GridSampleParams& params, const View& y);
                   void grid_sample_backward_x(const View& dy, const View& grid, const GridSampleParams& params,
                                               const View& dx);
                   void grid_sample_backward_grid(const View& dy, const View& x, const View& grid,
                                                  const GridSampleParams& params, const View& dgrid);)

// On the GPU: nhwc images of fp32, fp16 or bf16 and grids of fp32 in device memory, work enqueued on `stream`. Throws
// std::invalid_argument on other views and on sizes that do not fit each other. `workspace` is aligned to 16 bytes.
//
// grid_sample_backward_x   the same bits in every order; all of dx is NaN where a value of dy is not finite
CONVOY_CUDA_KERNELS(void grid_sample(cudaStream_t stream, const View& x, const View& grid,
                                     const GridSampleParams& params, const View& y);
                    size_t grid_sample_backward_x_cuda_workspace_bytes(const View& dx);
                    void grid_sample_backward_x(cudaStream_t stream, const View& dy, const View& grid,
                                                const GridSampleParams& params, const View& dx, void* workspace);
                    void grid_sample_backward_grid(cudaStream_t stream, const View& dy, const View& x, const View& grid,
                                                   const GridSampleParams& params, const View& dgrid);)
