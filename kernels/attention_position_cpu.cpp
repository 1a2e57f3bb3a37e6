// Position attention without its H*W x H*W matrix (Dao et al. 2022): tiles of 64 x 64 energies are made where they are
// needed. Forward keeps a running maximum and sum per pixel; backward makes each tile again, once, and adds it to all
// three gradients.
//   FLOPs  forward 2 N (HW)^2 (D + C), backward 2 N (HW)^2 (3 D + 2 C).
//   Bytes  k and v once per 64 pixels, from cache.  Expected bound: arithmetic.
//   Numerics: fp32; weights below 1e-30 of the largest are 0; tiles are added in order. dk and dv of a pixel are summed
//   by one thread over all i; dq is summed in parts, a number that depends on the shape only, which are then added in
//   order.
#include <cmath>

#include "kernels/attention.h"
#include "kernels/attention_gemm.h"

namespace convoy::cpu::CONVOY_ISA {
namespace {

constexpr int64_t kTile = 64;

int64_t tiles_of(const View& x) {
  return ceil_div(x.pixels(), kTile);
}
int64_t tile_size(const View& x, int64_t tile) {
  return smaller(kTile, x.pixels() - tile * kTile);
}
Matrix tile_of(const View& x, int64_t n, int64_t tile) {
  return pixels_of(x, n, tile * kTile);
}

/// Columns from `count` up to a whole vector become `value`.
void fill_tail(const Matrix& m, int64_t rows, int64_t count, float value) {
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = count; c < whole_blocks(count); ++c) m.at(r)[c] = value;
}

/// Row r of m becomes weight_of(m - shift); returns the sum.
double exponentials(const Matrix& m, int64_t r, int64_t vectors, float shift) {
  Vec total{};
  for (int64_t v = 0; v < vectors; ++v) {
    const Vec e = weight_of(load(m.at(r, v)) - shift);
    store(m.at(r, v), e);
    total += e;
  }
  return static_cast<double>(sum(total));
}

void scale_row(const Matrix& m, int64_t r, int64_t vectors, float factor) {
  for (int64_t v = 0; v < vectors; ++v) store(m.at(r, v), load(m.at(r, v)) * factor);
}

struct Operands {
  const View &q, &k, &v, &y, &lse;
};

/// The pixels of one tile of queries. scratch: the keys of a tile, transposed, then a tile of energies.
void attend_tile(const Operands& o, int64_t n, int64_t i, float* scratch) {
  const int64_t rows = tile_size(o.q, i), channels = o.v.blocks();
  const Matrix keys = dense(scratch, kTile), energies = dense(scratch + o.q.c * kTile, kTile), y = tile_of(o.y, n, i);
  float highest[kTile];
  double sums[kTile];
  for (int64_t j = 0; j < tiles_of(o.k); ++j) {
    const int64_t columns = tile_size(o.k, j), vectors = ceil_div(columns, kBlock);
    transpose(tile_of(o.k, n, j), columns, o.k.c, keys.data, kTile);
    multiply(rows, columns, o.q.c, plain(tile_of(o.q, n, i)), keys, false, energies);
    fill_tail(energies, rows, columns, -INFINITY);
    for (int64_t r = 0; r < rows; ++r) {
      float high = row_max(energies, r, vectors);
      if (j == 0) {
        sums[r] = exponentials(energies, r, vectors, high);
      } else {
        high = highest[r] > high ? highest[r] : high;
        const float shrink = std::exp(highest[r] - high);
        sums[r] = sums[r] * static_cast<double>(shrink) + exponentials(energies, r, vectors, high);
        if (shrink != 1) scale_row(y, r, channels, shrink);
      }
      highest[r] = high;
    }
    multiply(rows, o.v.c, columns, plain(energies), tile_of(o.v, n, j), j > 0, y);
  }
  for (int64_t r = 0; r < rows; ++r) {
    scale_row(y, r, channels, static_cast<float>(1 / sums[r]));
    o.lse.f32()[n * o.q.pixels() + i * kTile + r] =
        static_cast<float>(static_cast<double>(highest[r]) + std::log(sums[r]));
  }
}

int64_t forward_scratch(const View& q) {
  return kTile * (q.c + kTile);
}
/// Keys and values of a tile, transposed; weights and their gradients.
int64_t backward_scratch(const View& q, const View& v) {
  return kTile * (q.c + v.c + 2 * kTile);
}
/// dq of one part.
int64_t query_floats(const View& q) {
  return q.pixels() * q.blocks() * kBlock;
}

struct Gradients {
  const Operands& in;
  const View& dy;
  const float* y_dot_dy;  // per pixel
  const View &dk, &dv;
};

/// What the keys and values of tile j receive from all queries, and add to the gradients `dq` of the queries, which
/// the first tile of a part starts.
void backward_tile(const Gradients& g, int64_t n, int64_t j, bool first, const Matrix& dq, float* scratch) {
  const Operands& o = g.in;
  const int64_t columns = tile_size(o.k, j), vectors = ceil_div(columns, kBlock), pixels = o.q.pixels();
  const Matrix keys = dense(scratch, kTile), values = dense(keys.data + o.q.c * kTile, kTile),
               weights = dense(values.data + o.v.c * kTile, kTile), d_weights = dense(weights.at(kTile), kTile);
  const Matrix k = tile_of(o.k, n, j), v = tile_of(o.v, n, j);
  transpose(k, columns, o.k.c, keys.data, kTile);
  transpose(v, columns, o.v.c, values.data, kTile);
  for (int64_t i = 0; i < tiles_of(o.q); ++i) {
    const int64_t rows = tile_size(o.q, i);
    const Matrix q = tile_of(o.q, n, i), dy = tile_of(g.dy, n, i);
    multiply(rows, columns, o.q.c, plain(q), keys, false, weights);
    multiply(rows, columns, o.v.c, plain(dy), values, false, d_weights);
    for (int64_t r = 0; r < rows; ++r) {
      const int64_t pixel = n * pixels + i * kTile + r;
      const float shift = o.lse.f32()[pixel], mean = g.y_dot_dy[pixel];
      for (int64_t b = 0; b < vectors; ++b) {
        const Vec weight = weight_of(load(weights.at(r, b)) - shift);
        store(weights.at(r, b), weight);
        store(d_weights.at(r, b), weight * (load(d_weights.at(r, b)) - mean));
      }
    }
    multiply(columns, o.v.c, rows, transposed(weights), dy, i > 0, tile_of(g.dv, n, j));
    multiply(columns, o.q.c, rows, transposed(d_weights), q, i > 0, tile_of(g.dk, n, j));
    multiply(rows, o.q.c, columns, plain(d_weights), k, !first, {dq.at(i * kTile), dq.row, dq.block});
  }
}

}  // namespace

