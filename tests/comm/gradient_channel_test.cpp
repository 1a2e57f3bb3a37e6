// The gradient channel of ranks of one host.
#include <catch2/catch.hpp>
#include <random>

#include "tests/comm/ranks_fixture.h"

using namespace convoy;
using namespace convoy::test;
using Catch::Matchers::Contains;

namespace {

// Two stores, as of weights and of something beside them, cut into segments and those into buckets by chance.
struct Stores {
  static constexpr size_t kSizes[] = {300'007, 1'003};
  std::vector<std::shared_ptr<Storage>> memory;
  std::vector<std::vector<std::span<float>>> buckets;

  Stores(Communicator& comm, uint32_t seed) {
    std::mt19937 random(seed);
    std::vector<std::span<float>> segments;
    for (size_t size : kSizes) {
      memory.push_back(comm.exchange_memory(size * sizeof(float)));
      CONVOY_CHECK(memory.back()->bytes >= size * sizeof(float), "{} bytes", memory.back()->bytes);
      auto* data = static_cast<float*>(memory.back()->data);
      for (size_t i = 0; i < size; ++i) CONVOY_CHECK(data[i] == 0, "not zeroed at {}", i);
      for (size_t at = 0; at < size;) {
        const size_t most = random() % 4 == 0 ? 200'000 : 700;
        const size_t count = std::min<size_t>(random() % most, size - at);
        segments.emplace_back(data + at, count);
        at += count;
      }
    }
    std::shuffle(segments.begin(), segments.end(), random);
    buckets.emplace_back();  // one without segments
    for (const auto& segment : segments) {
      if (random() % 3 == 0) buckets.emplace_back();
      buckets.back().push_back(segment);
    }
  }

