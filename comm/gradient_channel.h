// Sums of gradients between the ranks of a host, done a piece at a time wherever a rank would wait or has time.
#pragma once
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "comm/shared_memory.h"
#include "comm/slot_exchange.h"
#include "engine/memory.h"

namespace convoy {

/// Memory that a rank sums segments of, and the same of all other ranks.
struct GradientWindow {
  int number = 0;                                    ///< counted alike on all ranks
  Storage storage;                                   ///< this rank's
  std::vector<std::shared_ptr<SharedMemory>> parts;  ///< of each rank; empty: others cannot see the memory
  std::shared_ptr<Storage> own_memory;               ///< in that case
};

/// Buckets of gradients, summed in the order in which they were started.
///
/// Where the segments lie in windows that all ranks map, a bucket is summed once all ranks have come to it: rank r sums
/// the r-th part of it over all windows, in the order of ranks, and writes the sum into every window. One set of
/// windows is enough, without copies by turns: a rank writes to its window again (the gradients of the next step) only
/// when its finish() has returned, thus after every rank is done with all its parts, and those are all that others read
/// or write in it. The next step's parts of others begin only when this rank has started the bucket again.
/// Where a window is missing, pieces of the bucket go through slots and every rank sums all of it: the same bits.
class GradientChannel {
 public:
  static size_t bytes(int ranks);
  /// `memory` is zeroed at first and shared by all ranks. `liveness` must outlive the channel.
  GradientChannel(std::byte* memory, Liveness& liveness);
  /// Whether waits look for others for a while before they sleep (ArrivalCounter::wait).
  void set_spin(bool spin) { spin_ = spin; }

  /// Makes the window known; it stays known while its owner keeps it.
  void add(const std::shared_ptr<GradientWindow>& window) { windows_.push_back(window); }

  /// Communicator::start_sum. Throws Error when a segment is in no window or when there are too many buckets.
  void start(const std::vector<std::span<float>>& segments, const std::string& name);
  /// Does a piece of the work that can be done without waiting; false when there is none. Throws Error when ranks have
  /// started different buckets.
  bool step();
  /// Communicator::finish_sums. Waits for the other ranks' start() of the same buckets: inline collectives that they
  /// make before must not come after it on this rank.
  void finish();

 private:
  // What each rank says of a bucket, for comparison.
  struct BucketHeader {
    uint64_t hash;
    uint64_t floats;
    uint32_t segments, index;  // index: since the last finish()
    char name[104];
  };
  static_assert(sizeof(BucketHeader) == 128);
  struct Segment {
    std::shared_ptr<GradientWindow> window;
    size_t offset, size;  // floats
  };
  struct Bucket {
    uint64_t number;
    std::vector<Segment> segments;
    bool in_windows = true;        // all segments can be seen by all ranks
    size_t position = 0, end = 0;  // what this rank still has to sum, in the segments one after another
    bool compared = false;         // all have come to it and agree
    bool posted = false;           // its piece at `position` is in the slot
  };
  // A bucket's place among those that are under way.
  struct Place {
    ArrivalCounter arrived, done;
  };

  Place& place(uint64_t number) const;
  BucketHeader& header(int rank, uint64_t number) const;
  uint32_t full(uint64_t number) const;
  Segment find(std::span<float> segment, const std::string& name) const;
  void compare(uint64_t number);
  void sum_in_windows(const Bucket& bucket, size_t begin, size_t end) const;
  bool step_by_slots(Bucket& bucket);
  void pop();

  Liveness& liveness_;
  bool spin_ = false;
  int rank_, ranks_;
  Place* places_;
  BucketHeader* headers_;
  SlotExchange slots_;
  std::vector<std::weak_ptr<GradientWindow>> windows_;
  std::deque<Bucket> buckets_;  // started and not summed by this rank
  uint64_t started_ = 0, finished_ = 0;
};

}  // namespace convoy
