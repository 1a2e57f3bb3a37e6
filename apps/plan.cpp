// convoy plan: what a step will do and need, without data.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "apps/commands.h"
#include "apps/export_torch.h"
#include "apps/export_values.h"
#include "apps/recipe.h"
#include "apps/trainer.h"
#include "engine/plan_cache.h"
#include "engine/rng.h"
#include "io/file.h"

namespace convoy {
namespace {

struct PlanArguments {
  explicit PlanArguments(CLI::App& command) : config(command), context(command) {
    command.add_option("--size", size,
                       "HEIGHTxWIDTH; default TRAIN.CROP_SIZE. With --eval it is padded to the next that the "
                       "network takes, as eval and predict do");
    command.add_option("--batch", batch, "images per step; default the global batch")
        ->check(CLI::Range(int64_t{1}, kLargestCount));
    command.add_option("--ranks", ranks, "plan rank 0 of so many ranks, with what they exchange")
        ->capture_default_str()
        ->check(CLI::Range(1, 65536));
    context.add_exact_ranks(command);
    command.add_flag("--eval", eval, "the prediction instead of the training step");
    command.add_flag("--dump-plan", dump, "every launch with shapes and layouts");
    command.add_flag("--trace-step", trace, "run one step on random data: every launch with its time");
    command.add_flag("--json", json, "print the figures as JSON");
    command
        .add_option("--export-torch", export_torch,
                    "write the network as a Python file for PyTorch; NAME is that network alone, as NAME.py")
        ->type_name("FILE.py|NAME")
        ->check([](const std::string& file) { return std::string(file.empty() ? "the file name is empty" : ""); });
    command
        .add_option(
            "--export-values", export_values,
            "write weights, an input, and the outputs, loss and gradients of all passes, for that file's --check")
        ->type_name("FILE.safetensors")
        ->check([](const std::string& file) {
          return file.ends_with(".safetensors")
                     ? std::string()
                     : "is to end in .safetensors, the format that is written; found '" + file + "'";
        });
    command.add_flag("--list-networks", list_networks, "print the names of all networks");
  }
  bool exports() const { return !export_torch.empty() || !export_values.empty(); }

  ConfigArguments config;
  ContextArguments context;
  std::string size;
  int64_t batch = 0;
  int ranks = 1;
  std::string export_torch, export_values;
  bool eval = false, dump = false, trace = false, json = false, list_networks = false;
};

/// Ranks that are only thought of.
class PlannedRanks : public NullCommunicator {
 public:
  explicit PlannedRanks(int size) : size_(size) {}
  int size() const override { return size_; }

 private:
  int size_;
};

/// A network with the graph and plan of one step of rank 0.
struct PlannedStep {
  PlannedStep(const Config& config, const ContextOptions& options, bool eval, int64_t batch, SizeHW size, int ranks = 1)
      : context(options, std::make_shared<PlannedRanks>(ranks)),
        network(make_network(network_options(config, class_count(config)), store)),
        graph(context, store) {
    if (eval) {
      size = fitting_size(*network, size);
      shape = {batch, 3, size.height, size.width};
      Builder builder{graph, Mode::kEval};
      targets.push_back(network->forward(builder, graph.input("image", DType::kF32, shape))[0].value);
    } else {
      require_fitting(*network, config.model.model_name, size);
      const BatchShard shard = plan_batch(config, batch, ranks, options.exact_ranks).shard(batch, 0, ranks);
      ShardedStep step = build_sharded_step(graph, *network, config, shard, size);
      targets = std::move(step.targets);
      lanes = step.lanes;
      shape = {lanes.images * lanes.count, 3, size.height, size.width};
    }
    std::vector<Value> all = targets;
    for (const Value& effect : graph.gradient_effects()) all.push_back(effect);
    fuse(graph, make_schedule(graph, all, true));
    plan = context.plans().get(graph, make_schedule(graph, all, true), context, lanes.count > 1);
  }
  /// Memory of the activations of all lanes.
  size_t activation_bytes() const {
    const auto count = static_cast<size_t>(lanes.count);
    return plan->arena_bytes * (plan->sequential ? 1 : count) + plan->kept_bytes * count;
  }