  void fill(int rank, int step) {
    for (size_t store = 0; store < memory.size(); ++store) {
      auto* data = static_cast<float*>(memory[store]->data);
      for (size_t i = 0; i < kSizes[store]; ++i) data[i] = float_at(rank + 100 * step + 10'000 * store, i);
    }
  }

  void check(int ranks, int step) const {
    for (size_t store = 0; store < memory.size(); ++store) {
      std::vector<float> expected(kSizes[store]);
      for (size_t i = 0; i < expected.size(); ++i) {
        expected[i] = float_at(100 * step + 10'000 * store, i);
        for (int rank = 1; rank < ranks; ++rank) expected[i] += float_at(rank + 100 * step + 10'000 * store, i);
      }
      expect_same(static_cast<const float*>(memory[store]->data), expected.data(), expected.size(),
                  fmt::format("store {} in step {}", store, step));
    }
  }
};

// Steps with inline collectives at other places on each rank.
void check_steps(Communicator& comm) {
  Stores stores(comm, 5);
  std::mt19937 pauses(comm.rank());
  for (int step = 0; step < 6; ++step) {
    stores.fill(comm.rank(), step);
    int inline_calls = 0;
    const auto call = [&] {
      float value = 1;
      comm.all_reduce(std::span(&value, 1), ReduceOp::kSum, fmt::format("statistics {}", inline_calls++));
      CONVOY_CHECK(value == static_cast<float>(comm.size()), "sum is {}", value);
    };
    for (size_t bucket = 0; bucket < stores.buckets.size(); ++bucket) {
      if (pauses() % 20 == 0) std::this_thread::sleep_for(std::chrono::microseconds(pauses() % 2000));
      if (pauses() % 2 == 0 && inline_calls < 40) call();
      comm.start_sum(stores.buckets[bucket], fmt::format("gradients {}", bucket));
    }
    while (inline_calls < 40) call();
    while (step % 2 == 0 && comm.rank() % 2 == 0 && inline_calls < 50) call();  // others after finish_sums
    comm.finish_sums();
    while (inline_calls < 50) call();
    stores.check(comm.size(), step);
  }
  comm.finish_sums();
}

// What every rank gets when rank 1 makes `other` of the buckets that the others sum.
Outcomes mismatch(const std::function<void(std::vector<std::span<float>>&, std::string&)>& other) {
  return run_threads(3, [&](Communicator& comm) {
    const auto memory = comm.exchange_memory(4000);
    auto* data = static_cast<float*>(memory->data);
    std::vector<std::span<float>> segments = {{data, 100}, {data + 200, 50}};
    std::string name = "encoder";
    if (comm.rank() == 1) other(segments, name);
    comm.start_sum(segments, name);
    comm.finish_sums();
  });
}

}  // namespace

TEST_CASE("gradients are summed between threads", "[comm]") {
  const int ranks = GENERATE(1, 2, 3, 4, 7);
  CHECK(run_threads(ranks, check_steps) == Outcomes(ranks));
}

TEST_CASE("gradients are summed between processes and nothing remains in /dev/shm", "[comm][process]") {
  const int ranks = GENERATE(2, 3, 4);
  CHECK(run_processes(ranks, check_steps) == Outcomes(ranks));
  CHECK(left_in_shared_memory(shared_prefix()) == std::vector<std::string>());
}

TEST_CASE("without shared windows gradients are summed all the same", "[comm][process]") {
  // No segment can have this name.
  CHECK(run_processes(3, check_steps, "no/such/folder") == Outcomes(3));

  // One rank alone cannot make its segment of the second window: windows and messages side by side.
  const std::string prefix = shared_prefix() + "-taken";
  const auto taken = SharedMemory::create(prefix + "-window1-1", 100);
  CHECK(run_processes(3, check_steps, prefix) == Outcomes(3));
  CHECK(left_in_shared_memory(prefix) == std::vector<std::string>{prefix + "-window1-1"});
}

TEST_CASE("the sums of many small buckets", "[comm]") {
  const auto body = [](Communicator& comm) {
    const auto memory = comm.exchange_memory(3000 * sizeof(float));
    std::span<float> data(static_cast<float*>(memory->data), 3000);
    for (int step = 0; step < 3; ++step) {
      for (float& value : data) value = 1;
      for (size_t i = 0; i < 1000; ++i) comm.start_sum({data.subspan(3 * i, 3)}, "small");
      comm.finish_sums();
      for (float value : data) CONVOY_CHECK(value == static_cast<float>(comm.size()), "sum is {}", value);
    }
    for (int i = 0; i < 2000; ++i) comm.start_sum({data.first(1)}, "too many");
  };
  for (const std::string& outcome : run_threads(2, body)) {
    CHECK_THAT(outcome, Contains("'too many'") && Contains("1024 sums are under way"));
  }
}

TEST_CASE("different buckets are named on every rank", "[comm]") {
  const std::vector<std::pair<std::function<void(std::vector<std::span<float>>&, std::string&)>, std::string>> cases = {
      {[](auto&, std::string& name) { name = "decoder"; }, "rank 1 is in 'decoder' (150 floats in 2 segments"},
      {[](auto& segments, auto&) { segments.pop_back(); }, "rank 1 is in 'encoder' (100 floats in 1 segments"},
      {[](auto& segments, auto&) { std::swap(segments[0], segments[1]); }, "rank 1 is in 'encoder' (150 floats"},
      {[](auto& segments, auto&) {
         segments[0] = {segments[0].data() + 1, segments[0].size()};
       },
       "rank 1 is in 'encoder' (150 floats"}};
  for (const auto& [change, expected] : cases) {
    const Outcomes outcomes = mismatch(change);
    CHECK_THAT(outcomes[0], Contains("rank 0 is in 'encoder' (150 floats in 2 segments") && Contains(expected));
    CHECK(outcomes == Outcomes(3, outcomes[0]));
  }
}

TEST_CASE("finish_sums at another place is noticed", "[comm]") {
  const Outcomes outcomes = run_threads(2, [](Communicator& comm) {
    const auto memory = comm.exchange_memory(400);
    const std::span<float> data(static_cast<float*>(memory->data), 100);
    for (int i = 0; i < 4; ++i) {
      comm.start_sum({data}, "bucket");
      if (i == (comm.rank() == 0 ? 1 : 2)) comm.finish_sums();
    }
    comm.finish_sums();
  });
  CHECK_THAT(outcomes[0], Contains("number 0 since finish_sums") && Contains("number 2 since finish_sums"));
  CHECK(outcomes[1] == outcomes[0]);
}

TEST_CASE("segments outside exchange_memory are refused", "[comm]") {
  const Outcomes outcomes = run_threads(2, [](Communicator& comm) {
    const auto memory = comm.exchange_memory(400);
    const std::span<float> data(static_cast<float*>(memory->data), 101);
    comm.start_sum({data}, "outside");
  });
  for (const std::string& outcome : outcomes) CHECK_THAT(outcome, Contains("'outside'") && Contains("101 floats"));
}

TEST_CASE("a rank that fails wakes those that wait for its gradients", "[comm]") {
  const auto body = [](Communicator& comm) {
    const auto memory = comm.exchange_memory(400);
    const std::span<float> data(static_cast<float*>(memory->data), 100);
    if (comm.rank() == 1) {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      comm.fail_all("image.png is no image");
      return;
    }
    comm.start_sum({data}, "encoder");
    comm.finish_sums();
  };
  for (const Outcomes& outcomes : {run_threads(3, body), run_processes(3, body)}) {
    CHECK(outcomes[0].find("image.png is no image") != std::string::npos);
    CHECK(outcomes[2] == outcomes[0]);
  }
}
