// Why a run cannot go on: finds the ranks at fault in a snapshot of all ranks and words the message. Pure functions.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "comm/liveness.h"

namespace convoy {

/// A rank as an observer sees it. Seconds are counted by the observer while it runs, so that a pause of the whole
/// machine or job counts for nothing.
struct RankView {
  RankRecord record;
  bool ended = false;                     ///< its process is gone
  bool visible = true;                    ///< whether the observer can see its process at all
  double silent_seconds = 0;              ///< without a new heartbeat
  double waited_seconds[kChannels] = {};  ///< in the collective it is in; 0 when it is in none
  double progress_seconds = 0;            ///< since it last said something new of what it does
  double activity_seconds = 0;            ///< the same by the clock, for the message
};

struct DiagnosisLimits {
  double late_seconds = 60;
  double dead_seconds = 10;
};

/// A rank whose heartbeat is older does not answer.
constexpr double kSilentSeconds = 5;
/// Stopped by a signal (not by a debugger), or without a heartbeat: it will not end by itself.
bool is_stuck(const RankView& view);

/// What ends the run, `ranks[r]` being rank r: ranks whose process is gone; a host that does not answer; ranks that
/// have said goodbye and are waited for; ranks that others have waited for at least late_seconds long; a collective
/// that does not complete although all have come to it. Nothing when the run may go on.
std::optional<Failure> find_failure(const std::vector<RankView>& ranks, const DiagnosisLimits& limits);

/// "rank 2 of 4 (host X, pid 77) is gone: ...", with the collective it was in and its last data file.
std::string describe_gone(const RankView& view, int rank, int ranks);
/// "rank 2", "ranks 0, 1", "ranks 0-3, 7"
std::string rank_list(const std::vector<int>& ranks);

}  // namespace convoy
