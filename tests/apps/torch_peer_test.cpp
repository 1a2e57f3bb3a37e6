// A peer that answers, ends, or hangs.
#include "apps/torch_peer.h"

#include <catch2/catch.hpp>
#include <chrono>

using Catch::Matchers::Contains;
using convoy::TorchPeer;

namespace {

std::vector<std::string> shell(const std::string& script) {
  return {"/bin/sh", "-c", script};
}

}  // namespace

TEST_CASE("a peer's answers, one per command") {
  TorchPeer echo(shell(R"(echo '{"torch": "none"}'; while read word; do echo "{\"said\": \"$word\"}"; done)"), 60);
  CHECK(echo.announcement().at("torch") == "none");
  CHECK(echo.ask("step").at("said") == "step");
  CHECK(echo.ask("memory").at("said") == "memory");
}

TEST_CASE("a peer that hangs is ended, one that ends or talks nonsense is an error") {
  const auto start = std::chrono::steady_clock::now();
  CHECK_THROWS_WITH(TorchPeer(shell("exec sleep 1000"), 0.2), Contains("its announcement") && Contains("within 0.2 s"));
  CHECK_THROWS_WITH(TorchPeer(shell("echo '{}'; exec sleep 1000"), 0.2).ask("step"), Contains("'step'"));
  CHECK_THROWS_WITH(TorchPeer(shell("printf '{'; exec sleep 1000"), 0.2), Contains("within 0.2 s"));
  CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(300));  // not 1000
  CHECK_THROWS_WITH(TorchPeer(shell("exit 3"), 60), Contains("ended instead"));
  CHECK_THROWS_WITH(TorchPeer(shell("echo hello"), 60), Contains("no JSON object"));
  CHECK_THROWS_WITH(TorchPeer(shell("echo '{\"error\": \"no such size\"}'"), 60), Contains("no such size"));
  CHECK_THROWS_WITH(TorchPeer({"/no/such/python"}, 60), Contains("/no/such/python"));
  TorchPeer gone(shell("echo '{}'"), 60);
  CHECK_THROWS_WITH(gone.ask("step"), Contains("step"));
}
