// The time and memory of whole training steps, here and in PyTorch, taken in turns.
#pragma once
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/context.h"

namespace convoy {

class Plan;

struct StepBenchmarkOptions {
  std::string net = "BiSeNet";  ///< a name of the registry
  std::string backbone = "resnet18";
  int64_t height = 256, width = 512, batch = 2, classes = 19;
  bool aux = false;
  int threads = 2;
  bool direct_conv = false;
  size_t bucket_bytes = ContextOptions{}.bucket_bytes;
  int warmup = 3;
  int pairs = 7;
  std::string torch_python;    ///< Python with PyTorch; empty: only our own steps
  std::string peer_script;     ///< bench/torch_peer/step.py
  bool peer_compiled = false;  ///< by torch.compile
  double peer_timeout = 600;   ///< seconds that an answer of the peer may take
};

/// One network on random data: forward, mixed softmax cross entropy, backward, SGD (momentum 0.9, decay 1e-4).
class BenchmarkStep {
 public:
  explicit BenchmarkStep(const StepBenchmarkOptions& options);
  /// A rank's part of a step whose global batch has `global_images`, with sync-BN; options.batch of them are this
  /// rank's. Collective.
  BenchmarkStep(const StepBenchmarkOptions& options, int64_t global_images, std::shared_ptr<Communicator> communicator);
  ~BenchmarkStep();
  /// Runs one step and returns its seconds.
  double run();
  float loss() const;
  Context& context();
  /// Bytes of the plan's arena, and of parameters, gradients and velocities together.
  const Plan& plan() const;
  size_t arena_bytes() const;
  size_t parameter_bytes() const;

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

double median(std::vector<double> values);

/// Our steps and those of the same network as export_torch writes it (in both of PyTorch's memory formats) in turns,
/// round by round. The result holds every time, the
/// medians, the ratio peer / ours of each round and its median, and the peak memory of each side minus its value after
/// start-up. Throws Error when the peer cannot be started, ends, or
/// does not answer in time.
nlohmann::json run_step_benchmark(const StepBenchmarkOptions& options);

}  // namespace convoy
