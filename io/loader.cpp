#include "io/loader.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <exception>
#include <numeric>

#include "engine/error.h"
#include "engine/rng.h"
#include "engine/start_thread.h"

namespace convoy {

/// One batch in work. Workers hold it by shared_ptr, so that seek() may drop it under them.
struct Loader::Slot {
  Batch batch;
  std::vector<Position> positions;
  std::vector<Order> orders;
  int64_t next_sample = 0, unfinished = 0;
  std::exception_ptr error;
};

/// While it lives, a sample is in reading.
class Loader::Reading {
 public:
  Reading(Loader& loader, int64_t id) : loader_(loader), id_(id) {
    const std::lock_guard lock(loader_.reading_mutex_);
    loader_.reading_.push_back(id_);
    if (loader_.reading_.size() == 1) tell_oldest();
  }
  ~Reading() {
    const std::lock_guard lock(loader_.reading_mutex_);
    const auto at = std::find(loader_.reading_.begin(), loader_.reading_.end(), id_);
    const bool was_oldest = at == loader_.reading_.begin();
    loader_.reading_.erase(at);
    if (was_oldest && !loader_.reading_.empty()) tell_oldest();
  }
  Reading(const Reading&) = delete;
  Reading& operator=(const Reading&) = delete;

 private:
  void tell_oldest() const {
    if (loader_.options_.reading) loader_.options_.reading(loader_.dataset_.image_path(loader_.reading_.front()));
  }

