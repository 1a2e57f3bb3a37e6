#include "comm/liveness.h"

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <catch2/catch.hpp>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "comm/process_state.h"
#include "comm/shared_record.h"
#include "engine/error.h"

using namespace convoy;
using Catch::Matchers::Contains;

namespace {

std::vector<std::shared_ptr<Liveness>> thread_tables(int ranks) {
  auto memory = SharedMemory::in_process(Liveness::bytes(ranks));
  std::vector<std::shared_ptr<Liveness>> tables;
  for (int rank = 0; rank < ranks; ++rank) tables.push_back(std::make_shared<Liveness>(memory, rank, ranks));
  return tables;
}

}  // namespace

TEST_CASE("a rank's record holds what it said", "[comm][liveness]") {
  const auto tables = thread_tables(3);
  REQUIRE(tables[1]->enter(Channel::kInline, "counts of step 1") == 1);
  tables[1]->leave(Channel::kInline);
  REQUIRE(tables[1]->enter(Channel::kInline, "counts of step 2") == 2);
  REQUIRE(tables[1]->enter(Channel::kGradient, "bucket 0") == 1);
  tables[1]->leave(Channel::kGradient);
  tables[1]->set_activity("waiting for data");
  tables[1]->set_data_file("leftImg8bit/train/aachen/a.png");

  const RankRecord record = tables[0]->record(1);
  REQUIRE(record.process.pid == getpid());
  REQUIRE(record.process.start_time != 0);
  REQUIRE(std::string(record.process.host) != "");
  REQUIRE(record.channels[0].number == 2);
  REQUIRE(record.channels[0].waiting == 1);
  REQUIRE(std::string(record.channels[0].name) == "counts of step 2");
  REQUIRE(record.channels[1].number == 1);
  REQUIRE(record.channels[1].waiting == 0);
  REQUIRE(std::string(record.activity.what) == "waiting for data");
  REQUIRE(std::string(record.data_file.file) == "leftImg8bit/train/aachen/a.png");
  REQUIRE(record.finished == 0);
  REQUIRE(tables[0]->record(2).channels[0].number == 0);
  tables[1]->leave_run();
  REQUIRE(tables[2]->record(1).finished == 1);
}

TEST_CASE("texts that are too long are cut between characters: names at the end, files at the start",
          "[comm][liveness]") {
  const auto tables = thread_tables(1);
  tables[0]->enter(Channel::kInline, std::string(118, 'a') + "\u00e4\u00e4\u00e4");  // the limit cuts a character
  REQUIRE(std::string(tables[0]->record(0).channels[0].name) == std::string(118, 'a'));
  tables[0]->set_data_file(std::string(300, 'd') + "/last.png");
  const std::string file = tables[0]->record(0).data_file.file;
  REQUIRE(file.size() == 255);
  REQUIRE(file.substr(0, 4) == "...d");
  REQUIRE(file.substr(file.size() - 9) == "/last.png");
  for (size_t shift = 0; shift < 2; ++shift) {
    std::string umlauts(shift, 'x');
    while (umlauts.size() < 600) umlauts += "\u00e4";
    tables[0]->set_data_file(umlauts);
    REQUIRE((tables[0]->record(0).data_file.file[3] & 0xC0) != 0x80);
  }
  tables[0]->fail(std::string(10000, 'm'));
  REQUIRE(tables[0]->failure() == std::string(4095, 'm'));
}

TEST_CASE("a table that is too small is refused", "[comm][liveness]") {
  auto memory = SharedMemory::in_process(Liveness::bytes(2) - 1);
  REQUIRE_THROWS_WITH(Liveness(memory, 0, 2), Contains("needed"));
  REQUIRE_THROWS_WITH(Liveness(SharedMemory::in_process(Liveness::bytes(2)), 2, 2), Contains("rank 2"));
}

TEST_CASE("of many failures at once one wins, and all see the same whole message", "[comm][liveness]") {
  for (int round = 0; round < 20; ++round) {
    const auto tables = thread_tables(4);
    REQUIRE_FALSE(tables[0]->failed());
    REQUIRE(tables[0]->failure().empty());
    std::vector<std::thread> threads;
    std::vector<std::string> seen(8);
    for (int i = 0; i < 8; ++i) {  // two threads a rank
      threads.emplace_back([&, i] {
        tables[i % 4]->fail(std::string(3000, static_cast<char>('a' + i)), i % 4);
        seen[i] = tables[i % 4]->failure();
      });
    }
    for (auto& thread : threads) thread.join();
    REQUIRE(tables[3]->failed());
    const std::string message = tables[3]->failure();
    REQUIRE(message == std::string(3000, message[0]));
    for (const auto& text : seen) REQUIRE(text == message);
    for (int rank = 0; rank < 4; ++rank) REQUIRE(tables[0]->at_fault(rank) == ((message[0] - 'a') % 4 == rank));
    tables[0]->fail("a later one");
    REQUIRE(tables[1]->failure() == message);
  }
}

