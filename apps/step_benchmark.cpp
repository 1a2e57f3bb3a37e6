#include "apps/step_benchmark.h"

#include <stdlib.h>

#include <algorithm>
#include <chrono>
#include <filesystem>

#include "apps/export_torch.h"
#include "apps/progress.h"
#include "apps/recipe.h"
#include "apps/torch_peer.h"
#include "engine/optimizer.h"
#include "engine/rng.h"
#include "engine/session.h"
#include "io/file.h"
#include "kernels/isa.h"
#include "nets/network.h"

namespace convoy {

namespace {

using nlohmann::json;

NetworkOptions network_options(const StepBenchmarkOptions& o) {
  return {.name = o.net, .backbone = o.backbone, .classes = o.classes, .aux = o.aux};
}

/// The network as a Python file, which goes away with this.
class PeerModule {
 public:
  explicit PeerModule(const StepBenchmarkOptions& o) {
    std::string pattern = (std::filesystem::temp_directory_path() / "convoy-peer-XXXXXX").string();
    CONVOY_CHECK(mkdtemp(pattern.data()), "no temporary folder '{}' could be made", pattern);
    folder_ = pattern;
    ParamStore store;
    const auto network = make_network(network_options(o), store);
    const auto loss = [&](const std::vector<NamedValue>& outputs, Value target) {
      return mixed_softmax_cross_entropy(outputs, target, {.aux = o.aux});
    };
    write_text_file(file(), export_torch({*network, store, o.net, o.classes, {o.height, o.width}}, loss));
  }
  ~PeerModule() {
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }
  PeerModule(const PeerModule&) = delete;
  PeerModule& operator=(const PeerModule&) = delete;

  std::string file() const { return folder_ / "net.py"; }

 private:
  std::filesystem::path folder_;
};

std::unique_ptr<TorchPeer> start_peer(const StepBenchmarkOptions& o, const std::string& module,
                                      const std::string& format) {
  std::vector<std::string> words{o.torch_python, o.peer_script,
                                 module,         "--server",
                                 "--size",       fmt::format("{}x{}", o.height, o.width),
                                 "--batch",      std::to_string(o.batch),
                                 "--threads",    std::to_string(o.threads),
                                 "--warmup",     std::to_string(std::max(o.warmup, 1)),
                                 "--format",     format};
  if (o.peer_compiled) words.emplace_back("--compile");
  auto peer = std::make_unique<TorchPeer>(words, o.peer_timeout);
  peer->ask("warmup");
  return peer;
}

}  // namespace

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t n = values.size();
  return n % 2 ? values[n / 2] : 0.5 * (values[n / 2 - 1] + values[n / 2]);
}

struct BenchmarkStep::Parts {
  Context context;
  ParamStore store;
  std::unique_ptr<Network> network;
  Graph graph;
  std::vector<float> images;
  std::vector<int32_t> labels;
  std::unique_ptr<Session> session;
  std::unique_ptr<Optimizer> optimizer;
  int64_t step = 0;

  Parts(const StepBenchmarkOptions& o, std::shared_ptr<Communicator> communicator)
      : context({.threads = o.threads, .direct_conv = o.direct_conv, .bucket_bytes = o.bucket_bytes},
                std::move(communicator)),
        network(make_network(network_options(o), store)),
        graph(context, store) {}
};

BenchmarkStep::BenchmarkStep(const StepBenchmarkOptions& o) : BenchmarkStep(o, 0, nullptr) {}

