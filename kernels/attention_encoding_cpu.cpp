// Encoding by codewords. Distances are kept for the backward pass, assignments (softmax over codewords) are cheap and
// made again. Codewords run along vectors for everything per pixel, channels for everything per codeword.
//   FLOPs  forward 5 N HW K D, backward 8 N HW K D.  Bytes: x twice forward, three times backward.
//   Expected bound: arithmetic.
//   Numerics: distances as sums of squared differences, no cancellation; fp32, sums over pixels in runs of 128, added
//   in order, those over images after each other; sums of assignments in double. Every element is made by one thread.
#include <cmath>

#include "kernels/attention.h"
#include "kernels/attention_gemm.h"

namespace convoy::cpu::CONVOY_ISA {
namespace {

constexpr int64_t kTile = 64;
constexpr int64_t kGroup = 2;  // channel blocks of one task of a sum over pixels

/// A row-major rows x columns array that belongs to a workspace, columns padded with zeros to whole vectors.
int64_t padded_floats(int64_t rows, int64_t columns) {
  return rows * whole_blocks(columns);
}
Matrix padded(const float* from, int64_t rows, int64_t columns, float* to) {
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < columns; c += kBlock)
      store(to + r * whole_blocks(columns) + c, load_partial(from + r * columns + c, columns - c));
  return dense(to, whole_blocks(columns));
}

float* take(float*& workspace, int64_t floats) {
  float* p = workspace;
  workspace += floats;
  return p;
}

/// Calls body(n, first, rows) for tiles of pixels.
template <class Body>
void for_each_tile(const View& x, int64_t work, const Body& body) {
  const int64_t tiles = ceil_div(x.pixels(), kTile);
  parallel_for(x.n * tiles, kTile * work, [&](int64_t i) {
    const int64_t first = i % tiles * kTile;
    body(i / tiles, first, smaller(kTile, x.pixels() - first));
  });
}

/// The rows of m from `first` on.
Matrix rows_of(const Matrix& m, int64_t first) {
  return {m.at(first), m.row, m.block};
}

/// assignments(i, k) = softmax over k of scale(k)^2 * distance(i, k), zero in the pad lanes.
void assign(const Matrix& distances, int64_t rows, const float* scale, int64_t codewords, const Matrix& assignments) {
  const int64_t vectors = ceil_div(codewords, kBlock);
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t v = 0; v < vectors; ++v) {
      const Vec s = load_channels(scale, codewords, v);
      const Vec energy = s * s * load(distances.at(r, v));
      store(assignments.at(r, v), channel_mask(codewords, v) ? energy : splat(-INFINITY));
    }
    const float high = row_max(assignments, r, vectors);
    Vec total{};
    for (int64_t v = 0; v < vectors; ++v) {
      const Vec e = zero_pads(weight_of(load(assignments.at(r, v)) - high), channel_mask(codewords, v));
      store(assignments.at(r, v), e);
      total += e;
    }
    const float factor = 1 / sum(total);
    for (int64_t v = 0; v < vectors; ++v) store(assignments.at(r, v), load(assignments.at(r, v)) * factor);
  }
}

/// to[k] = sum over `rows` rows of term(r, vector of k).
template <class Term>
void sum_rows(int64_t rows, int64_t vectors, float* to, const Term& term) {
  for (int64_t v = 0; v < vectors; ++v) {
    DVec total{};
    for (int64_t r = 0; r < rows; ++r) total += to_double(term(r, v));
    store(to + v * kBlock, to_float(total));
  }
}

/// to(k, d) (+)= sum over the pixels of image n of a(i, k) * x(i, d), for the channel blocks of one group.
void weighted_sum(const Matrix& a, int64_t codewords, const View& x, int64_t n, int64_t group, bool add,
                  const Matrix& to) {
  const int64_t first = group * kGroup, channels = smaller(kGroup * kBlock, x.c - first * kBlock);
  const Matrix pixels = pixels_of(x, n);
  multiply(codewords, channels, x.pixels(), transposed(a), {pixels.at(0, first), pixels.row, pixels.block}, add,
           {to.at(0, first), to.row, to.block});
}

}  // namespace

size_t encoding_workspace_bytes(const View& x, int64_t codewords) {
  const int64_t columns = whole_blocks(codewords);
  return static_cast<size_t>(x.c * columns + x.n * (x.pixels() + 1) * columns + x.n * padded_floats(codewords, x.c)) *
         sizeof(float);
}

