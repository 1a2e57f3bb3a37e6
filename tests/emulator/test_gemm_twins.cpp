// kernels/gemm.cu in the emulator against plain loops.
#include "kernels/gemm.h"
#include "tests/emulator/twins.h"

namespace convoy::test {
namespace {

// A matrix (rows x columns, as stored) per batch entry, in device memory; everything between the rows is poison.
class DeviceMatrix {
 public:
  DeviceMatrix(int64_t batch, int64_t rows, int64_t columns, DType dtype, int64_t gap, bool transposed,
               const std::vector<float>* values)
      : batch_(batch), rows_(rows), columns_(columns), buffer_(bytes(batch, rows, columns + gap, dtype)) {
    matrix_ = {.data = buffer_.data(),
               .pitch = columns + gap,
               .dtype = dtype,
               .transposed = transposed,
               .stride = rows * (columns + gap)};
    if (!values) return;
    for (int64_t r = 0; r < batch * rows; ++r) {
      std::vector<unsigned char> row(static_cast<size_t>(columns) * dtype_size(dtype));
      for (int64_t c = 0; c < columns; ++c)
        encode((*values)[static_cast<size_t>(r * columns + c)], &row[static_cast<size_t>(c) * dtype_size(dtype)]);
      cudaMemcpy(buffer_.data() + static_cast<size_t>(r * matrix_.pitch) * dtype_size(dtype), row.data(), row.size(),
                 cudaMemcpyHostToDevice);
    }
  }

  const GemmMatrix& matrix() const { return matrix_; }

  /// Fails the test where something between the rows was written.
  std::vector<float> values() const {
    std::vector<unsigned char> all = buffer_.host();
    std::vector<float> result;
    int64_t written = 0;
    const size_t size = dtype_size(matrix_.dtype);
    for (int64_t r = 0; r < batch_ * rows_; ++r)
      for (int64_t c = 0; c < matrix_.pitch; ++c) {
        unsigned char* element = &all[static_cast<size_t>(r * matrix_.pitch + c) * size];
        if (c < columns_)
          result.push_back(decode(element));
        else
          for (size_t i = 0; i < size; ++i) written += element[i] != 0xff;
      }
    CHECK(written == 0);
    return result;
  }

 private:
  static size_t bytes(int64_t batch, int64_t rows, int64_t pitch, DType dtype) {
    return static_cast<size_t>(batch * rows * pitch) * dtype_size(dtype);
  }
  void encode(float value, unsigned char* to) const {
    const __half half(value);
    const __nv_bfloat16 bfloat(value);
    if (matrix_.dtype == DType::kF32) std::memcpy(to, &value, sizeof value);
    if (matrix_.dtype == DType::kF16) std::memcpy(to, &half, sizeof half);
    if (matrix_.dtype == DType::kBF16) std::memcpy(to, &bfloat, sizeof bfloat);
  }
  float decode(const unsigned char* from) const {
    float value;
    __half half;
    __nv_bfloat16 bfloat;
    std::memcpy(&half, from, sizeof half);
    std::memcpy(&bfloat, from, sizeof bfloat);
    if (matrix_.dtype == DType::kF16) return static_cast<float>(half);
    if (matrix_.dtype == DType::kBF16) return static_cast<float>(bfloat);
    std::memcpy(&value, from, sizeof value);
    return value;
  }

