#include "comm/host_link.h"

#include <poll.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <optional>
#include <thread>

#include "comm/diagnosis.h"
#include "comm/link_connection.h"
#include "comm/socket.h"
#include "engine/error.h"
#include "engine/start_thread.h"

namespace convoy {
namespace {

constexpr int kPollMilliseconds = 50;
constexpr int64_t kRecordPeriod = 500'000'000;       // ns
constexpr int64_t kHelloPatience = 5'000'000'000;    // ns: a stranger that says nothing is dropped
constexpr int64_t kGoodbyePatience = 2'000'000'000;  // ns
constexpr size_t kMostStrangers = 64;

std::string bytes_of(const LinkHello& hello) {
  return {reinterpret_cast<const char*>(&hello), sizeof hello};
}

bool is_of_run(const LinkHello& hello, const LinkHello& own) {
  return memcmp(hello.magic, own.magic, sizeof own.magic) == 0 && hello.token == own.token &&
         hello.hosts == own.hosts && hello.ranks == own.ranks && hello.record_bytes == own.record_bytes;
}

bool is_answer(const std::string& reply, const std::string& sent) {
  LinkHello theirs, own;
  if (reply.size() != sizeof theirs) return false;
  memcpy(static_cast<void*>(&theirs), reply.data(), sizeof theirs);
  memcpy(static_cast<void*>(&own), sent.data(), sizeof own);
  return is_of_run(theirs, own) && theirs.host == 0;
}

/// Between the clock of this host and ages, both ways.
void turn_times(RankRecord& record, int64_t now) {
  for (ChannelRecord& channel : record.channels) channel.since_ns = now - channel.since_ns;
  record.activity.since_ns = now - record.activity.since_ns;
}

struct Peer {
  LinkConnection connection;
  int host = -1;  ///< -1: a stranger yet
  int64_t since = 0;
  bool heard = false;  ///< has sent records
};

}  // namespace

struct HostLink::State {
  std::shared_ptr<Liveness> liveness;
  HostLinkOptions options;
  LinkHello hello;
  Socket listening;
  std::string address;
  std::vector<int> host_of_rank;
  std::vector<Peer> peers;         ///< on host 0 all others, elsewhere host 0
  bool proposed = false;           ///< to host 0
  std::optional<Failure> settled;  ///< what all hosts have agreed on
  int64_t records_sent = 0;
  std::atomic<bool> stop = false;
  std::thread thread;

  int hosts() const { return static_cast<int>(options.ranks_of_hosts.size()); }

  void accept_strangers() {
    for (;;) {
      Socket socket = accept_from(listening);
      if (!socket.is_open()) return;
      const auto strangers = std::count_if(peers.begin(), peers.end(), [](const Peer& p) { return p.host < 0; });
      if (static_cast<size_t>(strangers) >= kMostStrangers) continue;
      peers.push_back({LinkConnection(std::move(socket), liveness->ranks()), -1, monotonic_ns()});
    }
  }

  void greet(Peer& peer) {
    LinkHello theirs;
    if (!peer.connection.take_hello(&theirs)) return;
    const bool known = is_of_run(theirs, hello) && theirs.host > 0 && theirs.host < hello.hosts;
    // One that lost patience with this host and tries again is welcome, unless it has been heard already.
    const int host = known ? static_cast<int>(theirs.host) : -1;
    const auto earlier = std::find_if(peers.begin(), peers.end(), [&](const Peer& p) { return p.host == host; });
    if (!known || (earlier != peers.end() && earlier->heard)) return peer.connection.close();
    if (earlier != peers.end()) {
      earlier->connection.close();
      earlier->host = -1;
    }
    peer.host = host;
    peer.connection.send_hello(hello);
    if (settled) peer.connection.send_failure(*settled);
    records_sent = 0;
  }

  void take_records(Peer& peer, const std::string& payload) {
    std::vector<LinkRecord> records;
    if (!parse_records(payload, liveness->ranks(), &records)) return peer.connection.close();
    const int64_t now = monotonic_ns();
    for (LinkRecord& record : records) {
      // Host 0 speaks for all others, another host for itself.
      const int host = host_of_rank[record.rank];
      if (host == options.host || (options.host == 0 && host != peer.host)) return peer.connection.close();
      turn_times(record.record, now);
      record.record.remote = static_cast<uint32_t>(host) + 1;
      liveness->mirror(record.rank, record.record);
    }
    peer.heard = true;
  }

  /// This host's last word: all peers are told (host 0), then all ranks of the host.
  void settle(const Failure& failure) {
    if (settled) return;
    settled = failure;
    if (options.host == 0) {
      for (Peer& peer : peers) {
        if (peer.host < 0) continue;
        peer.connection.send_failure(failure);
        peer.connection.flush();
      }
    }
    liveness->publish(failure);
  }

  void read_from(Peer& peer) {
    peer.connection.receive();
    if (peer.host < 0) greet(peer);
    FrameType type;
    std::string payload;
    while (peer.host >= 0 && peer.connection.take_frame(&type, &payload)) {
      if (type == FrameType::kRecords) {
        take_records(peer, payload);
      } else {
        Failure failure;
        if (!parse_failure(payload, liveness->ranks(), &failure)) return peer.connection.close();
        settle(failure);
      }
    }
  }

  void look_for_failures() {
    if (settled) return;
    const auto proposal = liveness->proposal();
    if (!proposal) return;
    if (options.host == 0 || peers.empty()) return settle(*proposal);
    if (!proposed) peers[0].connection.send_failure(*proposal);
    proposed = true;
  }

