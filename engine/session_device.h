// What a session keeps on a device, and what passes between host and device in a step.
#pragma once
#include <exception>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/device_communicator.h"
#include "engine/graph.h"
#include "engine/param_store.h"
#include "engine/plan.h"

namespace convoy {

/// Host copies of a collective's tensors, which work on host memory.
struct StagedExchange {
  std::vector<HostCopy> copies;       ///< own the memory of the views
  std::vector<std::vector<View>> in;  ///< by input and lane
  std::vector<View> out;
};

/// A rank that leaves a step by an exception must not wait for collectives that others will not come to: freeing memory
/// waits for the device.
class GiveUpOnError {
 public:
  explicit GiveUpOnError(DeviceCommunicator* ranks) : ranks_(ranks) {}
  ~GiveUpOnError();

 private:
  DeviceCommunicator* ranks_;
  int before_ = std::uncaught_exceptions();
};

class SessionDevice {
 public:
  /// `lanes` of a session; 0 on a rank without images.
  SessionDevice(Device& device, Graph& graph, const Schedule& schedule, const Plan& plan, int lanes);

  /// Before the launches of a step: the device's parameters are made the newer ones, `inputs` are copied. Throws Error
  /// when an input is missing.
  void begin(const std::map<std::string, const void*>& inputs);
  /// After them: waits, and throws what an operator has to say of its data. `in` gives a launch's inputs, `step` names
  /// what is waited for.
  void end(const std::string& step, const std::function<std::span<const View>(size_t launch, int lane)>& in,
           const std::function<std::string(const Launch&)>& name);

  Device& device() const { return device_; }
  /// Device memory of a leaf; null for an image input on a rank without images.
  void* leaf(const PlanLeaf& leaf, int lane) const;
  float* gradient(int64_t parameter) const {
    return arrays_->gradients + store_.parameters()[static_cast<size_t>(parameter)].offset;
  }
  /// KernelArgs::fault of a launch.
  int64_t* fault(size_t launch, int lane) const;

  /// The ranks, when the plan has exchanges and the device reaches them.
  DeviceCommunicator* ranks() const { return ranks_; }
  /// Packs, exchanges and unpacks on the compute stream. Only where ranks() is not null and the launch has messages.
  void exchange(const Launch& launch, std::span<const std::vector<View>> in, std::span<const View> out,
                const std::string& name);
  /// Those segments of the host's gradients as they lie on the device.
  std::vector<std::span<float>> on_device(const std::vector<std::span<float>>& segments) const;

  StagedExchange stage(std::span<const std::vector<View>> in, std::span<const View> out);
  void send(const StagedExchange& exchange, std::span<const View> out);
  /// Gradients by way of the host memory that the communicator sums in: `segments` lie there.
  void fetch_gradients(const std::vector<std::span<float>>& segments);
  void send_gradients(const std::vector<std::span<float>>& segments);
  void zero_gradients(const std::vector<std::span<float>>& segments);
  /// A copy in plain row-major order.
  Tensor fetch(const View& view, const TensorInfo& info);

 private:
  struct Input {
    std::string name;
    size_t bytes, offset;  ///< of one lane; in the memory of all inputs
    bool shared;
  };
  float* on_device(const float* host_gradient) const {
    return arrays_->gradients + (host_gradient - store_.gradient_memory(0) + store_.parameters()[0].offset);
  }

  Device& device_;
  DeviceCommunicator* ranks_ = nullptr;
  size_t message_floats_ = 0;          // of the longest message; with ranks()
  std::shared_ptr<Storage> messages_;  // a rank's own, then those of all ranks
  ParamStore& store_;
  const Plan& plan_;
  int lanes_;
  const DeviceArrays* arrays_ = nullptr;
  std::vector<Input> inputs_;     // by leaf; bytes 0 for other leaves
  std::vector<void*> constants_;  // by leaf; null for other leaves
  std::vector<int> fault_slot_;   // by launch; -1 where nothing can go wrong
  int fault_slots_ = 0;
  std::vector<int64_t> faults_;
  std::shared_ptr<Storage> input_memory_, constant_memory_, fault_memory_;
  std::shared_ptr<void> staging_;  // pinned, of the inputs
  std::shared_ptr<CUevent_st> inputs_there_;
};

}  // namespace convoy
