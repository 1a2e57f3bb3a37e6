// Which cores a rank uses: ranks of one host that were all given the same cores divide them.
#pragma once
#include <string>
#include <vector>

namespace convoy {

/// One logical core as the system numbers it.
struct Core {
  int cpu = 0, node = 0, package = 0, core = 0;  ///< `core`: hardware threads of one core share it
};
/// Numbers of logical cores, ascending.
using CoreMask = std::vector<int>;

/// What /sys says of the cores of `mask`, those that are near each other side by side.
std::vector<Core> describe_cores(const CoreMask& mask);
/// The cores that this process may use; empty when the system does not say.
CoreMask own_mask();
/// The mask of the nearest parent process that may use more cores than this one; empty when there is none. Where a
/// launcher of MPI has bound its ranks, that is what the launcher itself may use.
CoreMask launcher_mask();
/// Whether Open MPI has bound this process without having been asked to.
bool bound_by_default();

struct Placement {
  CoreMask mask;     ///< empty: stay as we are
  int threads = 0;   ///< to use when the user asks for none; 0: as many as there are cores in the mask
  std::string note;  ///< what was done, for the log; empty: nothing worth telling
};

/// Places one of the ranks of a host. `masks` are those of all ranks of the host, `widest` what they may be widened to
/// (empty: they are as the user wanted them). Masks of one core each are widened where `widest` has more for every
/// rank. Ranks with equal masks divide them into blocks of neighbouring cores, whole cores where there are enough; more
/// ranks than cores stay unpinned, with one thread each.
Placement place_rank(const std::vector<Core>& cores, std::vector<CoreMask> masks, int local_rank,
                     const CoreMask& widest);
/// Restricts the calling thread, and the threads that it starts later, to the mask. Throws Error when the system
/// refuses.
void apply(const Placement& placement);

/// "0-3,8"
std::string format_mask(const CoreMask& mask);
/// The NUMA nodes of the cores: "0", "0-1".
std::string numa_nodes(const CoreMask& mask);

}  // namespace convoy
