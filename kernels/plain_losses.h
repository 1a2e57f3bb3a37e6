// Losses and counts over plain row-major arrays.
#pragma once
#include "kernels/isa.h"

CONVOY_CPU_KERNELS(
    /// loss = scale * sum of max(x,0) - x t + log(1 + exp(-|x|)), the cross entropy of sigmoid(x) with targets t in
    /// [0,1]. d_x: its gradient; null: not wanted.
    void bce_with_logits(const float* x, const float* t, int64_t count, double scale, float* loss, float* d_x);

    /// loss = scale * sum of f(x - t), f(d) = d^2 / (2 beta) for |d| < beta, else |d| - beta/2 (Girshick 2015, Fast
    /// R-CNN, eq. 3). beta > 0. d_x: its gradient; null: not wanted.
    void smooth_l1(const float* x, const float* t, int64_t count, double beta, double scale, float* loss, float* d_x);

    /// counts[r * classes + c] = how many of row r's `count` labels are c; labels that are no class count nowhere.
    void label_counts(const int32_t* target, int64_t rows, int64_t count, int64_t classes, float* counts);)
