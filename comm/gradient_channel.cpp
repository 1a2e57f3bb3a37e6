#include "comm/gradient_channel.h"

#include <algorithm>
#include <cstring>

#include "engine/error.h"

namespace convoy {
namespace {

constexpr uint64_t kPlaces = 1024;  // buckets that can be under way at once
constexpr size_t kSlotBytes = size_t{64} << 10;
constexpr size_t kSlotFloats = kSlotBytes / sizeof(float);
// Of a bucket in windows, summed in one step: short enough not to keep a collective waiting.
constexpr size_t kStepFloats = size_t{64} << 10;
constexpr size_t kBlockFloats = 2048;  // stays in the first-level cache
constexpr size_t kLineFloats = 16;     // parts are cut at cache lines

// Calls visit(segment, offset, size, position) for the pieces of segments that make up [begin, end) of all of them one
// after another.
template <class Segments, class Visit>
void for_each_piece(const Segments& segments, size_t begin, size_t end, Visit visit) {
  size_t start = 0;
  for (const auto& segment : segments) {
    const size_t from = std::max(begin, start), to = std::min(end, start + segment.size);
    if (from < to) visit(segment, segment.offset + (from - start), to - from, from);
    start += segment.size;
    if (start >= end) break;
  }
}

void add_to(float* sum, const float* other, size_t size) {
#pragma omp simd
  for (size_t i = 0; i < size; ++i) sum[i] += other[i];
}

float* floats_of(void* memory) {
  return static_cast<float*>(memory);
}

}  // namespace

GradientChannel::GradientChannel(std::byte* memory, Liveness& liveness)
    : liveness_(liveness),
      rank_(liveness.rank()),
      ranks_(liveness.ranks()),
      places_(reinterpret_cast<Place*>(memory)),
      headers_(reinterpret_cast<BucketHeader*>(memory + kPlaces * sizeof(Place))),
      slots_(memory + kPlaces * (sizeof(Place) + ranks_ * sizeof(BucketHeader)), rank_, ranks_, kSlotBytes) {}

size_t GradientChannel::bytes(int ranks) {
  return kPlaces * (sizeof(Place) + ranks * sizeof(BucketHeader)) + SlotExchange::bytes(ranks, kSlotBytes);
}

GradientChannel::Place& GradientChannel::place(uint64_t number) const {
  return places_[number % kPlaces];
}

GradientChannel::BucketHeader& GradientChannel::header(int rank, uint64_t number) const {
  return headers_[rank * kPlaces + number % kPlaces];
}

// The counters of a place go on from one use of it to the next.
uint32_t GradientChannel::full(uint64_t number) const {
  return static_cast<uint32_t>(ranks_ * (number / kPlaces + 1));
}

GradientChannel::Segment GradientChannel::find(std::span<float> segment, const std::string& name) const {
  for (const auto& known : windows_) {
    const auto window = known.lock();
    if (window == nullptr) continue;
    float* begin = floats_of(window->storage.data);
    float* end = begin + window->storage.bytes / sizeof(float);
    if (std::less_equal<>()(begin, segment.data()) && std::less_equal<>()(segment.data() + segment.size(), end)) {
      return {.window = window, .offset = static_cast<size_t>(segment.data() - begin), .size = segment.size()};
    }
  }
  fail("sum '{}': a segment of {} floats does not lie in exchange_memory", name, segment.size());
}

void GradientChannel::start(const std::vector<std::span<float>>& segments, const std::string& name) {
  CONVOY_CHECK(started_ - finished_ < kPlaces,
               "sum '{}': {} sums are under way, which is the most; make buckets larger or finish earlier", name,
               kPlaces);
  Bucket bucket{.number = started_};
  BucketHeader mine{.floats = 0,
                    .segments = static_cast<uint32_t>(segments.size()),
                    .index = static_cast<uint32_t>(started_ - finished_)};
  copy_text(mine.name, sizeof(mine.name), name);
  mine.hash = hash_bytes(name.data(), name.size());
  mine.hash = hash_bytes(&mine.index, sizeof(mine.index), mine.hash);
  for (const std::span<float> span : segments) {
    if (span.empty()) continue;
    bucket.segments.push_back(find(span, name));
    const Segment& segment = bucket.segments.back();
    bucket.in_windows = bucket.in_windows && !segment.window->parts.empty();
    mine.floats += segment.size;
    const uint64_t place[] = {static_cast<uint64_t>(segment.window->number), segment.offset, segment.size};
    mine.hash = hash_bytes(place, sizeof(place), mine.hash);
  }
  bucket.end = mine.floats;
  if (bucket.in_windows) {
    const size_t lines = (mine.floats + kLineFloats - 1) / kLineFloats;
    bucket.position = std::min(mine.floats, lines * rank_ / ranks_ * kLineFloats);
    bucket.end = std::min(mine.floats, lines * (rank_ + 1) / ranks_ * kLineFloats);
  }
  header(rank_, started_) = mine;
  place(started_).arrived.arrive(full(started_));
  ++started_;
  buckets_.push_back(std::move(bucket));
}

void GradientChannel::compare(uint64_t number) {
  const BucketHeader& first = header(0, number);
  for (int rank = 1; rank < ranks_; ++rank) {
    const BucketHeader& other = header(rank, number);
    if (other.hash == first.hash) continue;
    const auto describe = [](const BucketHeader& h) {
      return fmt::format("'{}' ({} floats in {} segments, number {} since finish_sums)", h.name, h.floats, h.segments,
                         h.index);
    };
    liveness_.fail(
        fmt::format("ranks sum different gradients: rank 0 is in {}, rank {} is in {}; do all ranks run the "
                    "same program with the same configuration?",
                    describe(first), rank, describe(other)));
    throw Error(liveness_.failure());
  }
}

void GradientChannel::sum_in_windows(const Bucket& bucket, size_t begin, size_t end) const {
  alignas(64) float sum[kBlockFloats];
  for_each_piece(bucket.segments, begin, end, [&](const Segment& segment, size_t offset, size_t size, size_t) {
    const auto& parts = segment.window->parts;
    for (size_t block = 0; block < size; block += kBlockFloats) {
      const size_t at = offset + block, count = std::min(kBlockFloats, size - block);
      std::memcpy(sum, floats_of(parts[0]->data()) + at, count * sizeof(float));
      for (int rank = 1; rank < ranks_; ++rank) add_to(sum, floats_of(parts[rank]->data()) + at, count);
      for (const auto& part : parts) std::memcpy(floats_of(part->data()) + at, sum, count * sizeof(float));
    }
  });
}

bool GradientChannel::step_by_slots(Bucket& bucket) {
  const size_t begin = bucket.position, end = std::min(bucket.end, begin + kSlotFloats);
  if (!bucket.posted) {
    float* slot = floats_of(slots_.begin());
    for_each_piece(bucket.segments, begin, end, [&](const Segment& segment, size_t offset, size_t size, size_t at) {
      std::memcpy(slot + (at - begin), floats_of(segment.window->storage.data) + offset, size * sizeof(float));
    });
    slots_.arrive();
    bucket.posted = true;
    return true;
  }
  if (!slots_.full()) return false;
  for_each_piece(bucket.segments, begin, end, [&](const Segment& segment, size_t offset, size_t size, size_t at) {
    float* to = floats_of(segment.window->storage.data) + offset;
    for (int rank = 0; rank < ranks_; ++rank) {
      auto* part = reinterpret_cast<const float*>(slots_.part(rank)) + (at - begin);
      if (rank == 0) {
        std::memcpy(to, part, size * sizeof(float));
      } else {
        add_to(to, part, size);
      }
    }
  });
  bucket.position = end;
  bucket.posted = false;
  return true;
}

void GradientChannel::pop() {
  const uint64_t number = buckets_.front().number;
  buckets_.pop_front();
  place(number).done.arrive(full(number));
}

bool GradientChannel::step() {
  if (buckets_.empty()) return false;
  Bucket& bucket = buckets_.front();
  if (!bucket.compared) {
    if (!place(bucket.number).arrived.full(full(bucket.number))) return false;
    compare(bucket.number);
    bucket.compared = true;
  }
  if (bucket.position < bucket.end) {
    if (!bucket.in_windows) {
      if (!step_by_slots(bucket)) return false;
    } else {
      const size_t end = std::min(bucket.end, bucket.position + kStepFloats);
      sum_in_windows(bucket, bucket.position, end);
      bucket.position = end;
    }
  }
  if (bucket.position == bucket.end) pop();
  return true;
}

void GradientChannel::finish() {
  while (!buckets_.empty()) {
    if (step()) continue;
    const Bucket& bucket = buckets_.front();
    if (bucket.posted) {
      slots_.wait(liveness_, spin_);
    } else {
      place(bucket.number).arrived.wait(full(bucket.number), liveness_, spin_);
    }
  }
  // Every rank does its parts in order: when all are done with the last bucket, they are with all.
  if (started_ > finished_) place(started_ - 1).done.wait(full(started_ - 1), liveness_, spin_);
  finished_ = started_;
}

}  // namespace convoy
