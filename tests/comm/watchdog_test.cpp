#include "comm/watchdog.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <cstring>
#include <thread>
#include <vector>

#include "comm/process_state.h"
#include "tests/comm/waiting.h"

using namespace convoy;
using namespace convoy::test;
using Catch::Matchers::Contains;

namespace {

constexpr int kForced = 7;  ///< exit code of a rank whose watchdog ended it
constexpr int kRanks = 3;

/// What the processes of a test share beside the table.
struct Board {
  std::atomic<int> stage;
  char messages[kRanks][4096];  ///< given to end_process
};

/// Ranks that are forked processes; this process only looks on.
struct Processes {
  std::shared_ptr<SharedMemory> table, board_memory;
  Board* board;
  std::unique_ptr<Liveness> view;
  std::vector<pid_t> pids;

  template <class Body>
  Processes(double late_seconds, Body body) {
    const std::string name = "convoy-watchdog-test-" + std::to_string(getpid());
    table = SharedMemory::create(name, Liveness::bytes(kRanks));
    table->unlink();
    view = std::make_unique<Liveness>(table, Liveness::kObserver, kRanks);
    board_memory = SharedMemory::create(name, sizeof(Board));
    board_memory->unlink();
    board = static_cast<Board*>(board_memory->data());
    for (int rank = 0; rank < kRanks; ++rank) {
      const pid_t pid = fork();
      if (pid == 0) {
        auto liveness = std::make_shared<Liveness>(table, rank, kRanks);
        WatchdogOptions options;
        options.late_seconds = late_seconds;
        options.end_process = [this, rank](const std::string& message) {
          strncpy(board->messages[rank], message.c_str(), sizeof board->messages[rank] - 1);
          _exit(kForced);
        };
        {
          Watchdog watchdog(liveness, options);
          body(rank, *liveness, *board);
        }
        _exit(0);
      }
      pids.push_back(pid);
    }
  }

  ~Processes() {
    for (const pid_t pid : pids) {
      if (pid == 0) continue;
      kill(pid, SIGKILL);
      waitpid(pid, nullptr, 0);
    }
  }

  RankRecord record(int rank) const { return view->record(rank); }
  /// Whether rank's process has said who it is; one that has not is invisible to the others.
  bool known(int rank) const { return record(rank).process.pid != 0; }
  std::string failure() const { return view->failure(); }

  /// Exit code, or minus the signal; -1000 when it has not ended in time.
  int status(int rank) {
    int status = 0;
    const bool ended = wait_until([&] { return waitpid(pids[rank], &status, WNOHANG) == pids[rank]; });
    if (!ended) return -1000;
    pids[rank] = 0;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }
};

/// A collective that never completes by itself; ends when the run has failed.
void wait_in(Liveness& liveness, const char* name) {
  liveness.enter(Channel::kInline, name);
  while (!liveness.failed()) pause_for(0.01);
}

void hang() {
  for (;;) pause_for(1);
}

}  // namespace

TEST_CASE("a killed rank is named on all ranks, reaped or not, and those that do not end are ended",
          "[comm][watchdog]") {
  const bool reaped = GENERATE(false, true);
  Processes ranks(60, [](int rank, Liveness& liveness, Board&) {
    liveness.enter(Channel::kInline, "first");
    liveness.leave(Channel::kInline);
    liveness.set_data_file("a.png");
    liveness.enter(Channel::kGradient, "bucket 3 of step 12");
    if (rank == 2) return wait_in(liveness, "norm");  // ends by itself
    hang();
  });
  REQUIRE(
      wait_until([&] { return ranks.record(1).channels[1].number == 1 && ranks.record(2).channels[0].number == 2; }));
  const int64_t pid = ranks.pids[1];
  kill(ranks.pids[1], SIGKILL);
  if (reaped) REQUIRE(ranks.status(1) == -SIGKILL);
  const int64_t killed = monotonic_ns();
  REQUIRE(wait_until([&] { return !ranks.failure().empty(); }));
  REQUIRE(static_cast<double>(monotonic_ns() - killed) * 1e-9 < 10);
  REQUIRE(ranks.status(0) == kForced);
  REQUIRE(ranks.status(2) == 0);
  REQUIRE_THAT(ranks.failure(), Contains("rank 1 of 3 (host ") &&
                                    Contains("pid " + std::to_string(pid) + ") is gone") &&
                                    Contains("it was in collective 1 'bucket 3 of step 12' of the gradient channel") &&
                                    Contains("last data file a.png"));
  REQUIRE(ranks.board->messages[0] == ranks.failure());
  REQUIRE(ranks.board->messages[2] == std::string());
}

