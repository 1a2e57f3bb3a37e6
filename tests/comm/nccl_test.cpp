// The device communicator over the stand-in for NCCL: ranks as threads and as processes, in several orders of streams,
// and what ranks that disagree, are late or die come to.
#include <catch2/catch.hpp>
#include <csignal>

#include "comm/nccl_communicator.h"
#include "comm/nccl_stand_in.h"
#include "comm/watchdog.h"
#include "kernels/device_runtime.h"
#include "kernels/emulator/emulator.h"
#include "tests/comm/ranks_fixture.h"
#include "tests/comm/waiting.h"

namespace convoy::test {
namespace {

using emulator::StreamOrder;
constexpr StreamOrder kOrders[] = {StreamOrder::kImmediate, StreamOrder::kLazy, StreamOrder::kOthersFirst,
                                   StreamOrder::kRandom};

struct StreamOrderScope {
  StreamOrder before = emulator::options.stream_order;
  explicit StreamOrderScope(StreamOrder order) { emulator::options.stream_order = order; }
  ~StreamOrderScope() { emulator::options.stream_order = before; }
};

/// A rank's device: a stream, memory, and the other ranks.
struct RankDevice {
  DeviceRuntime& runtime = emulated::device_runtime();
  cudaStream_t stream = runtime.create_stream();
  std::vector<std::shared_ptr<void>> memory;
  std::unique_ptr<DeviceCommunicator> ranks;

