#include "comm/diagnosis.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <string_view>

namespace convoy {
namespace {

constexpr size_t kMostNamed = 8;  ///< ranks described one by one; a message has room for these

/// A collective that ranks wait in.
struct Wait {
  int channel;
  uint64_t number;
  std::string name;
  double seconds = 0;        ///< of the rank that has waited longest
  std::vector<int> waiting;  ///< in it
};

std::string seconds_text(double seconds) {
  return seconds < 10 ? fmt::format("{:.1f} s", seconds) : fmt::format("{:.0f} s", seconds);
}

std::string rank_name(const RankView& view, int rank, size_t ranks) {
  const ProcessRecord& process = view.record.process;
  if (process.pid == 0) return fmt::format("rank {} of {} (not started yet)", rank, ranks);
  return fmt::format("rank {} of {} (host {}, pid {})", rank, ranks, process.host, process.pid);
}

std::string collective_name(int channel, uint64_t number, std::string_view name) {
  return fmt::format("collective {} '{}'{}", number, name,
                     channel == static_cast<int>(Channel::kGradient) ? " of the gradient channel" : "");
}

std::string data_file_text(const RankView& view) {
  const char* file = view.record.data_file.file;
  return *file == 0 ? std::string() : fmt::format("; last data file {}", file);
}

/// The channel that says most about where the rank was: one it waits in, else the one it used last.
std::string last_collective(const RankView& view) {
  int best = -1;
  for (int channel = 0; channel < kChannels; ++channel) {
    const ChannelRecord& record = view.record.channels[channel];
    if (record.number == 0) continue;
    if (best < 0) {
      best = channel;
      continue;
    }
    const ChannelRecord& other = view.record.channels[best];
    if (record.waiting != other.waiting ? record.waiting > other.waiting : record.since_ns > other.since_ns) {
      best = channel;
    }
  }
  if (best < 0) return "it had come to no collective yet";
  const ChannelRecord& record = view.record.channels[best];
  return fmt::format("it {} {}", record.waiting ? "was in" : "had last completed",
                     collective_name(best, record.number, record.name));
}

/// What a rank that is waited for does: its state, other collectives it waits in, its own words, its data file.
std::string doings(const RankView& view) {
  std::string text;
  const char state = static_cast<char>(view.record.state);
  if (state == 'T') {
    text += " Its process is stopped (SIGSTOP?).";
  } else if (state == 't') {
    text += " Its process is held by a debugger.";
  } else if (view.record.process.pid != 0 && view.silent_seconds >= kSilentSeconds) {
    text += fmt::format(" It has not answered for {}.", seconds_text(view.silent_seconds));
  }
  for (int channel = 0; channel < kChannels; ++channel) {
    const ChannelRecord& record = view.record.channels[channel];
    if (record.waiting == 0) continue;
    text += fmt::format(" It waits in {} for {}.", collective_name(channel, record.number, record.name),
                        seconds_text(view.waited_seconds[channel]));
  }
  const ActivityRecord& activity = view.record.activity;
  const std::string file = data_file_text(view);
  if (*activity.what != 0) {
    text += fmt::format(" It is: {} for {}{}", activity.what, seconds_text(view.activity_seconds), file);
  } else if (!file.empty()) {
    text += fmt::format(" It does not say what it does{}", file);
  }
  return text;
}

bool has_entered(const RankView& view, const Wait& wait) {
  return view.record.channels[wait.channel].number >= wait.number;
}

/// The collectives that some rank has waited in for at least `seconds`, earliest first on each channel.
std::vector<Wait> waits(const std::vector<RankView>& ranks, double seconds) {
  std::vector<Wait> found;
  for (int channel = 0; channel < kChannels; ++channel) {
    std::map<uint64_t, Wait> by_number;
    for (size_t rank = 0; rank < ranks.size(); ++rank) {
      const ChannelRecord& record = ranks[rank].record.channels[channel];
      if (record.waiting == 0) continue;
      Wait& wait = by_number[record.number];
      if (wait.waiting.empty()) wait = {channel, record.number, record.name, 0, {}};
      wait.seconds = std::max(wait.seconds, ranks[rank].waited_seconds[channel]);
      wait.waiting.push_back(static_cast<int>(rank));
    }
    for (auto& [number, wait] : by_number) {
      if (wait.seconds >= seconds) found.push_back(std::move(wait));
    }
  }
  return found;
}

/// One sentence per rank, as many as a message holds.
template <class Describe>
Failure failure_of(std::vector<int> at_fault, Describe describe) {
  std::string message;
  for (size_t i = 0; i < at_fault.size() && i < kMostNamed; ++i) {
    if (i > 0) message += "\n";
    message += describe(at_fault[i]);
  }
  if (at_fault.size() > kMostNamed) {
    const std::vector<int> others(at_fault.begin() + kMostNamed, at_fault.end());
    message += fmt::format("\nThe same holds for {}", rank_list(others));
  }
  return {message, std::move(at_fault)};
}

std::optional<Failure> find_gone(const std::vector<RankView>& ranks) {
  std::vector<int> gone;
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    if (ranks[rank].ended && !ranks[rank].record.finished) gone.push_back(static_cast<int>(rank));
  }
  if (gone.empty()) return std::nullopt;
  return failure_of(gone, [&](int rank) { return describe_gone(ranks[rank], rank, static_cast<int>(ranks.size())); });
}

/// A host is silent when none of its ranks has a new heartbeat. Ranks of this host need it only where their processes
/// cannot be seen.
std::optional<Failure> find_silent(const std::vector<RankView>& ranks, double seconds) {
  for (size_t first = 0; first < ranks.size(); ++first) {
    const auto hidden = [](const RankView& view) {
      return view.record.process.pid != 0 && (view.record.remote || !view.visible) && !view.record.finished;
    };
    if (!hidden(ranks[first])) continue;
    const std::string_view host = ranks[first].record.process.host;
    std::vector<int> silent;
    double shortest = ranks[first].silent_seconds;
    bool all = true;
    for (size_t rank = 0; rank < ranks.size(); ++rank) {
      const RankView& view = ranks[rank];
      if (!hidden(view) || host != view.record.process.host || view.record.remote != ranks[first].record.remote)
        continue;
      if (view.silent_seconds >= seconds) {
        silent.push_back(static_cast<int>(rank));
        shortest = std::min(shortest, view.silent_seconds);
      } else if (view.record.remote) {
        all = false;
      }
    }
    if (silent.empty() || !all) continue;
    return Failure{fmt::format("host {} does not answer: nothing was heard of {} for {} (is it down, its first rank "
                               "stopped, or the network?)",
                               host, rank_list(silent), seconds_text(shortest)),
                   silent};
  }
  return std::nullopt;
}

std::optional<Failure> find_finished(const std::vector<RankView>& ranks) {
  for (const Wait& wait : waits(ranks, 0)) {
    std::vector<int> finished;
    for (size_t rank = 0; rank < ranks.size(); ++rank) {
      if (ranks[rank].record.finished && !has_entered(ranks[rank], wait)) finished.push_back(static_cast<int>(rank));
    }
    if (finished.empty()) continue;
    return failure_of(finished, [&](int rank) {
      return fmt::format("{} has ended already ({}), but {} in {} for it", rank_name(ranks[rank], rank, ranks.size()),
                         last_collective(ranks[rank]),
                         rank_list(wait.waiting) + (wait.waiting.size() == 1 ? " waits" : " wait"),
                         collective_name(wait.channel, wait.number, wait.name));
    });
  }
  return std::nullopt;
}

std::string describe_late(const std::vector<RankView>& ranks, int rank, const Wait& wait) {
  return fmt::format("{} has not come to {} for {}, in which {}.{}", rank_name(ranks[rank], rank, ranks.size()),
                     collective_name(wait.channel, wait.number, wait.name), seconds_text(wait.seconds),
                     rank_list(wait.waiting) + (wait.waiting.size() == 1 ? " waits" : " wait"), doings(ranks[rank]));
}

std::optional<Failure> find_late(const std::vector<RankView>& ranks, double late_seconds) {
  const std::vector<Wait> overdue = waits(ranks, late_seconds);
  // A late rank that waits for somebody itself is less to blame than one that does not. Second round: all are named.
  for (const bool name_waiting : {false, true}) {
    for (const Wait& wait : overdue) {
      std::vector<int> late;
      for (size_t rank = 0; rank < ranks.size(); ++rank) {
        const RankRecord& record = ranks[rank].record;
        const bool waits_itself = record.channels[0].waiting != 0 || record.channels[1].waiting != 0;
        if (has_entered(ranks[rank], wait) || (waits_itself && !name_waiting)) continue;
        if (ranks[rank].progress_seconds >= late_seconds) late.push_back(static_cast<int>(rank));
      }
      if (!late.empty()) return failure_of(late, [&](int rank) { return describe_late(ranks, rank, wait); });
    }
  }
  return std::nullopt;
}

std::optional<Failure> find_incomplete(const std::vector<RankView>& ranks, double late_seconds) {
  const std::vector<Wait> overdue = waits(ranks, late_seconds);
  const auto found = std::find_if(overdue.begin(), overdue.end(), [&](const Wait& wait) {
    return std::all_of(ranks.begin(), ranks.end(), [&](const RankView& view) { return has_entered(view, wait); });
  });
  if (found == overdue.end()) return std::nullopt;
  const Wait& wait = *found;
  std::vector<int> completed;
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    const ChannelRecord& record = ranks[rank].record.channels[wait.channel];
    if (record.number > wait.number || record.waiting == 0) completed.push_back(static_cast<int>(rank));
  }
  if (!completed.empty()) {
    return failure_of(wait.waiting, [&](int rank) {
      return fmt::format("{} does not come out of a collective that {} completed.{}",
                         rank_name(ranks[rank], rank, ranks.size()),
                         rank_list(completed) + (completed.size() == 1 ? " has" : " have"), doings(ranks[rank]));
    });
  }
  std::string message = fmt::format("{} does not complete: all {} ranks have come to it, and {} in it for {}",
                                    collective_name(wait.channel, wait.number, wait.name), ranks.size(),
                                    rank_list(wait.waiting) + (wait.waiting.size() == 1 ? " waits" : " wait"),
                                    seconds_text(wait.seconds));
  std::vector<int> stuck;
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    if (!is_stuck(ranks[rank])) continue;
    if (stuck.size() < kMostNamed) {
      const int index = static_cast<int>(rank);
      message += fmt::format("\n{}:{}", rank_name(ranks[rank], index, ranks.size()), doings(ranks[rank]));
    }
    stuck.push_back(static_cast<int>(rank));
  }
  if (stuck.empty()) message += " (is the network between the hosts in order?)";
  return Failure{message, stuck};
}

}  // namespace

