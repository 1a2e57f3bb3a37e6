// Compares what two runs left behind (tests/ranks/test_exact.sh, tests/ranks/kill_and_resume.sh).
// usage: compare_runs equal REFERENCE RUN             newest checkpoints and metrics are the same, bit for bit
//        compare_runs first-step REFERENCE... RUN     losses and gradients of step 1, by the tolerances of one step
// All are run directories. Prints what was measured; exit code 1 with the reasons when it is too far apart.
#include <fmt/core.h>

#include <cmath>
#include <cstring>
#include <exception>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "engine/error.h"
#include "io/checkpoint.h"
#include "io/metrics_file.h"

using namespace convoy;
namespace fs = std::filesystem;

namespace {

constexpr char kMomentum[] = "optimizer.momentum.";

std::vector<nlohmann::ordered_json> metrics_of(const fs::path& run, bool evaluations) {
  int64_t damaged = 0;
  std::vector<nlohmann::ordered_json> chosen;
  for (const nlohmann::ordered_json& object : read_metrics(run / "metrics.jsonl", &damaged))
    if (object.value("eval", false) == evaluations) chosen.push_back(object);
  CONVOY_CHECK(damaged == 0, "{}: {} damaged lines of metrics", run.string(), damaged);
  return chosen;
}

/// Every step has one line with its loss: none is missing, none is there twice.
std::vector<double> losses_of(const fs::path& run) {
  std::vector<double> losses;
  for (const nlohmann::ordered_json& object : metrics_of(run, false)) {
    const auto step = object.at("step").get<size_t>();
    CONVOY_CHECK(step == losses.size() + 1, "{}: step {} follows step {} in the metrics", run.string(), step,
                 losses.size());
    losses.push_back(object.at("loss").get<double>());
  }
  CONVOY_CHECK(!losses.empty(), "{}: no step in the metrics", run.string());
  return losses;
}

/// Returns how many evaluations there are, all the same.
size_t compare_scores(const fs::path& a, const fs::path& b) {
  const auto of_a = metrics_of(a, true), of_b = metrics_of(b, true);
  CONVOY_CHECK(of_a.size() == of_b.size(), "{} evaluations in {}, {} in {}", of_a.size(), a.string(), of_b.size(),
               b.string());
  for (size_t i = 0; i < of_a.size(); ++i)
    CONVOY_CHECK(of_a[i] == of_b[i], "evaluation {} differs:\n{}\n{}", i, of_a[i].dump(), of_b[i].dump());
  return of_a.size();
}

std::map<std::string, const NamedTensor*> by_name(const LoadedCheckpoint& checkpoint) {
  std::map<std::string, const NamedTensor*> tensors;
  for (const NamedTensor& tensor : checkpoint.tensors) tensors[tensor.name] = &tensor;
  return tensors;
}

using Pair = std::function<void(const NamedTensor&, const NamedTensor&)>;

void for_each_pair(const LoadedCheckpoint& a, const LoadedCheckpoint& b, const Pair& use) {
  const auto of_a = by_name(a), of_b = by_name(b);
  CONVOY_CHECK(of_a.size() == of_b.size(), "{} has {} tensors, {} has {}", a.path.string(), of_a.size(),
               b.path.string(), of_b.size());
  for (const auto& [name, tensor] : of_a) {
    const auto other = of_b.find(name);
    CONVOY_CHECK(other != of_b.end(), "{} has no {}", b.path.string(), name);
    CONVOY_CHECK(tensor->dtype == other->second->dtype && tensor->shape == other->second->shape,
                 "{} has another shape or type", name);
    use(*tensor, *other->second);
  }
}

void compare_equal(const fs::path& a, const fs::path& b) {
  const LoadedCheckpoint of_a = load_checkpoint(a), of_b = load_checkpoint(b);
  CONVOY_CHECK(of_a.step == of_b.step, "{} is at step {}, {} at step {}", a.string(), of_a.step, b.string(), of_b.step);
  const std::vector<double> losses = losses_of(a), others = losses_of(b);
  CONVOY_CHECK(losses.size() == static_cast<size_t>(of_a.step), "{} has a checkpoint of step {}, metrics of {} steps",
               a.string(), of_a.step, losses.size());
  CONVOY_CHECK(losses.size() == others.size(), "{} has {} steps, {} has {}", a.string(), losses.size(), b.string(),
               others.size());
  for (size_t i = 0; i < losses.size(); ++i)
    CONVOY_CHECK(losses[i] == others[i], "the losses differ from step {} on: {} and {}", i + 1, losses[i], others[i]);
  size_t tensors = 0;
  for_each_pair(of_a, of_b, [&](const NamedTensor& x, const NamedTensor& y) {
    CONVOY_CHECK(std::memcmp(x.values(), y.values(), x.bytes()) == 0, "the losses agree, but {} differs", x.name);
    ++tensors;
  });
  for (const char* key : {"step", "samples_seen", "optimizer_steps", "evaluated_step", "best_miou"})
    CONVOY_CHECK(of_a.meta.at(key) == of_b.meta.at(key), "{} is {} and {}", key, of_a.meta.at(key).dump(),
                 of_b.meta.at(key).dump());
  fmt::print("{} tensors, {} losses and {} evaluations are the same, bit for bit\n", tensors, losses.size(),
             compare_scores(a, b));
}

/// How far the gradient of one run is from that of another.
struct GradientDistance {
  double cosine = 0;
  double worst = 0;  ///< largest distance of a parameter's gradient, as a share of what is allowed
  std::string parameter;
};

/// After one step without weight decay the momentum is the gradient.
GradientDistance gradient_distance(const fs::path& a, const fs::path& b) {
  struct Norms {
    std::string name;
    double l2, difference;
  };
  std::vector<Norms> parameters;
  double products = 0, squares = 0, other_squares = 0;
  const fs::path first = fs::path("checkpoints") / checkpoint_name(1);
  for_each_pair(load_checkpoint(a / first), load_checkpoint(b / first),
                [&](const NamedTensor& x, const NamedTensor& y) {
                  if (!x.name.starts_with(kMomentum)) return;
                  const auto *u = static_cast<const float*>(x.values()), *v = static_cast<const float*>(y.values());
                  double own = 0, difference = 0;
                  for (int64_t i = 0; i < x.count(); ++i) {
                    const double p = static_cast<double>(u[i]), q = static_cast<double>(v[i]);
                    own += p * p;
                    other_squares += q * q;
                    products += p * q;
                    difference += (p - q) * (p - q);
                  }
                  squares += own;
                  parameters.push_back({x.name.substr(std::strlen(kMomentum)), std::sqrt(own), std::sqrt(difference)});
                });
  CONVOY_CHECK(squares > 0, "{} has no gradients", a.string());
  const double l2 = std::sqrt(squares);
  GradientDistance result{.cosine = products / std::sqrt(squares * other_squares)};
  for (const Norms& parameter : parameters) {
    const double share = parameter.difference / (2e-2 * parameter.l2 + 1e-6 * l2);
    if (share > result.worst) result = {result.cosine, share, parameter.name};
  }
  return result;
}

/// Where an activation's input is zero but for rounding (most of all behind a global pooling, where one value stands
/// for an image), rounding chooses between two gradients that are far apart. So one rank gives several references that
/// differ by rounding alone, and the gradient has to be that of one of them. The loss has to be that of the first.
void compare_first_step(const std::vector<fs::path>& references, const fs::path& run) {
  const double wanted = losses_of(references[0])[0], loss = losses_of(run)[0];
  const double loss_error = std::fabs(loss - wanted) / wanted;
  GradientDistance nearest{.worst = HUGE_VAL};
  std::string reference;
  for (const fs::path& candidate : references)
    if (const GradientDistance distance = gradient_distance(candidate, run); distance.worst < nearest.worst) {
      nearest = distance;
      reference = candidate.filename().string();
    }
  fmt::print(
      "first step: loss {:.1e} apart; gradients: 1 - cosine {:.1e} to {}, the worst at {:.2g} of its limit: {}\n",
      loss_error, 1 - nearest.cosine, reference, nearest.worst, nearest.parameter);
  CONVOY_CHECK(loss_error <= 1e-6, "the losses {} and {} are too far apart", wanted, loss);
  CONVOY_CHECK(nearest.cosine > 0.999 && nearest.worst < 1, "the gradients are too far apart");
}

}  // namespace

int main(int argc, char** argv) {
  const std::string mode = argc < 4 ? "" : argv[1];
  if (mode != "first-step" && (mode != "equal" || argc != 4)) {
    fmt::print(stderr, "usage: compare_runs equal REFERENCE RUN | compare_runs first-step REFERENCE... RUN\n");
    return 2;
  }
  const fs::path run = argv[argc - 1];
  try {
    if (mode == "equal")
      compare_equal(argv[2], run);
    else
      compare_first_step({argv + 2, argv + argc - 1}, run);
  } catch (const std::exception& error) {
    fmt::print(stderr, "{} and {}: {}\n", argv[2], run.string(), error.what());
    return 1;
  }
}
