#include "apps/step_benchmark.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>

#include "apps/progress.h"
#include "engine/optimizer.h"
#include "engine/rng.h"
#include "engine/session.h"
#include "kernels/isa.h"
#include "nets/network.h"

namespace convoy {

namespace {

using nlohmann::json;

/// bench/torch_peer/step.py --server at the other end of two pipes: a command per line, a JSON object per answer.
class PeerProcess {
 public:
  PeerProcess(const StepBenchmarkOptions& o, const std::string& format) : format_(format) {
    const std::string net = o.net == "FastSCNN" ? "fast_scnn" : "bisenet";
    std::vector<std::string> arguments{o.torch_python, o.peer_script,
                                       "--net",        net,
                                       "--size",       fmt::format("{}x{}", o.height, o.width),
                                       "--batch",      std::to_string(o.batch),
                                       "--threads",    std::to_string(o.threads),
                                       "--format",     format,
                                       "--server"};
    if (o.aux && net == "bisenet") arguments.emplace_back("--aux");
    std::signal(SIGPIPE, SIG_IGN);  // a peer that ends is noticed by its missing answer
    int to_peer[2], from_peer[2];   // closed on exec, or a second peer would keep the first one's input open
    CONVOY_CHECK(pipe2(to_peer, O_CLOEXEC) == 0 && pipe2(from_peer, O_CLOEXEC) == 0,
                 "no pipe could be made for the PyTorch peer");
    pid_ = fork();
    CONVOY_CHECK(pid_ >= 0, "the PyTorch peer could not be started");
    if (pid_ == 0) {
      dup2(to_peer[0], STDIN_FILENO);
      dup2(from_peer[1], STDOUT_FILENO);
      for (const int fd : {to_peer[0], to_peer[1], from_peer[0], from_peer[1]}) close(fd);
      std::vector<char*> argv;
      for (std::string& a : arguments) argv.push_back(a.data());
      argv.push_back(nullptr);
      execv(argv[0], argv.data());
      _exit(127);
    }
    close(to_peer[0]);
    close(from_peer[1]);
    in_ = fdopen(to_peer[1], "w");
    out_ = fdopen(from_peer[0], "r");
    announcement_ = read_answer("its announcement");
    ask("warmup");
  }
  ~PeerProcess() {
    std::fclose(in_);  // the end of its input ends it
    std::fclose(out_);
    waitpid(pid_, nullptr, 0);
  }
  PeerProcess(const PeerProcess&) = delete;
  PeerProcess& operator=(const PeerProcess&) = delete;

  json ask(const std::string& command) {
    std::fprintf(in_, "%s\n", command.c_str());
    std::fflush(in_);
    return read_answer(command);
  }
  const json& announcement() const { return announcement_; }
  const std::string& format() const { return format_; }

 private:
  json read_answer(const std::string& what) {
    std::string line;
    for (int c = std::fgetc(out_); c != EOF && c != '\n'; c = std::fgetc(out_)) line.push_back(static_cast<char>(c));
    CONVOY_CHECK(!line.empty(),
                 "the PyTorch peer ended instead of answering '{}'; run bench/torch_peer/step.py by hand to see why",
                 what);
    json answer = json::parse(line, nullptr, false);
    CONVOY_CHECK(answer.is_object(), "the PyTorch peer answered '{}' with '{}', which is no JSON object", what,
                 line.substr(0, 200));
    return answer;
  }

  std::string format_;
  pid_t pid_ = -1;
  std::FILE *in_ = nullptr, *out_ = nullptr;
  json announcement_;
};

NetworkOptions network_options(const StepBenchmarkOptions& o) {
  return {.name = o.net, .backbone = o.backbone, .classes = o.classes, .aux = o.aux};
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
  std::unique_ptr<SgdOptimizer> optimizer;
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
  CONVOY_CHECK(p.network->accepts_extent(o.height) && p.network->accepts_extent(o.width),
               "{} takes no images of {}x{}; the next size that fits is {}x{}", o.net, o.height, o.width,
               fitting_extent(*p.network, o.height), fitting_extent(*p.network, o.width));
  if (global_images > 0) p.graph.set_global_batch({.images = global_images});
  const Value image = p.graph.input("image", DType::kF32, {o.batch, 3, o.height, o.width});
  const Value target = p.graph.input("target", DType::kI32, {o.batch, o.height, o.width});
  Builder builder{p.graph, Mode::kTrain};
  const Value loss = mixed_softmax_cross_entropy(p.network->forward(builder, image), target, {.aux = o.aux});
  p.graph.differentiate(loss);
  p.session = std::make_unique<Session>(p.graph, sum_over_lanes({loss}), Lanes{.images = o.batch});
  p.session->bind("image", p.images.data());
  p.session->bind("target", p.labels.data());
  p.optimizer = std::make_unique<SgdOptimizer>(
      p.store, std::vector<OptimizerGroup>{{.name = "all", .weight_decay = 1e-4}}, SgdOptimizer::Options{});
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
  std::vector<std::unique_ptr<PeerProcess>> peers;
  if (!options.torch_python.empty())
    for (const char* format : {"nchw", "channels_last"})
      peers.push_back(std::make_unique<PeerProcess>(options, format));

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
    result[peers[k]->format()] = {{"seconds", peer_seconds[k]},
                                  {"median_seconds", median(peer_seconds[k])},
                                  {"ratio_to_ours", median(ratios[k])},
                                  {"peak_bytes", peers[k]->ask("memory").at("memory_bytes")}};
  }
  return result;
}

}  // namespace convoy
