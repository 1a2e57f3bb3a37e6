#include "comm/watchdog.h"

#include <signal.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "comm/diagnosis.h"
#include "comm/process_state.h"
#include "engine/error.h"
#include "engine/start_thread.h"

namespace convoy {
namespace {

constexpr std::chrono::milliseconds kPeriod(100);
constexpr double kLongestTick = 1;     ///< what one round counts at most, in seconds, however long it really took
constexpr double kGraceSeconds = 2;    ///< for the rank to end by itself
constexpr int kProcessesPerTick = 16;  ///< looked at in turn; all ranks of a host together see each one often enough

/// For how long, in seconds of the observer's ticks, a value has been the same.
template <class T>
struct Steady {
  T value{};
  double seconds = 0;

  void observe(const T& now, double elapsed) {
    seconds = now == value ? seconds + elapsed : 0;
    value = now;
  }
};

struct Observed {
  Steady<int64_t> heartbeat;
  Steady<int64_t> activity;                ///< its since_ns
  Steady<uint64_t> collective[kChannels];  ///< number while waiting in it, else 0
  bool ended = false;
};

}  // namespace

struct Watchdog::State {
  std::shared_ptr<Liveness> liveness;
  WatchdogOptions options;
  uint64_t own_namespace;
  std::vector<Observed> observed;
  std::vector<RankView> views;
  int next_process = 0;
  double failed_seconds = 0;
  bool process_ended = false;  ///< end_process was called

  std::mutex mutex;
  std::condition_variable stop_condition;
  bool stop = false;
  std::thread thread;

  bool visible(const RankRecord& record) const {
    return options.processes && !record.remote && record.process.pid != 0 &&
           record.process.pid_namespace == own_namespace;
  }

  /// Processes first and their records afterwards: what a process that has ended wrote is final then.
  void observe_processes() {
    const int ranks = liveness->ranks();
    for (int i = 0; i < std::min(ranks, kProcessesPerTick); ++i) {
      const int rank = next_process;
      next_process = (next_process + 1) % ranks;
      const RankRecord record = liveness->record(rank);
      if (!visible(record) || rank == liveness->rank()) continue;
      const ProcessState state = process_state(record.process.pid, record.process.start_time);
      observed[rank].ended = state.ended();
      liveness->set_state(rank, state.letter == 0 ? 'X' : state.letter);
    }
  }

  void observe_records(double elapsed) {
    const int64_t now = monotonic_ns();
    for (int rank = 0; rank < liveness->ranks(); ++rank) {
      Observed& seen = observed[rank];
      RankView& view = views[rank];
      view.record = liveness->record(rank);
      view.ended = seen.ended;
      view.visible = !options.processes || visible(view.record);
      seen.heartbeat.observe(view.record.heartbeat_ns, elapsed);
      // Ranks that are threads have no heartbeat of their own; other hosts' records come with the link.
      view.silent_seconds = options.processes || view.record.remote ? seen.heartbeat.seconds : 0;
      for (int channel = 0; channel < kChannels; ++channel) {
        const ChannelRecord& record = view.record.channels[channel];
        seen.collective[channel].observe(record.waiting ? record.number : 0, elapsed);
        view.waited_seconds[channel] = record.waiting ? seen.collective[channel].seconds : 0;
      }
      seen.activity.observe(view.record.activity.number, elapsed);
      view.progress_seconds = seen.activity.seconds;
      view.activity_seconds = static_cast<double>(now - view.record.activity.since_ns) * 1e-9;
    }
  }

  void tick(double elapsed) {
    liveness->beat();
    if (options.processes) observe_processes();
    observe_records(elapsed);
    if (!liveness->failed()) {
      const auto failure = find_failure(views, {options.late_seconds, options.dead_seconds});
      if (failure) liveness->fail(*failure);
      return;
    }
    failed_seconds += elapsed;
    if (failed_seconds < kGraceSeconds || !options.processes || process_ended) return;
    process_ended = true;
    kill_stuck();
    if (options.end_process) options.end_process(liveness->failure());
  }

  /// Only those that the failure is about: others are left to whoever has stopped them.
  void kill_stuck() {
    for (int rank = 0; rank < liveness->ranks(); ++rank) {
      const RankView& view = views[rank];
      const ProcessRecord& process = view.record.process;
      if (rank == liveness->rank() || !visible(view.record) || !liveness->at_fault(rank) || !is_stuck(view)) continue;
      if (!process_state(process.pid, process.start_time).ended()) kill(static_cast<pid_t>(process.pid), SIGKILL);
    }
  }

  void run() {
    int64_t last = monotonic_ns();
    std::unique_lock lock(mutex);
    while (!stop) {
      lock.unlock();
      const int64_t now = monotonic_ns();
      tick(std::min(static_cast<double>(now - last) * 1e-9, kLongestTick));
      last = now;
      lock.lock();
      stop_condition.wait_for(lock, kPeriod, [this] { return stop; });
    }
  }
};

Watchdog::Watchdog(std::shared_ptr<Liveness> liveness, WatchdogOptions options) : state_(std::make_unique<State>()) {
  CONVOY_CHECK(options.late_seconds > 0, "the timeout of ranks must be more than 0 seconds, not {}",
               options.late_seconds);
  state_->liveness = std::move(liveness);
  state_->options = std::move(options);
  state_->own_namespace = pid_namespace();
  state_->observed.resize(state_->liveness->ranks());
  state_->views.resize(state_->liveness->ranks());
  state_->thread = start_thread("watch the other ranks", [state = state_.get()] { state->run(); });
}

Watchdog::~Watchdog() {
  {
    const std::lock_guard lock(state_->mutex);
    state_->stop = true;
  }
  state_->stop_condition.notify_all();
  state_->thread.join();
  if (state_->liveness->failed() && state_->options.processes && !state_->process_ended) {
    state_->observe_processes();
    state_->observe_records(0);
    state_->kill_stuck();
  }
}

}  // namespace convoy
