#include "apps/load_weights.h"

#include <algorithm>
#include <cstring>
#include <set>
#include <unordered_map>

#include "engine/error.h"
#include "io/tensor_values.h"

namespace convoy {
namespace {

/// Wrappers and roles that networks are stored under.
const std::vector<std::string>& known_prefixes() {
  static const std::vector<std::string> prefixes = {"module.",    "model.",   "backbone.", "encoder.",
                                                    "_orig_mod.", "network.", "net."};
  return prefixes;
}

/// Where checkpoints keep weights, best first.
const std::vector<std::string>& known_containers() {
  static const std::vector<std::string> containers = {"state_dict/", "model_state_dict/", "model_state/", "model/", "",
                                                      "net/",        "network/",          "weights/",     "params/"};
  return containers;
}

bool is_counter(const std::string& name) {
  return name.ends_with("num_batches_tracked");
}
bool is_auxiliary(const std::string& name) {
  return name.starts_with("aux") || name.find(".aux") != std::string::npos;
}

std::string container_of(const std::string& name) {
  const size_t slash = name.rfind('/');
  return slash == std::string::npos ? "" : name.substr(0, slash + 1);
}

using NameIndex = std::unordered_map<std::string, size_t>;

/// The containers of the file's tensors: the known ones first, then in the order of the file.
std::vector<std::string> containers_of(const WeightsFile& file) {
  std::set<std::string> there;
  std::vector<std::string> in_order;
  for (const WeightInfo& tensor : file.tensors())
    if (const std::string container = container_of(tensor.name); there.insert(container).second)
      in_order.push_back(container);
  std::stable_sort(in_order.begin(), in_order.end(), [](const std::string& a, const std::string& b) {
    const auto& known = known_containers();
    return std::find(known.begin(), known.end(), a) < std::find(known.begin(), known.end(), b);
  });
  return in_order;
}

/// Prefixes that some of the names begin with: none, one or two of the known ones.
std::vector<std::string> prefixes_of(const std::vector<std::string>& names) {
  std::vector<std::string> prefixes = {""};
  const auto add = [&](const std::string& prefix) {
    if (std::any_of(names.begin(), names.end(), [&](const std::string& name) { return name.starts_with(prefix); }))
      prefixes.push_back(prefix);
  };
  for (const std::string& one : known_prefixes()) add(one);
  for (const std::string& one : known_prefixes())
    for (const std::string& two : known_prefixes()) add(one + two);
  return prefixes;
}

struct Score {
  size_t same = 0, named = 0;
  auto operator<=>(const Score&) const = default;
};

struct Rule {
  std::string container, taken_off, put_before;
};

class Matcher {
 public:
  Matcher(const WeightsFile& file, const std::vector<WantedTensor>& wanted) : file_(file), wanted_(wanted) {
    std::vector<std::string> names;
    for (size_t i = 0; i < wanted.size(); ++i) {
      index_[wanted[i].name] = i;
      names.push_back(wanted[i].name);
    }
    wanted_prefixes_ = prefixes_of(names);
    for (size_t i = 0; i < file.tensors().size(); ++i) {
      const std::string& name = file.tensors()[i].name;
      if (file.format() == "checkpoint" && name.starts_with("optimizer.")) continue;
      by_container_[container_of(name)].push_back(i);
    }
  }

  WeightMatch best() const {
    Rule best;
    Score most;
    for (const std::string& container : containers_of(file_)) {
      const auto members = by_container_.find(container);
      if (members == by_container_.end()) continue;
      std::vector<std::string> names;
      for (size_t i : members->second) names.push_back(file_.tensors()[i].name.substr(container.size()));
      for (const std::string& taken_off : prefixes_of(names))
        for (const std::string& put_before : wanted_prefixes_) {
          const Rule rule{container, taken_off, put_before};
          const Score score = score_of(members->second, rule);
          if (score <= most) continue;
          most = score;
          best = rule;
        }
    }
    return apply(best);
  }

 private:
  /// The wanted tensor for one of the file, or npos.
  size_t partner(const std::string& name, const Rule& rule) const {
    std::string_view rest(name);
    rest.remove_prefix(rule.container.size());
    if (!rest.starts_with(rule.taken_off)) return std::string::npos;
    rest.remove_prefix(rule.taken_off.size());
    const auto found = index_.find(rule.put_before + std::string(rest));
    return found == index_.end() ? std::string::npos : found->second;
  }
  Score score_of(const std::vector<size_t>& tensors, const Rule& rule) const {
    Score score;
    for (size_t i : tensors) {
      const size_t wanted = partner(file_.tensors()[i].name, rule);
      if (wanted == std::string::npos) continue;
      ++score.named;
      if (file_.tensors()[i].shape == wanted_[wanted].shape) ++score.same;
    }
    return score;
  }
  WeightMatch apply(const Rule& rule) const {
    WeightMatch match{.container = rule.container, .taken_off = rule.taken_off, .put_before = rule.put_before};
    std::vector<bool> found(wanted_.size(), false);
    const auto members = by_container_.find(rule.container);
    if (members == by_container_.end()) {
      for (const WeightInfo& tensor : file_.tensors()) match.unexpected.push_back(tensor.name);
    } else {
      for (size_t i : members->second) {
        const WeightInfo& tensor = file_.tensors()[i];
        const size_t wanted = partner(tensor.name, rule);
        if (wanted == std::string::npos) {
          match.unexpected.push_back(tensor.name.substr(rule.container.size()));
          continue;
        }
        found[wanted] = true;
        auto& list = tensor.shape == wanted_[wanted].shape ? match.matched : match.other_shape;
        list.push_back({i, wanted});
      }
    }
    for (size_t i = 0; i < wanted_.size(); ++i)
      if (!found[i]) match.missing.push_back(i);
    return match;
  }