  Loader& loader_;
  int64_t id_;
};

std::vector<int64_t> epoch_order(int64_t size, uint64_t seed, int64_t epoch) {
  std::vector<int64_t> order(static_cast<size_t>(size));
  std::iota(order.begin(), order.end(), 0);
  RandomStream random(seed, "shuffle", static_cast<uint64_t>(epoch));
  for (int64_t i = size - 1; i > 0; --i) {
    std::swap(order[static_cast<size_t>(i)], order[static_cast<size_t>(random.integer(0, i))]);
  }
  return order;
}

LoaderOptions loader_options(const Config& config, int64_t global_batch) {
  LoaderOptions options;
  options.seed = static_cast<uint64_t>(config.seed);
  options.global_batch = global_batch;
  options.workers = config.dataset.workers;
  options.drop_last = config.train.drop_last;
  options.on_bad_sample = config.train.on_bad_sample == "skip" ? BadSamplePolicy::skip : BadSamplePolicy::fail;
  return options;
}

Loader::Loader(const SegmentationDataset& dataset, AugmentOptions augment, Normalization normalization,
               LoaderOptions options)
    : dataset_(dataset), augment_(augment), normalization_(normalization), options_(std::move(options)) {
  if (options_.slots < 0) options_.slots = options_.global_batch - options_.first_slot;
  CONVOY_CHECK(options_.global_batch > 0, "the global batch must be positive, found {}", options_.global_batch);
  CONVOY_CHECK(options_.first_slot >= 0 && options_.first_slot + options_.slots <= options_.global_batch,
               "slots {}..{} lie outside the global batch of {}", options_.first_slot,
               options_.first_slot + options_.slots - 1, options_.global_batch);
  CONVOY_CHECK(options_.prefetch_batches > 0 && options_.workers >= 0,
               "the loader needs prefetch_batches > 0, workers >= 0");
  CONVOY_CHECK(!options_.drop_last || dataset_.size() >= options_.global_batch,
               "{}: split '{}' has {} images, fewer than one global batch of {}; lower the batch size, or set "
               "TRAIN.DROP_LAST False so that batches run across the end of an epoch",
               dataset_.root(), dataset_.split(), dataset_.size(), options_.global_batch);
  if (!options_.report) {
    options_.report = [](const std::string& message) { std::fprintf(stderr, "%s\n", message.c_str()); };
  }
  if (options_.slots == 0) options_.workers = 0;  // its batches are empty: there is nothing to do ahead
  try {
    for (int64_t i = 0; i < options_.workers; ++i)
      workers_.push_back(start_thread("load images (DATASET.WORKERS)", [this] { run_worker(); }));
  } catch (...) {
    stop_workers();
    throw;
  }
}

Loader::~Loader() {
  stop_workers();
}

void Loader::stop_workers() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  work_available_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

int64_t Loader::steps_per_epoch() const {
  const int64_t batch = options_.global_batch;
  return options_.drop_last ? dataset_.size() / batch : (dataset_.size() + batch - 1) / batch;
}

Loader::Position Loader::position_of(int64_t step, int64_t slot) const {
  if (options_.drop_last) {
    const int64_t steps = steps_per_epoch();
    return {step / steps, step % steps * options_.global_batch + slot};
  }
  const int64_t place = step * options_.global_batch + slot;
  return {place / dataset_.size(), place % dataset_.size()};
}

Loader::Order Loader::order_of(int64_t epoch) {
  Order& order = orders_[epoch];
  if (!order) order = std::make_shared<const std::vector<int64_t>>(epoch_order(dataset_.size(), options_.seed, epoch));
  Order result = order;
  while (orders_.size() > 4)
    orders_.erase(orders_.begin()->first == epoch ? std::prev(orders_.end()) : orders_.begin());
  return result;
}

std::shared_ptr<Loader::Slot> Loader::open_slot() {
  auto slot = std::make_shared<Slot>();
  if (!spare_.empty()) {
    slot->batch = std::move(spare_.back());
    spare_.pop_back();
  }
  Batch& batch = slot->batch;
  batch.count = options_.slots;
  batch.height = augment_.crop.height;
  batch.width = augment_.crop.width;
  batch.step = next_step_;
  batch.epoch = position_of(next_step_, 0).epoch;
  const auto pixels = static_cast<size_t>(batch.count * batch.height * batch.width);
  batch.images.resize(pixels * 3);
  batch.labels.resize(pixels);
  batch.names.assign(static_cast<size_t>(batch.count), {});
  batch.sample_ids.assign(static_cast<size_t>(batch.count), 0);
  for (int64_t i = 0; i < options_.slots; ++i) {
    slot->positions.push_back(position_of(next_step_, options_.first_slot + i));
    slot->orders.push_back(order_of(slot->positions.back().epoch));
  }
  slot->unfinished = options_.slots;
  ++next_step_;
  return slot;
}

void Loader::report_once(int64_t id, const std::string& message) {
  {
    const std::lock_guard lock(mutex_);
    if (!reported_.insert(id).second) return;
  }
  options_.report(message);
}

Sample Loader::produce(Position position, const std::vector<int64_t>& order, int64_t& id) {
  const auto size = static_cast<int64_t>(order.size());
  for (int64_t tried = 0; tried < size; ++tried) {
    id = order[static_cast<size_t>((position.index + tried) % size)];
    try {
      const Reading reading(*this, id);
      const Sample sample = dataset_.decode(id);
      RandomStream random(options_.seed, "augment",
                          mix(static_cast<uint64_t>(position.epoch), static_cast<uint64_t>(position.index)));
      return augment_train(sample, augment_, random);
    } catch (const Error& error) {
      if (options_.on_bad_sample == BadSamplePolicy::fail) throw;
      report_once(id, fmt::format("skipped, the next sample of the epoch takes its place: {}", error.what()));
    }
  }
  fail("{}: none of the {} images of split '{}' can be read", dataset_.root(), size, dataset_.split());
}

void Loader::fill(Slot& slot, int64_t sample) {
  const auto at = static_cast<size_t>(sample);
  Batch& batch = slot.batch;
  const Sample done = produce(slot.positions[at], *slot.orders[at], batch.sample_ids[at]);
  const int64_t pixels = batch.height * batch.width;
  normalize_image(done.image, normalization_, batch.images.data() + sample * 3 * pixels);
  std::copy(done.labels.data.begin(), done.labels.data.end(), batch.labels.begin() + sample * pixels);
  batch.names[at] = done.name;
}

void Loader::run_worker() {
  std::unique_lock lock(mutex_);
  for (;;) {
    std::shared_ptr<Slot> slot;
    work_available_.wait(lock, [&] {
      if (stopping_) return true;
      for (const auto& candidate : ring_) {
        if (candidate->next_sample < options_.slots) {
          slot = candidate;
          return true;
        }
      }
      return static_cast<int64_t>(ring_.size()) < options_.prefetch_batches;
    });
    if (stopping_) return;
    if (!slot) {
      try {
        slot = open_slot();
      } catch (...) {  // out of memory: next() says so
        slot = std::make_shared<Slot>();
        slot->next_sample = options_.slots;
        slot->error = std::current_exception();
        ++next_step_;
      }
      ring_.push_back(slot);
      work_available_.notify_all();
      if (slot->unfinished == 0) {  // the error above
        batch_ready_.notify_all();
        continue;
      }
    }
    const int64_t sample = slot->next_sample++;
    lock.unlock();
    std::exception_ptr error;
    try {
      fill(*slot, sample);
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    if (error && !slot->error) slot->error = error;
    if (--slot->unfinished == 0) batch_ready_.notify_all();
  }
}

Batch Loader::next() {
  const auto start = std::chrono::steady_clock::now();
  std::shared_ptr<Slot> slot;
  if (workers_.empty()) {
    slot = open_slot();
    for (int64_t i = 0; i < options_.slots; ++i) fill(*slot, i);
  } else {
    std::unique_lock lock(mutex_);
    batch_ready_.wait(lock, [&] { return !ring_.empty() && ring_.front()->unfinished == 0; });
    slot = std::move(ring_.front());
    ring_.pop_front();
    lock.unlock();
    work_available_.notify_all();
  }
  if (slot->error) std::rethrow_exception(slot->error);
  slot->batch.wait_seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return std::move(slot->batch);
}

void Loader::recycle(Batch&& batch) {
  const std::lock_guard lock(mutex_);
  if (static_cast<int64_t>(spare_.size()) <= options_.prefetch_batches) spare_.push_back(std::move(batch));
}

void Loader::seek(int64_t global_step) {
  CONVOY_CHECK(global_step >= 0, "the loader cannot seek to step {}", global_step);
  {
    const std::lock_guard lock(mutex_);
    ring_.clear();
    next_step_ = global_step;
  }
  work_available_.notify_all();
}

}  // namespace convoy
