#include "comm/diagnosis.h"

#include <catch2/catch.hpp>
#include <cstring>

using namespace convoy;
using Catch::Matchers::Contains;

namespace {

constexpr int kInline = 0, kGradient = 1;
constexpr DiagnosisLimits kLimits{60, 10};

/// Ranks on host "red" that do nothing.
std::vector<RankView> idle_ranks(int count) {
  std::vector<RankView> ranks(count);
  for (int rank = 0; rank < count; ++rank) {
    ranks[rank].record.process.pid = 100 + rank;
    strcpy(ranks[rank].record.process.host, "red");
    ranks[rank].progress_seconds = 1000;
  }
  return ranks;
}

void set_wait(RankView& view, int channel, uint64_t number, const char* name, double seconds) {
  ChannelRecord& record = view.record.channels[channel];
  record.number = number;
  record.waiting = 1;
  strcpy(record.name, name);
  view.waited_seconds[channel] = seconds;
}

void set_done(RankView& view, int channel, uint64_t number, const char* name) {
  set_wait(view, channel, number, name, 0);
  view.record.channels[channel].waiting = 0;
}

std::string message(const std::vector<RankView>& ranks) {
  const auto failure = find_failure(ranks, kLimits);
  return failure ? failure->message : "";
}

std::vector<int> at_fault(const std::vector<RankView>& ranks) {
  const auto failure = find_failure(ranks, kLimits);
  return failure ? failure->at_fault : std::vector<int>{};
}

}  // namespace

TEST_CASE("a rank that others wait for is named with what it does", "[comm][diagnosis]") {
  auto ranks = idle_ranks(4);
  for (const int rank : {0, 1, 3}) set_wait(ranks[rank], kInline, 4711, "loss counts of step 12", 60.2);
  set_done(ranks[2], kInline, 4710, "loss");
  strcpy(ranks[2].record.activity.what, "waiting for data");
  ranks[2].activity_seconds = 61;
  strcpy(ranks[2].record.data_file.file, "a/b.png");
  REQUIRE(message(ranks) ==
          "rank 2 of 4 (host red, pid 102) has not come to collective 4711 'loss counts of step 12' for 60 s, in which "
          "ranks 0, 1, 3 wait. It is: waiting for data for 61 s; last data file a/b.png");
  REQUIRE(at_fault(ranks) == std::vector<int>{2});

  ranks[2].record.state = 'T';
  REQUIRE_THAT(message(ranks), Contains("Its process is stopped (SIGSTOP?)."));
  ranks[2].record.state = 't';
  REQUIRE_THAT(message(ranks), Contains("debugger"));
  ranks[2].record.state = 'S';
  ranks[2].silent_seconds = 59;
  REQUIRE_THAT(message(ranks), Contains("It has not answered for 59 s."));
}

TEST_CASE("no failure before the time, nor while the late rank reports progress", "[comm][diagnosis]") {
  auto ranks = idle_ranks(2);
  set_wait(ranks[0], kInline, 3, "x", 59.9);
  REQUIRE(message(ranks).empty());
  ranks[0].waited_seconds[kInline] = 60;
  REQUIRE(at_fault(ranks) == std::vector<int>{1});
  ranks[1].progress_seconds = 59;
  REQUIRE(message(ranks).empty());
}

TEST_CASE("all late ranks are named, those that have not started too", "[comm][diagnosis]") {
  auto ranks = idle_ranks(20);
  set_wait(ranks[5], kInline, 1, "hello", 70);
  ranks[0].record = {};
  const std::string text = message(ranks);
  REQUIRE_THAT(text, Contains("rank 0 of 20 (not started yet) has not come to collective 1 'hello' for 70 s, in which "
                              "rank 5 waits."));
  REQUIRE_THAT(text, Contains("\nrank 1 of 20"));
  REQUIRE_THAT(text, Contains("\nThe same holds for ranks 9-19"));
  REQUIRE(at_fault(ranks).size() == 19);
}

TEST_CASE("a late rank that waits elsewhere is named with its collective, after those that wait for nobody",
          "[comm][diagnosis]") {
  auto ranks = idle_ranks(3);
  set_wait(ranks[0], kInline, 9, "loss", 60);
  set_wait(ranks[1], kInline, 7, "norm", 30);
  set_done(ranks[2], kInline, 9, "loss");
  REQUIRE_THAT(message(ranks), Contains("rank 1 of 3 (host red, pid 101) has not come to collective 9 'loss'") &&
                                   Contains("It waits in collective 7 'norm' for 30 s."));

  // Rank 1 waits for rank 2 in a bucket: rank 2 is the one.
  ranks = idle_ranks(3);
  set_wait(ranks[0], kInline, 9, "loss", 80);
  set_wait(ranks[1], kGradient, 4, "bucket 1", 70);
  set_done(ranks[0], kGradient, 4, "bucket 1");
  REQUIRE(at_fault(ranks) == std::vector<int>{2});
  set_done(ranks[2], kInline, 9, "loss");
  REQUIRE_THAT(message(ranks), Contains("rank 2 of 3") && Contains("collective 4 'bucket 1' of the gradient channel") &&
                                   Contains("in which rank 1 waits"));
}

