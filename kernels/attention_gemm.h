// Small matrix products on blocked tensors, for the attention kernels compiled per instruction set. A matrix has a row
// per pixel and a column per channel, so an image row, an image column or a tile of pixels is one without any copy.
// One thread computes a product; sums run over the inner dimension in order, in runs of kDepth that are added in order.
#pragma once
#include "kernels/blocked.h"

namespace convoy::cpu::CONVOY_ISA {

/// Element (r, c) at data + r*row + c/kBlock*block + c%kBlock. Columns behind the last up to a whole block exist, and
/// are zero in operands.
struct Matrix {
  float* data;
  int64_t row, block;

  float* at(int64_t r, int64_t vector = 0) const { return data + r * row + vector * block; }
};

/// Pixels first, first + step, ... of image n.
static inline Matrix pixels_of(const View& x, int64_t n, int64_t first = 0, int64_t step = 1) {
  return {block_at(x, n, 0) + first * kBlock, step * kBlock, x.pixels() * kBlock};
}
/// A row-major array; `columns` is a multiple of kBlock.
static inline Matrix dense(float* data, int64_t columns) {
  return {data, columns, kBlock};
}
static inline int64_t whole_blocks(int64_t columns) {
  return ceil_div(columns, kBlock) * kBlock;
}

/// Left operand of a product: element (r, k) at data + r*row + k/kBlock*block + k%kBlock*lane.
struct Left {
  const float* data;
  int64_t row, block, lane;
};
static inline Left plain(const Matrix& m) {
  return {m.data, m.row, m.block, 1};
}
/// Column block `vector` of m as rows: at most kBlock rows, any number of a dense matrix.
static inline Left transposed(const Matrix& m, int64_t vector = 0) {
  return {m.at(0, vector), 1, kBlock * m.row, m.row};
}

/// How a product combines an element of the left operand with a vector of the right one.
struct Product {
  static Vec term(float a, Vec b) { return a * b; }
};
struct SquaredDifference {
  static Vec term(float a, Vec b) {
    const Vec d = a - b;
    return d * d;
  }
};

constexpr int64_t kDepth = 128;              // multiple of kBlock
constexpr int kRows = kBlock == 16 ? 8 : 4;  // rows and vectors of a tile in registers
constexpr int kVectors = 2;

template <class Op, int R, int V>
static inline void product_tile(const Left& a, const Matrix& b, int64_t depth, bool add, const Matrix& c) {
  Vec sums[R][V] = {};
  const float* right = b.data;
  for (int64_t k = 0; k < depth; k += kBlock) {
    const float* left = a.data + k / kBlock * a.block;
    const int64_t lanes = smaller(kBlock, depth - k);
    for (int64_t l = 0; l < lanes; ++l, left += a.lane, right += b.row) {
      Vec vectors[V];
#pragma GCC unroll 2
      for (int v = 0; v < V; ++v) vectors[v] = load(right + v * b.block);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r)
#pragma GCC unroll 2
        for (int v = 0; v < V; ++v) sums[r][v] += Op::term(left[r * a.row], vectors[v]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 2
    for (int v = 0; v < V; ++v) {
      float* to = c.at(r, v);
      store(to, add ? load(to) + sums[r][v] : sums[r][v]);
    }
}

/// Tiles of R rows from `first` on as long as they fit; returns the first row left.
template <class Op, int R, int V>
static inline int64_t product_rows(int64_t first, int64_t rows, const Left& a, const Matrix& b, int64_t depth, bool add,
                                   const Matrix& c) {
  for (; first + R <= rows; first += R)
    product_tile<Op, R, V>({a.data + first * a.row, a.row, a.block, a.lane}, b, depth, add,
                           {c.at(first), c.row, c.block});
  return first;
}

template <class Op, int V>
static inline void product_vectors(int64_t rows, const Left& a, const Matrix& b, int64_t depth, bool add,
                                   const Matrix& c) {
  int64_t r = product_rows<Op, kRows, V>(0, rows, a, b, depth, add, c);
  if constexpr (kRows > 4) r = product_rows<Op, 4, V>(r, rows, a, b, depth, add, c);
  r = product_rows<Op, 2, V>(r, rows, a, b, depth, add, c);
  product_rows<Op, 1, V>(r, rows, a, b, depth, add, c);
}

/// c = a * b, or c += a * b: `rows` rows, `columns` columns (whole vectors are computed), inner dimension `depth`.
template <class Op = Product>
static inline void multiply(int64_t rows, int64_t columns, int64_t depth, const Left& a, const Matrix& b, bool add,
                            const Matrix& c) {
  const int64_t vectors = ceil_div(columns, kBlock);
  for (int64_t k = 0; k < depth; k += kDepth) {
    const Left part{a.data + k / kBlock * a.block, a.row, a.block, a.lane};
    const int64_t count = smaller(kDepth, depth - k);
    int64_t v = 0;
    for (; v + kVectors <= vectors; v += kVectors)
      product_vectors<Op, kVectors>(rows, part, {b.at(k, v), b.row, b.block}, count, add || k > 0,
                                    {c.at(0, v), c.row, c.block});
    for (; v < vectors; ++v)
      product_vectors<Op, 1>(rows, part, {b.at(k, v), b.row, b.block}, count, add || k > 0,
                             {c.at(0, v), c.row, c.block});
  }
}

/// to[c*pitch + r] = m(r, c) for all c < columns; zeros for r from `rows` up to pitch.
static inline void transpose(const Matrix& m, int64_t rows, int64_t columns, float* to, int64_t pitch) {
  for (int64_t c = 0; c < columns; c += kBlock) {
    const int64_t lanes = smaller(kBlock, columns - c);
    for (int64_t r = 0; r < rows; ++r) {
      const float* from = m.at(r, c / kBlock);
      for (int64_t l = 0; l < lanes; ++l) to[(c + l) * pitch + r] = from[l];
    }
    for (int64_t l = 0; l < lanes; ++l)
      for (int64_t r = rows; r < pitch; ++r) to[(c + l) * pitch + r] = 0;
  }
}

/// e^x, the share of an energy x below the largest one; 0 below 1e-30, which is nothing beside the largest, but whose
/// products with small values would be subnormal and slow. NaN stays NaN.
static inline Vec weight_of(Vec x) {
  return x < -69.0f ? Vec{} : exp(x);
}

/// Largest element of a row of `vectors` vectors.
static inline float row_max(const Matrix& m, int64_t r, int64_t vectors) {
  Vec high = load(m.at(r));
  for (int64_t v = 1; v < vectors; ++v) high = max(load(m.at(r, v)), high);
  float result = high[0];
  for (int l = 1; l < kBlock; ++l) result = high[l] > result ? high[l] : result;
  return result;
}

/// Number of tasks per image for work that comes in `units` per image: a function of the shape alone, so that results
/// and scratch memory do not depend on the number of threads.
static inline int64_t parts_per_image(int64_t images, int64_t units) {
  constexpr int64_t kTasks = 32;
  return larger(1, smaller(units, ceil_div(kTasks, images)));
}

/// Calls body(n, first, last, scratch) for every part of the units of every image; `scratch` holds `floats` floats of
/// that task alone.
template <class Body>
static inline void for_each_part(int64_t images, int64_t units, int64_t floats, float* workspace, int64_t work,
                                 const Body& body) {
  const int64_t parts = parts_per_image(images, units);
  parallel_for(images * parts, ceil_div(units, parts) * work, [&](int64_t i) {
    const int64_t n = i / parts, part = i % parts;
    body(n, part * units / parts, (part + 1) * units / parts, workspace + i * floats);
  });
}
static inline int64_t part_floats(int64_t images, int64_t units, int64_t floats) {
  return images * parts_per_image(images, units) * floats;
}

}  // namespace convoy::cpu::CONVOY_ISA