TEST_CASE("a stopped rank is named and killed", "[comm][watchdog]") {
  Processes ranks(2, [](int rank, Liveness& liveness, Board&) {
    if (rank != 1) return wait_in(liveness, "norm");
    hang();
  });
  REQUIRE(wait_until([&] { return ranks.record(0).channels[0].number == 1 && ranks.known(1); }));
  kill(ranks.pids[1], SIGSTOP);
  REQUIRE(ranks.status(0) == 0);
  REQUIRE(ranks.status(2) == 0);
  REQUIRE(ranks.status(1) == -SIGKILL);
  REQUIRE_THAT(ranks.failure(), Contains("rank 1 of 3") && Contains("has not come to collective 1 'norm'") &&
                                    Contains("Its process is stopped (SIGSTOP?)"));
}

TEST_CASE("a pause of the whole job counts for nothing", "[comm][watchdog]") {
  Processes ranks(3, [](int rank, Liveness& liveness, Board& board) {
    if (rank == 1) {
      while (board.stage == 0) pause_for(0.01);
    }
    liveness.enter(Channel::kInline, "norm");
    while (board.stage < 1) pause_for(0.01);
    liveness.leave(Channel::kInline);
    liveness.leave_run();
  });
  REQUIRE(
      wait_until([&] { return ranks.record(0).channels[0].number == 1 && ranks.record(2).channels[0].number == 1; }));
  for (const pid_t pid : ranks.pids) kill(pid, SIGSTOP);
  pause_for(5);
  for (const pid_t pid : ranks.pids) kill(pid, SIGCONT);
  pause_for(0.5);
  ranks.board->stage = 1;
  for (int rank = 0; rank < kRanks; ++rank) REQUIRE(ranks.status(rank) == 0);
  REQUIRE(ranks.failure() == "");
}

TEST_CASE("a goodbye is no death, but who waits for that rank is told", "[comm][watchdog]") {
  Processes ranks(60, [](int rank, Liveness& liveness, Board& board) {
    if (rank == 1) return liveness.leave_run();
    while (board.stage == 0) pause_for(0.01);
    wait_in(liveness, "one more");
  });
  REQUIRE(ranks.status(1) == 0);
  pause_for(1);
  REQUIRE(ranks.failure() == "");
  ranks.board->stage = 1;
  REQUIRE(ranks.status(0) == 0);
  REQUIRE(ranks.status(2) == 0);
  REQUIRE_THAT(ranks.failure(), Contains("rank 1 of 3") && Contains("has ended already") && Contains("'one more'"));
}

TEST_CASE("a rank that reports progress is not late until it stops to", "[comm][watchdog]") {
  auto memory = SharedMemory::in_process(Liveness::bytes(2));
  auto waiting = std::make_shared<Liveness>(memory, 0, 2), working = std::make_shared<Liveness>(memory, 1, 2);
  WatchdogOptions options;
  options.late_seconds = 2;
  options.processes = false;
  Watchdog watchdog(waiting, options);
  waiting->enter(Channel::kInline, "counts of the evaluation");
  const int64_t start = monotonic_ns();
  int images = 0;
  for (; monotonic_ns() - start < 4'000'000'000 && !waiting->failed(); ++images) {
    working->set_activity("evaluating");
    pause_for(0.05);
  }
  INFO(images << " reports");
  REQUIRE(waiting->failure() == "");
  REQUIRE(wait_until([&] { return waiting->failed(); }));
  REQUIRE_THAT(waiting->failure(), Contains("It is: evaluating"));
}

TEST_CASE("ranks as threads: a late one is named with what it does, and nothing is forced", "[comm][watchdog]") {
  auto memory = SharedMemory::in_process(Liveness::bytes(kRanks));
  std::vector<std::shared_ptr<Liveness>> tables;
  for (int rank = 0; rank < kRanks; ++rank) tables.push_back(std::make_shared<Liveness>(memory, rank, kRanks));
  WatchdogOptions options;
  options.late_seconds = 1;
  options.processes = false;
  std::vector<std::string> messages(kRanks);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < kRanks; ++rank) {
    threads.emplace_back([&, rank] {
      Watchdog watchdog(tables[rank], options);
      tables[rank]->set_activity("waiting for data");
      tables[rank]->set_data_file("a.png");
      if (rank != 1) tables[rank]->enter(Channel::kInline, "loss counts of step 12");
      while (!tables[rank]->failed()) pause_for(0.01);
      messages[rank] = tables[rank]->failure();
      pause_for(2.5);  // past the grace for ending by itself
    });
  }
  for (auto& thread : threads) thread.join();
  REQUIRE_THAT(messages[0], Contains("rank 1 of 3") && Contains("collective 1 'loss counts of step 12'") &&
                                Contains("in which ranks 0, 2 wait") && Contains("It is: waiting for data for ") &&
                                Contains("last data file a.png"));
  REQUIRE(messages[1] == messages[0]);
  REQUIRE(messages[2] == messages[0]);
}