  void send_records(int64_t now) {
    records_sent = now;
    for (Peer& peer : peers) {
      if (peer.host < 0) continue;
      std::vector<LinkRecord> records;
      for (int rank = 0; rank < liveness->ranks(); ++rank) {
        const int host = host_of_rank[rank];
        if (options.host == 0 ? host == peer.host : host != options.host) continue;
        LinkRecord record{rank, static_cast<uint32_t>(host), liveness->record(rank)};
        if (record.record.process.pid == 0) continue;
        turn_times(record.record, now);
        records.push_back(record);
      }
      peer.connection.send_records(records);
    }
  }

  /// A process's connections end with it.
  void lose(const Peer& peer) {
    if (peer.host < 0 || !peer.heard || !peer.connection.was_hung_up()) return;
    const int leader = options.ranks_of_hosts[peer.host][0];
    RankView view;
    view.record = liveness->record(leader);
    if (view.record.finished || liveness->failed()) return;
    const Failure failure{describe_gone(view, leader, liveness->ranks()), {leader}};
    if (options.host != 0) liveness->set_arbitrated(false);
    settle(failure);
  }

  void drop_closed(int64_t now) {
    for (size_t i = 0; i < peers.size();) {
      Peer& peer = peers[i];
      if (peer.host < 0 && now - peer.since > kHelloPatience) peer.connection.close();
      if (!peer.connection.is_closed()) {
        ++i;
        continue;
      }
      const Peer lost = std::move(peer);
      peers.erase(peers.begin() + static_cast<std::ptrdiff_t>(i));
      lose(lost);
      if (options.host != 0) liveness->set_arbitrated(false);
    }
  }

  void wait_for_input() {
    std::vector<pollfd> polls;
    if (listening.is_open()) polls.push_back({listening.descriptor(), POLLIN, 0});
    for (const Peer& peer : peers) {
      const short events = peer.connection.has_output() ? POLLIN | POLLOUT : POLLIN;
      polls.push_back({peer.connection.descriptor(), events, 0});
    }
    poll(polls.data(), polls.size(), kPollMilliseconds);
  }

  /// Whether this thread may end: nobody depends on it any more.
  bool is_done() {
    if (peers.empty()) return true;
    const bool output =
        std::any_of(peers.begin(), peers.end(), [](const Peer& peer) { return peer.connection.has_output(); });
    if (settled) return !output;
    if (liveness->record(liveness->rank()).finished == 0) return !liveness->proposal();
    for (int rank = 0; rank < liveness->ranks(); ++rank) {
      const bool served = options.host == 0 || host_of_rank[rank] == options.host;
      if (served && liveness->record(rank).finished == 0) return false;
    }
    return !output;
  }

  void run() {
    int64_t stop_since = 0;
    for (;;) {
      wait_for_input();
      if (listening.is_open()) accept_strangers();
      for (size_t i = 0; i < peers.size(); ++i) read_from(peers[i]);
      look_for_failures();
      const int64_t now = monotonic_ns();
      if (now - records_sent >= kRecordPeriod) send_records(now);
      for (Peer& peer : peers) peer.connection.flush();
      drop_closed(now);
      if (!stop) continue;
      if (stop_since == 0) stop_since = now;
      if (!is_done() && now - stop_since < kGoodbyePatience) continue;
      send_records(monotonic_ns());  // with the goodbyes
      for (Peer& peer : peers) peer.connection.hang_up();
      return;
    }
  }
};

HostLink::HostLink(std::shared_ptr<Liveness> liveness, HostLinkOptions options) : state_(std::make_unique<State>()) {
  State& state = *state_;
  state.liveness = std::move(liveness);
  state.options = std::move(options);
  const int ranks = state.liveness->ranks();
  const auto& hosts = state.options.ranks_of_hosts;
  CONVOY_CHECK(state.options.host >= 0 && state.options.host < state.hosts(),
               "link between hosts: host {} is none of {}", state.options.host, hosts.size());
  state.host_of_rank.assign(ranks, -1);
  for (size_t host = 0; host < hosts.size(); ++host) {
    CONVOY_CHECK(!hosts[host].empty(), "link between hosts: host {} has no ranks", host);
    for (const int rank : hosts[host]) {
      CONVOY_CHECK(rank >= 0 && rank < ranks && state.host_of_rank[rank] < 0,
                   "link between hosts: rank {} of host {} is no rank of {} or on two hosts", rank, host, ranks);
      state.host_of_rank[rank] = static_cast<int>(host);
    }
  }
  for (int rank = 0; rank < ranks; ++rank) {
    CONVOY_CHECK(state.host_of_rank[rank] >= 0, "link between hosts: rank {} is on no host", rank);
  }
  state.hello.token = state.options.token;
  state.hello.host = static_cast<uint32_t>(state.options.host);
  state.hello.hosts = static_cast<uint32_t>(hosts.size());
  state.hello.ranks = static_cast<uint32_t>(ranks);
  if (state.options.host == 0) {
    state.listening = listen_on_any_port();
    state.address = address_of(state.listening);
  } else {
    Socket socket = connect_to(state.options.address, bytes_of(state.hello), sizeof(LinkHello), is_answer,
                               state.options.timeout_seconds);
    state.peers.push_back({LinkConnection(std::move(socket), ranks), 0, monotonic_ns()});
  }
  state.liveness->set_arbitrated(true);
  state.thread = start_thread("link hosts", [&state] { state.run(); });
}

HostLink::~HostLink() {
  state_->stop = true;
  state_->thread.join();
  state_->liveness->set_arbitrated(false);
}

const std::string& HostLink::address() const {
  return state_->address;
}

}  // namespace convoy
