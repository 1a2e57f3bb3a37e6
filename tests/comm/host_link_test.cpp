#include "comm/host_link.h"

#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <cstring>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "comm/link_connection.h"
#include "comm/watchdog.h"
#include "engine/error.h"
#include "tests/comm/waiting.h"

using namespace convoy;
using namespace convoy::test;
using Catch::Matchers::Contains;

namespace {

constexpr uint64_t kToken = 0x5eed5eed12345678;

WatchdogOptions watchdog_options(double late_seconds, double dead_seconds) {
  WatchdogOptions options;
  options.late_seconds = late_seconds;
  options.dead_seconds = dead_seconds;
  options.processes = false;
  return options;
}

/// "Hosts" of two ranks each: tables of this process that know each other through TCP alone.
struct Hosts {
  std::vector<std::shared_ptr<Liveness>> ranks;
  std::vector<std::unique_ptr<HostLink>> links;
  std::vector<std::unique_ptr<Watchdog>> watchdogs;

  explicit Hosts(int hosts) {
    HostLinkOptions options;
    options.token = kToken;
    for (int host = 0; host < hosts; ++host) options.ranks_of_hosts.push_back({2 * host, 2 * host + 1});
    for (int host = 0; host < hosts; ++host) {
      auto memory = SharedMemory::in_process(Liveness::bytes(2 * hosts));
      for (int i = 0; i < 2; ++i) ranks.push_back(std::make_shared<Liveness>(memory, 2 * host + i, 2 * hosts));
      options.host = host;
      links.push_back(std::make_unique<HostLink>(ranks[2 * host], options));
      if (host == 0) options.address = links[0]->address();
    }
    for (const auto& table : ranks) {
      REQUIRE(wait_until([&] {
        for (size_t rank = 0; rank < ranks.size(); ++rank) {
          if (table->record(static_cast<int>(rank)).process.pid == 0) return false;
        }
        return true;
      }));
    }
  }

  void watch(double late_seconds) {
    for (const auto& table : ranks) {
      watchdogs.push_back(std::make_unique<Watchdog>(table, watchdog_options(late_seconds, 10)));
    }
  }

  /// The message on every rank, when it is the same on all.
  std::string failure() {
    for (const auto& table : ranks) REQUIRE(wait_until([&] { return table->failed(); }));
    for (const auto& table : ranks) REQUIRE(table->failure() == ranks[0]->failure());
    return ranks[0]->failure();
  }
};

/// Host 1 as a process of its own, with rank 1 alone; host 0 with rank 0 is this process.
struct OtherProcess {
  std::shared_ptr<Liveness> liveness;
  std::unique_ptr<HostLink> link;
  pid_t pid = 0;

  explicit OtherProcess(bool finishes = false) {
    int addresses[2];
    REQUIRE(pipe(addresses) == 0);
    HostLinkOptions options;
    options.ranks_of_hosts = {{0}, {1}};
    options.token = kToken;
    pid = fork();
    if (pid == 0) {
      char address[1000] = {};
      if (read(addresses[0], address, sizeof address - 1) <= 0) _exit(1);
      options.host = 1;
      options.address = address;
      auto own = std::make_shared<Liveness>(SharedMemory::in_process(Liveness::bytes(2)), 1, 2);
      {
        HostLink other(own, options);
        own->enter(Channel::kInline, "counts of step 7");
        own->set_data_file("a.png");
        own->set_activity("saving");
        while (!own->failed() && !finishes) pause_for(0.01);
        if (finishes) {
          while (own->record(0).process.pid == 0) pause_for(0.01);
          own->leave(Channel::kInline);
          own->leave_run();
        }
      }
      _exit(0);
    }
    liveness = std::make_shared<Liveness>(SharedMemory::in_process(Liveness::bytes(2)), 0, 2);
    link = std::make_unique<HostLink>(liveness, options);
    REQUIRE(write(addresses[1], link->address().data(), link->address().size()) > 0);
    close(addresses[0]);
    close(addresses[1]);
    REQUIRE(wait_until([&] { return liveness->record(1).channels[0].number == 1; }));
  }

  ~OtherProcess() {
    kill(pid, SIGKILL);
    waitpid(pid, nullptr, 0);
  }
};

bool any_answer(const std::string& reply, const std::string&) {
  return !reply.empty();
}

LinkHello hello_of(uint64_t token, uint32_t host, uint32_t hosts, uint32_t ranks) {
  LinkHello hello;
  hello.token = token;
  hello.host = host;
  hello.hosts = hosts;
  hello.ranks = ranks;
  return hello;
}

std::string bytes_of(const LinkHello& hello) {
  return {reinterpret_cast<const char*>(&hello), sizeof hello};
}

}  // namespace

