// Runs a function as each of several ranks, threads or forked processes, and brings back what they threw. Assertions of
// the test framework work on one thread only, so ranks report by exceptions.
#pragma once
#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "comm/host_communicator.h"
#include "comm/liveness.h"
#include "comm/shared_memory.h"
#include "engine/error.h"

namespace convoy::test {

using RankBody = std::function<void(Communicator&)>;
/// Of each rank: what it threw, or empty.
using Outcomes = std::vector<std::string>;

constexpr double kHangSeconds = 60;

inline std::string outcome_of(const RankBody& body, Communicator& communicator) {
  try {
    body(communicator);
  } catch (const std::exception& e) {
    return *e.what() != 0 ? e.what() : "an exception without a message";
  }
  return {};
}

inline Outcomes run_threads(int ranks, const RankBody& body, double timeout_seconds = 60) {
  const auto communicators = thread_communicators(ranks, timeout_seconds);
  Outcomes outcomes(ranks);
  std::atomic<int> running = ranks;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      outcomes[rank] = outcome_of(body, *communicators[rank]);
      --running;
    });
  }
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(kHangSeconds);
  while (running > 0) {
    if (std::chrono::steady_clock::now() > end) communicators[0]->fail_all("the test hangs");
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  for (std::thread& thread : threads) thread.join();
  return outcomes;
}

/// Prefix of all that this test makes in /dev/shm.
inline std::string shared_prefix() {
  return fmt::format("convoy-test-{}", getpid());
}

inline std::vector<std::string> left_in_shared_memory(const std::string& prefix) {
  std::vector<std::string> left;
  for (const auto& entry : std::filesystem::directory_iterator("/dev/shm")) {
    const std::string name = entry.path().filename();
    if (name.compare(0, prefix.size(), prefix) == 0) left.push_back(name);
  }
  return left;
}

/// How a rank that is a process ends by a signal appears among the outcomes.
inline std::string killed_by(int signal) {
  return fmt::format("killed by signal {}", signal);
}

/// `around`, when given, makes what a rank keeps while it runs (a watchdog).
inline Outcomes run_processes(int ranks, const RankBody& body, std::string window_name = {},
                              const std::function<std::shared_ptr<void>(std::shared_ptr<Liveness>)>& around = {}) {
  constexpr size_t kTextBytes = 4096;
  if (window_name.empty()) window_name = shared_prefix();
  const auto make = [](const char* what, size_t bytes) {
    auto memory = SharedMemory::create(shared_prefix() + what, bytes);
    memory->unlink();  // children have it already
    return memory;
  };
  const auto slots = make("-slots", HostCommunicator::slot_bytes(ranks));
  const auto table = make("-table", Liveness::bytes(ranks));
  const auto texts = make("-texts", kTextBytes * ranks);
  std::vector<pid_t> children;
  for (int rank = 0; rank < ranks; ++rank) {
    const pid_t child = fork();
    if (child == 0) {
      alarm(static_cast<unsigned>(kHangSeconds));
      std::string outcome;
      try {
        const auto liveness = std::make_shared<Liveness>(table, rank, ranks);
        const auto kept = around ? around(liveness) : nullptr;
        HostCommunicator communicator(slots, liveness, window_name);
        outcome = outcome_of(body, communicator);
      } catch (const std::exception& e) {
        outcome = e.what();
      }
      copy_text(static_cast<char*>(texts->data()) + kTextBytes * rank, kTextBytes, outcome);
      _exit(0);
    }
    children.push_back(child);
  }
  Outcomes outcomes;
  for (int rank = 0; rank < ranks; ++rank) {
    int status = 0;
    waitpid(children[rank], &status, 0);
    if (WIFSIGNALED(status)) {
      outcomes.push_back(killed_by(WTERMSIG(status)));
    } else {
      outcomes.emplace_back(static_cast<const char*>(texts->data()) + kTextBytes * rank);
    }
  }
  return outcomes;
}

/// Values of any sign and size, a function of their place.
inline float float_at(uint64_t seed, uint64_t index) {
  uint64_t x = (seed + 1) * 0x9e3779b97f4a7c15 ^ (index + 1) * 0xbf58476d1ce4e5b9;
  x = (x ^ x >> 31) * 0x94d049bb133111eb;
  x ^= x >> 29;
  return (static_cast<float>(x % 20001) - 10000.f) * (x >> 40 & 1 ? 1e-3f : 37.f);
}

inline std::vector<float> floats(uint64_t seed, size_t size) {
  std::vector<float> values(size);
  for (size_t i = 0; i < size; ++i) values[i] = float_at(seed, i);
  return values;
}

/// The same bits, NaN included.
template <class T>
void expect_same(const T* found, const T* expected, size_t size, const std::string& what) {
  for (size_t i = 0; i < size; ++i) {
    CONVOY_CHECK(std::memcmp(found + i, expected + i, sizeof(T)) == 0, "{}: element {} of {} is {}, expected {}", what,
                 i, size, found[i], expected[i]);
  }
}

}  // namespace convoy::test
