// The account of host memory.
#include <catch2/catch.hpp>
#include <cstdint>

#include "engine/error.h"
#include "engine/memory.h"
#include "engine/tensor.h"

namespace convoy {

TEST_CASE("the allocator accounts for what it hands out, keeps and gives back") {
  const auto allocator = Allocator::create();
  auto a = allocator->allocate(1000);
  CHECK(a->bytes >= 1000);
  CHECK(reinterpret_cast<uintptr_t>(a->data) % 64 == 0);
  auto b = allocator->allocate(64);
  CHECK(allocator->use().in_use == a->bytes + b->bytes);
  CHECK(allocator->use().peak == a->bytes + b->bytes);
  CHECK(allocator->use().cached == 0);

  const void* where = a->data;
  const size_t size = a->bytes;
  a.reset();
  CHECK(allocator->use().in_use == b->bytes);
  CHECK(allocator->use().peak == size + b->bytes);
  CHECK(allocator->use().cached == size);
  allocator->reset_peak();
  CHECK(allocator->use().peak == b->bytes);

  a = allocator->allocate(990);  // rounds to the same size
  CHECK(a->data == where);
  CHECK(allocator->use().cached == 0);
  a.reset();
  allocator->trim();
  CHECK(allocator->use().cached == 0);
  CHECK(allocator->use().in_use == b->bytes);
}

TEST_CASE("rounding wastes little") {
  const auto allocator = Allocator::create();
  for (size_t bytes = 1; bytes < (size_t{1} << 26); bytes = bytes * 5 / 3 + 1) {
    const auto block = allocator->allocate(bytes);
    CHECK(block->bytes >= bytes);
    CHECK(block->bytes <= std::max(bytes + 64, bytes + bytes / 8 + 64));
  }
  CHECK(allocator->allocate(0)->data != nullptr);
}

TEST_CASE("a block outlives the handle of its allocator") {
  auto allocator = Allocator::create();
  const auto block = allocator->allocate(100);
  allocator.reset();
  static_cast<char*>(block->data)[99] = 1;
}

TEST_CASE("memory that does not exist is refused by name") {
  const auto allocator = Allocator::create();
  CHECK_THROWS_WITH(allocator->allocate(size_t{1} << 60), Catch::Contains("bytes"));
  CHECK_THROWS_WITH(allocator->allocate(static_cast<size_t>(-8)), Catch::Contains("bytes"));
  CHECK(allocator->use().in_use == 0);
  CHECK_THROWS_AS(Tensor::zeros(DType::kF32, {4, -1}), Error);
}

TEST_CASE("out of memory gives back what is cached before it gives up") {
  const auto allocator = Allocator::create();
  allocator->allocate(1 << 20);
  CHECK(allocator->use().cached > 0);
  CHECK_THROWS_AS(allocator->allocate(size_t{1} << 60), Error);
  CHECK(allocator->use().cached == 0);
}

}  // namespace convoy
