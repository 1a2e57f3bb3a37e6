// Mean and sum of squared deviations of a set of values, merged part by part. Included by *.cu only.
#pragma once
#include "kernels/cuda_common.h"

namespace convoy::CONVOY_DEVICE {

template <class Count>
struct Moments {
  Count mean, m2, count;

  /// Chan, Golub, LeVeque 1979; nothing when `other` is empty.
  __device__ void merge(const Moments& other) {
    if (other.count == 0) return;
    const Count total = count + other.count, delta = other.mean - mean, share = other.count / total;
    mean += delta * share;
    m2 += other.m2 + delta * delta * count * share;
    count = total;
  }
};

}  // namespace convoy::CONVOY_DEVICE
