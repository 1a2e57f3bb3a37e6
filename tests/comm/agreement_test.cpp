// Ranks that differ in a text, as threads.
#include "comm/agreement.h"

#include <catch2/catch.hpp>
#include <thread>

#include "comm/host_communicator.h"
#include "engine/error.h"

using namespace convoy;

namespace {

/// What each rank is told when rank r has texts[r].
std::vector<std::string> outcomes(const std::vector<std::string>& texts) {
  const auto ranks = thread_communicators(static_cast<int>(texts.size()));
  std::vector<std::string> said(texts.size());
  std::vector<std::thread> threads;
  for (size_t r = 0; r < texts.size(); ++r) {
    threads.emplace_back([&, r] {
      try {
        check_same_on_all_ranks(*ranks[r], "configuration", texts[r]);
      } catch (const Error& error) {
        said[r] = error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return said;
}

/// The part behind the host's name; the same on all ranks.
std::string difference(const std::vector<std::string>& texts) {
  const std::vector<std::string> said = outcomes(texts);
  for (const std::string& one : said) CHECK(one == said[0]);
  const size_t at = said[0].find(" has another configuration: ");
  return at == said[0].npos ? said[0] : said[0].substr(0, said[0].find(" on host")) + said[0].substr(at);
}

}  // namespace

TEST_CASE("Equal texts are agreed on") {
  CHECK(difference({"a\nb\n", "a\nb\n", "a\nb\n"}).empty());
  CHECK(difference({"", ""}).empty());
}

TEST_CASE("The rank that differs from most is named, with the first line that differs") {
  const std::string one = "MODEL: FCN\nSOLVER:\n  LR: 0.01\n", other = "MODEL: FCN\nSOLVER:\n  LR: 0.02\n";
  CHECK(difference({one, one, other}) ==
        "rank 2 has another configuration: 'SOLVER: LR: 0.02' where rank 0 has 'SOLVER: LR: 0.01'");
  CHECK(difference({other, one, one}) ==
        "rank 0 has another configuration: 'SOLVER: LR: 0.02' where rank 1 has 'SOLVER: LR: 0.01'");
  CHECK(difference({one, other, other, one, "x"}) ==
        "rank 1 has another configuration: 'SOLVER: LR: 0.02' where rank 0 has 'SOLVER: LR: 0.01'; ranks that differ "
        "from rank 0: 1, 2, 4");
}

TEST_CASE("A text that ends earlier, or has nothing, differs") {
  CHECK(difference({"a\nb", "a"}) == "rank 1 has another configuration: nothing where rank 0 has 'b'");
  CHECK(difference({"a", ""}) == "rank 1 has another configuration: '' where rank 0 has 'a'");
}
