// Parameters, their gradients and optimizer state, and the buffers beside them.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "engine/communicator.h"
#include "engine/device.h"
#include "engine/tensor.h"

namespace convoy {

/// How a parameter starts: the value of every element is drawn by (seed, name) alone.
struct Initializer {
  enum class Kind : uint8_t { kConstant, kUniform, kNormal };
  Kind kind = Kind::kConstant;
  double a = 0;     ///< constant: the value; uniform: the bound (mean-a..mean+a); normal: the standard deviation
  double mean = 0;  ///< of uniform and normal
};

/// A trained tensor. Names equal the PyTorch state_dict keys of the reference networks.
struct Parameter {
  std::string name;
  Shape shape;
  Initializer initializer;
  int group = 0;              ///< index into the optimizer's groups
  int64_t offset = 0;         ///< floats into the flat arrays of values, gradients and optimizer states
  bool has_gradient = false;  ///< set by Graph::differentiate; without one the optimizer skips it, decay included
};

/// State that is written but not trained: running statistics (f32) and num_batches_tracked (i64).
struct Buffer {
  std::string name;
  Tensor value;
};

/// A flat array that an optimizer keeps beside the values, as "momentum" or "exp_avg".
struct OptimizerState {
  std::string name;
  Tensor values;
};

/// Where the arrays of a ParamStore lie on a device.
struct DeviceArrays {
  float* values = nullptr;
  float* gradients = nullptr;            ///< null while there are none
  std::vector<float*> optimizer_states;  ///< in the order of ParamStore::optimizer_states()
  std::vector<void*> buffers;            ///< in the order of ParamStore::buffers()
};

/// Flat fp32 master weights, gradients and optimizer states of all parameters in order of registration (canonical
/// OIHW).
///
/// With a device (on_device) every array is there twice, and one side is the newer one. Everything below that gives
/// values gives the host's, and copies them from the device first where that is newer; on_device goes the other way.
/// A training step that stays on the device makes no copies: transfers() counts them.
class ParamStore {
 public:
  /// Registers a parameter or buffer. Throws Error when the name is taken. Not after allocate().
  int64_t add_parameter(const std::string& name, const Shape& shape, const Initializer& initializer = {});
  int64_t add_buffer(const std::string& name, const Tensor& initial);
  /// A second name for a parameter's storage: kept on export, checked on load.
  void add_alias(const std::string& name, const std::string& of);
  /// Fixes the flat arrays; called once all modules exist. Values start at zero.
  void allocate();
  /// Draws every parameter anew by its initializer; running statistics are left alone.
  void initialize(uint64_t seed);
  bool allocated() const { return values_.defined(); }

  const std::vector<Parameter>& parameters() const { return parameters_; }
  std::vector<Parameter>& parameters() { return parameters_; }
  const std::vector<Buffer>& buffers() const { return to_host(), buffers_; }
  std::vector<Buffer>& buffers() { return to_host(), buffers_; }
  const std::map<std::string, std::string>& aliases() const { return aliases_; }
  /// Index of a name, -1 when there is none.
  int64_t find_parameter(const std::string& name) const;
  int64_t find_buffer(const std::string& name) const;
  /// Order in which parameters, buffers and aliases were registered: the order of the state_dict.
  const std::vector<std::string>& state_order() const { return state_order_; }

  float* value(int64_t parameter) const { return to_host(), values_.f32() + offset(parameter); }
  float* gradient(int64_t parameter) const { return to_host(), gradients_.f32() + offset(parameter); }
  float* optimizer_state(size_t state, int64_t parameter) const {
    return to_host(), optimizer_states_[state].values.f32() + offset(parameter);
  }
  /// The flat arrays; `total()` floats each.
  Tensor& values() { return to_host(), values_; }
  Tensor& gradients() { return to_host(), gradients_; }
  const std::vector<OptimizerState>& optimizer_states() const { return to_host(), optimizer_states_; }
  int64_t total() const { return total_; }
  /// Gradients and states are made on demand, so that inference holds weights alone. With a communicator gradients
  /// lie where it can sum them (collective then).
  void require_gradients(Communicator* communicator = nullptr);
  /// States of these names, zeros. Throws Error where the store has others.
  void require_optimizer_states(const std::vector<std::string>& names);

  /// The arrays on the device, which is the newer side from now on. The store must not outlive the device.
  const DeviceArrays& on_device(Device& device);
  /// The device whose side is the newer one; null where the host's is.
  Device* newer_device() const;
  /// Copies of all arrays from one side to the other, so far.
  int64_t transfers() const { return transfers_; }
  /// Host memory of the gradients as it is: between ranks it is where the communicator sums, and a device's gradients
  /// pass through it.
  float* gradient_memory(int64_t parameter) const { return gradients_.f32() + offset(parameter); }

 private:
  struct OnDevice;
  void claim(const std::string& name);
  int64_t offset(int64_t parameter) const { return parameters_[static_cast<size_t>(parameter)].offset; }
  void to_host() const;

  std::vector<Parameter> parameters_;
  std::vector<Buffer> buffers_;
  std::map<std::string, int64_t> parameter_index_, buffer_index_;
  std::map<std::string, std::string> aliases_;
  std::vector<std::string> state_order_;
  Tensor values_, gradients_;
  std::vector<OptimizerState> optimizer_states_;
  int64_t total_ = 0;
  std::shared_ptr<OnDevice> on_device_;
  mutable bool device_is_newer_ = false;
  mutable int64_t transfers_ = 0;
};

}  // namespace convoy
