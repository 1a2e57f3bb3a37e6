// What ranks send each other and make of it, in device memory: the messages of the collectives of
// engine/ops/exchange.cpp.
#pragma once
#include <span>

#include "kernels/cuda_stream.h"
#include "kernels/view.h"

// Lanes are parts of a rank's batch; all arrays are fp32. A message of statistics is the count of values per channel,
// the mean of every channel, M2 (the sum of squared deviations) of every channel.
//
// sum_lanes       sum[i] = 0 + lane 0's element i + lane 1's + ...; zeros when there are no lanes.
// scale_floats    y[i] = factor * x[i], the product in double.
// bn_merge_lanes  the message of this rank: mean and variance of lanes of `lane_count` values per channel each, merged
// one
//                 after the other (Chan, Golub, LeVeque 1979) in double.
// bn_merge_ranks  mean and biased variance of what all ranks sent: rank r's message starts at all + r * stride. Ranks
//                 without values (count 0) add nothing.
CONVOY_CUDA_KERNELS(void sum_lanes(cudaStream_t stream, std::span<const View> lanes, int64_t count, float* sum);
                    void scale_floats(cudaStream_t stream, const float* x, int64_t count, double factor, float* y);
                    void bn_merge_lanes(cudaStream_t stream, std::span<const View> means, std::span<const View> vars,
                                        double lane_count, int64_t channels, float* message);
                    void bn_merge_ranks(cudaStream_t stream, const float* all, int64_t stride, int ranks,
                                        int64_t channels, float* mean, float* var);)