  int64_t batch_, rows_, columns_;
  DeviceBuffer<unsigned char> buffer_;
  GemmMatrix matrix_;
};

struct Case {
  GemmSize size;
  DType a, b, c;
  int64_t gap;  // elements between the rows
  float alpha, beta;
  bool transpose_a, transpose_b;
};

void check(const Case& k) {
  const GemmSize& s = k.size;
  INFO("m " << s.m << " n " << s.n << " k " << s.k << " batch " << s.batch << " " << dtype_name(k.a) << " "
            << dtype_name(k.b) << " " << dtype_name(k.c) << " gap " << k.gap << " beta " << k.beta << " transposed "
            << k.transpose_a << k.transpose_b);
  const auto a = typed_values("a", s.batch * s.m * s.k, k.a), b = typed_values("b", s.batch * s.k * s.n, k.b),
             before = typed_values("c", s.batch * s.m * s.n, k.c);
  std::vector<double> expected;
  for (int64_t t = 0; t < s.batch; ++t)
    for (int64_t i = 0; i < s.m; ++i)
      for (int64_t j = 0; j < s.n; ++j) {
        double sum = 0;
        for (int64_t d = 0; d < s.k; ++d)
          sum +=
              static_cast<double>(a[static_cast<size_t>(t * s.m * s.k + (k.transpose_a ? d * s.m + i : i * s.k + d))]) *
              static_cast<double>(b[static_cast<size_t>(t * s.n * s.k + (k.transpose_b ? j * s.k + d : d * s.n + j))]);
        expected.push_back(static_cast<double>(k.alpha) * sum +
                           static_cast<double>(k.beta) * static_cast<double>(before[expected.size()]));
      }
  const Results got = over_orders([&] {
    const DeviceMatrix da(s.batch, k.transpose_a ? s.k : s.m, k.transpose_a ? s.m : s.k, k.a, k.gap, k.transpose_a, &a);
    const DeviceMatrix db(s.batch, k.transpose_b ? s.n : s.k, k.transpose_b ? s.k : s.n, k.b, k.gap, k.transpose_b, &b);
    const DeviceMatrix dc(s.batch, s.m, s.n, k.c, k.gap, false, k.beta == 0 ? nullptr : &before);
    device::gemm(nullptr, s, k.alpha, da.matrix(), db.matrix(), k.beta, dc.matrix());
    return Results{dc.values()};
  });
  CHECK(relative_error(got[0], expected) <= tolerance(k.c));
}

TEST_CASE("matrix products equal plain sums", "[gemm]") {
  const GemmSize sizes[] = {{1, 1, 1, 1}, {5, 7, 3, 2}, {64, 64, 16, 1}, {65, 19, 33, 1}, {3, 130, 40, 2}};
  for (const GemmSize& s : sizes)
    for (size_t t = 0; t < 3; ++t)
      for (const bool transpose_a : {false, true})
        for (const bool transpose_b : {false, true}) {
          // Gaps of 0 and 3 leave quads unaligned where an extent is odd, 4 is what a padded pitch looks like.
          const int64_t gap = transpose_a == transpose_b ? (transpose_a ? 3 : 0) : 4 + (4 - s.k % 4) % 4;
          const DType dtype = kFloatTypes[t];
          check({s, dtype, dtype, dtype, gap, 1, transpose_a ? 0.5f : 0, transpose_a, transpose_b});
        }
}

TEST_CASE("operands of a matrix product may have different types", "[gemm]") {
  check({{20, 24, 18, 1}, DType::kF32, DType::kBF16, DType::kF16, 0, 0.125f, 0, false, false});
  check({{20, 24, 18, 1}, DType::kF16, DType::kF32, DType::kF32, 4, -1, 1, true, false});
  check({{20, 24, 18, 1}, DType::kBF16, DType::kF16, DType::kF32, 4, 1, 0, false, true});
}

TEST_CASE("large results are formed by larger tiles", "[gemm]") {
  check({{129, 70, 5, 132}, DType::kF32, DType::kF32, DType::kF32, 0, 1, 0, false, true});
}

TEST_CASE("a matrix product without terms scales its result", "[gemm]") {
  check({{6, 9, 0, 1}, DType::kF32, DType::kF32, DType::kF32, 0, 1, 0.5f, false, false});
  check({{6, 9, 0, 1}, DType::kF32, DType::kF32, DType::kBF16, 0, 1, 0, false, false});
}

TEST_CASE("operands of a matrix product may be shared by a batch", "[gemm]") {
  const GemmSize s{4, 6, 5, 3};
  const auto a = random_values("a", s.m * s.k), b = random_values("b", s.batch * s.k * s.n);
  const DeviceMatrix da(1, s.m, s.k, DType::kF32, 0, false, &a), db(s.batch, s.k, s.n, DType::kF32, 0, false, &b),
      dc(s.batch, s.m, s.n, DType::kF32, 0, false, nullptr), one(1, s.m, s.n, DType::kF32, 0, false, nullptr);
  GemmMatrix shared = da.matrix();
  shared.stride = 0;
  device::gemm(nullptr, s, 1, shared, db.matrix(), 0, dc.matrix());
  GemmMatrix last = db.matrix();
  last.data = static_cast<float*>(last.data) + 2 * last.stride;
  device::gemm(nullptr, {s.m, s.n, s.k, 1}, 1, shared, last, 0, one.matrix());
  const auto all = dc.values();
  CHECK(bits({all.begin() + 2 * s.m * s.n, all.end()}) == bits(one.values()));
}

TEST_CASE("a matrix product refuses what it cannot do", "[gemm]") {
  GemmMatrix m{.pitch = 1}, wrong = m;
  wrong.dtype = DType::kI32;
  CHECK_THROWS_AS(device::gemm(nullptr, {1, 1, 1, 1}, 1, m, wrong, 0, m), std::invalid_argument);
  wrong = m;
  wrong.transposed = true;
  CHECK_THROWS_AS(device::gemm(nullptr, {1, 1, 1, 1}, 1, m, m, 0, wrong), std::invalid_argument);
}

}  // namespace
}  // namespace convoy::test
