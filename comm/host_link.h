// Liveness across hosts: tells each host of the others' ranks, and all hosts of a failure.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "comm/liveness.h"

namespace convoy {

struct HostLinkOptions {
  int host = 0;                                  ///< this host's number
  std::vector<std::vector<int>> ranks_of_hosts;  ///< ranks of each host; the first of each is its leader
  uint64_t token = 0;                            ///< the same random number on all hosts, unknown to strangers
  std::string address;                           ///< of host 0, as HostLink::address() gave it there; host 0: empty
  double timeout_seconds = 60;                   ///< to reach host 0
};

/// Made by the leader of each host, first by that of host 0, which all others connect to by TCP. A thread then sends
/// the records of this host's ranks twice a second and writes those of other hosts into the table, so that the
/// watchdogs see all ranks alike. A failure on any host goes to host 0, which decides which one was first and tells
/// all.
///
/// A leader whose connection ends without a goodbye is gone; a host that is silent is found by the watchdogs. The run
/// itself is never held up. To be destroyed after Liveness::leave_run() or after a failure: then it waits, for up to
/// two seconds, for other ranks to finish as well, or until all have been told.
class HostLink {
 public:
  /// Host 0 listens and returns at once; others throw Error when host 0 cannot be reached in time.
  HostLink(std::shared_ptr<Liveness> liveness, HostLinkOptions options);
  ~HostLink();
  HostLink(const HostLink&) = delete;
  HostLink& operator=(const HostLink&) = delete;

  /// Where the leaders of other hosts find host 0: "ADDRESS,ADDRESS.../PORT". Empty on other hosts.
  const std::string& address() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace convoy
