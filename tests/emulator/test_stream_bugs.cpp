// Planted bugs in the use of streams must be found in an adversarial order, corrected programs must pass in all.
#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <memory>
#include <thread>

#include "kernels/emulator/emulator.h"
#include "kernels/emulator/runtime_api.h"
#include "tests/emulator/stream_bugs.h"

namespace convoy::test {
namespace {

using emulator::StreamOrder;

/// Sets the stream order and leaves streams and options as they were.
struct StreamOrderScope {
  emulator::Options before = emulator::options;
  explicit StreamOrderScope(StreamOrder order, uint64_t seed = 1) {
    emulator::options.stream_order = order;
    emulator::options.stream_seed = seed;
    emulator::reset_streams();
  }
  ~StreamOrderScope() {
    emulator::reset_streams();
    emulator::options = before;
  }
};

std::string outcome(const StreamBug& bug, bool corrected, StreamOrder order, uint64_t seed = 1) {
  const StreamOrderScope scope(order, seed);
  try {
    return bug.run(corrected) ? "" : "wrong result";
  } catch (const std::exception& e) {
    return e.what();
  }
}

TEST_CASE("planted stream bugs are found", "[streams]") {
  for (const auto& bug : stream_bugs()) {
    CAPTURE(bug.name);
    std::vector<std::string> found;
    for (const StreamOrder order : {StreamOrder::kLazy, StreamOrder::kOthersFirst})
      if (auto text = outcome(bug, false, order); !text.empty()) found.push_back(text);
    for (uint64_t seed = 1; seed <= 20; ++seed)
      if (auto text = outcome(bug, false, StreamOrder::kRandom, seed); !text.empty()) found.push_back(text);
    CHECK(found.size() > 0);
    if (!emulator::checked() || !bug.by_order) continue;
    CHECK(found.size() == 22);
    const std::string text = outcome(bug, false, StreamOrder::kImmediate);
    CAPTURE(text);
    CHECK(text.find("race between streams") != std::string::npos);
    CHECK(text.find("stream_bugs.cu:") != std::string::npos);
    CHECK(text.rfind("stream_bugs.cu:") != text.find("stream_bugs.cu:"));  // both sides are named
  }
}

TEST_CASE("corrected stream programs pass in every order", "[streams]") {
  for (const auto& bug : stream_bugs()) {
    CAPTURE(bug.name);
    for (const StreamOrder order : {StreamOrder::kImmediate, StreamOrder::kLazy, StreamOrder::kOthersFirst})
      CHECK(outcome(bug, true, order) == "");
    for (uint64_t seed = 1; seed <= 30; ++seed) CHECK(outcome(bug, true, StreamOrder::kRandom, seed) == "");
  }
}

TEST_CASE("a deferred fault names its launch and stays", "[streams]") {
  const StreamOrderScope scope(StreamOrder::kLazy);
  int line = 0;
  const auto messages = deferred_fault(line);
  REQUIRE(messages.size() == 3);
  for (const auto& message : messages) {
    CAPTURE(message);
    CHECK(message.find("stream_bugs.cu:" + std::to_string(line)) != std::string::npos);
  }
  emulator::reset_streams();
  CHECK(cudaDeviceSynchronize() == cudaSuccess);
}

TEST_CASE("wrong uses of memory are named", "[streams]") {
  char *device = nullptr, host[64] = {};
  REQUIRE(cudaMalloc(&device, 32) == cudaSuccess);
  const auto message = [](cudaError_t error) { return std::string(cudaGetErrorString(error)); };
  CHECK(
      message(cudaMemcpy(device, host, 33, cudaMemcpyHostToDevice)).find("past the end of the memory that it writes") !=
      std::string::npos);
  CHECK(message(cudaMemcpy(host, device + 8, 25, cudaMemcpyDefault)).find("past the end of the memory that it reads") !=
        std::string::npos);
  CHECK(
      message(cudaMemcpy(device, host, 8, cudaMemcpyDeviceToHost)).find("from host to device, which its kind denies") !=
      std::string::npos);
  CHECK(message(cudaMemset(host, 0, 8)).find("not memory of the device") != std::string::npos);
  CHECK(message(cudaFree(host)).find("not the start of such memory") != std::string::npos);
  CHECK(cudaFree(device) == cudaSuccess);
  CHECK(message(cudaFree(device)).find("freed twice") != std::string::npos);
}

TEST_CASE("a host function may not call the runtime API", "[streams]") {
  const StreamOrderScope scope(StreamOrder::kLazy);
  cudaError_t inside = cudaSuccess;
  REQUIRE(cudaLaunchHostFunc(
              nullptr, [](void* p) { *static_cast<cudaError_t*>(p) = cudaDeviceSynchronize(); }, &inside) ==
          cudaSuccess);
  CHECK(inside == cudaSuccess);  // not run yet
  CHECK(cudaDeviceSynchronize() == cudaSuccess);
  CHECK(inside == cudaErrorNotPermitted);
}

TEST_CASE("threads that wait for each other on several streams go on in every order", "[streams]") {
  constexpr int kRanks = 3;
  for (const StreamOrder order :
       {StreamOrder::kImmediate, StreamOrder::kLazy, StreamOrder::kOthersFirst, StreamOrder::kRandom}) {
    const StreamOrderScope scope(order);
    std::atomic<int> came[2] = {0, 0}, host_came = 0;
    std::vector<std::thread> ranks;
    std::atomic<int> right = 0;
    for (int rank = 0; rank < kRanks; ++rank)
      ranks.emplace_back([&, rank] {
        cudaStream_t streams[2];
        for (auto& stream : streams) cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
        for (int k = 0; k < 2; ++k) {
          auto here = std::make_shared<bool>(false);
          emulator::enqueue_steps(
              streams[k],
              [&came, k, here] {
                if (!*here) ++came[k];
                *here = true;
                return came[k] == kRanks;
              },
              {}, "meeting");
        }
        // The others' meetings need this rank's streams while it waits for something else.
        if (rank == 0)
          while (host_came != kRanks - 1) std::this_thread::sleep_for(std::chrono::milliseconds(1));
        const int first = rank % 2;
        right += cudaStreamSynchronize(streams[first]) == cudaSuccess && came[first] == kRanks;
        ++host_came;
        right += cudaStreamSynchronize(streams[1 - first]) == cudaSuccess && came[1 - first] == kRanks;
        for (auto& stream : streams) cudaStreamDestroy(stream);
      });
    for (auto& rank : ranks) rank.join();
    CHECK(right == 2 * kRanks);
  }
}

}  // namespace
}  // namespace convoy::test
