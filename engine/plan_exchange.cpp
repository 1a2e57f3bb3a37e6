// What lanes and ranks exchange in a plan: when launches run where lanes run one after the other, collectives of
// independent nodes merged into one message, and the launches that hand buckets of gradients to the gradient channel.
#include <algorithm>
#include <map>
#include <tuple>

#include <fmt/format.h>

#include "engine/plan.h"

namespace convoy {

namespace {

/// How many exchanges lie on the longest way from the leaves to each launch: two of the same number are independent.
std::vector<int> exchange_depths(const Plan& plan) {
  std::vector<int> depth(plan.launches.size(), 0);
  for (size_t l = 0; l < plan.launches.size(); ++l)
    for (const int v : plan.launches[l].in) {
      const int producer = plan.values[static_cast<size_t>(v)].producer;
      if (producer < 0) continue;
      const auto p = static_cast<size_t>(producer);
      depth[l] = std::max(depth[l], depth[p] + (plan.launches[p].kind == Launch::Kind::kExchange ? 1 : 0));
    }
  return depth;
}

/// Launches in an order in which each comes after those whose outputs it reads; else the order in which they were. What
/// is read by the members of one group comes before all of them.
class Ordering {
 public:
  Ordering(const Plan& plan, const std::vector<std::vector<int>>& groups, const std::vector<int>& group_of)
      : plan_(plan), groups_(groups), group_of_(group_of), emitted_(plan.launches.size(), false) {}

  std::vector<int> run() {
    for (size_t l = 0; l < plan_.launches.size(); ++l) emit(static_cast<int>(l));
    return std::move(order_);
  }

 private:
  void emit(int launch) {
    if (emitted_[static_cast<size_t>(launch)]) return;
    const int group = group_of_[static_cast<size_t>(launch)];
    const std::vector<int> members = group < 0 ? std::vector<int>{launch} : groups_[static_cast<size_t>(group)];
    for (const int m : members)
      for (const int v : plan_.launches[static_cast<size_t>(m)].in)
        if (const int producer = plan_.values[static_cast<size_t>(v)].producer; producer >= 0) emit(producer);
    for (const int m : members) {
      emitted_[static_cast<size_t>(m)] = true;
      order_.push_back(m);
    }
  }

  const Plan& plan_;
  const std::vector<std::vector<int>>& groups_;
  const std::vector<int>& group_of_;
  std::vector<bool> emitted_;
  std::vector<int> order_;
};

/// Puts launches into a new order and says so to the values.
void reorder_launches(Plan& plan, std::vector<Launch> launches) {
  plan.launches = std::move(launches);
  for (size_t l = 0; l < plan.launches.size(); ++l)
    for (const int v : plan.launches[l].out)
      if (v >= 0) plan.values[static_cast<size_t>(v)].producer = static_cast<int>(l);
}

}  // namespace

// Before the lanes: what all of them share from the start, exchanges that a lane's kernels wait for, and what those
// read. After them: all other exchanges and what follows from these.
void order_phases(Plan& plan) {
  const auto producer = [&](int v) { return plan.values[static_cast<size_t>(v)].producer; };
  const auto launch = [&](int l) -> Launch& { return plan.launches[static_cast<size_t>(l)]; };
  const int count = static_cast<int>(plan.launches.size());
  std::vector<bool> exchanged(plan.launches.size(), false);  // is an exchange or follows from one, shared by all lanes
  std::vector<int> before;
  for (int l = 0; l < count; ++l) {
    const bool exchange = launch(l).kind == Launch::Kind::kExchange, lane = !exchange && !launch(l).shared;
    bool follows = false;
    for (const int v : launch(l).in) {
      if (producer(v) < 0 || !exchanged[static_cast<size_t>(producer(v))]) continue;
      follows = true;
      if (lane) before.push_back(producer(v));
    }
    exchanged[static_cast<size_t>(l)] = exchange || (follows && !lane);
    if (exchanged[static_cast<size_t>(l)])
      launch(l).phase = Launch::Phase::kAfter;
    else if (!lane)
      launch(l).phase = Launch::Phase::kBefore;
  }
  while (!before.empty()) {
    const int l = before.back();
    before.pop_back();
    if (launch(l).phase == Launch::Phase::kBefore) continue;
    launch(l).phase = Launch::Phase::kBefore;
    for (const int v : launch(l).in)
      if (producer(v) >= 0) before.push_back(producer(v));
  }
  std::vector<Launch> ordered = std::move(plan.launches);
  std::stable_sort(ordered.begin(), ordered.end(), [](const Launch& a, const Launch& b) { return a.phase < b.phase; });
  reorder_launches(plan, std::move(ordered));
}

// Two calls of one module are never independent where the second reads the first; where they are, their running
// statistics still move in the order of the calls, since launches keep their order otherwise.
void merge_messages(Plan& plan) {
  const std::vector<int> depth = exchange_depths(plan);
  std::map<std::tuple<std::string, int, Launch::Phase>, int> group_by_key;
  std::vector<std::vector<int>> groups;
  std::vector<int> group_of(plan.launches.size(), -1);
  for (size_t l = 0; l < plan.launches.size(); ++l) {
    const Launch& launch = plan.launches[l];
    if (launch.kind != Launch::Kind::kExchange || find_op(launch.op).several_messages) continue;
    const auto [it, is_new] =
        group_by_key.try_emplace({launch.op, depth[l], launch.phase}, static_cast<int>(groups.size()));
    if (is_new) groups.emplace_back();
    groups[static_cast<size_t>(it->second)].push_back(static_cast<int>(l));
    group_of[l] = it->second;
  }
  if (groups.empty()) return;

  std::vector<Launch> launches;
  for (const int l : Ordering(plan, groups, group_of).run()) {
    Launch& launch = plan.launches[static_cast<size_t>(l)];
    const int group = group_of[static_cast<size_t>(l)];
    if (group >= 0 && groups[static_cast<size_t>(group)].front() != l) {
      Launch& first = launches.back();
      first.in.insert(first.in.end(), launch.in.begin(), launch.in.end());
      first.out.insert(first.out.end(), launch.out.begin(), launch.out.end());
      first.parts.push_back(launch.parts[0]);
      first.cost.bytes += launch.cost.bytes;
      first.cost.flops += launch.cost.flops;
      first.name = fmt::format("{} and {} more", first.parts[0].name, first.parts.size() - 1);
    } else {
      launches.push_back(std::move(launch));
    }
  }
  reorder_launches(plan, std::move(launches));
}

void exchange_buckets(Plan& plan) {
  if (plan.buckets.empty()) return;
  std::vector<Launch> launches;
  size_t next = 0;
  for (size_t l = 0; l < plan.launches.size(); ++l) {
    launches.push_back(std::move(plan.launches[l]));
    for (; next < plan.buckets.size() && plan.buckets[next].ready_after == static_cast<int>(l); ++next) {
      GradientBucket& bucket = plan.buckets[next];
      bucket.ready_after = static_cast<int>(launches.size()) - 1;
      launches.push_back({.op = "start_sum",
                          .name = fmt::format("bucket {}", next),
                          .cost = {.bytes = static_cast<double>(bucket.bytes)},
                          .kind = Launch::Kind::kStartSum,
                          .bucket = static_cast<int>(next)});
    }
  }
  launches.push_back({.op = "finish_sums", .name = "gradients", .kind = Launch::Kind::kFinishSums});
  plan.launches = std::move(launches);
}

}  // namespace convoy
