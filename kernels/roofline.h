// What a machine can do at best, to hold kernels against.
#pragma once
#include "kernels/isa.h"

// triad        a = b + factor * c, count floats each, by all threads: 12 B per element
// fma_chains   multiply-adds on registers by all threads, `rounds` times kFmaVectors vectors on each; returns how many
//              floating-point operations were made. `sink` receives a value, so that the work is not left out.
CONVOY_CPU_KERNELS(void triad(float* a, const float* b, const float* c, float factor, int64_t count);
                   double fma_chains(int64_t rounds, float* sink);)
