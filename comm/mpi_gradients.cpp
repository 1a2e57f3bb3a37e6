#ifdef CONVOY_WITH_MPI
#include "comm/mpi_gradients.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

#include "engine/communicator.h"
#include "engine/error.h"
#include "engine/start_thread.h"

namespace convoy {

namespace {

struct Bucket {
  std::vector<std::span<float>> segments;
  std::string name;
};

bool thread_multiple() {
  int level = MPI_THREAD_SINGLE;
  MPI_Query_thread(&level);
  return level == MPI_THREAD_MULTIPLE;
}

}  // namespace

struct MpiGradients::State {
  State(MPI_Comm comm, std::shared_ptr<Liveness> table) : liveness(table), channel(comm, table) {}

  std::shared_ptr<Liveness> liveness;
  MpiChannel channel;
  const bool background = thread_multiple();
  std::vector<float> packed;

  std::thread thread;
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<Bucket> waiting;
  int unfinished = 0;
  bool stop = false;

  void sum(const Bucket& bucket);
  void sum_piece(std::span<float> piece, const std::string& name);
  void run();
};

/// In place. Segments of less than a piece are packed, so that many small ones cost one message.
void MpiGradients::State::sum(const Bucket& bucket) {
  uint64_t layout = hash_bytes(bucket.name.data(), bucket.name.size());
  size_t bytes = 0;
  for (const auto& segment : bucket.segments) {
    const size_t size = segment.size();
    layout = hash_bytes(&size, sizeof size, layout);
    bytes += segment.size_bytes();
  }
  CollectiveHeader header(CollectiveKind::kAllReduceFloat, static_cast<int>(ReduceOp::kSum), bytes,
                          "gradients: " + bucket.name);
  header.name_hash = layout;
  channel.compare(header);

  constexpr size_t kPiece = kMpiPieceBytes / sizeof(float);
  if (bucket.segments.size() == 1) {
    for (size_t done = 0; done < bucket.segments[0].size(); done += kPiece) {
      sum_piece(bucket.segments[0].subspan(done, std::min(kPiece, bucket.segments[0].size() - done)), bucket.name);
    }
    return;
  }
  packed.clear();
  for (const auto& segment : bucket.segments) packed.insert(packed.end(), segment.begin(), segment.end());
  for (size_t done = 0; done < packed.size(); done += kPiece) {
    sum_piece(std::span(packed).subspan(done, std::min(kPiece, packed.size() - done)), bucket.name);
  }
  const float* next = packed.data();
  for (const auto& segment : bucket.segments) {
    std::copy_n(next, segment.size(), segment.begin());
    next += segment.size();
  }
}

void MpiGradients::State::sum_piece(std::span<float> piece, const std::string& name) {
  check_mpi(
      MPI_Allreduce(MPI_IN_PLACE, piece.data(), static_cast<int>(piece.size()), MPI_FLOAT, MPI_SUM, channel.comm()),
      name);
}

void MpiGradients::State::run() {
  std::unique_lock lock(mutex);
  while (true) {
    changed.wait(lock, [this] { return stop || !waiting.empty(); });
    if (waiting.empty()) return;
    const Bucket bucket = std::move(waiting.front());
    waiting.pop_front();
    lock.unlock();
    try {
      sum(bucket);
    } catch (const std::exception& error) {
      liveness->fail(error.what());
      return;
    }
    lock.lock();
    --unfinished;
    changed.notify_all();
  }
}

MpiGradients::MpiGradients(MPI_Comm comm, std::shared_ptr<Liveness> liveness)
    : state_(std::make_shared<State>(comm, std::move(liveness))) {}

MpiGradients::~MpiGradients() {
  if (!state_->thread.joinable()) return;
  {
    const std::lock_guard lock(state_->mutex);
    state_->stop = true;
  }
  state_->changed.notify_all();
  if (state_->liveness->failed()) {
    state_->thread.detach();
  } else {
    state_->thread.join();
  }
}

void MpiGradients::start(std::vector<std::span<float>> segments, const std::string& name) {
  if (state_->liveness->failed()) throw Error(state_->liveness->failure());
  state_->liveness->enter(Channel::kGradient, name);
  state_->liveness->leave(Channel::kGradient);  // come to, but not waited in: others are late only for finish()
  Bucket bucket{std::move(segments), name};
  if (!state_->background) {
    state_->sum(bucket);
    return;
  }
  if (!state_->thread.joinable()) state_->thread = start_thread("sum gradients", [state = state_] { state->run(); });
  {
    const std::lock_guard lock(state_->mutex);
    state_->waiting.push_back(std::move(bucket));
    ++state_->unfinished;
  }
  state_->changed.notify_all();
}

void MpiGradients::finish() {
  if (state_->liveness->failed()) throw Error(state_->liveness->failure());
  state_->liveness->enter(Channel::kGradient, "finish_sums");
  std::unique_lock lock(state_->mutex);
  while (state_->unfinished > 0) {
    state_->changed.wait_for(lock, std::chrono::milliseconds(20));
    if (state_->liveness->failed()) throw Error(state_->liveness->failure());
  }
  lock.unlock();
  state_->liveness->leave(Channel::kGradient);
}

}  // namespace convoy
#endif
