// The prefetching loader: worker threads decode and augment ahead of the training step. What a batch holds depends only
// on (seed, epoch, position in the epoch): not on the number of workers, of ranks, or on how the run came to that step.
#pragma once
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "io/augment.h"
#include "io/dataset.h"

namespace convoy {

struct Batch {
  std::vector<float> images;    ///< (N,3,H,W), normalised
  std::vector<int32_t> labels;  ///< (N,H,W)
  std::vector<std::string> names;
  std::vector<int64_t> sample_ids;  ///< index in the data set
  int64_t count = 0, height = 0, width = 0;
  int64_t epoch = 0, step = 0;  ///< step counts from the start of the run
  double wait_seconds = 0;      ///< how long next() waited for this batch
};

enum class BadSamplePolicy { skip, fail };

struct LoaderOptions {
  uint64_t seed = 1024;
  int64_t global_batch = 1;      ///< samples per step over all ranks
  int64_t first_slot = 0;        ///< this rank's part of the global batch: slots
  int64_t slots = -1;            ///< [first_slot, first_slot + slots), perhaps none; -1 = all from first_slot on
  int64_t workers = 4;           ///< 0 = everything inside next()
  int64_t prefetch_batches = 3;  ///< most batches held ready or in work
  bool drop_last = true;         ///< false = batches run across the end of an epoch
  BadSamplePolicy on_bad_sample = BadSamplePolicy::fail;
  std::function<void(const std::string&)> report;  ///< told once per skipped sample; default: standard error
  /// Told, by any worker, which image file has been in reading for longest, whenever that changes: where a batch does
  /// not come, this file is why.
  std::function<void(const std::string&)> reading;
};

/// The order of one epoch: a Fisher-Yates shuffle of 0..size-1 drawn from (seed, "shuffle", epoch).
std::vector<int64_t> epoch_order(int64_t size, uint64_t seed, int64_t epoch);

/// Loader options of a run on one rank that holds the whole global batch.
LoaderOptions loader_options(const Config& config, int64_t global_batch);

class Loader {
 public:
  /// The data set must outlive the loader. Throws Error where the options make no sense or where, with drop_last, the
  /// data set is smaller than one global batch.
  Loader(const SegmentationDataset& dataset, AugmentOptions augment, Normalization normalization,
         LoaderOptions options);
  ~Loader();
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;

  /// The next step's batch. Rethrows what a worker met; the message names the file.
  Batch next();

  /// Gives a used batch back, so that its memory serves again.
  void recycle(Batch&& batch);

  /// Continues at this step of the run, as if all steps before it had been taken.
  void seek(int64_t global_step);

  /// floor(size / global_batch) with drop_last, else the ceiling.
  int64_t steps_per_epoch() const;

 private:
  struct Slot;
  class Reading;
  struct Position {
    int64_t epoch, index;
  };
  using Order = std::shared_ptr<const std::vector<int64_t>>;

  void run_worker();
  void stop_workers();
  void fill(Slot& slot, int64_t sample);
  Sample produce(Position position, const std::vector<int64_t>& order, int64_t& id);
  Position position_of(int64_t step, int64_t slot) const;
  Order order_of(int64_t epoch);
  std::shared_ptr<Slot> open_slot();
  void report_once(int64_t id, const std::string& message);

  const SegmentationDataset& dataset_;
  const AugmentOptions augment_;
  const Normalization normalization_;
  LoaderOptions options_;

  std::mutex mutex_;
  std::condition_variable work_available_, batch_ready_;
  std::deque<std::shared_ptr<Slot>> ring_;
  std::vector<Batch> spare_;
  std::map<int64_t, Order> orders_;
  std::set<int64_t> reported_;
  int64_t next_step_ = 0;  ///< the next step to open a slot for
  bool stopping_ = false;
  std::mutex reading_mutex_;
  std::deque<int64_t> reading_;  ///< samples in reading, in the order in which they were begun
  std::vector<std::thread> workers_;
};

}  // namespace convoy
