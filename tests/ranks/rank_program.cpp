// One rank of the tests with real processes: does what its first argument says (tests/ranks/test_ranks.sh).
// usage: rank_program [--ranks N] MODE [RANK], RANK being the one that misbehaves
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iostream>
#include <thread>

#include "comm/agreement.h"
#include "comm/ranks.h"
#include "engine/error.h"
#ifdef CONVOY_WITH_MPI
#include "comm/mpi_communicator.h"
#endif

using namespace convoy;

namespace {

std::atomic<int> signals{0};

void expect(bool condition, const std::string& what) {
  CONVOY_CHECK(condition, "wrong result: {}", what);
}

void check_all_reduce(Communicator& ranks) {
  const int n = ranks.size(), r = ranks.rank();
  const float all = static_cast<float>(n * (n + 1) / 2);
  for (const size_t count : {1, 3, 1000, 100'000, 3'000'000}) {
    std::vector<float> sums(count), maxima(count);
    for (size_t i = 0; i < count; ++i) {
      sums[i] = static_cast<float>((r + 1) * static_cast<int>(i % 7));
      maxima[i] = static_cast<float>((r + static_cast<int>(i)) % n);
    }
    ranks.all_reduce(sums, ReduceOp::kSum, "sums");
    ranks.all_reduce(maxima, ReduceOp::kMax, "maxima");
    for (size_t i = 0; i < count; ++i) {
      expect(sums[i] == all * static_cast<float>(i % 7), fmt::format("sum {} of {}", i, count));
      expect(maxima[i] == static_cast<float>(n - 1), fmt::format("maximum {} of {}", i, count));
    }
  }
  std::vector<int64_t> counts{int64_t{1} << 40, -r, r};
  ranks.all_reduce(counts, ReduceOp::kSum, "counts");
  expect(counts == std::vector<int64_t>{(int64_t{1} << 40) * n, -n * (n - 1) / 2, n * (n - 1) / 2}, "integer sums");
  std::vector<int64_t> flags{r == n - 1, -r};
  ranks.all_reduce(flags, ReduceOp::kMax, "flags");
  expect(flags == std::vector<int64_t>{1, 0}, "integer maxima");
  ranks.all_reduce(std::span<float>{}, ReduceOp::kSum, "nothing");
}

/// Sums whose bits depend on the order are formed in the order of ranks.
void check_order(Communicator& ranks) {
  std::vector<float> data(100);
  for (size_t i = 0; i < data.size(); ++i) {
    data[i] = (i + static_cast<size_t>(ranks.rank())) % 3 == 0 ? 1e8f : (i % 2 == 0 ? 1.25f : -1e8f);
  }
  std::vector<float> parts(data.size() * static_cast<size_t>(ranks.size())), expected(data.size());
  ranks.all_gather(data.data(), data.size() * sizeof(float), parts.data(), "parts");
  for (size_t i = 0; i < data.size(); ++i) {
    expected[i] = parts[i];
    for (size_t r = 1; r < static_cast<size_t>(ranks.size()); ++r) expected[i] += parts[r * data.size() + i];
  }
  ranks.all_reduce(data, ReduceOp::kSum, "in order");
  expect(data == expected, "sum in the order of ranks");
}

void check_moves(Communicator& ranks) {
  const auto n = static_cast<size_t>(ranks.size());
  for (const size_t bytes : {size_t{1}, size_t{5000}, size_t{3} << 20}) {
    const std::vector<char> part(bytes, static_cast<char>('a' + ranks.rank()));
    std::vector<char> all(bytes * n);
    ranks.all_gather(part.data(), bytes, all.data(), "gather");
    for (size_t r = 0; r < n; ++r) {
      expect(std::all_of(all.begin() + static_cast<ptrdiff_t>(r * bytes),
                         all.begin() + static_cast<ptrdiff_t>((r + 1) * bytes),
                         [&](char c) { return c == static_cast<char>('a' + r); }),
             "gathered part");
    }
    for (size_t root = 0; root < n; ++root) {
      std::vector<char> data = part;
      ranks.broadcast(data.data(), bytes, static_cast<int>(root), "broadcast");
      expect(data == std::vector<char>(bytes, static_cast<char>('a' + root)), "broadcast");
    }
  }
}

/// Sums in the background, with collectives of the other channel between.
void check_gradients(Communicator& ranks) {
  constexpr size_t kCount = 300'000;
  const auto memory = ranks.exchange_memory(kCount * sizeof(float));
  const std::span<float> all(static_cast<float*>(memory->data), kCount);
  expect(std::all_of(all.begin(), all.end(), [](float x) { return x == 0; }), "zeroed exchange memory");
  for (int step = 0; step < 20; ++step) {
    for (size_t i = 0; i < kCount; ++i) all[i] = static_cast<float>((i + static_cast<size_t>(step)) % 11);
    ranks.start_sum({all.subspan(0, 1000), all.subspan(1000, 3), all.subspan(150'000, 150'000)}, "bucket 0");
    std::vector<int64_t> count{step};
    ranks.all_reduce(count, ReduceOp::kSum, "loss counts");
    ranks.start_sum({all.subspan(1003, 148'997)}, "bucket 1");
    ranks.finish_sums();
    expect(count[0] == step * ranks.size(), "counts between buckets");
    for (size_t i = 0; i < kCount; ++i) {
      expect(all[i] == static_cast<float>(ranks.size()) * static_cast<float>((i + static_cast<size_t>(step)) % 11),
             fmt::format("gradient {} of step {}", i, step));
    }
  }
}

void collectives(Communicator& ranks) {
  for (int round = 0; round < 2; ++round) {
    check_all_reduce(ranks);
    check_order(ranks);
    check_moves(ranks);
    check_gradients(ranks);
    ranks.barrier("round");
  }
  check_same_on_all_ranks(ranks, "configuration", "the same");
  std::printf("rank %d of %d: all right\n", ranks.rank(), ranks.size());
}

#ifdef CONVOY_WITH_MPI
/// A program with an MPI of its own gives Convoy a part of its processes.
void users_communicator() {
  int provided = 0, rank = 0, finalized = 0;
  MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm part;
  MPI_Comm_split(MPI_COMM_WORLD, rank == 0, rank, &part);
  {
    const auto ranks = make_mpi_communicator(part, {.timeout_seconds = 20});
    collectives(*ranks);
  }
  MPI_Finalized(&finalized);
  expect(!finalized, "MPI is left to its owner");
  MPI_Comm_free(&part);
  MPI_Finalize();
}
#endif

/// Steps without end; the rank that is named does what `mode` says in its third.
void steps(Communicator& ranks, const std::string& mode, int culprit, const char* program) {
  for (const int signal : {SIGTERM, SIGINT, SIGUSR1}) {
    std::signal(signal, [](int) { ++signals; });
  }
  const bool here = ranks.rank() == culprit;
  for (int step = 1; step <= 1000; ++step) {
    if (step == 3 && here) {
      ranks.set_data_file("images/scene_17.png");
      if (mode == "kill") std::raise(SIGKILL);
      if (mode == "stop") std::raise(SIGSTOP);
      if (mode == "throw") fail("images/scene_17.png is no image");
      if (mode == "leave") return;
      if (mode == "exit") ::_exit(3);
      if (mode == "late") {
        ranks.set_activity("waiting for data");
        std::this_thread::sleep_for(std::chrono::hours(1));
      }
      if (mode == "another-name") ranks.barrier("barrier of another program");
      if (mode == "another-size") {
        std::vector<float> data(7);
        ranks.all_reduce(data, ReduceOp::kSum, "loss");
      }
    }
    std::vector<float> loss(5, 1.0f);
    std::vector<int64_t> stop{signals};
    ranks.all_reduce(loss, ReduceOp::kSum, "loss");
    ranks.all_reduce(stop, ReduceOp::kMax, "stop");
    if (ranks.rank() == 0 && step == 3) std::cout << program << ": running" << std::endl;
    if (stop[0] > 0) {
      // Long enough for a second signal of the same key press.
      std::this_thread::sleep_for(std::chrono::milliseconds(200));
      const std::string line = fmt::format("rank {}: stopped after {} signals\n", ranks.rank(), signals.load());
      std::cout << line << std::flush;
      // A launcher that is told to end may drop the last lines of its ranks.
      std::ofstream("stopped.log", std::ios::app) << line << std::flush;
      throw int{75};
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
}

void differing_configuration(Communicator& ranks, int culprit) {
  check_same_on_all_ranks(
      ranks, "configuration",
      fmt::format("MODEL: BiSeNet\nSOLVER:\n  LR: {}\n  STEPS: 3\n", ranks.rank() == culprit ? 0.02 : 0.01));
}

void print_lines(Communicator& ranks) {
  for (int i = 0; i < 200; ++i) std::printf("line %d of rank %d\n", i, ranks.rank());
  std::printf("%s|\n", std::string(3 << 20, 'x').c_str());
  std::fprintf(stderr, "warning of rank %d\n", ranks.rank());
  std::printf("no newline at the end of rank %d", ranks.rank());
}

int run(const std::string& mode, int culprit) {
  if (mode == "never-joins" && std::atoi(std::getenv("CONVOY_RANK")) == culprit) return 4;
  std::shared_ptr<Communicator> ranks;
  try {
#ifdef CONVOY_WITH_MPI
    if (mode == "users-communicator") {
      users_communicator();
      return 0;
    }
#endif
    const JoinedRanks joined = join_ranks({.timeout_seconds = mode == "late" ? 3.0 : 20.0});
    ranks = joined.communicator;
    if (ranks->rank() == 0) {
      for (const std::string& note : joined.notes) std::printf("note: %s\n", note.c_str());
    }
    if (mode == "collectives") {
      collectives(*ranks);
    } else if (mode == "table") {
      const std::string table = rank_table(*ranks, "cpu", joined.threads);
      if (ranks->rank() == 0) std::printf("%s", table.c_str());
    } else if (mode == "configuration") {
      differing_configuration(*ranks, culprit);
    } else if (mode == "lines") {
      print_lines(*ranks);
    } else {
      steps(*ranks, mode, culprit, "rank_program");
    }
    return 0;
  } catch (const Error& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    if (ranks) ranks->fail_all(fmt::format("rank {}: {}", ranks->rank(), error.what()));
    return 1;
  } catch (int code) {
    return code;
  }
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<std::string> arguments(argv + 1, argv + argc);
  try {
    if (arguments.size() >= 2 && arguments[0] == "--ranks") {
      if (!is_rank()) return start_ranks(std::atoi(arguments[1].c_str()));
      arguments.erase(arguments.begin(), arguments.begin() + 2);
    }
  } catch (const Error& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return 1;
  }
  if (arguments.empty()) return 2;
  return run(arguments[0], arguments.size() > 1 ? std::atoi(arguments[1].c_str()) : -1);
}
