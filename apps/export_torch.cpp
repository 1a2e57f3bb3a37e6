#include "apps/export_torch.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "apps/recipe.h"
#include "apps/torch_forms.h"
#include "apps/torch_python.h"
#include "apps/torch_writer.h"
#include "engine/version.h"

namespace convoy {

namespace {

/// ", 64, 3, 7, 7"
std::string extents(const Shape& shape) {
  std::string text;
  for (int i = 0; i < shape.rank(); ++i) text += fmt::format(", {}", shape[i]);
  return text;
}

std::string initial_values(const Parameter& p) {
  const Initializer& init = p.initializer;
  switch (init.kind) {
    case Initializer::Kind::kConstant:
      return fmt::format("constant({:.1f}{})", init.a, extents(p.shape));
    case Initializer::Kind::kUniform:
      return fmt::format("uniform({}{})", python_real(init.a), extents(p.shape));
    case Initializer::Kind::kNormal:
      return fmt::format("normal({}, {}{})", python_real(init.a), python_real(init.mean), extents(p.shape));
  }
  fail("{}: it has no rule for its first values", p.name);
}

/// A tensor as Python writes it: one number for all elements, or every element.
std::string values_of(const std::string& name, const Tensor& tensor) {
  constexpr int64_t kMost = 65536;
  const int64_t count = tensor.shape().count();
  if (tensor.dtype() == DType::kI64)
    return fmt::format("torch.tensor({})", *tensor.i64());  // the only ones are counters
  CONVOY_CHECK(tensor.dtype() == DType::kF32, "{}: a constant of type {} has no form in PyTorch", name,
               dtype_name(tensor.dtype()));
  const std::vector<float> values = tensor.to_floats();
  if (std::all_of(values.begin(), values.end(), [&](float v) { return v == values[0]; }))
    return fmt::format("constant({:.9g}{}{})", values[0],
                       values[0] == std::floor(values[0]) && std::abs(values[0]) < 1e9f ? ".0" : "",
                       extents(tensor.shape()));
  CONVOY_CHECK(count <= kMost, "{}: a constant of {} elements is too large for a Python file", name, count);
  std::string list;
  for (const float v : values) list += fmt::format("{}{}", list.empty() ? "" : ", ", python_real(v));
  return fmt::format("torch.tensor([{}]).reshape({})", list, extents(tensor.shape()).substr(2));
}

/// Lines of __init__: all that the state_dict holds, in its order.
std::string state_lines(const ParamStore& store, const TorchNetwork& network) {
  std::string lines;
  for (const std::string& name : store.state_order()) {
    if (const int64_t p = store.find_parameter(name); p >= 0) {
      lines += fmt::format("        self.parameter(\"{}\", {})\n", name,
                           initial_values(store.parameters()[static_cast<size_t>(p)]));
    } else if (const int64_t b = store.find_buffer(name); b >= 0) {
      lines += fmt::format("        self.put(\"{}\", {})\n", name,
                           values_of(name, store.buffers()[static_cast<size_t>(b)].value));
    } else {
      lines += fmt::format("        self.put(\"{}\", {})\n", name, python_path(store.aliases().at(name)));
    }
  }
  for (const auto& [name, tensor] : network.constants)
    lines += fmt::format("        self.register_buffer(\"{}\", {}, persistent=False)\n", name, values_of(name, tensor));
  return lines;
}

/// A pass as the body of a method that returns the network's outputs.
std::string forward_lines(const TorchTraces& traces, TorchNetwork& network) {
  const TorchTrace& trace = traces.first();
  std::vector<Value> outputs;
  for (const NamedValue& o : trace.outputs) outputs.push_back(o.value);
  if (!traces.same_nodes() || !traces.any_size()) network.fixed_size = true;
  std::vector<std::string> names;
  std::string lines = write_torch_lines(traces, trace.forward_nodes, outputs, {{trace.image, "image"}}, network, names);
  return lines + fmt::format("        return {},\n", fmt::join(names, ", "));
}

std::string loss_lines(const TorchTraces& traces, TorchNetwork& network) {
  const TorchTrace& trace = traces.first();
  std::map<Value, std::string> given{{trace.target, "target"}};
  std::vector<std::string> outputs;
  for (const NamedValue& o : trace.outputs) {
    given.emplace(o.value, o.name);
    outputs.push_back(given.at(o.value));
  }
  std::vector<std::string> names;
  const std::string lines = write_torch_lines(traces, trace.loss_nodes, {trace.loss}, given, network, names);
  return fmt::format("        {}, = outputs\n{}        return {}\n", fmt::join(outputs, ", "), lines, names[0]);
}

}  // namespace

std::string export_torch(const TorchExport& what, const LossFunction& loss) {
  const SizeHW size = what.size;
  require_fitting(what.network, what.title, size);
  Context context({.threads = 1});
  const auto traces = [&](Mode mode, bool dropout, const LossFunction& with_loss) {
    return TorchTraces(context, what.store, what.network, size, mode, dropout, with_loss);
  };
  TorchNetwork shared;
  const TorchTraces training = traces(Mode::kTrain, true, loss);
  shared.learn_momenta(*training.first().graph);
  const std::string forward_training = forward_lines(training, shared), losses = loss_lines(training, shared);
  const std::string forward_frozen = forward_lines(traces(Mode::kTrain, false, {}), shared),
                    forward_eval = forward_lines(traces(Mode::kEval, false, {}), shared);
  // Most networks do the same in both modes, but for batch norm and dropout, which look at self.training.
  const bool one_pass = forward_eval == forward_frozen;
  const std::string insist =
      shared.fixed_size
          ? fmt::format(
                "        if image.shape[2:] != ({}, {}):\n            raise ValueError(f\"this file was written "
                "for images of {}x{}, not of {{tuple(image.shape[2:])}}; export it again with --size\")\n",
                size.height, size.width, size.height, size.width)
          : "";

  std::string text = fmt::format(
      R"py("""{}, {} classes, as PyTorch computes it: written by convoy {}.

Parameters have Convoy's names. {}
Shapes in comments are those of a batch of 2 at {}x{}.

    python FILE.py [WEIGHTS.safetensors] --bench     seconds of a prediction and of a training step
    python FILE.py --check VALUES.safetensors        against what convoy plan --export-values wrote
"""
)py",
      what.title, what.classes, kVersion,
      shared.fixed_size ? "Images have one size." : "Images may have any size that the network takes.", size.height,
      size.width);
  text += kTorchImports;
  text += torch_functions(forward_training + forward_eval + losses);
  text += fmt::format("\n\nNAME = \"{}\"\nCLASSES = {}\nSIZE = ({}, {})\n", what.title, what.classes, size.height,
                      size.width);
  text +=
      fmt::format(R"py(

class Net(Part):
    """forward() takes images (N, 3, H, W) and returns a tuple of outputs: the prediction, then auxiliary ones.

    Dropout is on where the module is in training mode and `dropout` is set.
    """

    def __init__(self):
        super().__init__()
        self.dropout = False
{}
    def {}(self, image):
{}{})py",
                  state_lines(what.store, shared), one_pass ? "forward" : "forward_training", insist, forward_training);
  if (one_pass)
    text += "\n    forward_training = forward\n";
  else
    text += fmt::format(R"py(
    def forward(self, image):
        if self.training:
            return self.forward_training(image)
{}{})py",
                        insist, forward_eval);
  text += fmt::format(R"py(
    def loss(self, outputs, target):
        """Of outputs in training; target (N, H, W) int64, -1 where there is no label."""
{})py",
                      losses);
  return text + kTorchProgram;
}

}  // namespace convoy
