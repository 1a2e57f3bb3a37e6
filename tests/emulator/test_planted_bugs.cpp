// The emulator must find its planted bugs and must not accuse a correct kernel.
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstring>
#include <set>
#include <string>

#include "kernels/emulator/emulator.h"
#include "tests/emulator/planted_bugs.h"

namespace convoy::test {
namespace {

using emulator::Order;

#if defined(__SANITIZE_ADDRESS__)
constexpr bool kAsan = true;
#else
constexpr bool kAsan = false;
#endif

struct Outcome {
  bool found;
  std::string report;
};

// In a process of its own: a bug may crash the program or, in the asan flavour, end it.
Outcome run_in_child(const PlantedBug& bug, Order order) {
  int channel[2];
  REQUIRE(pipe(channel) == 0);
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    emulator::options.order = order;
    emulator::options.seed = 3;
    if (!freopen("/dev/null", "w", stderr)) _exit(9);
    try {
      bug.run();
    } catch (const std::exception& e) {
      const ssize_t written = write(channel[1], e.what(), std::strlen(e.what()));
      _exit(written > 0 ? 1 : 9);
    }
    _exit(0);
  }
  close(channel[1]);
  Outcome outcome;
  char buffer[512];
  for (ssize_t n; (n = read(channel[0], buffer, sizeof buffer)) > 0;) outcome.report.append(buffer, n);
  close(channel[0]);
  int status = 0;
  waitpid(child, &status, 0);
  outcome.found = !WIFEXITED(status) || WEXITSTATUS(status) != 0;
  return outcome;
}

TEST_CASE("planted bugs are found and the correct kernel passes") {
  REQUIRE(planted_bugs().size() == 26);
  for (const auto& bug : planted_bugs()) {
    CAPTURE(bug.name);
    int found = 0;
    for (const Order order : {Order::kForward, Order::kReverse, Order::kRandom}) {
      const Outcome outcome = run_in_child(bug, order);
      CAPTURE(static_cast<int>(order), outcome.report);
      found += outcome.found;
      if (!bug.report) CHECK_FALSE(outcome.found);
      if (emulator::checked() && outcome.found) CHECK(outcome.report.find(bug.report) != std::string::npos);
    }
    const bool order_dependent = std::strcmp(bug.name, "order-dependent atomics") == 0;  // right in forward order
    if (bug.report && emulator::checked()) CHECK(found == (order_dependent ? 2 : 3));
    if (!emulator::checked() && (kAsan ? bug.asan : bug.plain)) CHECK(found > 0);
  }
}

TEST_CASE("float atomics show as dependence on the order of execution") {
  const emulator::Options before = emulator::options;
  std::set<float> sums;
  emulator::options.order = Order::kRandom;
  for (uint64_t seed = 1; seed <= 8; ++seed) {
    emulator::options.seed = seed;
    sums.insert(float_atomic_sum());
    CHECK(*sums.begin() == Approx(*sums.rbegin()).epsilon(1e-5));
    const size_t count = sums.size();
    sums.insert(float_atomic_sum());
    CHECK(sums.size() == count);  // the same seed repeats the same order
  }
  CHECK(sums.size() > 1);
  emulator::options = before;
}

TEST_CASE("a report names the launch, the block and the thread") {
  const PlantedBug* bug = nullptr;
  for (const auto& b : planted_bugs())
    if (std::strcmp(b.name, "barrier in both branches") == 0) bug = &b;
  REQUIRE(bug);
  const Outcome outcome = run_in_child(*bug, Order::kForward);
  CAPTURE(outcome.report);
  CHECK(outcome.report.find("planted_bugs.cu:") != std::string::npos);
  CHECK(outcome.report.find("block (0,0,0) thread (255,0,0)") != std::string::npos);
}

}  // namespace
}  // namespace convoy::test