  const WeightsFile& file_;
  const std::vector<WantedTensor>& wanted_;
  NameIndex index_;
  std::vector<std::string> wanted_prefixes_;
  std::unordered_map<std::string, std::vector<size_t>> by_container_;
};

std::string shape_text(const std::vector<int64_t>& shape) {
  return fmt::format("({})", fmt::join(shape, ", "));
}

/// The parameter or buffer that a name stands for: its own, or another's.
const std::string& stored_name(const ParamStore& store, const std::string& name) {
  const auto alias = store.aliases().find(name);
  return alias == store.aliases().end() ? name : alias->second;
}

/// What of the wanted tensors does not count, in words: "fc and num_batches_tracked".
std::string uncounted_kinds(const std::vector<WantedTensor>& wanted) {
  std::set<std::string> kinds;
  for (const WantedTensor& tensor : wanted) {
    if (tensor.counted) continue;
    if (is_counter(tensor.name)) {
      kinds.insert("num_batches_tracked");
      continue;
    }
    const std::string module = tensor.name.substr(0, tensor.name.rfind('.'));
    kinds.insert(module.substr(module.rfind('.') + 1));
  }
  return fmt::format("{}", fmt::join(kinds, " and "));
}

/// Where a tensor of the store is written.
struct Target {
  ElementType type = ElementType::kF32;
  void* data = nullptr;
  std::vector<int64_t> shape;
};

Target target_of(const ParamStore& store, const std::string& name) {
  const std::string& stored = stored_name(store, name);
  if (const int64_t p = store.find_parameter(stored); p >= 0)
    return {ElementType::kF32, store.allocated() ? store.value(p) : nullptr,
            store.parameters()[static_cast<size_t>(p)].shape.to_vector()};
  const Tensor& value = store.buffers()[static_cast<size_t>(store.find_buffer(stored))].value;
  return {element_type(value.dtype()), value.view().data, value.shape().to_vector()};
}

/// The tensor's values as bytes of the target's type.
std::vector<std::byte> converted(const NamedTensor& tensor, ElementType type) {
  std::vector<std::byte> bytes(static_cast<size_t>(tensor.count()) * element_size(type));
  if (bytes.empty()) return bytes;
  if (tensor.dtype == type) {
    std::memcpy(bytes.data(), tensor.values(), bytes.size());
  } else if (type == ElementType::kF32) {
    const std::vector<float> values = to_floats(tensor);
    std::memcpy(bytes.data(), values.data(), bytes.size());
  } else {
    CONVOY_CHECK(type == ElementType::kI64 && element_parts(tensor.dtype) == 1, "tensor \"{}\" is {}, wanted is {}",
                 tensor.name, element_name(tensor.dtype), element_name(type));
    for (int64_t i = 0; i < tensor.count(); ++i) {
      const double real = value_at(tensor.dtype, tensor.values(), i);
      CONVOY_CHECK(real >= 0 && real < 9e18, "tensor \"{}\" holds {}, which is no count", tensor.name, real);
      const auto value = static_cast<int64_t>(real);
      std::memcpy(bytes.data() + static_cast<size_t>(i) * sizeof(value), &value, sizeof(value));
    }
  }
  return bytes;
}

void copy_matched(const WeightsFile& file, ParamStore& store, const std::vector<WantedTensor>& wanted,
                  const WeightMatch& match) {
  std::unordered_map<std::string, std::string> written;  // storage, and the file's name of what it got
  for (const WeightMatch::Pair& pair : match.matched) {
    const NamedTensor tensor = file.tensor(pair.file_tensor);
    require_usable_values(tensor, file.path().string());
    const Target target = target_of(store, wanted[pair.wanted].name);
    const std::vector<std::byte> bytes = converted(tensor, target.type);
    const auto [earlier, is_first] = written.emplace(stored_name(store, wanted[pair.wanted].name), tensor.name);
    CONVOY_CHECK(is_first || bytes.empty() || std::memcmp(target.data, bytes.data(), bytes.size()) == 0,
                 "{}: \"{}\" and \"{}\" are one shared parameter of the network, and have different values",
                 file.path().string(), earlier->second, tensor.name);
    if (!bytes.empty()) std::memcpy(target.data, bytes.data(), bytes.size());
  }
}

}  // namespace

WeightMatch match_weights(const WeightsFile& file, const std::vector<WantedTensor>& wanted) {
  return Matcher(file, wanted).best();
}

MatchCount count_matched(const WeightMatch& match, const std::vector<WantedTensor>& wanted) {
  std::set<std::string_view> all, found;
  for (const WantedTensor& tensor : wanted)
    if (tensor.counted) all.insert(tensor.stored);
  for (const WeightMatch::Pair& pair : match.matched)
    if (wanted[pair.wanted].counted) found.insert(wanted[pair.wanted].stored);
  return {found.size(), all.size()};
}

std::string match_table(const WeightMatch& match, const WeightsFile& file, const std::vector<WantedTensor>& wanted,
                        size_t lines) {
  const MatchCount count = count_matched(match, wanted);
  std::string text = fmt::format("{} ({}{}): {} of {} tensors matched", file.path().string(), file.format(),
                                 match.container.empty() ? "" : ", " + match.container, count.found, count.all);
  if (const std::string not_counted = uncounted_kinds(wanted); !not_counted.empty())
    text += fmt::format(" ({} not counted)", not_counted);
  if (!match.taken_off.empty()) text += fmt::format("; \"{}\" taken off its names", match.taken_off);
  if (!match.put_before.empty()) text += fmt::format("; \"{}\" put before its names", match.put_before);
  const auto section = [&](size_t size, const char* what, auto line) {
    if (size == 0) return;
    text += fmt::format("\n  {} {}", size, what);
    for (size_t i = 0; i < std::min(lines, size); ++i) text += "\n    " + line(i);
    if (size > lines) text += fmt::format("\n    ... and {} more", size - lines);
  };
  section(match.other_shape.size(), "of another shape, left as they were:", [&](size_t i) {
    const WeightMatch::Pair& pair = match.other_shape[i];
    return fmt::format("{}: file {}, network {}", wanted[pair.wanted].name,
                       shape_text(file.tensors()[pair.file_tensor].shape), shape_text(wanted[pair.wanted].shape));
  });
  std::vector<size_t> missing;
  for (size_t i : match.missing)
    if (!is_counter(wanted[i].name)) missing.push_back(i);
  section(missing.size(), "missing in the file, left as they were:", [&](size_t i) { return wanted[missing[i]].name; });
  section(match.unexpected.size(), "in the file alone, ignored:", [&](size_t i) { return match.unexpected[i]; });
  return text;
}

std::vector<WantedTensor> wanted_tensors(const ParamStore& store, const LoadOptions& options) {
  std::vector<WantedTensor> wanted;
  for (const std::string& name : store.state_order()) {
    if (!name.starts_with(options.within)) continue;
    const bool spare = !options.spare.empty() && name.starts_with(options.spare);
    wanted.push_back({name, target_of(store, name).shape, stored_name(store, name), !is_counter(name) && !spare});
  }
  return wanted;
}

std::string load_weights(const WeightsFile& file, ParamStore& store, const LoadOptions& options) {
  const std::vector<WantedTensor> wanted = wanted_tensors(store, options);
  CONVOY_CHECK(!wanted.empty(), "{}: the network has no tensors in {}, so there is nothing to load",
               file.path().string(), options.within);
  const WeightMatch match = match_weights(file, wanted);
  const std::string table = match_table(match, file, wanted);
  const auto refuse = [&](const std::string& why) {
    const std::string advice = options.advice ? options.advice(match) : "";
    fail("{}{}{}\n{}", why, advice.empty() ? "" : "\n", advice, table);
  };

  std::set<std::string> absent;
  for (const WantedTensor& tensor : wanted)
    if (tensor.counted) absent.insert(tensor.stored);
  for (const WeightMatch::Pair& pair : match.matched) absent.erase(wanted[pair.wanted].stored);
  const MatchCount count = count_matched(match, wanted);
  const auto has_share = [&](double share) {
    return count.found > 0 && static_cast<double>(count.found) >= share * static_cast<double>(count.all);
  };
  // A file that has most of the tensors is of this network: that it lacks some is said in other words.
  const double least = options.whole ? std::min(options.least_share, LoadOptions().least_share) : options.least_share;
  if (!has_share(least))
    refuse(fmt::format("too few weights match: {} of {} tensors, fewer than {:.0f} %; is it a file of this network?",
                       count.found, count.all, 100 * least));
  if (!has_share(options.least_share) || (options.whole && !std::all_of(absent.begin(), absent.end(), is_auxiliary)))
    refuse(
        fmt::format("the weights do not fit the configured network: {} of {} tensors match", count.found, count.all));
  copy_matched(file, store, wanted, match);
  return table;
}

}  // namespace convoy