void encoding(const View& x, const View& codewords, const float* scale, const View& y, const View& distances,
              float* workspace) {
  const int64_t count = codewords.n, columns = whole_blocks(count), vectors = columns / kBlock;
  const Matrix words_t = dense(take(workspace, x.c * columns), columns);
  const Matrix assignments = dense(take(workspace, x.n * x.pixels() * columns), columns);
  const Matrix sums = dense(take(workspace, x.n * padded_floats(count, x.c)), whole_blocks(x.c));
  float* assigned = take(workspace, x.n * columns);
  for (int64_t d = 0; d < x.c; ++d)
    for (int64_t k = 0; k < columns; ++k) words_t.at(d)[k] = k < count ? codewords.f32()[k * x.c + d] : 0;
  for_each_tile(x, columns * x.c, [&](int64_t n, int64_t first, int64_t rows) {
    const Matrix to = pixels_of(distances, n, first);
    multiply<SquaredDifference>(rows, count, x.c, plain(pixels_of(x, n, first)), words_t, false, to);
    const IVec mask = channel_mask(count, vectors - 1);
    for (int64_t r = 0; r < rows; ++r) store(to.at(r, vectors - 1), zero_pads(load(to.at(r, vectors - 1)), mask));
    assign(to, rows, scale, count, rows_of(assignments, n * x.pixels() + first));
  });
  parallel_for(x.n, x.pixels() * columns, [&](int64_t n) {
    const Matrix a = rows_of(assignments, n * x.pixels());
    sum_rows(x.pixels(), vectors, assigned + n * columns, [&](int64_t r, int64_t v) { return load(a.at(r, v)); });
  });
  const int64_t groups = ceil_div(x.blocks(), kGroup);
  parallel_for(x.n * groups, kGroup * kBlock * count * x.pixels(), [&](int64_t i) {
    const int64_t n = i / groups, first = i % groups * kGroup;
    const Matrix to = rows_of(sums, n * count);
    weighted_sum(rows_of(assignments, n * x.pixels()), count, x, n, i % groups, false, to);
    for (int64_t k = 0; k < count; ++k)
      for (int64_t b = first; b < smaller(first + kGroup, x.blocks()); ++b) {
        const Vec word = load_channels(codewords.f32() + k * x.c, x.c, b);
        store_channels(y.f32() + (n * count + k) * x.c, x.c, b, load(to.at(k, b)) - assigned[n * columns + k] * word);
      }
  });
}

size_t encoding_backward_workspace_bytes(const View& x, int64_t codewords) {
  const int64_t columns = whole_blocks(codewords), words = padded_floats(codewords, x.c);
  return static_cast<size_t>(2 * words + x.n * (words + x.c * columns + 4 * columns) + 3 * x.n * x.pixels() * columns) *
         sizeof(float);
}

