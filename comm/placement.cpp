#include "comm/placement.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>
#include <tuple>

#include "engine/error.h"

namespace convoy {

namespace {

int read_number(const std::filesystem::path& path, int otherwise) {
  std::ifstream file(path);
  int value = otherwise;
  return file >> value ? value : otherwise;
}

int node_of_cpu(int cpu) {
  std::error_code error;
  for (const auto& entry :
       std::filesystem::directory_iterator(fmt::format("/sys/devices/system/cpu/cpu{}", cpu), error)) {
    const std::string name = entry.path().filename();
    if (name.size() > 4 && name.starts_with("node") && isdigit(name[4])) return std::atoi(name.c_str() + 4);
  }
  return 0;
}

CoreMask mask_of(pid_t process) {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (::sched_getaffinity(process, sizeof set, &set) != 0) return {};
  CoreMask mask;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &set)) mask.push_back(cpu);
  }
  return mask;
}

/// 0 when it cannot be found out.
pid_t parent_of(pid_t process) {
  std::ifstream file(fmt::format("/proc/{}/status", process));
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("PPid:")) return std::atoi(line.c_str() + 5);
  }
  return 0;
}

/// The cores of the mask as physical cores, near ones side by side.
std::vector<CoreMask> physical_cores(const std::vector<Core>& cores, const CoreMask& mask) {
  std::vector<CoreMask> groups;
  const Core* last = nullptr;
  for (const Core& core : cores) {
    if (!std::binary_search(mask.begin(), mask.end(), core.cpu)) continue;
    if (!last || std::tie(last->package, last->core) != std::tie(core.package, core.core)) groups.emplace_back();
    groups.back().push_back(core.cpu);
    last = &core;
  }
  return groups;
}

}  // namespace

std::vector<Core> describe_cores(const CoreMask& mask) {
  std::vector<Core> cores;
  for (const int cpu : mask) {
    const std::filesystem::path topology = fmt::format("/sys/devices/system/cpu/cpu{}/topology", cpu);
    cores.push_back({.cpu = cpu,
                     .node = node_of_cpu(cpu),
                     .package = read_number(topology / "physical_package_id", 0),
                     .core = read_number(topology / "core_id", cpu)});
  }
  std::sort(cores.begin(), cores.end(), [](const Core& a, const Core& b) {
    return std::tie(a.node, a.package, a.core, a.cpu) < std::tie(b.node, b.package, b.core, b.cpu);
  });
  return cores;
}

CoreMask own_mask() {
  return mask_of(0);
}

CoreMask launcher_mask() {
  const CoreMask own = own_mask();
  for (pid_t process = ::getppid(); process > 0; process = parent_of(process)) {
    CoreMask mask = mask_of(process);
    if (mask.size() > own.size()) return mask;
  }
  return {};
}

bool bound_by_default() {
  if (!std::getenv("OMPI_COMM_WORLD_SIZE")) return false;
  // mpirun hands its own options on as variables: --bind-to, --map-by, --cpu-set, --rankfile.
  for (const char* asked :
       {"OMPI_MCA_hwloc_base_binding_policy", "OMPI_MCA_rmaps_base_mapping_policy", "OMPI_MCA_hwloc_base_cpu_list",
        "OMPI_MCA_hwloc_base_cpu_set", "OMPI_MCA_rmaps_rank_file_path", "OMPI_MCA_orte_rankfile",
        "PRTE_MCA_hwloc_default_binding_policy", "PRTE_MCA_rmaps_default_mapping_policy",
        "PRTE_MCA_hwloc_default_cpu_list"}) {
    if (std::getenv(asked)) return false;
  }
  return true;
}

Placement place_rank(const std::vector<Core>& cores, std::vector<CoreMask> masks, int local_rank,
                     const CoreMask& widest) {
  const size_t ranks = masks.size();
  const size_t before = masks[static_cast<size_t>(local_rank)].size();
  const bool room = physical_cores(cores, widest).size() > ranks;
  const bool widened = room && std::all_of(masks.begin(), masks.end(), [&](const CoreMask& mask) {
                         return physical_cores(cores, mask).size() == 1;
                       });
  if (widened) std::fill(masks.begin(), masks.end(), widest);

  const CoreMask& mask = masks[static_cast<size_t>(local_rank)];
  const auto shared_by = static_cast<size_t>(std::count(masks.begin(), masks.end(), mask));
  const auto place = static_cast<size_t>(std::count(masks.begin(), masks.begin() + local_rank, mask));
  Placement placement;
  if (mask.empty()) return placement;
  if (shared_by > mask.size()) {
    placement.threads = 1;
    placement.note = fmt::format("{} ranks share {} core{} ({}): not pinned, one thread each", shared_by, mask.size(),
                                 mask.size() == 1 ? "" : "s", format_mask(mask));
    return placement;
  }
  std::vector<CoreMask> parts = physical_cores(cores, mask);
  if (parts.size() < shared_by) {  // ranks must share physical cores: each takes hardware threads
    std::vector<CoreMask> threads;
    for (const CoreMask& part : parts) {
      for (const int cpu : part) threads.push_back({cpu});
    }
    parts = std::move(threads);
  }
  for (size_t i = place * parts.size() / shared_by; i < (place + 1) * parts.size() / shared_by; ++i) {
    placement.mask.insert(placement.mask.end(), parts[i].begin(), parts[i].end());
  }
  std::sort(placement.mask.begin(), placement.mask.end());
  if (widened) {
    placement.note =
        fmt::format("core mask of {} widened to {} core{}: rank {} of {} on a host of {}", before,
                    placement.mask.size(), placement.mask.size() == 1 ? "" : "s", local_rank, ranks, widest.size());
  }
  return placement;
}

void apply(const Placement& placement) {
  if (placement.mask.empty()) return;
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int cpu : placement.mask) CPU_SET(cpu, &set);
  CONVOY_CHECK(::sched_setaffinity(0, sizeof set, &set) == 0, "cores {} cannot be taken: {}",
               format_mask(placement.mask), std::strerror(errno));
}

std::string format_mask(const CoreMask& mask) {
  std::string text;
  for (size_t i = 0; i < mask.size();) {
    size_t end = i + 1;
    while (end < mask.size() && mask[end] == mask[end - 1] + 1) ++end;
    if (!text.empty()) text += ',';
    text += end - i == 1 ? fmt::format("{}", mask[i]) : fmt::format("{}-{}", mask[i], mask[end - 1]);
    i = end;
  }
  return text;
}

std::string numa_nodes(const CoreMask& mask) {
  std::set<int> nodes;
  for (const int cpu : mask) nodes.insert(node_of_cpu(cpu));
  return format_mask({nodes.begin(), nodes.end()});
}

}  // namespace convoy