size_t position_attention_workspace_bytes(const View& q) {
  return static_cast<size_t>(part_floats(q.n, tiles_of(q), forward_scratch(q))) * sizeof(float);
}

void position_attention(const View& q, const View& k, const View& v, const View& y, const View& lse, float* workspace) {
  const Operands o{q, k, v, y, lse};
  for_each_part(q.n, tiles_of(q), forward_scratch(q), workspace, kTile * q.pixels() * v.c,
                [&](int64_t n, int64_t first, int64_t last, float* scratch) {
                  for (int64_t i = first; i < last; ++i) attend_tile(o, n, i, scratch);
                });
}

size_t position_attention_backward_workspace_bytes(const View& q, const View& v) {
  const int64_t floats = backward_scratch(q, v) + query_floats(q);
  return static_cast<size_t>(q.n * q.pixels() + part_floats(q.n, tiles_of(q), floats)) * sizeof(float);
}

void position_attention_backward(const View& dy, const View& q, const View& k, const View& v, const View& y,
                                 const View& lse, const View& dq, const View& dk, const View& dv, float* workspace) {
  const int64_t pixels = q.pixels(), query = query_floats(q), floats = backward_scratch(q, v) + query;
  const int64_t parts = parts_per_image(q.n, tiles_of(q));
  float* y_dot_dy = workspace + part_floats(q.n, tiles_of(q), floats);
  parallel_for(q.n * pixels, v.c, [&](int64_t i) {
    const Matrix a = pixels_of(y, i / pixels, i % pixels), b = pixels_of(dy, i / pixels, i % pixels);
    Vec total{};
    for (int64_t c = 0; c < v.blocks(); ++c) total += load(a.at(0, c)) * load(b.at(0, c));
    y_dot_dy[i] = sum(total);
  });
  const Operands o{q, k, v, y, lse};
  const Gradients g{o, dy, y_dot_dy, dk, dv};
  for_each_part(q.n, tiles_of(q), floats, workspace, kTile * pixels * v.c,
                [&](int64_t n, int64_t first, int64_t last, float* scratch) {
                  const Matrix part{scratch, kBlock, pixels * kBlock};
                  for (int64_t j = first; j < last; ++j) backward_tile(g, n, j, j == first, part, scratch + query);
                });
  for_each_chunk(dq, kSumChunk, [&](int64_t n, int64_t b, int64_t first, int64_t last) {
    const float* from = workspace + n * parts * floats + b * pixels * kBlock;
    float* to = block_at(dq, n, b);
    for (int64_t p = first * kBlock; p < last * kBlock; p += kBlock) {
      Vec total = load(from + p);
      for (int64_t part = 1; part < parts; ++part) total += load(from + part * floats + p);
      store(to + p, total);
    }
  });
}

}  // namespace convoy::cpu::CONVOY_ISA
