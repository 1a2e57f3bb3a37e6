#include "engine/optimizer.h"

#include <algorithm>
#include <map>

#include "engine/op.h"

namespace convoy {

namespace {

constexpr int64_t kDevicePiece = 2048;  // elements that one block of a device updates

/// Names by which states are stored in checkpoints: PyTorch's, but for the momentum of SGD and RMSprop.
std::vector<std::string> state_names(const Optimizer::Options& options) {
  switch (options.kind) {
    case UpdateKind::kSgd:
      return {"momentum"};
    case UpdateKind::kAdam:
    case UpdateKind::kAdamW:
      return {"exp_avg", "exp_avg_sq"};
    case UpdateKind::kRmsprop:
      return options.momentum == 0 ? std::vector<std::string>{"square_avg"}
                                   : std::vector<std::string>{"square_avg", "momentum"};
    case UpdateKind::kAdadelta:
      return {"square_avg", "acc_delta"};
  }
  return {};
}

}  // namespace

/// What the optimizer keeps on a device.
struct Optimizer::OnDevice {
  int64_t run_count;
  std::shared_ptr<Storage> runs, sum, workspace, factor;
};

UpdateKind update_kind(const std::string& name) {
  static const std::map<std::string, UpdateKind> kinds = {{"sgd", UpdateKind::kSgd},
                                                          {"adam", UpdateKind::kAdam},
                                                          {"adamw", UpdateKind::kAdamW},
                                                          {"rmsprop", UpdateKind::kRmsprop},
                                                          {"adadelta", UpdateKind::kAdadelta}};
  const auto found = kinds.find(name);
  CONVOY_CHECK(found != kinds.end(), "'{}' is no optimizer: sgd, adam, adamw, rmsprop, adadelta", name);
  return found->second;
}

Optimizer::Optimizer(ParamStore& parameters, std::vector<OptimizerGroup> groups, const Options& options)
    : parameters_(parameters), groups_(std::move(groups)), options_(options) {
  CONVOY_CHECK(!groups_.empty(), "the optimizer needs at least one group");
  for (const Parameter& p : parameters_.parameters())
    CONVOY_CHECK(p.group >= 0 && p.group < static_cast<int>(groups_.size()),
                 "parameter '{}' is in group {}, the optimizer has {}", p.name, p.group, groups_.size());
  parameters_.require_optimizer_states(state_names(options_));
}

Optimizer::~Optimizer() = default;

void Optimizer::find_runs() {
  const auto& all = parameters_.parameters();
  int last_group = -1;
  for (size_t i = 0; i < all.size(); ++i) {
    if (!all[i].has_gradient) continue;
    const int64_t end = i + 1 < all.size() ? all[i + 1].offset : parameters_.total();
    if (!runs_.empty() && last_group == all[i].group && runs_.back().offset + runs_.back().count == all[i].offset) {
      runs_.back().count = end - runs_.back().offset;
    } else {
      const OptimizerGroup& group = groups_[static_cast<size_t>(all[i].group)];
      runs_.push_back({all[i].offset, end - all[i].offset, group.lr_factor, group.weight_decay});
    }
    last_group = all[i].group;
  }
}

void Optimizer::step(double lr) {
  parameters_.require_gradients();
  if (runs_.empty()) find_runs();
  const UpdateRule rule{.kind = options_.kind,
                        .lr = lr,
                        .momentum = options_.momentum,
                        .nesterov = options_.nesterov,
                        .beta1 = options_.beta1,
                        .beta2 = options_.beta2,
                        .alpha = options_.alpha,
                        .eps = options_.eps,
                        .step = steps_taken_ + 1};
  if (Device* device = parameters_.newer_device()) {
    step_on_device(*device, rule);
  } else {
    UpdateArrays arrays{.values = parameters_.values().f32(), .gradients = parameters_.gradients().f32()};
    for (size_t k = 0; k < parameters_.optimizer_states().size(); ++k)
      arrays.states[k] = parameters_.optimizer_states()[k].values.f32();
    float factor = 1;
    if (options_.max_norm > 0) {
      const double sum = CONVOY_CPU(sum_of_squares, arrays.gradients, parameters_.total());
      CONVOY_CPU(gradient_factor, &sum, 1, static_cast<float>(options_.max_norm), &factor);
    }
    CONVOY_CPU(update_parameters, arrays, runs_.data(), static_cast<int64_t>(runs_.size()), rule,
               options_.max_norm > 0 ? &factor : nullptr);
  }
  ++steps_taken_;
}

void Optimizer::step_on_device(Device& device, const UpdateRule& rule) {
  if (!on_device_) {
    std::vector<UpdateRun> pieces;
    for (const UpdateRun& run : runs_)
      for (int64_t done = 0; done < run.count; done += kDevicePiece) {
        UpdateRun piece = run;
        piece.offset += done;
        piece.count = std::min(kDevicePiece, run.count - done);
        pieces.push_back(piece);
      }
    on_device_ = std::make_unique<OnDevice>();
    on_device_->run_count = static_cast<int64_t>(pieces.size());
    on_device_->runs = device.memory()->allocate(pieces.size() * sizeof(UpdateRun));
    device.upload(on_device_->runs->data, pieces.data(), pieces.size() * sizeof(UpdateRun));
    if (options_.max_norm > 0) {
      on_device_->sum = device.memory()->allocate(sizeof(double));
      on_device_->workspace = device.memory()->allocate(kReductionParts * sizeof(double));
      on_device_->factor = device.memory()->allocate(sizeof(float));
    }
  }
  const DeviceArrays& there = parameters_.on_device(device);
  UpdateArrays arrays{.values = there.values, .gradients = there.gradients};
  for (size_t k = 0; k < there.optimizer_states.size(); ++k) arrays.states[k] = there.optimizer_states[k];
  const struct { cudaStream_t stream; } on{device.compute()};
  float* factor = nullptr;
  if (options_.max_norm > 0) {
    auto* sum = static_cast<double*>(on_device_->sum->data);
    factor = static_cast<float*>(on_device_->factor->data);
    CONVOY_CUDA(on, sum_of_squares, arrays.gradients, parameters_.total(), sum,
                static_cast<double*>(on_device_->workspace->data));
    CONVOY_CUDA(on, gradient_factor, sum, 1, static_cast<float>(options_.max_norm), factor);
  }
  CONVOY_CUDA(on, update_parameters, arrays, static_cast<const UpdateRun*>(on_device_->runs->data),
              on_device_->run_count, rule, factor);
}

}  // namespace convoy