  Context context;
  ParamStore store;
  std::unique_ptr<Network> network;
  Graph graph;
  Shape shape;  ///< of rank 0's images
  Lanes lanes;
  std::vector<Value> targets;
  std::shared_ptr<const Plan> plan;
};

double mib(double bytes) {
  return bytes / (1 << 20);
}

/// Multiply-adds of the convolutions of one forward pass over one image.
double forward_macs(const Config& config, const ContextOptions& options, SizeHW size) {
  const PlannedStep step(config, options, true, 1, size);
  double flops = 0;
  for (const Launch& launch : step.plan->launches)
    if (launch.op.starts_with("conv2d")) flops += launch.cost.flops;
  return flops / 2;
}

void print_trace(PlannedStep& step, bool eval, int64_t classes) {
  RandomStream random(1, "trace", 0);
  std::vector<float> image(static_cast<size_t>(step.shape.count()));
  for (float& v : image) v = static_cast<float>(random.normal());
  std::vector<int32_t> target(static_cast<size_t>(step.shape[0] * step.shape[2] * step.shape[3]));
  for (int32_t& t : target) t = static_cast<int32_t>(random.integer(0, classes - 1));
  step.store.initialize(1);
  Session session(step.graph, step.targets);
  session.bind("image", image.data());
  if (!eval) session.bind("target", target.data());
  session.run({.seed = 1});  // touches the memory, so that the second run shows the steady state
  step.context.profiler().enable(true);
  session.run({.seed = 1, .global_step = 1});
  step.context.profiler().enable(false);
  const auto& spans = step.context.profiler().spans();
  const auto& launches = session.plan().launches;
  double total = 0;
  fmt::print("{:>4} {:>9} {:>9} {:>10} {:>8} {:>8}  {:<24} {:<40} {}\n", "", "ms", "MB", "MFLOP", "GB/s", "GFLOP/s",
             "operator", "module", "kernel");
  for (size_t l = 0; l < launches.size(); ++l) {
    const Launch& launch = launches[l];
    const double us = spans[l].duration_us, safe = std::max(us, 1e-3);
    total += us;
    fmt::print("{:4} {:9.3f} {:9.3f} {:10.2f} {:8.1f} {:8.1f}  {:<24} {:<40} {}\n", l, us / 1e3,
               launch.cost.bytes / 1e6, launch.cost.flops / 1e6, launch.cost.bytes / safe / 1e3,
               launch.cost.flops / safe / 1e3, launch.op, launch.name, launch.kernel.implementation);
  }
  fmt::print("total {:.3f} ms on {} threads, one stream\n", total / 1e3, step.context.threads());
}

/// Writes the network as configured, or by its name alone, for PyTorch.
void export_network(const PlanArguments& args) {
  std::vector<std::string> named;
  std::string file = args.export_torch;
  if (!file.empty() && !file.ends_with(".py")) {
    named = {"MODEL.MODEL_NAME", file};
    file += ".py";
  }
  const Config config = args.config.load(named);
  require_supported(config);
  // A network without a recipe is the one for Cityscapes.
  const bool bare = args.config.file().empty();
  const int64_t classes =
      bare && config.dataset.name.empty() && config.dataset.num_classes == 0 ? 19 : class_count(config);
  NetworkOptions network = network_options(config, classes);
  if (bare && network.backbone.empty()) network.backbone = light_options(network.name).backbone;
  const std::string title = network.name + (network.backbone.empty() ? "" : " on " + network.backbone) +
                            (network.aux ? ", auxiliary heads" : "");
  SizeHW size = bare ? SizeHW{256, 512} : config.train.crop_size;
  if (!args.size.empty()) size = parse_size(args.size);
  const LossFunction loss = [&](const std::vector<NamedValue>& outputs, Value target) {
    return segmentation_loss(outputs, target, loss_options(config)).loss;
  };
  ParamStore store;
  const auto made = make_network(network, store);
  const TorchExport what{*made, store, title, classes, size};
  if (!file.empty()) {
    write_text_file(file, export_torch(what, loss));
    fmt::print("{}: {} for PyTorch\n", file, title);
  }
  if (!args.export_values.empty()) {
    export_values(args.export_values, what, args.batch ? args.batch : 2, loss, args.context.options(),
                  static_cast<uint64_t>(config.seed));
    fmt::print("{}: weights and values of {}\n", args.export_values, title);
  }
}

void plan(const PlanArguments& args) {
  if (args.list_networks) {
    fmt::print("{}\n", fmt::join(network_names(), "\n"));
    return;
  }
  if (args.exports()) {
    export_network(args);
    return;
  }
  const Config config = args.config.load();
  require_supported(config);
  const SizeHW size = args.size.empty() ? config.train.crop_size : parse_size(args.size);
  const int64_t batch = args.batch ? args.batch : global_batch(config, args.ranks);
  const ContextOptions options = args.context.options();
  CONVOY_CHECK(args.ranks == 1 || !args.eval, "--ranks {} with --eval: predictions exchange nothing", args.ranks);
  CONVOY_CHECK(args.ranks == 1 || !args.trace,
               "--ranks {} with --trace-step: the step runs on one rank; convoy bench ranks measures several",
               args.ranks);
  PlannedStep step(config, options, args.eval, batch, size, args.ranks);
  const SizeHW planned{step.shape[2], step.shape[3]};
  const Plan& p = *step.plan;

  int64_t parameters = 0;
  for (const Parameter& parameter : step.store.parameters()) parameters += parameter.shape.count();
  double copied = 0;
  for (const Launch& launch : p.launches) copied += static_cast<double>(launch.copied_bytes);
  const auto state = static_cast<double>(step.store.total()) * 4;
  const Optimizer::Options update = optimizer_options(config);
  const double weights = state, gradients = args.eval ? 0 : state;
  const double states = args.eval ? 0 : state * update_states({.kind = update.kind, .momentum = update.momentum});
  const double input = static_cast<double>(step.shape.count()) * 4 * (args.eval ? 1.0 : 4.0 / 3);
  const double loader =
      args.eval ? 0 : input * 4;  // the batches that the loader holds ready or in work, and one in use
  const auto activations = static_cast<double>(step.activation_bytes());
  size_t messages = 0, message_bytes = 0, bucket_bytes = 0;
  for (const Launch& launch : p.launches) {
    messages += launch.kind == Launch::Kind::kExchange;
    message_bytes += Plan::message_floats(launch) * sizeof(float);
  }
  for (const GradientBucket& b : p.buckets) bucket_bytes += b.bytes;
  const double peak = activations + weights + gradients + states + (args.eval ? input : loader);
  const double macs = forward_macs(config, options, size);
  std::vector<const PlanValue*> largest;
  for (const PlanValue& v : p.values)
    if (v.place == PlanValue::Place::kArena) largest.push_back(&v);
  std::sort(largest.begin(), largest.end(), [](const PlanValue* a, const PlanValue* b) {
    return std::pair(dense_bytes(b->geometry), a->name) < std::pair(dense_bytes(a->geometry), b->name);
  });
  largest.resize(std::min<size_t>(largest.size(), 10));

  if (args.json) {
    auto tensors = nlohmann::ordered_json::array(), buckets = nlohmann::ordered_json::array();
    for (const PlanValue* v : largest)
      tensors.push_back({{"name", v->name}, {"shape", v->info.shape.to_vector()}, {"bytes", dense_bytes(v->geometry)}});
    for (const GradientBucket& b : p.buckets)
      buckets.push_back({{"gradients", b.parameters.size()}, {"bytes", b.bytes}, {"ready_after", b.ready_after}});
    fmt::print("{}\n", nlohmann::ordered_json{{"network", config.model.model_name},
                                              {"batch", batch},
                                              {"ranks", args.ranks},
                                              {"height", planned.height},
                                              {"width", planned.width},
                                              {"image_height", size.height},
                                              {"image_width", size.width},
                                              {"training", !args.eval},
                                              {"parameters", parameters},
                                              {"forward_macs_per_image", macs},
                                              {"step_flops", p.total_flops()},
                                              {"launches", p.launches.size()},
                                              {"arena_bytes", activations},
                                              {"most_alive_bytes", p.lower_bound_bytes},
                                              {"parameter_bytes", weights},
                                              {"gradient_bytes", gradients},
                                              {"optimizer_bytes", states},
                                              {"predicted_peak_bytes", peak},
                                              {"copied_bytes", copied},
                                              {"messages", messages},
                                              {"message_bytes", message_bytes},
                                              {"largest_tensors", tensors},
                                              {"buckets", buckets}}
                           .dump(1));
    return;
  }
  if (args.dump) fmt::print("{}", p.dump());
  if (args.trace) print_trace(step, args.eval, class_count(config));
  fmt::print("{}{}, {} at batch {}, {}x{}{}\n", config.model.model_name,
             config.model.backbone.empty() ? "" : " / " + config.model.backbone,
             args.eval ? "prediction" : "training step", batch, planned.height, planned.width,
             planned.height == size.height && planned.width == size.width
                 ? ""
                 : fmt::format(" (images of {}x{}, padded)", size.height, size.width));
  if (args.ranks > 1)
    fmt::print(
        "rank 0 of {}          {} images; {} messages of {:.3f} MiB in all between launches, {:.1f} MiB of gradients\n",
        args.ranks, step.shape[0], messages, mib(static_cast<double>(message_bytes)),
        mib(static_cast<double>(bucket_bytes)));
  fmt::print("parameters           {} in {} tensors\n", parameters, step.store.parameters().size());
  fmt::print("forward pass         {:.3f} G multiply-adds per image\n", macs / 1e9);
  fmt::print("this step            {} launches, {:.2f} GFLOP\n", p.launches.size(), p.total_flops() / 1e9);
  fmt::print("activations          {:.1f} MiB in one arena ({:.1f} MiB alive at once)\n", mib(activations),
             mib(static_cast<double>(p.lower_bound_bytes)));
  fmt::print("weights              {:.1f} MiB, gradients {:.1f} MiB, optimizer {:.1f} MiB\n", mib(weights),
             mib(gradients), mib(states));
  fmt::print("predicted peak       {:.1f} MiB{}\n", mib(peak),
             args.eval ? " with the input" : " with the loader's batches");
  fmt::print("copied by layout     {:.2f} MiB (reorders, concats and slices that could not be views)\n", mib(copied));
  fmt::print("largest tensors\n");
  for (const PlanValue* v : largest)
    fmt::print("  {:9.2f} MiB  {:<20} {}\n", mib(static_cast<double>(dense_bytes(v->geometry))), v->info.shape.str(),
               v->name);
  for (size_t b = 0; b < p.buckets.size(); ++b)
    fmt::print("gradient bucket {}    {} gradients, {:.2f} MiB, complete after launch {} of {}\n", b,
               p.buckets[b].parameters.size(), mib(static_cast<double>(p.buckets[b].bytes)), p.buckets[b].ready_after,
               p.launches.size());
}

}  // namespace

void add_plan_command(CLI::App& app) {
  CLI::App* command = app.add_subcommand("plan", "what a step does and needs");
  const auto args = std::make_shared<PlanArguments>(*command);
  command->callback([args] { plan(*args); });
}

}  // namespace convoy