void encoding_backward(const View& dy, const View& x, const View& codewords, const float* scale, const View& distances,
                       const View& dx, float* dcodewords, float* dscale, float* workspace) {
  const int64_t count = codewords.n, columns = whole_blocks(count), vectors = columns / kBlock, pixels = x.pixels();
  const int64_t word_floats = padded_floats(count, x.c);
  const Matrix words = padded(codewords.f32(), count, x.c, take(workspace, word_floats));
  const Matrix energy_sums = dense(take(workspace, word_floats), whole_blocks(x.c));
  const Matrix d_codes = padded(dy.f32(), x.n * count, x.c, take(workspace, x.n * word_floats));
  const Matrix d_codes_t = dense(take(workspace, x.n * x.c * columns), columns);
  float* d_code_dot_word = take(workspace, x.n * columns);
  float* assigned = take(workspace, x.n * columns);           // sum over pixels of assignments
  float* d_energy = take(workspace, x.n * columns);           // of the energies' gradients
  float* d_energy_distance = take(workspace, x.n * columns);  // of those times the distances
  const Matrix assignments = dense(take(workspace, x.n * pixels * columns), columns);
  const Matrix d_energies = dense(take(workspace, x.n * pixels * columns), columns);
  const Matrix pulls = dense(take(workspace, x.n * pixels * columns), columns);  // -2 scale^2 * d_energies
  parallel_for(x.n, 2 * count * x.c, [&](int64_t n) {
    const Matrix codes = rows_of(d_codes, n * count);
    transpose(codes, count, x.c, d_codes_t.at(n * x.c), columns);
    for (int64_t k = 0; k < columns; ++k) {
      Vec total{};
      for (int64_t b = 0; k < count && b < x.blocks(); ++b) total += load(codes.at(k, b)) * load(words.at(k, b));
      d_code_dot_word[n * columns + k] = sum(total);
    }
  });
  for_each_tile(x, 4 * columns * x.c, [&](int64_t n, int64_t first, int64_t rows) {
    const int64_t pixel = n * pixels + first;
    const Matrix a = rows_of(assignments, pixel), d = rows_of(d_energies, pixel), pull = rows_of(pulls, pixel);
    const Matrix from = pixels_of(x, n, first), to = pixels_of(dx, n, first);
    assign(pixels_of(distances, n, first), rows, scale, count, a);
    multiply(rows, count, x.c, plain(from), rows_of(d_codes_t, n * x.c), false, d);
    multiply(rows, x.c, count, plain(a), rows_of(d_codes, n * count), false, to);
    for (int64_t r = 0; r < rows; ++r) {
      Vec total{};
      for (int64_t v = 0; v < vectors; ++v) {
        store(d.at(r, v), load(d.at(r, v)) - load(d_code_dot_word + n * columns + v * kBlock));
        total += load(a.at(r, v)) * load(d.at(r, v));
      }
      const float mean = sum(total);
      Vec pulled{};
      for (int64_t v = 0; v < vectors; ++v) {
        const Vec s = load_channels(scale, count, v), energy = load(a.at(r, v)) * (load(d.at(r, v)) - mean);
        store(d.at(r, v), energy);
        store(pull.at(r, v), -2 * s * s * energy);
        pulled += 2 * s * s * energy;
      }
      const float own = sum(pulled);
      for (int64_t b = 0; b < x.blocks(); ++b) store(to.at(r, b), load(to.at(r, b)) + own * load(from.at(r, b)));
    }
    multiply(rows, x.c, count, plain(pull), words, true, to);
  });
  parallel_for(x.n, 4 * pixels * columns, [&](int64_t n) {
    const Matrix a = rows_of(assignments, n * pixels), d = rows_of(d_energies, n * pixels);
    const Matrix distance = pixels_of(distances, n);
    sum_rows(pixels, vectors, assigned + n * columns, [&](int64_t r, int64_t v) { return load(a.at(r, v)); });
    sum_rows(pixels, vectors, d_energy + n * columns, [&](int64_t r, int64_t v) { return load(d.at(r, v)); });
    sum_rows(pixels, vectors, d_energy_distance + n * columns,
             [&](int64_t r, int64_t v) { return load(d.at(r, v)) * load(distance.at(r, v)); });
  });
  parallel_for(ceil_div(x.blocks(), kGroup), kGroup * kBlock * count * x.n * pixels, [&](int64_t group) {
    for (int64_t n = 0; n < x.n; ++n)
      weighted_sum(rows_of(d_energies, n * pixels), count, x, n, group, n > 0, energy_sums);
    for (int64_t k = 0; k < count; ++k) {
      double energy = 0;
      for (int64_t n = 0; n < x.n; ++n) energy += static_cast<double>(d_energy[n * columns + k]);
      const float factor = -2 * scale[k] * scale[k], pulled = static_cast<float>(energy);
      for (int64_t b = group * kGroup; b < smaller((group + 1) * kGroup, x.blocks()); ++b) {
        Vec total = factor * (load(energy_sums.at(k, b)) - pulled * load(words.at(k, b)));
        for (int64_t n = 0; n < x.n; ++n) total -= assigned[n * columns + k] * load(d_codes.at(n * count + k, b));
        store_channels(dcodewords + k * x.c, x.c, b, total);
      }
    }
  });
  for (int64_t k = 0; k < count; ++k) {
    double total = 0;
    for (int64_t n = 0; n < x.n; ++n) total += static_cast<double>(d_energy_distance[n * columns + k]);
    dscale[k] = static_cast<float>(2 * static_cast<double>(scale[k]) * total);
  }
}

}  // namespace convoy::cpu::CONVOY_ISA