  explicit RankDevice(Communicator& host) : ranks(host.on_device(runtime)) {
    CONVOY_CHECK(ranks, "no device communicator");
  }
  ~RankDevice() {
    if (std::uncaught_exceptions() > 0) ranks->abort();
    runtime.synchronize(stream);
    runtime.destroy_stream(stream);
  }
  template <class T>
  T* allocate(size_t count) {
    memory.emplace_back(runtime.allocate(count * sizeof(T)), [this](void* p) { runtime.free(p); });
    return static_cast<T*>(memory.back().get());
  }
  /// Device memory with these values, copied on the stream, from pinned memory.
  template <class T>
  T* upload(const std::vector<T>& values) {
    const size_t bytes = values.size() * sizeof(T);
    memory.emplace_back(runtime.allocate_pinned(bytes), [this](void* p) { runtime.free_pinned(p); });
    void* pinned = memory.back().get();
    std::memcpy(pinned, values.data(), bytes);
    T* data = allocate<T>(values.size());
    runtime.copy(data, pinned, bytes, stream);
    return data;
  }
  template <class T>
  std::vector<T> download(const T* data, size_t count) {
    std::vector<T> values(count);
    runtime.copy(values.data(), data, count * sizeof(T), stream);
    return values;
  }
};

std::vector<float> sum_of(int ranks, uint64_t seed, size_t size) {
  std::vector<float> sum = floats(seed, size);
  for (int rank = 1; rank < ranks; ++rank) {
    const std::vector<float> part = floats(seed + static_cast<uint64_t>(rank), size);
    for (size_t i = 0; i < size; ++i) sum[i] += part[i];
  }
  return sum;
}

// Every collective, over sizes of one piece and of several, and gradients beside the inline channel.
void use_all_collectives(Communicator& host) {
  RankDevice device(host);
  const auto rank = static_cast<uint64_t>(host.rank());
  const int size = host.size();
  for (const size_t count : {size_t{1}, size_t{1000}, size_t{70001}}) {
    float* const sum = device.upload(floats(rank, count));
    float* const gradient = device.upload(floats(100 + rank, count));
    float* const second = device.upload(floats(200 + rank, 7));
    device.ranks->start_sum({{gradient, count}, {second, 7}}, device.stream, "bucket 0");
    device.ranks->all_reduce(sum, count, ReduceOp::kSum, device.stream, "sum");
    int64_t* const most = device.upload(std::vector<int64_t>{host.rank(), -host.rank(), 7});
    device.ranks->all_reduce(most, 3, ReduceOp::kMax, device.stream, "most");
    int64_t* const total = device.upload(std::vector<int64_t>{host.rank(), 1});
    device.ranks->all_reduce(total, 2, ReduceOp::kSum, device.stream, "total");
    float* const all = device.allocate<float>(count * static_cast<size_t>(size));
    device.ranks->all_gather(gradient + count, 0, all, device.stream, "nothing");
    const float* const part = device.upload(floats(300 + rank, count));
    device.ranks->all_gather(part, count * sizeof(float), all, device.stream, "parts");
    float* const given = device.upload(floats(400 + rank, count));
    device.ranks->broadcast(given, count * sizeof(float), size - 1, device.stream, "given");
    device.ranks->finish_sums(device.stream);
    device.ranks->synchronize(device.stream, "step");
    expect_same(device.download(sum, count).data(), sum_of(size, 0, count).data(), count, "sum");
    expect_same(device.download(gradient, count).data(), sum_of(size, 100, count).data(), count, "gradient");
    expect_same(device.download(second, 7).data(), sum_of(size, 200, 7).data(), 7, "second segment");
    const std::vector<int64_t> most_expected = {size - 1, 0, 7}, total_expected = {size * (size - 1) / 2, size};
    expect_same(device.download(most, 3).data(), most_expected.data(), 3, "most");
    expect_same(device.download(total, 2).data(), total_expected.data(), 2, "total");
    const std::vector<float> gathered = device.download(all, count * static_cast<size_t>(size));
    for (int r = 0; r < size; ++r)
      expect_same(gathered.data() + static_cast<size_t>(r) * count,
                  floats(300 + static_cast<uint64_t>(r), count).data(), count, "parts");
    expect_same(device.download(given, count).data(), floats(399 + static_cast<uint64_t>(size), count).data(), count,
                "given");
  }
}

void check_all_fine(const Outcomes& outcomes) {
  for (const std::string& outcome : outcomes) CHECK(outcome == "");
}

TEST_CASE("collectives of device memory, ranks as threads", "[nccl]") {
  for (const StreamOrder order : kOrders) {
    const StreamOrderScope scope(order);
    CAPTURE(static_cast<int>(order));
    for (const int ranks : {1, 2, 3}) check_all_fine(run_threads(ranks, use_all_collectives));
  }
}

TEST_CASE("collectives of device memory, ranks as processes", "[nccl]") {
  for (const StreamOrder order : kOrders) {
    const StreamOrderScope scope(order);
    CAPTURE(static_cast<int>(order));
    check_all_fine(run_processes(2, use_all_collectives));
  }
  CHECK(left_in_shared_memory("convoy-nccl").empty());
}

// The ranks wait for their streams in different orders, with the host's collectives in between.
TEST_CASE("streams and host collectives in any order do not block each other", "[nccl]") {
  for (const StreamOrder order : kOrders) {
    const StreamOrderScope scope(order);
    CAPTURE(static_cast<int>(order));
    const auto body = [](Communicator& host) {
      RankDevice device(host);
      float* const sum = device.upload(std::vector<float>(5, 1.f));
      float* const gradient = device.upload(std::vector<float>(5, 2.f));
      device.ranks->start_sum({{gradient, 5}}, device.stream, "bucket 0");
      device.ranks->all_reduce(sum, 5, ReduceOp::kSum, device.stream, "sum");
      if (host.rank() == 0) host.barrier("before the wait");
      if (host.rank() == 0) device.ranks->finish_sums(device.stream);
      device.ranks->synchronize(device.stream, "step");
      if (host.rank() != 0) host.barrier("before the wait");
      if (host.rank() != 0) device.ranks->finish_sums(device.stream);
      device.runtime.synchronize(device.stream);
      CONVOY_CHECK(device.download(sum, 5)[4] == 2.f, "sum");
      CONVOY_CHECK(device.download(gradient, 5)[4] == 4.f, "gradient");
    };
    // Rank 0 comes to the barrier first and rank 1 to its stream: rank 0's collectives must go on meanwhile. The
    // liveness numbers differ between the ranks here, which only messages use.
    check_all_fine(run_threads(2, body));
  }
}

void check_all_say(const Outcomes& outcomes, const std::vector<std::string>& parts) {
  for (const std::string& outcome : outcomes) {
    CAPTURE(outcome);
    CHECK(outcome == outcomes[0]);
    for (const std::string& part : parts) CHECK(outcome.find(part) != std::string::npos);
  }
}

void swap_on_rank_1(Communicator& host) {
  RankDevice device(host);
  float* const a = device.upload(std::vector<float>(4, 1.f));
  float* const b = device.upload(std::vector<float>(4, 1.f));
  const bool swapped = host.rank() == 1;
  device.ranks->all_reduce(swapped ? b : a, 4, ReduceOp::kSum, device.stream, swapped ? "b" : "a");
  device.ranks->all_reduce(swapped ? a : b, 4, ReduceOp::kSum, device.stream, swapped ? "a" : "b");
  device.ranks->synchronize(device.stream, "step");
}

TEST_CASE("ranks in different collectives are named", "[nccl]") {
  for (const StreamOrder order : kOrders) {
    const StreamOrderScope scope(order);
    CAPTURE(static_cast<int>(order));
    check_all_say(run_threads(2, swap_on_rank_1), {"different collectives", "inline channel", "rank 0 is in all_reduce",
                                                   "'a', 16 bytes, rank 1 in", "'b', 16 bytes"});
  }
  check_all_say(run_processes(2, swap_on_rank_1), {"different collectives", "'a'", "'b'"});
}

TEST_CASE("another count, type, operation or root is named", "[nccl]") {
  using Call = std::function<void(RankDevice&, bool odd)>;
  const auto outcome = [](const Call& call) {
    return run_threads(2, [&](Communicator& host) {
      RankDevice device(host);
      call(device, host.rank() == 1);
      device.ranks->synchronize(device.stream, "step");
    });
  };
  check_all_say(outcome([](RankDevice& device, bool odd) {
                  float* const data = device.upload(std::vector<float>(9, 1.f));
                  device.ranks->all_reduce(data, odd ? 9 : 8, ReduceOp::kSum, device.stream, "loss");
                }),
                {"'loss', 32 bytes", "'loss', 36 bytes"});
  check_all_say(outcome([](RankDevice& device, bool odd) {
                  int64_t* const data = device.upload(std::vector<int64_t>(4, 1));
                  if (odd)
                    device.ranks->all_reduce(data, 4, ReduceOp::kSum, device.stream, "count");
                  else
                    device.ranks->all_reduce(reinterpret_cast<float*>(data), 8, ReduceOp::kSum, device.stream, "count");
                }),
                {"sum of float", "sum of int64"});
  check_all_say(outcome([](RankDevice& device, bool odd) {
                  float* const data = device.upload(std::vector<float>(4, 1.f));
                  device.ranks->all_reduce(data, 4, odd ? ReduceOp::kMax : ReduceOp::kSum, device.stream, "loss");
                }),
                {"different collectives", "'loss', 16 bytes"});
  check_all_say(outcome([](RankDevice& device, bool odd) {
                  float* const data = device.upload(std::vector<float>(4, 1.f));
                  device.ranks->broadcast(data, 16, odd, device.stream, "weights");
                }),
                {"different collectives", "'weights', 16 bytes"});
  check_all_say(outcome([](RankDevice& device, bool odd) {
                  float* const data = device.upload(std::vector<float>(4, 1.f));
                  device.ranks->start_sum({{data, odd ? size_t{3} : size_t{4}}}, device.stream, "bucket 3");
                  device.ranks->finish_sums(device.stream);
                }),
                {"gradient channel", "'bucket 3', 16 bytes", "'bucket 3', 12 bytes"});
}

TEST_CASE("a rank that does not come to a collective is named", "[nccl]") {
  const StreamOrderScope scope(StreamOrder::kLazy);
  const auto body = [](Communicator& host) {
    RankDevice device(host);
    float* const data = device.upload(std::vector<float>(4, 1.f));
    if (host.rank() == 1) {
      host.set_activity("sleeping");
      wait_until([&] { return !host.failure().empty(); });
      throw Error(host.failure());
    }
    device.ranks->all_reduce(data, 4, ReduceOp::kSum, device.stream, "loss");
    device.ranks->synchronize(device.stream, "step 7");
  };
  check_all_say(run_threads(3, body, 1.5), {"rank 1", "sleeping", "step 7"});
}

TEST_CASE("a rank that gives up does not wait, and ends the others", "[nccl]") {
  const auto body = [](Communicator& host) {
    RankDevice device(host);
    float* const data = device.upload(std::vector<float>(4, 1.f));
    if (host.rank() == 1) host.fail_all("rank 1: label 9 of 3 classes");
    if (host.rank() == 1) fail("{}", host.failure());
    device.ranks->all_reduce(data, 4, ReduceOp::kSum, device.stream, "loss");
    device.ranks->synchronize(device.stream, "step 7");
  };
  for (const StreamOrder order : kOrders) {
    const StreamOrderScope scope(order);
    check_all_say(run_threads(2, body), {"rank 1: label 9 of 3 classes"});
  }
}

TEST_CASE("a rank that dies in a step ends the others", "[nccl]") {
  const auto watch = [](std::shared_ptr<Liveness> liveness) -> std::shared_ptr<void> {
    return std::make_shared<Watchdog>(std::move(liveness), WatchdogOptions{.late_seconds = 30, .end_process = {}});
  };
  const auto body = [](Communicator& host) {
    RankDevice device(host);
    float* const data = device.upload(std::vector<float>(4, 1.f));
    if (host.rank() == 1) {
      device.ranks->all_reduce(data, 4, ReduceOp::kSum, device.stream, "loss");
      raise(SIGKILL);
    }
    device.ranks->all_reduce(data, 4, ReduceOp::kSum, device.stream, "loss");
    device.ranks->all_reduce(data, 4, ReduceOp::kSum, device.stream, "loss of the next step");
    device.ranks->synchronize(device.stream, "step 7");
  };
  const StreamOrderScope scope(StreamOrder::kLazy);
  const Outcomes outcomes = run_processes(3, body, {}, watch);
  CHECK(outcomes[1] == killed_by(SIGKILL));
  CAPTURE(outcomes[0]);
  CHECK(outcomes[0].find("rank 1") != std::string::npos);
  CHECK(outcomes[0] == outcomes[2]);
}

// What the inline channel reads must have been written on its stream, or before an event that it waits for.
TEST_CASE("a sum that starts before its gradient is ready is wrong in some order", "[nccl]") {
  const auto wrong = [](bool corrected) {
    std::atomic<int> wrong = 0;
    check_all_fine(run_threads(2, [&](Communicator& host) {
      RankDevice device(host);
      const cudaStream_t other = device.runtime.create_stream();
      float* const gradient = device.upload(std::vector<float>(4, 0.f));
      device.runtime.synchronize(device.stream);
      if (!corrected) device.ranks->start_sum({{gradient, 4}}, other, "bucket 0");
      float* const produced = device.upload(std::vector<float>(4, 3.f));
      device.runtime.copy(gradient, produced, 16, device.stream);
      if (corrected) device.ranks->start_sum({{gradient, 4}}, device.stream, "bucket 0");
      device.ranks->finish_sums(device.stream);
      device.ranks->synchronize(device.stream, "step");
      wrong += device.download(gradient, 4)[0] != 6.f;
      device.runtime.destroy_stream(other);
    }));
    return wrong.load();
  };
  int found = 0;
  for (const StreamOrder order : kOrders) {
    const StreamOrderScope scope(order);
    found += wrong(false) > 0;
    CHECK(wrong(true) == 0);
  }
  CHECK(found > 0);
}

TEST_CASE("ranks that do not all join are an error", "[nccl]") {
  check_all_say(run_threads(2,
                            [](Communicator& host) {
                              if (host.rank() == 1) {
                                char id[128];
                                host.broadcast(id, sizeof id, 0, "NCCL id of the inline channel");
                                wait_until([&] { return !host.failure().empty(); });
                                throw Error(host.failure());
                              }
                              try {
                                NcclCommunicator ranks(nccl::nccl_stand_in(), host, emulated::device_runtime(),
                                                       NcclOptions{.join_seconds = 0.2});
                              } catch (const Error& e) {
                                host.fail_all(e.what());
                                throw;
                              }
                            }),
                {"not all 2 ranks have joined within 0.2 s", "inline channel of rank 0", "1 of 2 ranks have joined"});
}

}  // namespace
}  // namespace convoy::test