TEST_CASE("what a rank says is known on all hosts", "[comm][link]") {
  Hosts hosts(3);
  hosts.ranks[5]->enter(Channel::kGradient, "bucket 1");
  hosts.ranks[5]->set_data_file("a.png");
  const int64_t before = monotonic_ns();
  hosts.ranks[5]->set_activity("evaluating");
  for (const int rank : {0, 1, 2, 3}) {
    const auto& table = hosts.ranks[rank];
    REQUIRE(
        wait_until([&] { return table->record(5).channels[1].number == 1 && *table->record(5).activity.what != 0; }));
    const RankRecord record = table->record(5);
    REQUIRE(record.remote == 3);
    REQUIRE(record.channels[1].waiting == 1);
    REQUIRE(std::string(record.channels[1].name) == "bucket 1");
    REQUIRE(std::string(record.data_file.file) == "a.png");
    REQUIRE(record.activity.since_ns > before - 1'000'000'000);
  }
  REQUIRE(hosts.ranks[5]->record(4).remote == 0);
}

TEST_CASE("of failures on several hosts at once one wins everywhere", "[comm][link]") {
  for (int round = 0; round < 5; ++round) {
    Hosts hosts(3);
    std::vector<std::thread> threads;
    for (int rank = 0; rank < 6; ++rank) {
      threads.emplace_back([&, rank] { hosts.ranks[rank]->fail("rank " + std::to_string(rank) + " fails", rank); });
    }
    for (auto& thread : threads) thread.join();
    const std::string message = hosts.failure();
    REQUIRE_THAT(message, Contains(" fails"));
    for (int rank = 0; rank < 6; ++rank) REQUIRE(hosts.ranks[5 - rank]->at_fault(rank) == (message[5] - '0' == rank));
  }
}

TEST_CASE("a failure on any host reaches all", "[comm][link]") {
  const int rank = GENERATE(0, 1, 3, 4);
  Hosts hosts(3);
  hosts.ranks[rank]->fail("the disk is full", rank);
  REQUIRE(hosts.failure() == "the disk is full");
}

TEST_CASE("a rank is named late by ranks of another host", "[comm][link]") {
  Hosts hosts(2);
  hosts.ranks[3]->set_activity("waiting for data");
  hosts.ranks[3]->set_data_file("b.png");
  for (const int rank : {0, 1, 2}) hosts.ranks[rank]->enter(Channel::kInline, "counts of step 3");
  hosts.watch(1.5);
  REQUIRE_THAT(hosts.failure(), Contains("rank 3 of 4 (host ") &&
                                    Contains("has not come to collective 1 'counts of step 3'") &&
                                    Contains("ranks 0, 1, 2 wait") && Contains("It is: waiting for data") &&
                                    Contains("last data file b.png"));
}

TEST_CASE("a host that falls silent is named", "[comm][link]") {
  OtherProcess other;
  Watchdog watchdog(other.liveness, watchdog_options(60, 2));
  kill(other.pid, SIGSTOP);
  REQUIRE(wait_until([&] { return other.liveness->failed(); }));
  REQUIRE_THAT(other.liveness->failure(), Contains("does not answer: nothing was heard of rank 1 for"));
}

TEST_CASE("a rank of another host is named late by this host alone", "[comm][link]") {
  OtherProcess other;
  Watchdog watchdog(other.liveness, watchdog_options(1.5, 1000));
  REQUIRE(wait_until([&] { return *other.liveness->record(1).activity.what != 0; }));
  other.liveness->enter(Channel::kInline, "counts of step 7");
  other.liveness->leave(Channel::kInline);
  other.liveness->enter(Channel::kInline, "counts of step 8");
  REQUIRE(wait_until([&] { return other.liveness->failed(); }));
  REQUIRE_THAT(other.liveness->failure(), Contains("rank 1 of 2") &&
                                              Contains("It waits in collective 1 'counts of step 7'") &&
                                              Contains("It is: saving"));
}

TEST_CASE("a leader that is killed is named by the other host", "[comm][link]") {
  OtherProcess other;
  kill(other.pid, SIGKILL);
  REQUIRE(wait_until([&] { return other.liveness->failed(); }));
  REQUIRE_THAT(other.liveness->failure(),
               Contains("rank 1 of 2") && Contains("pid " + std::to_string(other.pid)) && Contains("is gone") &&
                   Contains("was in collective 1 'counts of step 7'") && Contains("last data file a.png"));
}

TEST_CASE("a goodbye of a whole host is no failure", "[comm][link]") {
  OtherProcess other(true);
  Watchdog watchdog(other.liveness, watchdog_options(60, 1));
  int status = 0;
  REQUIRE(wait_until([&] { return waitpid(other.pid, &status, WNOHANG) == other.pid; }));
  REQUIRE(status == 0);
  pause_for(2);
  REQUIRE(other.liveness->record(1).finished == 1);
  REQUIRE(other.liveness->failure() == "");
}

TEST_CASE("links end in any order without a failure", "[comm][link]") {
  const bool first_host_first = GENERATE(true, false);
  Hosts hosts(3);
  hosts.watch(60);
  for (const auto& rank : hosts.ranks) rank->leave_run();
  for (int i = 0; i < 3; ++i) hosts.links[first_host_first ? i : 2 - i].reset();
  for (const auto& rank : hosts.ranks) REQUIRE(rank->failure() == "");
}

TEST_CASE("strangers and nonsense are dropped, and the link goes on", "[comm][link]") {
  Hosts hosts(2);
  const std::string address = hosts.links[0]->address();
  const std::string right = bytes_of(hello_of(kToken, 1, 2, 4));
  std::mt19937 random(1);
  std::string noise(100'000, 0);
  for (char& c : noise) c = static_cast<char>(random());
  for (const std::string& hello :
       {bytes_of(hello_of(kToken + 1, 1, 2, 4)), bytes_of(hello_of(kToken, 7, 2, 4)),
        bytes_of(hello_of(kToken, 0, 2, 4)), bytes_of(hello_of(kToken, 1, 2, 5)), right, noise.substr(0, 40),
        std::string("GET / HTTP/1.1\r\nHost: convoy.example\r\n\r\n\r\n")}) {
    REQUIRE_THROWS_WITH(connect_to(address, hello, 1, any_answer, 0.2), Contains("not this run"));
  }
  std::vector<Socket> silent;  // hang on without a word, more than are put up with
  for (int i = 0; i < 80; ++i) {
    try {
      silent.push_back(connect_to(
          address, "", 0, [](const std::string&, const std::string&) { return true; }, 0.5));
    } catch (const Error&) {
    }
  }
  REQUIRE(silent.size() > 10);
  hosts.ranks[2]->enter(Channel::kInline, "after the noise");
  REQUIRE(wait_until([&] { return hosts.ranks[1]->record(2).channels[0].number == 1; }));
  for (const auto& rank : hosts.ranks) REQUIRE(rank->failure() == "");
}

TEST_CASE("nonsense from one that knows the token closes its connection and changes no record", "[comm][link]") {
  auto liveness = std::make_shared<Liveness>(SharedMemory::in_process(Liveness::bytes(3)), 0, 3);
  HostLinkOptions options;
  options.ranks_of_hosts = {{0}, {1}, {2}};
  options.token = kToken;
  HostLink link(liveness, options);
  LinkRecord foreign;  // host 1 speaks for host 2
  foreign.rank = 2;
  foreign.record.process.pid = 9;
  const auto frame = [](uint32_t bytes, uint32_t type, const std::string& payload) {
    return std::string(reinterpret_cast<const char*>(&bytes), 4) +
           std::string(reinterpret_cast<const char*>(&type), 4) + payload;
  };
  const std::string record(reinterpret_cast<const char*>(&foreign), sizeof foreign);
  for (const std::string& text :
       {frame(0xffffffff, 1, ""), frame(5, 9, "hello"), frame(5, 1, "hello"), frame(2, 2, "xx"),
        frame(static_cast<uint32_t>(record.size()), 1, record), frame(4, 2, std::string(4, '\xff'))}) {
    const Socket socket =
        connect_to(link.address(), bytes_of(hello_of(kToken, 1, 3, 3)), sizeof(LinkHello), any_answer, 10);
    REQUIRE(send(socket.descriptor(), text.data(), text.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(text.size()));
    REQUIRE(wait_until([&] {
      char buffer[10000];
      const ssize_t count = recv(socket.descriptor(), buffer, sizeof buffer, 0);
      return count == 0 || (count < 0 && errno != EAGAIN);
    }));
  }
  REQUIRE(liveness->record(2).process.pid == 0);
  REQUIRE(liveness->failure() == "");
}

TEST_CASE("payloads of random bytes are refused or parsed, within bounds", "[comm][link]") {
  std::mt19937 random(2);
  for (int i = 0; i < 2000; ++i) {
    std::string payload(random() % 3 == 0 ? sizeof(LinkRecord) : random() % 64, 0);
    for (char& c : payload) c = static_cast<char>(random());
    if (payload.size() >= 4 && random() % 2 == 0) memset(payload.data(), 0, 4);
    std::vector<LinkRecord> records;
    if (parse_records(payload, 4, &records) && !records.empty()) {
      REQUIRE(strlen(records[0].record.data_file.file) < sizeof records[0].record.data_file.file);
    }
    Failure failure;
    if (parse_failure(payload, 4, &failure)) REQUIRE(failure.message.size() <= payload.size());
  }
}

TEST_CASE("a host that finds nobody says where it looked", "[comm][link]") {
  auto liveness = std::make_shared<Liveness>(SharedMemory::in_process(Liveness::bytes(2)), 1, 2);
  HostLinkOptions options;
  options.ranks_of_hosts = {{0}, {1}};
  options.host = 1;
  options.token = kToken;
  options.timeout_seconds = 0.5;
  {
    const Socket taken = listen_on_any_port();  // its port is nobody's once it is closed
    const std::string address = address_of(taken);
    options.address = "127.0.0.1" + address.substr(address.rfind('/'));
  }
  REQUIRE_THROWS_WITH(HostLink(liveness, options), Contains(options.address) && Contains("firewall"));
  options.address = "nonsense";
  REQUIRE_THROWS_WITH(HostLink(liveness, options), Contains("'nonsense' is no address"));
  options.ranks_of_hosts = {{0}, {0}};
  REQUIRE_THROWS_WITH(HostLink(liveness, options), Contains("on two hosts"));
}
