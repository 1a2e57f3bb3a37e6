#include "apps/op_shapes.h"

#include <map>

#include "apps/op_cases.h"
#include "apps/recipe.h"
#include "engine/ops.h"
#include "engine/param_store.h"
#include "engine/schedule.h"
#include "layers/losses.h"

namespace convoy {

namespace {

/// "2x64x32x64b16", "64", "2x32x64 i32".
std::string geometry_text(const View& v, const Shape& shape) {
  std::string text;
  for (size_t d = 0; d < shape.to_vector().size(); ++d) text += fmt::format("{}{}", d ? "x" : "", shape.to_vector()[d]);
  if (text.empty()) text = "scalar";
  if (v.layout == Layout::kBlocked) text += fmt::format("b{}", v.block);
  if (v.layout == Layout::kNhwc) text += "nhwc";
  if (!v.dense()) text += fmt::format("/{}", v.pitch);
  if (v.dtype != DType::kF32) text += dtype_name(v.dtype);
  return text;
}

}  // namespace

/// Of CaseBuilder::map.
static bool stands_for_layers(const OpShape& shape) {
  return shape.op.starts_with("avg_pool2d") && shape.attrs.find("kernel_h=1 ") != std::string::npos;
}

/// A graph and its plan, in which shapes point.
struct OpSet::Source {
  ParamStore store;
  std::unique_ptr<Network> network;
  std::unique_ptr<Graph> graph;
  Schedule schedule;
  Plan plan;
};

OpSet::OpSet(Context& context, const OpSetOptions& options) : context_(context) {
  if (options.network.name.empty())
    add_cases(options);
  else
    add_network(options);
}

OpSet::~OpSet() = default;

void OpSet::add(Source& source, std::vector<Value> targets) {
  Graph& graph = *source.graph;
  for (const Value& effect : graph.gradient_effects()) targets.push_back(effect);
  fuse(graph, make_schedule(graph, targets, true));
  source.schedule = make_schedule(graph, targets, true);
  source.plan = compile(graph, source.schedule, context_);
  std::map<std::string, size_t> known;
  for (size_t s = 0; s < shapes_.size(); ++s) known[shapes_[s].id] = s;
  for (const Launch& launch : source.plan.launches) {
    if (launch.kind != Launch::Kind::kKernel) continue;
    OpShape shape{.op = launch.op, .attrs = launch.attrs, .kernel = launch.kernel, .cost = launch.cost};
    if (launch.schedule_index >= 0)
      shape.node = &graph.node(source.schedule.nodes[static_cast<size_t>(launch.schedule_index)]);
    if (shape.node && shape.node->op->effect) continue;
    if (stands_for_layers(shape)) continue;
    shape.id = launch.op + (launch.attrs.empty() ? "" : " " + launch.attrs) + " :";
    const auto describe = [&](const std::vector<int>& values, std::vector<View>& views) {
      for (const int v : values) {
        if (v >= 0) {
          const PlanValue& value = source.plan.values[static_cast<size_t>(v)];
          views.push_back(value.geometry);
          shape.id += " " + geometry_text(value.geometry, value.info.shape);
        } else {
          views.push_back({.n = 0});
          shape.id += " -";
        }
      }
    };
    describe(launch.in, shape.in);
    shape.id += " ->";
    describe(launch.out, shape.out);
    if (const auto found = known.find(shape.id); found != known.end()) {
      ++shapes_[found->second].occurrences;
      continue;
    }
    known[shape.id] = shapes_.size();
    shapes_.push_back(std::move(shape));
  }
}

void OpSet::add_network(const OpSetOptions& options) {
  auto source = std::make_unique<Source>();
  source->network = make_network(options.network, source->store);
  source->graph = std::make_unique<Graph>(context_, source->store);
  require_fitting(*source->network, options.network.name, {options.height, options.width});
  Graph& graph = *source->graph;
  const Value image = graph.input("image", DType::kF32, {options.batch, 3, options.height, options.width});
  const Value target = graph.input("target", DType::kI32, {options.batch, options.height, options.width});
  Builder builder{graph, Mode::kTrain};
  const std::vector<NamedValue> outputs = source->network->forward(builder, image);
  const Value loss = segmentation_loss(outputs, target, {.aux = options.network.aux}).loss;
  graph.differentiate(loss);
  add(*source, {loss});
  sources_.push_back(std::move(source));
}

void OpSet::add_cases(const OpSetOptions& options) {
  for (const BenchmarkCase& c : benchmark_cases()) {
    auto source = std::make_unique<Source>();
    source->store.allocate();
    source->graph = std::make_unique<Graph>(context_, source->store);
    CaseBuilder builder(*source->graph, {options.batch, 64, options.height, options.width});
    const std::vector<Value> outputs = c.build(builder);
    std::vector<Value> targets = outputs;
    Value loss;
    for (const Value& y : outputs) {
      if (y.dtype() != DType::kF32) continue;
      const Value part = y.shape().count() == 1
                             ? y
                             : dot(y, y.shape().rank() == 4 ? builder.image(y.shape()) : builder.input(y.shape()));
      if (part.shape().rank() == 0) loss = loss ? convoy::add(loss, part) : part;
    }
    if (c.differentiable && loss)
      for (const Value& gradient : source->graph->differentiate(loss, builder.wanted()))
        if (gradient) targets.push_back(gradient);
    try {
      add(*source, targets);
    } catch (const Error& error) {
      missing_.push_back(fmt::format("{}: {}", c.name, error.what()));
      continue;
    }
    sources_.push_back(std::move(source));
  }
}

}  // namespace convoy
