// Peaks of the machine: memory bandwidth and multiply-adds.
#include "kernels/roofline.h"

#include <omp.h>

#include "kernels/blocked.h"

namespace convoy::cpu::CONVOY_ISA {

constexpr int kFmaVectors = 12;  // enough chains for two units of four cycles each

void triad(float* a, const float* b, const float* c, float factor, int64_t count) {
  constexpr int64_t kPiece = 65536;
  parallel_for(ceil_div(count, kPiece), kPiece, [&](int64_t i) {
    const int64_t last = smaller((i + 1) * kPiece, count);
    for (int64_t k = i * kPiece; k < last; ++k) a[k] = b[k] + factor * c[k];
  });
}

double fma_chains(int64_t rounds, float* sink) {
  const int threads = omp_get_max_threads();
  float total = 0;
#pragma omp parallel for schedule(static) num_threads(threads) reduction(+ : total)
  for (int t = 0; t < threads; ++t) {
    Vec chains[kFmaVectors];
    for (int v = 0; v < kFmaVectors; ++v) chains[v] = splat(1.0f + static_cast<float>(v + t) * 1e-3f);
    const Vec share = splat(0.999f), step = splat(1e-3f);
    for (int64_t r = 0; r < rounds; ++r)
      for (int v = 0; v < kFmaVectors; ++v) chains[v] = chains[v] * share + step;
    for (int v = 0; v < kFmaVectors; ++v) total += sum(chains[v]);
  }
  *sink = total;
  return 2.0 * kFmaVectors * kBlock * static_cast<double>(rounds) * threads;
}

}  // namespace convoy::cpu::CONVOY_ISA
