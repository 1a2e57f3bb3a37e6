// Lines of ranks, cores for ranks, and whether ranks agree. Launching itself is tested with real processes:
// tests/ranks.
#include <fcntl.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cerrno>
#include <numeric>

#include "comm/agreement.h"
#include "comm/placement.h"
#include "comm/rank_output.h"
#include "comm/ranks.h"
#include "engine/error.h"

using namespace convoy;

namespace {

/// What is written to a pipe.
class Captured {
 public:
  Captured() {
    REQUIRE(pipe(ends_) == 0);
    REQUIRE(fcntl(ends_[1], F_SETPIPE_SZ, 1 << 20) > 0);
    fcntl(ends_[0], F_SETFL, O_NONBLOCK);
  }
  ~Captured() {
    close(ends_[0]);
    close(ends_[1]);
  }
  int descriptor() const { return ends_[1]; }
  std::string take() {
    std::string text(1 << 20, '\0');
    const ssize_t got = read(ends_[0], text.data(), text.size());
    text.resize(got < 0 ? 0 : static_cast<size_t>(got));
    return text;
  }

 private:
  int ends_[2];
};

CoreMask range(int first, int last) {
  CoreMask mask(static_cast<size_t>(last - first + 1));
  std::iota(mask.begin(), mask.end(), first);
  return mask;
}

/// Cores 0-7; `siblings`: i and i + 4 are hardware threads of one core.
std::vector<Core> eight_cores(bool siblings) {
  std::vector<Core> cores;
  for (int i = 0; i < 8; ++i) {
    if (siblings) {
      cores.push_back({.cpu = i / 2 + i % 2 * 4, .core = i / 2});
    } else {
      cores.push_back({.cpu = i, .node = i / 4, .package = i / 4, .core = i});
    }
  }
  return cores;
}

std::vector<CoreMask> place_all(const std::vector<Core>& cores, const std::vector<CoreMask>& masks,
                                const CoreMask& widest) {
  std::vector<CoreMask> placed;
  for (size_t r = 0; r < masks.size(); ++r) {
    placed.push_back(place_rank(cores, masks, static_cast<int>(r), widest).mask);
  }
  return placed;
}

}  // namespace

TEST_CASE("Lines of a rank come out whole and with its prefix") {
  Captured out;
  RankOutput lines(out.descriptor(), "[3] ");
  lines.take("begin");
  CHECK(out.take().empty());
  lines.take("ning\n\nsecond\nthi");
  CHECK(out.take() == "[3] beginning\n[3] \n[3] second\n");
  lines.take("rd");
  lines.flush();
  CHECK(out.take() == "[3] third\n");
  lines.flush();
  CHECK(out.take().empty());
}

TEST_CASE("Lines that cannot be written are noticed") {
  const int full = open("/dev/full", O_WRONLY | O_CLOEXEC);
  REQUIRE(full >= 0);
  RankOutput lines(full, "");
  lines.take("begin");
  CHECK(lines.error() == 0);
  lines.take("ning\n");
  CHECK(lines.error() == ENOSPC);
  close(full);
}

TEST_CASE("A line without end comes out in pieces and loses nothing") {
  const std::string path = "/tmp/convoy_rank_output_" + std::to_string(getpid());
  const int file = open(path.c_str(), O_CREAT | O_TRUNC | O_RDWR, 0600);
  REQUIRE(file >= 0);
  unlink(path.c_str());
  const std::string text(RankOutput::kLongestLine, 'x');
  RankOutput lines(file, "[1] ");
  lines.take(text.substr(10));
  lines.take("0123456789abc\n");
  std::string written(text.size() + 100, '\0');
  written.resize(static_cast<size_t>(pread(file, written.data(), written.size(), 0)));
  CHECK(written == "[1] " + text.substr(10) + "0123456789\n[1] abc\n");
  close(file);
}