BenchmarkStep::BenchmarkStep(const StepBenchmarkOptions& o, int64_t global_images,
                             std::shared_ptr<Communicator> communicator)
    : parts_(std::make_unique<Parts>(o, std::move(communicator))) {
  Parts& p = *parts_;
  p.store.initialize(1);
  RandomStream random(1, "benchmark", 0);
  p.images.resize(static_cast<size_t>(o.batch * 3 * o.height * o.width));
  p.labels.resize(static_cast<size_t>(o.batch * o.height * o.width));
  for (float& x : p.images) x = 2 * random.uniform() - 1;
  for (int32_t& label : p.labels) label = static_cast<int32_t>(random.integer(0, o.classes - 1));
  require_fitting(*p.network, o.net, {o.height, o.width});
  if (global_images > 0) p.graph.set_global_batch({.images = global_images});
  const Value image = p.graph.input("image", DType::kF32, {o.batch, 3, o.height, o.width});
  const Value target = p.graph.input("target", DType::kI32, {o.batch, o.height, o.width});
  Builder builder{p.graph, Mode::kTrain};
  const Value loss = mixed_softmax_cross_entropy(p.network->forward(builder, image), target, {.aux = o.aux});
  p.graph.differentiate(loss);
  p.session = std::make_unique<Session>(p.graph, sum_over_lanes({loss}), Lanes{.images = o.batch});
  p.session->bind("image", p.images.data());
  p.session->bind("target", p.labels.data());
  p.optimizer = std::make_unique<Optimizer>(p.store, std::vector<OptimizerGroup>{{.name = "all", .weight_decay = 1e-4}},
                                            Optimizer::Options{});
}

BenchmarkStep::~BenchmarkStep() = default;

double BenchmarkStep::run() {
  const auto start = std::chrono::steady_clock::now();
  parts_->session->run({.seed = 1, .global_step = parts_->step++});
  parts_->optimizer->step(1e-3);
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

float BenchmarkStep::loss() const {
  return parts_->session->fetch(0).item();
}
Context& BenchmarkStep::context() {
  return parts_->context;
}
const Plan& BenchmarkStep::plan() const {
  return parts_->session->plan();
}
size_t BenchmarkStep::arena_bytes() const {
  return parts_->session->plan().arena_bytes;
}
size_t BenchmarkStep::parameter_bytes() const {
  return static_cast<size_t>(parts_->store.total()) * sizeof(float) * 3;
}

json run_step_benchmark(const StepBenchmarkOptions& options) {
  const int64_t startup = peak_memory_bytes();
  BenchmarkStep ours(options);
  for (int i = 0; i < options.warmup; ++i) ours.run();
  std::unique_ptr<PeerModule> module;
  std::vector<std::unique_ptr<TorchPeer>> peers;
  const std::vector<std::string> formats{"nchw", "channels_last"};
  if (!options.torch_python.empty()) {
    module = std::make_unique<PeerModule>(options);
    for (const std::string& format : formats) peers.push_back(start_peer(options, module->file(), format));
  }

  std::vector<double> our_seconds;
  std::vector<std::vector<double>> peer_seconds(peers.size()), ratios(peers.size());
  for (int i = 0; i < options.pairs; ++i) {
    our_seconds.push_back(ours.run());
    for (size_t k = 0; k < peers.size(); ++k) {
      peer_seconds[k].push_back(peers[k]->ask("step").at("seconds"));
      ratios[k].push_back(peer_seconds[k].back() / our_seconds.back());
    }
  }
  json result{{"net", options.net},
              {"input", fmt::format("{}x3x{}x{}", options.batch, options.height, options.width)},
              {"aux", options.aux},
              {"threads", options.threads},
              {"isa", cpu::isa_name()},
              {"ours",
               {{"seconds", our_seconds},
                {"median_seconds", median(our_seconds)},
                {"peak_bytes", peak_memory_bytes() - startup},
                {"arena_bytes", ours.arena_bytes()},
                {"parameter_bytes", ours.parameter_bytes()}}}};
  for (size_t k = 0; k < peers.size(); ++k) {
    result["peer"] = peers[k]->announcement();
    result[formats[k]] = {{"seconds", peer_seconds[k]},
                          {"median_seconds", median(peer_seconds[k])},
                          {"ratio_to_ours", median(ratios[k])},
                          {"peak_bytes", peers[k]->ask("memory").at("memory_bytes")}};
  }
  return result;
}

}  // namespace convoy
