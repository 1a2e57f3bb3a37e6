#include "engine/param_store.h"

#include "engine/rng.h"

namespace convoy {

namespace {
constexpr int64_t kAlignFloats = 16;  // every parameter starts on a cache line
}

void ParamStore::claim(const std::string& name) {
  CONVOY_CHECK(!allocated(), "'{}' was registered after the parameter store was allocated", name);
  CONVOY_CHECK(!parameter_index_.contains(name) && !buffer_index_.contains(name) && !aliases_.contains(name),
               "two parameters or buffers are named '{}'", name);
  state_order_.push_back(name);
}

int64_t ParamStore::add_parameter(const std::string& name, const Shape& shape, const Initializer& initializer) {
  claim(name);
  const auto index = static_cast<int64_t>(parameters_.size());
  parameters_.push_back({.name = name, .shape = shape, .initializer = initializer, .offset = total_});
  parameter_index_[name] = index;
  total_ += (shape.count() + kAlignFloats - 1) / kAlignFloats * kAlignFloats;
  return index;
}

int64_t ParamStore::add_buffer(const std::string& name, const Tensor& initial) {
  claim(name);
  const auto index = static_cast<int64_t>(buffers_.size());
  buffers_.push_back({name, initial});
  buffer_index_[name] = index;
  return index;
}

void ParamStore::add_alias(const std::string& name, const std::string& of) {
  claim(name);
  CONVOY_CHECK(parameter_index_.contains(of) || buffer_index_.contains(of),
               "'{}' is to be another name of '{}', which does not exist", name, of);
  aliases_[name] = of;
}

void ParamStore::allocate() {
  CONVOY_CHECK(!allocated(), "the parameter store was allocated twice");
  values_ = Tensor::zeros(DType::kF32, {total_});
}

void ParamStore::initialize(uint64_t seed) {
  for (const Parameter& p : parameters_) {
    RandomStream random(seed, "initialise " + p.name, 0);
    float* value = values().f32() + p.offset;
    for (int64_t i = 0; i < p.shape.count(); ++i) switch (p.initializer.kind) {
        case Initializer::Kind::kConstant:
          value[i] = static_cast<float>(p.initializer.a);
          break;
        case Initializer::Kind::kUniform:
          value[i] = static_cast<float>(p.initializer.mean + random.uniform(-p.initializer.a, p.initializer.a));
          break;
        case Initializer::Kind::kNormal:
          value[i] = static_cast<float>(p.initializer.mean + p.initializer.a * random.normal());
          break;
      }
  }
}

void ParamStore::require_gradients(Communicator* communicator) {
  if (gradients_.defined()) return;
  gradients_ = communicator ? Tensor::on(communicator->exchange_memory(static_cast<size_t>(total_) * sizeof(float)),
                                         DType::kF32, {total_})
                            : Tensor::zeros(DType::kF32, {total_});
}

void ParamStore::require_optimizer_states(const std::vector<std::string>& names) {
  if (optimizer_states_.empty())
    for (const std::string& name : names) optimizer_states_.push_back({name, Tensor::zeros(DType::kF32, {total_})});
  std::vector<std::string> here;
  for (const OptimizerState& state : optimizer_states_) here.push_back(state.name);
  CONVOY_CHECK(here == names,
               "an optimizer with the states {} was asked for, the parameter store has those of another: {}",
               fmt::join(names, ", "), fmt::join(here, ", "));
}

struct ParamStore::OnDevice {
  Device& device;
  DeviceArrays arrays;
  std::shared_ptr<Storage> values, gradients;
  std::vector<std::shared_ptr<Storage>> optimizer_states, buffers;

  /// Memory for an array that the host has and the device has not.
  float* reserve(std::shared_ptr<Storage>& storage, const Tensor& array) {
    if (!storage && array.defined()) storage = device.memory()->allocate(array.storage()->bytes);
    return storage ? static_cast<float*>(storage->data) : nullptr;
  }
  static size_t bytes_of(const Tensor& t) { return static_cast<size_t>(t.shape().count()) * dtype_size(t.dtype()); }
};

const DeviceArrays& ParamStore::on_device(Device& device) {
  if (!on_device_) on_device_ = std::make_shared<OnDevice>(OnDevice{.device = device});
  OnDevice& there = *on_device_;
  CONVOY_CHECK(&there.device == &device, "a parameter store belongs to one device; it was used on another one before");
  DeviceArrays& arrays = there.arrays;
  const auto bring = [&](std::shared_ptr<Storage>& storage, float*& place, const Tensor& array) {
    const bool is_new = array.defined() && !storage;
    place = there.reserve(storage, array);
    if (place && (is_new || !device_is_newer_)) device.upload(place, array.f32(), OnDevice::bytes_of(array));
  };
  if (!device_is_newer_) ++transfers_;
  bring(there.values, arrays.values, values_);
  bring(there.gradients, arrays.gradients, gradients_);
  there.optimizer_states.resize(optimizer_states_.size());
  arrays.optimizer_states.resize(optimizer_states_.size());
  for (size_t k = 0; k < optimizer_states_.size(); ++k)
    bring(there.optimizer_states[k], arrays.optimizer_states[k], optimizer_states_[k].values);
  for (size_t b = there.buffers.size(); b < buffers_.size(); ++b) {
    there.buffers.push_back(device.memory()->allocate(OnDevice::bytes_of(buffers_[b].value)));
    arrays.buffers.push_back(there.buffers[b]->data);
  }
  if (!device_is_newer_)
    for (size_t b = 0; b < buffers_.size(); ++b)
      device.upload(arrays.buffers[b], buffers_[b].value.view().data, OnDevice::bytes_of(buffers_[b].value));
  device_is_newer_ = true;
  return arrays;
}

Device* ParamStore::newer_device() const {
  return device_is_newer_ ? &on_device_->device : nullptr;
}

void ParamStore::to_host() const {
  if (!device_is_newer_) return;
  device_is_newer_ = false;
  ++transfers_;
  OnDevice& there = *on_device_;
  const auto fetch = [&](const std::shared_ptr<Storage>& storage, const Tensor& array) {
    if (storage) there.device.download(array.f32(), storage->data, OnDevice::bytes_of(array));
  };
  fetch(there.values, values_);
  fetch(there.gradients, gradients_);
  for (size_t k = 0; k < there.optimizer_states.size(); ++k)
    fetch(there.optimizer_states[k], optimizer_states_[k].values);
  for (size_t b = 0; b < there.buffers.size(); ++b)
    there.device.download(buffers_[b].value.view().data, there.buffers[b]->data, OnDevice::bytes_of(buffers_[b].value));
}

int64_t ParamStore::find_parameter(const std::string& name) const {
  const auto it = parameter_index_.find(name);
  return it == parameter_index_.end() ? -1 : it->second;
}

int64_t ParamStore::find_buffer(const std::string& name) const {
  const auto it = buffer_index_.find(name);
  return it == buffer_index_.end() ? -1 : it->second;
}

}  // namespace convoy
