#include "apps/export_values.h"

#include <cmath>

#include "apps/recipe.h"
#include "engine/rng.h"
#include "engine/session.h"
#include "io/safetensors.h"

namespace convoy {

namespace {

/// Adds numbers from -0.1 to 0.1 that depend on the name.
void move_by_a_tenth(const std::string& name, float* values, int64_t count) {
  const ReferenceStream u(name);
  for (int64_t i = 0; i < count; ++i) values[i] += static_cast<float>(0.1 * (2 * u[static_cast<uint64_t>(i)] - 1));
}

void draw_state(ParamStore& store, uint64_t seed) {
  store.initialize(seed);
  for (size_t p = 0; p < store.parameters().size(); ++p) {
    const Parameter& parameter = store.parameters()[p];
    if (parameter.initializer.kind == Initializer::Kind::kConstant)
      move_by_a_tenth(parameter.name, store.value(static_cast<int64_t>(p)), parameter.shape.count());
  }
  for (Buffer& b : store.buffers())
    if (b.value.dtype() == DType::kF32) move_by_a_tenth(b.name, b.value.f32(), b.value.shape().count());
}

NamedTensor named(const std::string& name, const Tensor& tensor) {
  return copy_tensor({.name = name,
                      .dtype = element_type(tensor.dtype()),
                      .shape = tensor.shape().to_vector(),
                      .data = tensor.view().data,
                      .owned = {}});
}

class ValueWriter {
 public:
  ValueWriter(const TorchExport& what, int64_t batch, const LossFunction& loss, const ContextOptions& options,
              uint64_t seed)
      : context_(options), network_(what.network), store_(what.store), loss_(loss) {
    const SizeHW size = what.size;
    require_fitting(network_, what.title, size);
    draw_state(store_, seed);
    image_ = Tensor::empty(DType::kF32, {batch, 3, size.height, size.width});
    target_ = Tensor::empty(DType::kI32, {batch, size.height, size.width});
    const ReferenceStream u("input"), v("input.offset"), labels("target"), ignored("target.ignore");
    const int64_t plane = size.height * size.width;
    for (int64_t i = 0; i < image_.shape().count(); ++i)
      image_.f32()[i] = static_cast<float>(u[static_cast<uint64_t>(i)] + v[static_cast<uint64_t>(i / plane)] - 1);
    for (int64_t i = 0; i < target_.shape().count(); ++i) {
      const auto k = static_cast<uint64_t>(i);
      static_cast<int32_t*>(target_.view().data)[i] =
          ignored[k] < 0.1 ? -1 : static_cast<int32_t>(std::floor(labels[k] * static_cast<double>(what.classes)));
    }
    for (size_t p = 0; p < store_.parameters().size(); ++p) {
      const Parameter& parameter = store_.parameters()[p];
      add(parameter.name, parameter.shape, store_.value(static_cast<int64_t>(p)));
    }
    for (const auto& [name, of] : store_.aliases()) {
      const int64_t p = store_.find_parameter(of);
      add(name, store_.parameters()[static_cast<size_t>(p)].shape, store_.value(p));
    }
    for (const Buffer& b : store_.buffers()) tensors_.push_back(named(b.name, b.value));
    tensors_.push_back(named("check.image", image_));
    tensors_.push_back(named("check.target", target_));
  }

  std::vector<NamedTensor> write() {
    write_pass(Mode::kEval, "check.eval.");
    write_pass(Mode::kFrozen, "check.frozen.");
    write_pass(Mode::kTrain, "check.train.");  // the last, for it moves the running statistics
    for (const Buffer& b : store_.buffers()) tensors_.push_back(named("check.train.state." + b.name, b.value));
    return std::move(tensors_);
  }

 private:
  void add(const std::string& name, const Shape& shape, const float* values) {
    tensors_.push_back(copy_tensor(
        {.name = name, .dtype = ElementType::kF32, .shape = shape.to_vector(), .data = values, .owned = {}}));
  }

  void write_pass(Mode mode, const std::string& prefix) {
    Graph graph(context_, store_);
    Builder builder{.graph = graph, .mode = mode, .dropout = false};
    const Value image = graph.input("image", DType::kF32, image_.shape()),
                target = graph.input("target", DType::kI32, target_.shape());
    const std::vector<NamedValue> outputs = network_.forward(builder, image);
    std::vector<Value> targets;
    for (const NamedValue& o : outputs) targets.push_back(o.value);
    for (Parameter& p : store_.parameters()) p.has_gradient = false;
    if (mode != Mode::kEval) {
      const Value loss = loss_(outputs, target);
      graph.differentiate(loss);
      targets.push_back(loss);
    }
    Session session(graph, targets);
    session.bind("image", image_.view().data);
    if (mode != Mode::kEval) session.bind("target", target_.view().data);
    session.run({});
    for (size_t i = 0; i < outputs.size(); ++i)
      tensors_.push_back(named(fmt::format("{}out{}", prefix, i), session.fetch(i)));
    if (mode == Mode::kEval) return;
    tensors_.push_back(named(prefix + "loss", session.fetch(outputs.size())));
    for (size_t p = 0; p < store_.parameters().size(); ++p) {
      const Parameter& parameter = store_.parameters()[p];
      if (parameter.has_gradient)
        add(prefix + "grad." + parameter.name, parameter.shape, store_.gradient(static_cast<int64_t>(p)));
    }
  }

  Context context_;
  const Network& network_;
  ParamStore& store_;
  const LossFunction& loss_;
  Tensor image_, target_;
  std::vector<NamedTensor> tensors_;
};

}  // namespace

void export_values(const std::filesystem::path& file, const TorchExport& what, int64_t batch, const LossFunction& loss,
                   const ContextOptions& options, uint64_t seed) {
  write_safetensors(file, ValueWriter(what, batch, loss, options, seed).write());
}

}  // namespace convoy