bool is_stuck(const RankView& view) {
  const char state = static_cast<char>(view.record.state);
  return state == 'T' || (state != 't' && view.record.process.pid != 0 && view.silent_seconds >= kSilentSeconds);
}

std::optional<Failure> find_failure(const std::vector<RankView>& ranks, const DiagnosisLimits& limits) {
  std::optional<Failure> found = find_gone(ranks);
  if (!found) found = find_silent(ranks, limits.dead_seconds);
  if (!found) found = find_finished(ranks);
  if (!found) found = find_late(ranks, limits.late_seconds);
  if (!found) found = find_incomplete(ranks, limits.late_seconds);
  return found;
}

std::string describe_gone(const RankView& view, int rank, int ranks) {
  return fmt::format("{} is gone: its process ended without a word (killed, or out of memory?); {}{}",
                     rank_name(view, rank, static_cast<size_t>(ranks)), last_collective(view), data_file_text(view));
}

std::string rank_list(const std::vector<int>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < ranks.size();) {
    size_t end = i + 1;
    while (end < ranks.size() && ranks[end] == ranks[end - 1] + 1) ++end;
    if (end - i < 4) end = i + 1;
    if (i > 0) text += ", ";
    text += end - i == 1 ? std::to_string(ranks[i]) : fmt::format("{}-{}", ranks[i], ranks[end - 1]);
    i = end;
  }
  return text;
}

}  // namespace convoy
