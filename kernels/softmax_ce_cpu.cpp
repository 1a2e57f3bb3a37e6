// Fused bilinear upsampling + softmax cross entropy, forward and backward in one pass over the output pixels.
// A unit of work is a band of source rows. The output rows between source rows r and r+1 are formed one at a time: mix
// the two source rows, then per pixel mix two columns, take the softmax, and add the gradient back to the two columns
// and, once per output row, to the two source rows. What a band adds to the first row of the next band goes to a
// partial row, added at the end.
//   FLOPs  about (exp: 14) + 12 per output pixel and class.  Bytes: logits and d_logits once, targets once; rows of
//          the band from cache. Expected bound: arithmetic.
//   Numerics: fp32 (own exp and log within 2 ulp), the loss summed in double. Bands depend on the shape only and are
//          merged in order, so the number of threads is irrelevant.
#include "kernels/softmax_ce.h"

#include "kernels/resize_axis.h"
#include "kernels/vec_math.h"

namespace convoy::cpu::CONVOY_ISA {
namespace {

constexpr float kAbsent = -1e30f;  // logit of a pad lane: no share of the softmax

struct Problem {
  const View& logits;
  const View& d_logits;
  const int32_t* target;
  int64_t out_h, out_w;
  int32_t ignore_index;
  const float* class_weight;
  float gradient_scale;  // 1 / normalizer, or 0
  Axis rows, columns;
  bool focal = false;
  float alpha = 1, gamma = 0;
  float* probability = nullptr;  // wanted instead of loss and gradient
  int64_t blocks() const { return logits.blocks(); }
};

/// Scratch and results of one band.
struct Band {
  float* mixed;     // (w + 1) pixels: the source row that an output row reads
  float* gradient;  // (w + 1) pixels: its gradient
  float* carry;     // (w + 1) pixels: gradient of the row behind the band
  float* chunk;     // exponentials of a chunk of pixels
  double loss = 0;
  int64_t bad_index = -1;
};

/// The labelled pixels of a chunk, structure of arrays.
struct Chunk {
  int64_t count = 0;
  int32_t label[kSoftmaxCeChunk], index[kSoftmaxCeChunk];
  int32_t column[kSoftmaxCeChunk];  // of the output row
  float column_weight[kSoftmaxCeChunk];
  float class_weight[kSoftmaxCeChunk];
  float scale[kSoftmaxCeChunk];  // class weight times gradient scale, divided by the sum of exponentials
};

/// True in the lanes of the last channel block that hold no class.
IVec pad_lanes(const Problem& p) {
  const int64_t tail = p.logits.c - (p.blocks() - 1) * kBlock;
  IVec pad{};
  for (int64_t i = tail; i < kBlock; ++i) pad[i] = -1;
  return pad;
}

/// Source row between rows r and r + 1, pixel-major with all channels of a pixel together; pad lanes are absent.
void mix_rows(const Problem& p, const float* image, int64_t r, float weight, float* mixed) {
  const int64_t w = p.logits.w, blocks = p.blocks(), pixels = p.logits.pixels();
  for (int64_t b = 0; b < blocks; ++b) {
    const IVec absent = b == blocks - 1 ? pad_lanes(p) : IVec{};
    const float* upper = image + (b * pixels + r * w) * kBlock;
    const float* lower = upper + w * kBlock;
    for (int64_t i = 0; i < w; ++i) {
      Vec v = load(upper + i * kBlock);
      if (weight != 0) v = v * (1.0f - weight) + load(lower + i * kBlock) * weight;
      store(mixed + (i * blocks + b) * kBlock, absent ? splat(kAbsent) : v);
    }
    store(mixed + (w * blocks + b) * kBlock, Vec{});
  }
}

/// Adds a pixel-major row of gradients, times a weight, to row r of d_logits. Pad lanes stay zero, even under NaN.
void add_row(const Problem& p, const float* gradient, float weight, float* image, int64_t r) {
  const int64_t w = p.logits.w, blocks = p.blocks(), pixels = p.logits.pixels();
  for (int64_t b = 0; b < blocks; ++b) {
    const IVec absent = b == blocks - 1 ? pad_lanes(p) : IVec{};
    float* to = image + (b * pixels + r * w) * kBlock;
    for (int64_t i = 0; i < w; ++i) {
      const Vec v = load(gradient + (i * blocks + b) * kBlock) * weight;
      store(to + i * kBlock, load(to + i * kBlock) + (absent ? Vec{} : v));
    }
  }
}

void clear_row(const Problem& p, float* image, int64_t r) {
  for (int64_t b = 0; b < p.blocks(); ++b) {
    float* to = image + (b * p.logits.pixels() + r * p.logits.w) * kBlock;
    for (int64_t i = 0; i < p.logits.w; ++i) store(to + i * kBlock, Vec{});
  }
}

/// Turns losses -log p into alpha (1 - p)^gamma -log p and returns the factor between the gradients of the two:
/// alpha (1 - p)^gamma (1 + gamma p (-log p) / (1 - p)).
inline Vec focus(const Problem& problem, Vec& loss) {
  const float gamma = problem.gamma;
  const Vec p = exp_nonpositive(min(Vec{}, -loss)), q = max(1.0f - p, splat(1e-30f));
  const Vec power = gamma == 2 ? q * q : gamma == 0 ? splat(1.0f) : exp_nonpositive(gamma * log_positive(q));
  const Vec factor = problem.alpha * power;
  // loss / q tends to 1 where both vanish.
  const Vec slope = q > 1e-6f ? loss / q : splat(1.0f);
  loss *= factor;
  return factor * (1.0f + gamma * p * slope);
}

/// Softmax of pixels [first, first + kBlock) of a chunk: leaves their exponentials in `out`, with the sum subtracted at
/// the label (so that times scale it is the gradient), sets their scale and returns their weighted losses. Blocks is
/// the number of channel blocks, 0 where only the problem knows it.
template <int Blocks>
inline Vec softmax(const Problem& p, Chunk& chunk, int64_t first, const float* mixed, float* out) {
  const int64_t width = (Blocks ? Blocks : p.blocks()) * kBlock;
  Vec parts[kBlock];
  float highest[kBlock], at_label[kBlock], sums[kBlock];
#pragma GCC unroll 16
  for (int i = 0; i < kBlock; ++i) {
    const float weight = chunk.column_weight[first + i];
    const float* left = mixed + chunk.index[first + i] * width;
    const float* right = left + width;
    float* to = out + i * width;
    Vec high = splat(kAbsent);
#pragma GCC unroll 4
    for (int64_t b = 0; b < width; b += kBlock) {
      const Vec v = load(left + b) * (1.0f - weight) + load(right + b) * weight;
      store(to + b, v);
      high = max(v, high);
    }
    parts[i] = high;
  }
  const Vec high = reduce_each(parts, [](Vec a, Vec b) { return max(a, b); });
  store(highest, high);
  for (int i = 0; i < kBlock; ++i) at_label[i] = out[i * width + chunk.label[first + i]];
#pragma GCC unroll 16
  for (int i = 0; i < kBlock; ++i) {
    float* to = out + i * width;
    Vec total{};
#pragma GCC unroll 4
    for (int64_t b = 0; b < width; b += kBlock) {
      const Vec e = exp_nonpositive(load(to + b) - highest[i]);
      store(to + b, e);
      total += e;
    }
    parts[i] = total;
  }
  const Vec sum = reduce_each(parts, [](Vec a, Vec b) { return a + b; });
  const Vec class_weight = load(chunk.class_weight + first);
  Vec loss = log_positive(sum) + (high - load(at_label)), slope = splat(1.0f);
  if (p.focal) slope = focus(p, loss);
  store(chunk.scale + first, class_weight * slope * p.gradient_scale / sum);
  store(sums, sum);
  for (int i = 0; i < kBlock; ++i) out[i * width + chunk.label[first + i]] -= sums[i];
  return class_weight * loss;
}

/// Adds the gradient of a chunk's pixels, in order, to the columns of the mixed row.
template <int Blocks>
void scatter(const Chunk& chunk, const float* exponentials, int64_t blocks, float* gradient) {
  constexpr int kHeld = Blocks ? Blocks : 1;
  const int64_t width = (Blocks ? Blocks : blocks) * kBlock;
  for (int64_t b0 = 0; b0 < width; b0 += kHeld * kBlock) {
    Vec left[kHeld] = {}, right[kHeld] = {};
    int64_t at = -1;
    const auto flush = [&] {
      if (at < 0) return;
      float* to = gradient + at * width + b0;
#pragma GCC unroll 4
      for (int b = 0; b < kHeld; ++b) {
        store(to + b * kBlock, load(to + b * kBlock) + left[b]);
        store(to + width + b * kBlock, load(to + width + b * kBlock) + right[b]);
      }
    };
    for (int64_t i = 0; i < chunk.count; ++i) {
      if (chunk.index[i] != at) {
        flush();
        at = chunk.index[i];
#pragma GCC unroll 4
        for (int b = 0; b < kHeld; ++b) left[b] = right[b] = Vec{};
      }
      const float w_right = chunk.scale[i] * chunk.column_weight[i], w_left = chunk.scale[i] - w_right;
      const float* e = exponentials + i * width + b0;
#pragma GCC unroll 4
      for (int b = 0; b < kHeld; ++b) {
        const Vec v = load(e + b * kBlock);
        left[b] += v * w_left;
        right[b] += v * w_right;
      }
    }
    flush();
  }
}

/// Loss and gradient of one output row, whose source row is in band.mixed.
template <int Blocks>
void output_row(const Problem& p, int64_t row_index, Band& band) {
  const int64_t blocks = Blocks ? Blocks : p.blocks(), width = blocks * kBlock;
  const int32_t* labels = p.target + row_index * p.out_w;
  Chunk chunk;
  for (int64_t w0 = 0; w0 < p.out_w; w0 += kSoftmaxCeChunk) {
    const int64_t w1 = w0 + kSoftmaxCeChunk < p.out_w ? w0 + kSoftmaxCeChunk : p.out_w;
    int64_t count = 0;
    for (int64_t w = w0; w < w1; ++w) {
      const int32_t label = labels[w];
      if (p.probability) p.probability[row_index * p.out_w + w] = kNoProbability;
      if (label == p.ignore_index) continue;
      if (label < 0 || label >= p.logits.c) {
        if (band.bad_index < 0) band.bad_index = row_index * p.out_w + w;
        continue;
      }
      const Source source = p.columns.source(w);
      chunk.label[count] = label;
      chunk.index[count] = source.index;
      chunk.column[count] = static_cast<int32_t>(w);
      chunk.column_weight[count] = source.weight;
      chunk.class_weight[count] = p.class_weight ? p.class_weight[label] : 1.0f;
      ++count;
    }
    chunk.count = count;
    for (int64_t i = count; i % kBlock != 0; ++i) {  // whole vectors: repeat the last pixel without weight
      chunk.label[i] = chunk.label[count - 1];
      chunk.index[i] = chunk.index[count - 1];
      chunk.column_weight[i] = chunk.column_weight[count - 1];
      chunk.class_weight[i] = 0;
    }
    for (int64_t i = 0; i < count; i += kBlock) {
      const Vec losses = softmax<Blocks>(p, chunk, i, band.mixed, band.chunk + i * width);
      for (int64_t j = 0; j < kBlock; ++j) band.loss += static_cast<double>(losses[j]);
      if (!p.probability) continue;
      const Vec probability = exp_nonpositive(min(Vec{}, -losses));
      for (int64_t j = 0; j < kBlock && i + j < count; ++j)
        p.probability[row_index * p.out_w + chunk.column[i + j]] = probability[j];
    }
    if (p.d_logits.data) scatter<Blocks>(chunk, band.chunk, blocks, band.gradient);
  }
}

void run_row(const Problem& p, int64_t row_index, Band& band) {
  switch (p.blocks()) {
    case 1:
      return output_row<1>(p, row_index, band);
    case 2:
      return output_row<2>(p, row_index, band);
    case 3:
      return output_row<3>(p, row_index, band);
    case 4:
      return output_row<4>(p, row_index, band);
    default:
      return output_row<0>(p, row_index, band);
  }
}

/// Everything that source rows [r0, r1) of image n begin.
void run_band(const Problem& p, int64_t n, int64_t r0, int64_t r1, Band& band) {
  const int64_t width = p.blocks() * kBlock, row_size = (p.logits.w + 1) * width;
  const float* image = p.logits.f32() + n * p.logits.image_stride();
  float* d_image = p.d_logits.data ? p.d_logits.f32() + n * p.d_logits.image_stride() : nullptr;
  if (d_image) {
    for (int64_t i = 0; i < row_size; ++i) band.carry[i] = 0;
    for (int64_t r = r0; r < r1; ++r) clear_row(p, d_image, r);
  }
  for (int64_t oh = p.rows.first_reaching(r0); oh < p.out_h; ++oh) {
    const Source row = p.rows.source(oh);
    if (row.index >= r1) break;
    mix_rows(p, image, row.index, row.weight, band.mixed);
    if (d_image)
      for (int64_t i = 0; i < row_size; ++i) band.gradient[i] = 0;
    run_row(p, n * p.out_h + oh, band);
    if (!d_image) continue;
    add_row(p, band.gradient, 1.0f - row.weight, d_image, row.index);
    if (row.weight == 0) continue;
    if (row.index + 1 < r1) {
      add_row(p, band.gradient, row.weight, d_image, row.index + 1);
    } else {
      for (int64_t i = 0; i < row_size; i += kBlock)
        store(band.carry + i, load(band.carry + i) + load(band.gradient + i) * row.weight);
    }
  }
}

Problem make_problem(const View& logits, const View& d_logits, const int32_t* target, int64_t H, int64_t W,
                     bool align_corners, int32_t ignore_index, const float* class_weight, float normalizer) {
  return {logits,
          d_logits,
          target,
          H,
          W,
          ignore_index,
          class_weight,
          normalizer != 0 ? 1.0f / normalizer : 0.0f,
          make_axis(logits.h, H, align_corners, 0, false),
          make_axis(logits.w, W, align_corners, 0, false)};
}

/// Loss, gradient and first bad label of a problem; `normalizer` divides the loss.
void solve(const Problem& p, float normalizer, float* loss, int64_t* bad_index, float* workspace) {
  const View &logits = p.logits, &d_logits = p.d_logits;
  const int64_t width = p.blocks() * kBlock, row_size = (logits.w + 1) * width;
  const int64_t band_rows = softmax_ce_band_rows(logits.h), bands = (logits.h + band_rows - 1) / band_rows;
  const int64_t band_floats = 3 * row_size + (kSoftmaxCeChunk + 2) * width + 2 * kBlock;
  const auto make_band = [&](int64_t task) {
    float* space = workspace + task * band_floats;
    return Band{space, space + row_size, space + 2 * row_size, space + 3 * row_size};
  };
  // The last floats of a band hold its results: the loss (double) and the first bad index.
  const auto results = [&](int64_t task) { return workspace + (task + 1) * band_floats - kBlock; };
#pragma omp parallel for schedule(dynamic)
  for (int64_t task = 0; task < logits.n * bands; ++task) {
    Band band = make_band(task);
    const int64_t r0 = task % bands * band_rows, r1 = r0 + band_rows < logits.h ? r0 + band_rows : logits.h;
    run_band(p, task / bands, r0, r1, band);
    std::memcpy(results(task), &band.loss, sizeof band.loss);
    std::memcpy(results(task) + 2, &band.bad_index, sizeof band.bad_index);
  }
  double total = 0;
  *bad_index = -1;
  for (int64_t task = 0; task < logits.n * bands; ++task) {
    double part;
    int64_t bad;
    std::memcpy(&part, results(task), sizeof part);
    std::memcpy(&bad, results(task) + 2, sizeof bad);
    total += part;
    if (*bad_index < 0) *bad_index = bad;
  }
  *loss = normalizer != 0 ? static_cast<float>(total / static_cast<double>(normalizer)) : 0.0f;
  if (d_logits.data == nullptr) return;
#pragma omp parallel for schedule(static)
  for (int64_t task = 0; task < logits.n * bands; ++task) {
    const int64_t next = (task % bands + 1) * band_rows;
    if (next >= logits.h) continue;
    float* d_image = d_logits.f32() + task / bands * d_logits.image_stride();
    add_row(p, make_band(task).carry, 1.0f, d_image, next);
  }
}

}  // namespace

void upsample_softmax_ce(const View& logits, const int32_t* target, int64_t H, int64_t W, bool align_corners,
                         int32_t ignore_index, const float* class_weight, const float* normalizer, float* loss,
                         const View& d_logits, int64_t* bad_index, float* workspace) {
  const Problem p =
      make_problem(logits, d_logits, target, H, W, align_corners, ignore_index, class_weight, *normalizer);
  solve(p, *normalizer, loss, bad_index, workspace);
}

void upsample_focal_ce(const View& logits, const int32_t* target, int64_t H, int64_t W, bool align_corners,
                       int32_t ignore_index, const float* class_weight, const float* normalizer, float alpha,
                       float gamma, float* loss, const View& d_logits, int64_t* bad_index, float* workspace) {
  Problem p = make_problem(logits, d_logits, target, H, W, align_corners, ignore_index, class_weight, *normalizer);
  p.focal = true;
  p.alpha = alpha;
  p.gamma = gamma;
  solve(p, *normalizer, loss, bad_index, workspace);
}

void upsample_label_probability(const View& logits, const int32_t* target, int64_t H, int64_t W, bool align_corners,
                                int32_t ignore_index, float* probability, float* workspace) {
  View no_gradient = logits;
  no_gradient.data = nullptr;
  Problem p = make_problem(logits, no_gradient, target, H, W, align_corners, ignore_index, nullptr, 1);
  p.probability = probability;
  float loss;
  int64_t bad_index;
  solve(p, 1, &loss, &bad_index, workspace);
}

void label_weight_sum(const int32_t* target, int64_t count, int64_t classes, int32_t ignore_index,
                      const float* class_weight, float* result) {
  constexpr int64_t kParts = 64;
  double sums[kParts];
#pragma omp parallel for schedule(static)
  for (int64_t part = 0; part < kParts; ++part) {
    double sum = 0;
    for (int64_t i = part * count / kParts; i < (part + 1) * count / kParts; ++i) {
      const int32_t t = target[i];
      if (t == ignore_index || t < 0 || t >= classes) continue;
      sum += class_weight ? static_cast<double>(class_weight[t]) : 1.0;
    }
    sums[part] = sum;
  }
  double total = 0;
  for (const double s : sums) total += s;
  *result = static_cast<float>(total);
}

}  // namespace convoy::cpu::CONVOY_ISA
