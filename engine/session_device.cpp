#include "engine/session_device.h"

#include <algorithm>
#include <cstring>
#include <exception>

#include "engine/context.h"
#include "engine/schedule.h"
#include "kernels/reorder.h"

namespace convoy {

GiveUpOnError::~GiveUpOnError() {
  if (ranks_ && std::uncaught_exceptions() > before_) ranks_->abort();
}

namespace {
constexpr size_t kAlignment = 256;
constexpr unsigned char kNoFaultByte = 0x7f;
constexpr int64_t kNoFault = 0x7f7f7f7f7f7f7f7f;  // above every position

size_t aligned(size_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}
}  // namespace

SessionDevice::SessionDevice(Device& device, Graph& graph, const Schedule& schedule, const Plan& plan, int lanes)
    : device_(device), store_(graph.parameters()), plan_(plan), lanes_(lanes) {
  size_t input_bytes = 0, constant_bytes = 0;
  std::vector<std::pair<size_t, const Tensor*>> constants;  // offset and value, by leaf
  for (const PlanLeaf& leaf : plan.leaves) {
    const PlanValue& value = plan.values[static_cast<size_t>(leaf.value)];
    const size_t bytes = dense_bytes(value.geometry);
    inputs_.push_back({.name = leaf.name, .bytes = 0, .offset = input_bytes, .shared = value.shared});
    constants.emplace_back(constant_bytes, nullptr);
    if (leaf.kind == PlanLeaf::Kind::kInput) {
      inputs_.back().bytes = bytes;
      input_bytes += aligned(bytes * static_cast<size_t>(value.shared ? 1 : lanes));
    } else if (leaf.kind == PlanLeaf::Kind::kConstant) {
      constants.back().second = &graph.node(schedule.nodes[static_cast<size_t>(leaf.schedule_index)])
                                     .computed[static_cast<size_t>(leaf.output)];
      constant_bytes += aligned(bytes);
    }
  }
  if (input_bytes > 0) {
    DeviceRuntime& runtime = device.runtime();
    input_memory_ = device.memory()->allocate(input_bytes);
    staging_ = {runtime.allocate_pinned(input_bytes), [&runtime](void* p) { runtime.free_pinned(p); }};
    CONVOY_CHECK(staging_, "out of pinned host memory: {} bytes were asked for", input_bytes);
    inputs_there_ = {runtime.create_event(), [&runtime](cudaEvent_t event) { runtime.destroy_event(event); }};
  }
  if (constant_bytes > 0) constant_memory_ = device.memory()->allocate(constant_bytes);
  for (const auto& [offset, value] : constants) {
    constants_.push_back(value ? static_cast<char*>(constant_memory_->data) + offset : nullptr);
    if (!value) continue;
    const Tensor plain = value->plain();
    device.upload(constants_.back(), plain.view().data,
                  static_cast<size_t>(plain.shape().count()) * dtype_size(plain.dtype()));
  }
  const bool exchanges = std::any_of(plan.launches.begin(), plan.launches.end(),
                                     [](const Launch& launch) { return launch.kind != Launch::Kind::kKernel; });
  // Exact sums are the host's work.
  if (exchanges && !graph.context().options().exact_ranks) ranks_ = graph.context().device_communicator();
  for (const Launch& launch : plan.launches)
    if (ranks_ && launch.kind == Launch::Kind::kExchange)
      message_floats_ = std::max(message_floats_, Plan::message_floats(launch));
  if (message_floats_ > 0)
    messages_ = device.memory()->allocate((1 + static_cast<size_t>(ranks_->size())) * message_floats_ * sizeof(float));
  for (const Launch& launch : plan.launches) fault_slot_.push_back(launch.kernel.explain ? fault_slots_++ : -1);
  faults_.resize(static_cast<size_t>(fault_slots_) * static_cast<size_t>(std::max(lanes, 1)));
  if (fault_slots_ > 0) fault_memory_ = device.memory()->allocate(faults_.size() * sizeof(int64_t));
}

void SessionDevice::begin(const std::map<std::string, const void*>& inputs) {
  DeviceRuntime& runtime = device_.runtime();
  arrays_ = &store_.on_device(device_);
  if (fault_memory_)
    runtime.fill(fault_memory_->data, kNoFaultByte, faults_.size() * sizeof(int64_t), device_.compute());
  if (!input_memory_) return;
  // The last step has ended, so nothing reads the staging memory or the inputs any more.
  for (const Input& input : inputs_) {
    const size_t bytes = input.bytes * static_cast<size_t>(input.shared ? 1 : lanes_);
    if (bytes == 0) continue;
    const auto it = inputs.find(input.name);
    CONVOY_CHECK(it != inputs.end(), "graph input '{}' was not bound", input.name);
    char* pinned = static_cast<char*>(staging_.get()) + input.offset;
    std::memcpy(pinned, it->second, bytes);
    runtime.copy(static_cast<char*>(input_memory_->data) + input.offset, pinned, bytes, device_.copies());
  }
  runtime.record(inputs_there_.get(), device_.copies());
  runtime.wait(device_.compute(), inputs_there_.get());
}

void SessionDevice::end(const std::string& step,
                        const std::function<std::span<const View>(size_t launch, int lane)>& in,
                        const std::function<std::string(const Launch&)>& name) {
  if (ranks_) ranks_->synchronize(device_.compute(), step);
  if (!fault_memory_) return device_.synchronize();
  device_.download(faults_.data(), fault_memory_->data, faults_.size() * sizeof(int64_t));
  device_.synchronize();
  for (size_t l = 0; l < fault_slot_.size(); ++l) {
    if (fault_slot_[l] < 0) continue;
    for (int lane = 0; lane < lanes_; ++lane) {
      const int64_t position =
          faults_[static_cast<size_t>(lane) * static_cast<size_t>(fault_slots_) + static_cast<size_t>(fault_slot_[l])];
      if (position == kNoFault) continue;
      std::vector<HostCopy> copies;
      std::vector<View> views;
      for (const View& view : in(l, lane)) copies.push_back(device_.download(view));
      for (const HostCopy& copy : copies) views.push_back(copy.view);
      const Launch& launch = plan_.launches[l];
      try {
        launch.kernel.explain(views, position);
      } catch (const std::exception& e) {
        fail("{} ({}): {}", name(launch), launch.op, e.what());
      }
      fail("{} ({}): found its data wrong at position {}", name(launch), launch.op, position);
    }
  }
}

void* SessionDevice::leaf(const PlanLeaf& leaf, int lane) const {
  const auto index = static_cast<size_t>(&leaf - plan_.leaves.data());
  switch (leaf.kind) {
    case PlanLeaf::Kind::kInput: {
      const Input& input = inputs_[index];
      if (lanes_ == 0 && !input.shared) return nullptr;
      return static_cast<char*>(input_memory_->data) + input.offset + static_cast<size_t>(lane) * input.bytes;
    }
    case PlanLeaf::Kind::kConstant:
      return constants_[index];
    case PlanLeaf::Kind::kParameter:
      return arrays_->values + store_.parameters()[static_cast<size_t>(leaf.slot)].offset;
    case PlanLeaf::Kind::kBuffer:
      return arrays_->buffers[static_cast<size_t>(leaf.slot)];
  }
  return nullptr;
}

int64_t* SessionDevice::fault(size_t launch, int lane) const {
  if (fault_slot_[launch] < 0) return nullptr;
  return static_cast<int64_t*>(fault_memory_->data) + lane * fault_slots_ + fault_slot_[launch];
}

void SessionDevice::exchange(const Launch& launch, std::span<const std::vector<View>> in, std::span<const View> out,
                             const std::string& name) {
  const OnStream on{device_.compute()};
  const size_t floats = Plan::message_floats(launch);
  float* message = static_cast<float*>(messages_->data);
  size_t at = 0, first = 0;
  for (const ExchangePart& part : launch.parts) {
    part.message.pack_on_device(on, in.subspan(first, part.inputs), message + at);
    at += part.message.floats;
    first += part.inputs;
  }
  const bool gathered = launch.parts[0].message.kind == Message::Kind::kGather;
  float* all = gathered ? message + message_floats_ : message;
  if (gathered)
    ranks_->all_gather(message, floats * sizeof(float), all, on.stream, name);
  else
    ranks_->all_reduce(message, floats, ReduceOp::kSum, on.stream, name);
  at = first = 0;
  for (const ExchangePart& part : launch.parts) {
    part.message.unpack_on_device(on, all + at, floats, gathered ? ranks_->size() : 1,
                                  out.subspan(first, part.outputs));
    at += part.message.floats;
    first += part.outputs;
  }
}

std::vector<std::span<float>> SessionDevice::on_device(const std::vector<std::span<float>>& segments) const {
  std::vector<std::span<float>> result;
  for (const std::span<float> segment : segments) result.emplace_back(on_device(segment.data()), segment.size());
  return result;
}

StagedExchange SessionDevice::stage(std::span<const std::vector<View>> in, std::span<const View> out) {
  StagedExchange staged;
  for (const std::vector<View>& lanes : in) {
    staged.in.emplace_back();
    for (const View& view : lanes) {
      staged.copies.push_back(device_.download(view));
      staged.in.back().push_back(staged.copies.back().view);
    }
  }
  for (const View& view : out) {
    HostCopy copy{.bytes = std::vector<char>(view.data ? dense_bytes(view) : 0), .view = view};
    copy.view.data = view.data ? copy.bytes.data() : nullptr;
    staged.out.push_back(copy.view);
    staged.copies.push_back(std::move(copy));
  }
  return staged;
}

void SessionDevice::send(const StagedExchange& exchange, std::span<const View> out) {
  for (size_t i = 0; i < out.size(); ++i)
    if (out[i].data) device_.upload(out[i].data, exchange.out[i].data, dense_bytes(out[i]));
}

void SessionDevice::fetch_gradients(const std::vector<std::span<float>>& segments) {
  for (const std::span<float> segment : segments)
    device_.download(segment.data(), on_device(segment.data()), segment.size_bytes());
}

void SessionDevice::send_gradients(const std::vector<std::span<float>>& segments) {
  for (const std::span<float> segment : segments)
    device_.upload(on_device(segment.data()), segment.data(), segment.size_bytes());
}

void SessionDevice::zero_gradients(const std::vector<std::span<float>>& segments) {
  for (const std::span<float> segment : segments)
    device_.runtime().fill(on_device(segment.data()), 0, segment.size_bytes(), device_.compute());
}

Tensor SessionDevice::fetch(const View& view, const TensorInfo& info) {
  Tensor result = Tensor::empty(info.dtype, info.shape);
  const HostCopy copy = device_.download(view);
  if (view.layout == Layout::kNchw)
    std::memcpy(result.view().data, copy.bytes.data(), copy.bytes.size());
  else
    CONVOY_CPU(reorder, copy.view, result.view());
  return result;
}

}  // namespace convoy