TEST_CASE("where hosts agree, a failure is proposed and what was agreed on is published", "[comm][liveness]") {
  const auto tables = thread_tables(2);
  tables[0]->set_arbitrated(true);
  std::thread failing([&] { tables[1]->fail("ours", 1); });
  while (!tables[0]->proposal()) std::this_thread::yield();
  REQUIRE(tables[0]->proposal()->message == "ours");
  REQUIRE(tables[0]->proposal()->at_fault == std::vector<int>{1});
  tables[0]->publish({"theirs", {0}});
  failing.join();
  REQUIRE(tables[1]->failure() == "theirs");
  REQUIRE(tables[1]->at_fault(0));
  REQUIRE_FALSE(tables[1]->at_fault(1));
}

TEST_CASE("where nobody answers, a proposed failure is published all the same", "[comm][liveness]") {
  const auto tables = thread_tables(2);
  tables[0]->set_arbitrated(true);
  tables[1]->fail("ours");
  REQUIRE(tables[0]->failure() == "ours");
}

TEST_CASE("text is never torn while its owner's threads write and others read", "[comm][liveness]") {
  const auto tables = thread_tables(2);
  std::atomic<bool> stop = false;
  std::vector<std::thread> writers;
  for (int i = 0; i < 2; ++i) {
    writers.emplace_back([&, i] {
      for (int n = 0; !stop; ++n) {
        const char letter = static_cast<char>('a' + (n * 2 + i) % 26);
        tables[1]->set_activity(std::string(100, letter));
        tables[1]->set_data_file(std::string(200, letter));
        if (i == 0) tables[1]->enter(Channel::kInline, std::string(100, letter));
      }
    });
  }
  const auto uniform = [](const std::string& text) {
    return text.empty() || std::all_of(text.begin(), text.end(), [&](char c) { return c == text[0]; });
  };
  std::set<std::string> different;
  int torn = 0;
  uint64_t last = 0;
  for (int i = 0; i < 20000 || different.size() < 3; ++i) {
    const RankRecord record = tables[0]->record(1);
    const std::string activity = record.activity.what, file = record.data_file.file, name = record.channels[0].name;
    if (!uniform(activity) || !uniform(file) || !uniform(name)) ++torn;
    if (!activity.empty() && activity.size() != 100) ++torn;
    if (record.channels[0].number != 0) {
      if (record.channels[0].number < last) ++torn;
      last = record.channels[0].number;
    }
    different.insert(activity);
  }
  stop = true;
  for (auto& writer : writers) writer.join();
  REQUIRE(torn == 0);
}

TEST_CASE("a writer that died in the middle does not hold up its readers", "[comm][liveness]") {
  struct Pair {
    uint64_t a = 0, b = 0;
  };
  alignas(8) unsigned char memory[sizeof(SharedRecord<Pair>)] = {};
  auto* record = reinterpret_cast<SharedRecord<Pair>*>(memory);
  record->write({3, 4});
  REQUIRE(record->read().b == 4);
  memory[0] |= 1;  // odd: someone writes
  REQUIRE(record->read().b == 0);
}

TEST_CASE("processes share a table; one that ends without a goodbye is gone", "[comm][liveness]") {
  auto memory = SharedMemory::create("convoy-liveness-test-" + std::to_string(getpid()), Liveness::bytes(3));
  memory->unlink();
  Liveness own(memory, 0, 3);
  REQUIRE_FALSE(own.peer_is_gone());
  int go[2];
  REQUIRE(pipe(go) == 0);
  const auto start = [&](int rank, bool goodbye) {
    const pid_t child = fork();
    if (child == 0) {
      Liveness liveness(memory, rank, 3);
      liveness.enter(Channel::kInline, "from the child");
      char byte;
      if (read(go[0], &byte, 1) != 1) _exit(1);
      if (goodbye) liveness.leave_run();
      _exit(0);
    }
    while (own.record(rank).channels[0].number == 0) std::this_thread::yield();
    return child;
  };
  for (const bool goodbye : {true, false}) {
    const int rank = goodbye ? 1 : 2;
    const pid_t child = start(rank, goodbye);
    REQUIRE(own.record(rank).process.pid == child);
    REQUIRE_FALSE(own.peer_is_gone());
    REQUIRE(write(go[1], "x", 1) == 1);
    siginfo_t info;
    REQUIRE(waitid(P_PID, child, &info, WEXITED | WNOWAIT) == 0);
    REQUIRE(own.peer_is_gone() == !goodbye);  // a zombie
    REQUIRE(waitpid(child, nullptr, 0) == child);
    REQUIRE(own.peer_is_gone() == !goodbye);  // no such process
  }
  close(go[0]);
  close(go[1]);
}

TEST_CASE("a reused pid is another process", "[comm][liveness]") {
  const ProcessState own = process_state(getpid());
  REQUIRE_FALSE(own.ended());
  REQUIRE_FALSE(process_state(getpid(), own.start_time).ended());
  REQUIRE(process_state(getpid(), own.start_time - 1).ended());
  REQUIRE(process_state(1 << 30).ended());
}
