// The inline channel of ranks of one host.
#include <signal.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <stdexcept>

#include "comm/watchdog.h"
#include "tests/comm/ranks_fixture.h"

using namespace convoy;
using namespace convoy::test;
using Catch::Matchers::Contains;

namespace {

constexpr size_t kSlotFloats = (128 << 10) / sizeof(float);

template <class T>
std::vector<T> values_of(int rank, size_t size) {
  const auto base = floats(static_cast<uint64_t>(rank), size);
  if constexpr (std::is_same_v<T, float>) {
    return base;
  } else {
    std::vector<T> values(size);
    for (size_t i = 0; i < size; ++i) values[i] = static_cast<T>(base[i]) * 1'000'000'007;
    return values;
  }
}

template <class T>
void check_all_reduce(Communicator& comm, size_t size) {
  for (ReduceOp op : {ReduceOp::kSum, ReduceOp::kMax}) {
    std::vector<T> expected = values_of<T>(0, size);
    for (int rank = 1; rank < comm.size(); ++rank) {
      const auto other = values_of<T>(rank, size);
      for (size_t i = 0; i < size; ++i) {
        expected[i] = op == ReduceOp::kSum ? expected[i] + other[i] : std::max(expected[i], other[i]);
      }
    }
    std::vector<T> data = values_of<T>(comm.rank(), size);
    comm.all_reduce(std::span<T>(data), op, "reduce");
    expect_same(data.data(), expected.data(), size, fmt::format("all_reduce of {}", size));
  }
}

void check_all_gather(Communicator& comm, size_t bytes) {
  const auto byte_at = [&](int rank, size_t i) { return static_cast<unsigned char>(rank * 31 + i * 7 + i / 1000); };
  std::vector<unsigned char> part(bytes), all(bytes * comm.size() + 1, 0xee), expected(all);
  for (size_t i = 0; i < bytes; ++i) part[i] = byte_at(comm.rank(), i);
  for (int rank = 0; rank < comm.size(); ++rank) {
    for (size_t i = 0; i < bytes; ++i) expected[rank * bytes + i] = byte_at(rank, i);
  }
  comm.all_gather(part.data(), bytes, all.data(), "gather");
  expect_same(all.data(), expected.data(), all.size(), fmt::format("all_gather of {} bytes", bytes));
}

void check_broadcast(Communicator& comm, size_t bytes, int root) {
  std::vector<unsigned char> data(bytes), expected(bytes);
  for (size_t i = 0; i < bytes; ++i) expected[i] = static_cast<unsigned char>(root + i * 13 + i / 777);
  if (comm.rank() == root) data = expected;
  comm.broadcast(data.data(), bytes, root, "weights");
  expect_same(data.data(), expected.data(), bytes, fmt::format("broadcast of {} bytes from {}", bytes, root));
}

void check_collectives(Communicator& comm) {
  for (size_t size : {size_t{0}, size_t{1}, size_t{7}, size_t{1000}, kSlotFloats, kSlotFloats + 1, size_t{100'003}}) {
    check_all_reduce<float>(comm, size);
    check_all_reduce<int64_t>(comm, size);
    check_all_gather(comm, size);
  }
  check_all_gather(comm, 4 * kSlotFloats + 1);
  for (int root = 0; root < comm.size(); ++root) {
    for (size_t bytes : {size_t{0}, size_t{5}, size_t{700'001}}) check_broadcast(comm, bytes, root);
  }
  comm.barrier("end");
}

// A long random sequence, the same on all ranks, with pauses of their own.
void check_random_sequence(Communicator& comm) {
  std::mt19937 sequence(17), pauses(comm.rank());
  for (int i = 0; i < 2000; ++i) {
    const auto random_size = sequence() % 8 == 0 ? sequence() % 50'000 : sequence() % 300;
    const int root = static_cast<int>(sequence() % comm.size());
    if (pauses() % 50 == 0) std::this_thread::sleep_for(std::chrono::microseconds(pauses() % 2000));
    switch (sequence() % 5) {
      case 0:
        check_all_reduce<float>(comm, random_size);
        break;
      case 1:
        check_all_reduce<int64_t>(comm, random_size);
        break;
      case 2:
        check_all_gather(comm, random_size);
        break;
      case 3:
        check_broadcast(comm, random_size, root);
        break;
      case 4:
        comm.barrier("pause");
        break;
    }
  }
}

// Both ranks name both collectives in the same message, and stay failed.
void check_mismatch(const std::vector<RankBody>& calls, const std::vector<std::string>& expected) {
  const Outcomes outcomes = run_threads(static_cast<int>(calls.size()), [&](Communicator& comm) {
    comm.barrier("start");
    std::string first;
    try {
      calls[comm.rank()](comm);
    } catch (const Error& e) {
      first = e.what();
    }
    CONVOY_CHECK(!first.empty(), "the mismatch was not noticed");
    CONVOY_CHECK(comm.failure() == first, "failure() is '{}'", comm.failure());
    comm.barrier("more");
  });
  for (const std::string& outcome : outcomes) {
    CHECK(outcome == outcomes[0]);
    for (const std::string& text : expected) CHECK_THAT(outcome, Contains(text));
  }
}

}  // namespace

TEST_CASE("collectives between threads", "[comm]") {
  const int ranks = GENERATE(1, 2, 3, 4, 7);
  CHECK(run_threads(ranks, check_collectives) == Outcomes(ranks));
}

TEST_CASE("collectives between processes", "[comm][process]") {
  const int ranks = GENERATE(2, 3, 4);
  CHECK(run_processes(ranks, check_collectives) == Outcomes(ranks));
}

TEST_CASE("random collectives between threads", "[comm]") {
  const int ranks = GENERATE(2, 5);
  CHECK(run_threads(ranks, check_random_sequence) == Outcomes(ranks));
}

TEST_CASE("random collectives between processes", "[comm][process]") {
  CHECK(run_processes(3, check_random_sequence) == Outcomes(3));
}

TEST_CASE("64 ranks", "[comm]") {
  const auto body = [](Communicator& comm) {
    check_all_reduce<float>(comm, 1000);
    check_all_gather(comm, 33);
    check_broadcast(comm, 1000, 63);
  };
  CHECK(run_threads(64, body) == Outcomes(64));
}

TEST_CASE("a maximum is NaN where a part is", "[comm]") {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const auto body = [&](Communicator& comm) {
    for (int rank = 0; rank < comm.size(); ++rank) {
      float data[] = {1.f, comm.rank() == rank ? nan : 2.f};
      comm.all_reduce(data, ReduceOp::kMax, "norm");
      CONVOY_CHECK(data[0] == 1.f && std::isnan(data[1]), "maximum {} {}", data[0], data[1]);
    }
  };
  CHECK(run_threads(3, body) == Outcomes(3));
}

TEST_CASE("different collectives are named on every rank", "[comm]") {
  std::vector<float> data(100), more(200);
  std::vector<int64_t> integers(50);
  const auto sum = [](std::vector<float> values, std::string name) -> RankBody {
    return [=](Communicator& comm) mutable { comm.all_reduce(values, ReduceOp::kSum, name); };
  };
  check_mismatch({sum(data, "loss"), sum(data, "norm")}, {"rank 0", "'loss'", "rank 1", "'norm'"});
  check_mismatch({sum(data, "loss"), sum(data, "loss"), sum(more, "loss")},
                 {"rank 0", "'loss', 400 bytes", "rank 2", "'loss', 800 bytes"});
  check_mismatch({sum(data, std::string(300, 'x') + "a"), sum(data, std::string(300, 'x') + "b")}, {"xxx"});
  check_mismatch({sum(data, "loss"),
                  [&](Communicator& comm) {
                    auto mine = integers;
                    comm.all_reduce(mine, ReduceOp::kSum, "loss");
                  }},
                 {"sum of float", "sum of int64"});
  check_mismatch({sum(data, "loss"),
                  [&](Communicator& comm) {
                    auto mine = data;
                    comm.all_reduce(mine, ReduceOp::kMax, "loss");
                  }},
                 {"sum of float", "maximum of float"});
  check_mismatch({[](Communicator& comm) { comm.barrier("end"); }, sum(data, "loss")}, {"barrier 'end'", "'loss'"});
  check_mismatch({[](Communicator& comm) {
                    int value = 0;
                    comm.broadcast(&value, sizeof(value), comm.rank(), "seed");
                  },
                  [](Communicator& comm) {
                    int value = 0;
                    comm.broadcast(&value, sizeof(value), comm.rank(), "seed");
                  }},
                 {"broadcast from rank 0 'seed'", "broadcast from rank 1 'seed'"});
}

TEST_CASE("a mismatch between processes is named on every rank", "[comm][process]") {
  const Outcomes outcomes =
      run_processes(3, [](Communicator& comm) { comm.barrier(comm.rank() == 1 ? "evaluation" : "training"); });
  for (const std::string& outcome : outcomes) {
    CHECK(outcome == outcomes[0]);
    CHECK_THAT(outcome, Contains("rank 0 is in barrier 'training'") && Contains("rank 1 in barrier 'evaluation'"));
  }
}

TEST_CASE("a rank that fails wakes those that wait", "[comm]") {
  const auto body = [](Communicator& comm) {
    comm.barrier("start");
    if (comm.rank() == 1) {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      comm.fail_all("/data is full");
      return;
    }
    comm.barrier("never complete");
  };
  for (const Outcomes& outcomes : {run_threads(3, body), run_processes(3, body)}) {
    CHECK(outcomes[0].find("/data is full") != std::string::npos);
    CHECK(outcomes[1].empty());
    CHECK(outcomes[2] == outcomes[0]);
  }
}

TEST_CASE("a thread that does not come is named", "[comm]") {
  const auto body = [](Communicator& comm) {
    comm.set_activity("waiting for data");
    comm.barrier("start");
    if (comm.rank() == 1) {
      while (comm.failure().empty()) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    comm.barrier("end of the epoch");
  };
  const Outcomes outcomes = run_threads(3, body, 0.5);
  CHECK_THAT(outcomes[0], Contains("rank 1") && Contains("'end of the epoch'") && Contains("waiting for data"));
  CHECK_THAT(outcomes[0], !Contains("has not answered"));
  CHECK(outcomes == Outcomes(3, outcomes[0]));
}

TEST_CASE("a thread that has ended is named", "[comm]") {
  auto communicators = thread_communicators(2);
  communicators[1].reset();
  CHECK_THROWS_WITH(communicators[0]->barrier("more"), Contains("rank 1") && Contains("'more'"));
}

TEST_CASE("a thread that an exception ends is named at once", "[comm]") {
  auto communicators = thread_communicators(2);
  std::string outcome;
  std::thread other([&] {
    outcome = outcome_of([](Communicator& communicator) { communicator.barrier("start"); }, *communicators[1]);
  });
  try {
    const auto own = std::move(communicators[0]);
    throw std::runtime_error("trouble");
  } catch (const std::runtime_error&) {
  }
  other.join();
  CHECK_THAT(outcome, Catch::Contains("rank 0 has ended with an error"));
}

TEST_CASE("times that are none are refused", "[comm]") {
  CHECK_THROWS_WITH(thread_communicators(2, 0), Catch::Contains("timeout"));
  CHECK_THROWS_WITH(thread_communicators(2, std::nan("")), Catch::Contains("timeout"));
}

TEST_CASE("a process that is killed is named on the others, whatever they wait for", "[comm][process]") {
  const bool in_gradients = GENERATE(false, true);
  const auto body = [&](Communicator& comm) {
    const auto memory = comm.exchange_memory(400);
    comm.barrier("start");
    if (comm.rank() == 1) {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      kill(getpid(), SIGKILL);
    }
    if (in_gradients) {
      comm.start_sum({std::span<float>(static_cast<float*>(memory->data), 100)}, "encoder");
      comm.finish_sums();
    }
    comm.barrier("never complete");
  };
  const auto watchdog = [](const std::shared_ptr<Liveness>& liveness) {
    return std::make_shared<Watchdog>(liveness, WatchdogOptions{.processes = true, .end_process = {}});
  };
  const Outcomes outcomes = run_processes(3, body, {}, watchdog);
  CHECK_THAT(outcomes[0], Contains("rank 1 of 3") && Contains("is gone"));
  CHECK(outcomes[1] == killed_by(SIGKILL));
  CHECK(outcomes[2] == outcomes[0]);
  CHECK(left_in_shared_memory(shared_prefix()) == std::vector<std::string>());
}

TEST_CASE("slots that are too small are refused", "[comm]") {
  auto table = SharedMemory::in_process(Liveness::bytes(2));
  auto slots = SharedMemory::in_process(HostCommunicator::slot_bytes(2) - 1);
  CHECK_THROWS_WITH(HostCommunicator(slots, std::make_shared<Liveness>(table, 0, 2), ""), Contains("slots of 2 ranks"));
  CHECK_THROWS_AS(thread_communicators(0), Error);
}
