// Rearrangements of channels and pixels of blocked images: pixel shuffle (Shi et al. 2016), channel shuffle (Zhang et
// al. 2018), the data-dependent upsampling of DUNet (Tian et al. 2019). Which channel goes where is a table.
#pragma once
#include "kernels/cuda_stream.h"
#include "kernels/isa.h"
#include "kernels/view.h"

namespace convoy {

/// Which of (channel, corner of the square) is the slow index in the deep tensor's channels.
enum class DepthOrder : int64_t { kChannelSlow, kCornerSlow };

}  // namespace convoy

// Images blocked, each perhaps a slice; `deep` (N,C*r*r,H,W), `wide` (N,C,H*r,W*r). Places of `wide` within a square
// are counted as (a*r + b) * C + c for row a, column b, channel c; which channel of `deep` a place is, is a
// permutation.
//
// depth_to_space   wide from deep; channel_of[place] is the channel of deep
// space_to_depth   deep from wide; place_of[channel] is the inverse
CONVOY_CPU_KERNELS(void depth_to_space(const View& deep, const int32_t* channel_of, int64_t r, const View& wide);
                   void space_to_depth(const View& wide, const int32_t* place_of, int64_t r, const View& deep);)

// On the GPU: nhwc images in device memory, elements of 2 or 4 bytes, work enqueued on `stream`. The permutation comes
// as its rule. Throws std::invalid_argument on other views and on sizes that do not fit each other.
//
// channel_shuffle   y's channel c is x's channel c % groups * (C / groups) + c / groups
CONVOY_CUDA_KERNELS(void depth_to_space(cudaStream_t stream, const View& deep, DepthOrder order, int64_t r,
                                        const View& wide);
                    void space_to_depth(cudaStream_t stream, const View& wide, DepthOrder order, int64_t r,
                                        const View& deep);
                    void channel_shuffle(cudaStream_t stream, const View& x, int64_t groups, const View& y);)