TEST_CASE("a rank that is stuck in a collective that the others have completed is late for their next one",
          "[comm][diagnosis]") {
  auto ranks = idle_ranks(3);
  set_wait(ranks[1], kInline, 7, "norm", 61);
  for (const int rank : {0, 2}) set_done(ranks[rank], kInline, 7, "norm");
  REQUIRE_THAT(message(ranks),
               Contains("rank 1 of 3 (host red, pid 101) does not come out of a collective that ranks 0, "
                        "2 have completed. It waits in collective 7 'norm' for 61 s."));
  for (const int rank : {0, 2}) set_wait(ranks[rank], kInline, 8, "loss", 60);
  REQUIRE_THAT(message(ranks), Contains("rank 1 of 3 (host red, pid 101) has not come to collective 8 'loss'") &&
                                   Contains("ranks 0, 2 wait. It waits in collective 7 'norm' for 61 s."));
  REQUIRE(at_fault(ranks) == std::vector<int>{1});
}

TEST_CASE("a rank whose process is gone is named at once", "[comm][diagnosis]") {
  auto ranks = idle_ranks(4);
  ranks[2].ended = true;
  REQUIRE_THAT(message(ranks), Contains("it had come to no collective yet"));
  set_wait(ranks[2], kGradient, 4711, "bucket 3 of step 12", 0);
  strcpy(ranks[2].record.data_file.file, "F");
  REQUIRE(message(ranks) ==
          "rank 2 of 4 (host red, pid 102) is gone: its process ended without a word (killed, or out of memory?); it "
          "was in collective 4711 'bucket 3 of step 12' of the gradient channel; last data file F");
  set_done(ranks[2], kGradient, 4711, "bucket 3 of step 12");
  REQUIRE_THAT(message(ranks), Contains("it had last completed collective 4711"));
  ranks[3].ended = true;
  REQUIRE(at_fault(ranks) == std::vector<int>{2, 3});
}

TEST_CASE("an end after a goodbye is no failure, unless somebody waits for that rank", "[comm][diagnosis]") {
  auto ranks = idle_ranks(3);
  set_done(ranks[1], kInline, 5, "last");
  ranks[1].ended = true;
  ranks[1].record.finished = 1;
  set_wait(ranks[0], kInline, 5, "last", 1);
  REQUIRE(message(ranks).empty());
  set_wait(ranks[0], kInline, 6, "one more", 0.1);
  REQUIRE_THAT(message(ranks), Contains("rank 1 of 3 (host red, pid 101) has ended already (it had last completed "
                                        "collective 5 'last'), but rank 0 waits in collective 6 'one more' for it"));
}

TEST_CASE("a host of which nothing is heard is named", "[comm][diagnosis]") {
  auto ranks = idle_ranks(4);
  for (const int rank : {2, 3}) {
    ranks[rank].record.remote = 1;
    ranks[rank].visible = false;
    strcpy(ranks[rank].record.process.host, "blue");
    ranks[rank].silent_seconds = 12;
  }
  REQUIRE_THAT(message(ranks), Contains("host blue does not answer: nothing was heard of ranks 2, 3 for 12 s"));
  REQUIRE(at_fault(ranks) == std::vector<int>{2, 3});
  ranks[3].silent_seconds = 1;  // the host answers, one of its ranks is stopped: late when somebody waits for it
  REQUIRE(message(ranks).empty());
  ranks[3].silent_seconds = 12;
  ranks[2].record.finished = ranks[3].record.finished = 1;
  REQUIRE(message(ranks).empty());

  ranks = idle_ranks(3);  // in a container of its own: only the heartbeat tells
  ranks[1].visible = false;
  REQUIRE(message(ranks).empty());
  ranks[1].silent_seconds = 12;
  REQUIRE(at_fault(ranks) == std::vector<int>{1});
}

TEST_CASE("a collective that does not complete although all have come is reported", "[comm][diagnosis]") {
  auto ranks = idle_ranks(3);
  for (auto& rank : ranks) set_wait(rank, kInline, 8, "norm", 60);
  REQUIRE_THAT(message(ranks), Contains("collective 8 'norm' does not complete: all 3 ranks have come to it, and ranks "
                                        "0, 1, 2 wait in it for 60 s") &&
                                   Contains("network"));
  ranks[1].record.state = 'T';
  REQUIRE_THAT(message(ranks), Contains("rank 1 of 3 (host red, pid 101): Its process is stopped"));
  REQUIRE(at_fault(ranks) == std::vector<int>{1});
  set_done(ranks[1], kInline, 7, "loss");  // not there yet, but busy
  ranks[1].progress_seconds = 0;
  REQUIRE(message(ranks).empty());
}

TEST_CASE("lists of ranks", "[comm][diagnosis]") {
  REQUIRE(rank_list({2}) == "rank 2");
  REQUIRE(rank_list({0, 1, 3}) == "ranks 0, 1, 3");
  REQUIRE(rank_list({0, 1, 2, 3, 7}) == "ranks 0-3, 7");
}