TEST_CASE("Ranks with the same cores divide them into blocks") {
  const std::vector<CoreMask> all(2, range(0, 7));
  CHECK(place_all(eight_cores(false), all, {}) == std::vector<CoreMask>{range(0, 3), range(4, 7)});
  // Both hardware threads of a core go to the same rank.
  CHECK(place_all(eight_cores(true), all, {}) == std::vector<CoreMask>{{0, 1, 4, 5}, {2, 3, 6, 7}});
  CHECK(place_all(eight_cores(false), std::vector<CoreMask>(3, range(0, 7)), {}) ==
        std::vector<CoreMask>{range(0, 1), range(2, 4), range(5, 7)});
  // More ranks than cores but not than hardware threads.
  CHECK(place_all(eight_cores(true), std::vector<CoreMask>(5, range(0, 7)), {}) ==
        std::vector<CoreMask>{{0}, {1, 4}, {5}, {2, 6}, {3, 7}});
  // Two ranks per socket, as bound by the launcher.
  CHECK(place_all(eight_cores(false), {range(0, 3), range(4, 7), range(0, 3), range(4, 7)}, {}) ==
        std::vector<CoreMask>{range(0, 1), range(4, 5), range(2, 3), range(6, 7)});
}

TEST_CASE("More ranks than cores are not pinned and have one thread each") {
  const Placement placement = place_rank(eight_cores(false), std::vector<CoreMask>(3, range(0, 1)), 2, {});
  CHECK(placement.mask.empty());
  CHECK(placement.threads == 1);
  CHECK(placement.note == "3 ranks share 2 cores (0-1): not pinned, one thread each");
}

TEST_CASE("Masks of one core are widened where that was nobody's wish") {
  const std::vector<CoreMask> bound{{0}, {1}};
  CHECK(place_all(eight_cores(false), bound, range(0, 7)) == std::vector<CoreMask>{range(0, 3), range(4, 7)});
  CHECK(place_rank(eight_cores(false), bound, 0, range(0, 7)).note ==
        "core mask of 1 widened to 4 cores: rank 0 of 2 on a host of 8");
  CHECK(place_all(eight_cores(true), {{0, 4}, {1, 5}}, range(0, 7)) ==
        std::vector<CoreMask>{{0, 1, 4, 5}, {2, 3, 6, 7}});
  // As the user wanted it; as many ranks as cores; masks that are wide already.
  CHECK(place_all(eight_cores(false), bound, {}) == bound);
  CHECK(place_all(eight_cores(false), bound, range(0, 1)) == bound);
  const std::vector<CoreMask> sockets{range(0, 3), range(4, 7)};
  CHECK(place_all(eight_cores(false), sockets, range(0, 7)) == sockets);
  CHECK(place_rank(eight_cores(false), sockets, 1, range(0, 7)).note.empty());
}

TEST_CASE("Masks are written as ranges") {
  CHECK(format_mask({}).empty());
  CHECK(format_mask({5}) == "5");
  CHECK(format_mask({0, 1, 2, 3, 8, 10, 11}) == "0-3,8,10-11");
}

TEST_CASE("This process's own cores are described") {
  const CoreMask mask = own_mask();
  REQUIRE(!mask.empty());
  CHECK(describe_cores(mask).size() == mask.size());
  CHECK(!numa_nodes(mask).empty());
}

TEST_CASE("Without a launcher there is one rank") {
  REQUIRE(!is_rank());
  const JoinedRanks joined = join_ranks({});
  CHECK(joined.communicator->size() == 1);
  CHECK(joined.threads == 0);
  CHECK(joined.notes.empty());
  CHECK_NOTHROW(check_same_on_all_ranks(*joined.communicator, "configuration", "text"));
  const std::string table = rank_table(*joined.communicator, "cpu", 3);
  CHECK(table.starts_with("rank  host"));
  CHECK(table.find("cpu") != table.npos);
  CHECK_THROWS_WITH(join_ranks({.timeout_seconds = 0}), Catch::Contains("timeout"));
}

TEST_CASE("An environment that is half that of a rank is refused") {
  setenv("CONVOY_RANK", "1", 1);
  CHECK_THROWS_WITH(join_ranks({}), Catch::Contains("CONVOY_RANKS"));
  setenv("CONVOY_RANKS", "two", 1);
  CHECK_THROWS_WITH(join_ranks({}), Catch::Contains("CONVOY_RANKS='two' is no number"));
  CHECK_THROWS_WITH(start_ranks(2), Catch::Contains("a rank already"));
  unsetenv("CONVOY_RANK");
  unsetenv("CONVOY_RANKS");
  CHECK_THROWS_WITH(start_ranks(0), Catch::Contains("at least 1"));
}
