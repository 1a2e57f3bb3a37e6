// convoy bench op: single operators, timed, held against the machine's limits and compared with the CPU's kernels.
#include <fmt/format.h>
#include <omp.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <regex>

#include "apps/commands.h"
#include "apps/op_benchmark.h"
#include "apps/op_roofline.h"
#include "io/file.h"
#include "io/json_text.h"

namespace convoy {
namespace {

struct OpArguments {
  explicit OpArguments(CLI::App& command) : context(command) {
    command.add_option("--filter", filter, "only rows in which this regular expression is found")->type_name("REGEX");
    command.add_option("--from-net", set.network.name, "the shapes of this network's training step")->type_name("NAME");
    command.add_option("--backbone", set.network.backbone, "its backbone, where it has one")->capture_default_str();
    command.add_flag("--aux", set.network.aux, "its auxiliary heads, too");
    command.add_option("--size", size,
                       "HEIGHTxWIDTH: of the network's images (256x512), or of the feature map of the built-in cases "
                       "(64x128; 8x16 on emulated)");
    command.add_option("--batch", set.batch, "images (2; 1 on emulated)")->check(CLI::Range(int64_t{1}, kLargestCount));
    command.add_option("--repeats", options.repeats, "times that each row is measured")
        ->capture_default_str()
        ->check(CLI::Range(int64_t{1}, kLargestCount));
    command.add_option("--max-seconds", seconds, "for all rows together, about; each is measured at least once")
        ->capture_default_str()
        ->check(number_between(0, 1e6));
    command
        .add_option("--user-kernel", user_kernel,
                    "a kernel to be timed and compared beside ours (kernels/user_kernel.h)")
        ->type_name("LIB.so:FUNCTION");
    command.add_option("--for", user_op, "the operator that it computes; only its rows are shown")->type_name("OP");
    command.add_flag("--list", list, "print the rows without running them");
    command.add_option("--json", json, "write the figures to a file")->type_name("FILE");
    command.add_option("--roofline", roofline, "write predictions for GPUs (bench/ROOFLINE.md), run nothing")
        ->type_name("FILE");
  }
  ContextArguments context;
  OpSetOptions set{.network = {.backbone = "resnet18", .classes = 19}};
  OpBenchmarkOptions options;
  double seconds = 60;
  std::string filter, size, user_kernel, user_op, json, roofline;
  bool list = false;
};

/// The text as a regular expression that finds it alone, in single quotes for a shell.
std::string exact_filter(const std::string& text) {
  std::string pattern = "^";
  for (const char c : text) {
    if (std::string_view(".[]{}()*+?^$|\\").find(c) != std::string_view::npos) pattern += '\\';
    pattern += c;
  }
  return "'" + pattern + "$'";
}

/// The command that measures one row again.
std::string command_of(const OpArguments& args, const ContextOptions& options, const OpShape& shape) {
  std::string text = fmt::format("convoy bench op --device {}", device_name(options.device));
  if (options.threads > 0) text += fmt::format(" --threads {}", options.threads);
  if (options.direct_conv) text += " --direct-conv";
  if (!args.set.network.name.empty()) {
    text += fmt::format(" --from-net {} --backbone {}", args.set.network.name, args.set.network.backbone);
    if (args.set.network.aux) text += " --aux";
  }
  text += fmt::format(" --size {}x{} --batch {} --repeats {}", args.set.height, args.set.width, args.set.batch,
                      args.options.repeats);
  if (!args.user_kernel.empty()) text += fmt::format(" --user-kernel {} --for {}", args.user_kernel, args.user_op);
  return text + " --filter " + exact_filter(shape.id);
}

std::vector<OpShape> chosen_shapes(const OpArguments& args, const OpSet& set) {
  std::vector<OpShape> shapes;
  std::regex filter;
  try {
    filter = std::regex(args.filter);
  } catch (const std::regex_error& error) {
    fail("--filter {}: no regular expression: {}", args.filter, error.what());
  }
  for (const OpShape& shape : set.shapes())
    if ((args.user_op.empty() || shape.op == args.user_op) && std::regex_search(shape.id, filter))
      shapes.push_back(shape);
  if (!shapes.empty()) return shapes;
  std::vector<std::string> ops;
  for (const OpShape& shape : set.shapes())
    if (std::find(ops.begin(), ops.end(), shape.op) == ops.end()) ops.push_back(shape.op);
  fail("no row is left by --filter '{}'{}; operators here: {}", args.filter,
       args.user_op.empty() ? "" : " and --for " + args.user_op, fmt::join(ops, ", "));
}

/// Of a result in fp32, relative to its largest value: far above what orders of summation make, below what is wrong.
constexpr double kMostError = 1e-3;

/// JSON has no infinity and no NaN: they are texts.
nlohmann::json error_json(const std::optional<double>& error) {
  if (!error) return {};
  return std::isfinite(*error) ? nlohmann::json(*error) : nlohmann::json(fmt::format("{}", *error));
}
std::string error_text(const nlohmann::json& error) {
  return error.is_string() ? error.get<std::string>() : fmt::format("{:.2e}", error.get<double>());
}

nlohmann::json timing_json(const OpTiming& timing, const Cost& cost, const Roofline* roofline) {
  const double median = timing.median();
  nlohmann::json json = {{"median_seconds", median},
                         {"seconds", timing.seconds},
                         {"bytes_per_second", cost.bytes / median},
                         {"flops_per_second", cost.flops / median}};
  if (roofline) json["share_of_roofline"] = roofline->seconds(cost) / median;
  return json;
}

void print_timing(const char* who, const nlohmann::json& timing, const nlohmann::json& error, bool meaningful) {
  fmt::print("  {:<5} {:10.4f} ms{} {:9.2f} GB/s {:9.2f} GFLOP/s", who, timing.at("median_seconds").get<double>() * 1e3,
             meaningful ? "" : " (says nothing of a GPU)", timing.at("bytes_per_second").get<double>() / 1e9,
             timing.at("flops_per_second").get<double>() / 1e9);
  if (timing.contains("share_of_roofline"))
    fmt::print(" {:5.1f} % of roofline", timing.at("share_of_roofline").get<double>() * 100);
  if (!error.is_null()) fmt::print("  largest error {}", error_text(error));
  fmt::print("\n");
}

void bench_op(OpArguments& args) {
  if (!args.roofline.empty()) {
    write_text_file(args.roofline, roofline_document());
    fmt::print("{}: predictions, nothing was run\n", args.roofline);
    return;
  }
  CONVOY_CHECK(args.user_kernel.empty() == args.user_op.empty(), "--user-kernel and --for belong together");
  const ContextOptions options = args.context.options();
  const bool meaningful = options.device == DeviceKind::kCpu, from_net = !args.set.network.name.empty();
  const SizeHW size = parse_size(!args.size.empty() ? args.size
                                 : from_net         ? "256x512"
                                 : meaningful       ? "64x128"
                                                    : "8x16");
  args.set.height = size.height;
  args.set.width = size.width;
  if (args.set.batch == 0) args.set.batch = meaningful ? 2 : 1;
  Context context(options), cpu({.threads = options.threads, .direct_conv = true});
  omp_set_num_threads(context.threads());  // of the roofline's measurement and of our kernels alike
  const OpSet set(context, args.set);
  const std::vector<OpShape> shapes = chosen_shapes(args, set);
  if (args.list) {
    for (const OpShape& shape : shapes) fmt::print("{:4} times  {}\n", shape.occurrences, shape.id);
    return;
  }
  std::optional<UserKernel> user;
  if (!args.user_kernel.empty()) args.options.user_kernel = &user.emplace(args.user_kernel);
  args.options.max_seconds = args.seconds / static_cast<double>(shapes.size());
  if (!meaningful) args.options.repeats = 1;

  nlohmann::json result = {{"device", device_name(options.device)}, {"isa", cpu::isa_name()},
                           {"threads", context.threads()},          {"times_are_meaningful", meaningful},
                           {"rows", nlohmann::json::array()},       {"without_kernel", set.missing()}};
  std::optional<Roofline> roofline;
  fmt::print("device {}, {}, {} threads\n", device_name(options.device), cpu::isa_name(), context.threads());
  if (meaningful) {
    roofline = measure_cpu_roofline();
    result["roofline"] = {{"bytes_per_second", roofline->bytes_per_second},
                          {"flops_per_second", roofline->flops_per_second}};
    fmt::print("roofline: {:.1f} GB/s (triad), {:.1f} GFLOP/s (multiply-adds)\n", roofline->bytes_per_second / 1e9,
               roofline->flops_per_second / 1e9);
  } else {
    fmt::print("times are those of an emulator: they say nothing of a GPU\n");
  }
  size_t wrong = 0;
  for (const OpShape& shape : shapes) {
    std::fflush(stdout);  // a user kernel may end the program
    const OpMeasurement m = measure_op(context, cpu, shape, args.options);
    nlohmann::json row = {{"id", shape.id},
                          {"op", shape.op},
                          {"implementation", shape.kernel.implementation},
                          {"occurrences", shape.occurrences},
                          {"bytes", shape.cost.bytes},
                          {"flops", shape.cost.flops},
                          {"command", command_of(args, options, shape)},
                          {"largest_error", error_json(m.error)},
                          {"note", m.note}};
    fmt::print("{}{}\n", shape.id, shape.occurrences > 1 ? fmt::format("  ({} times)", shape.occurrences) : "");
    const auto side = [&](const char* who, const OpTiming& timing, const nlohmann::json& error) {
      row[who] = timing_json(timing, shape.cost, roofline ? &*roofline : nullptr);
      print_timing(who, row[who], error, meaningful);
    };
    if (!m.ours.seconds.empty()) side("ours", m.ours, row["largest_error"]);
    row["user_error"] = error_json(m.user_error);
    if (m.user) side("user", *m.user, row["user_error"]);
    for (const auto& [who, error] : {std::pair{"ours", m.error}, {"user", m.user_error}})
      if (error && !(*error <= kMostError)) {
        fmt::print("  WRONG: {} differs by more than {:.0e}\n", who, kMostError);
        ++wrong;
      }
    if (!m.note.empty()) fmt::print("  {}\n", m.note);
    fmt::print("  {}\n", row["command"].get<std::string>());
    result["rows"].push_back(std::move(row));
  }
  for (const std::string& missing : set.missing()) fmt::print("no kernel: {}\n", missing);
  if (!args.json.empty()) write_text_file(args.json, json_text(result, 1) + "\n");
  CONVOY_CHECK(wrong == 0, "{} results are wrong, see the rows above", wrong);
}

}  // namespace

void add_bench_op_command(CLI::App& bench) {
  CLI::App* command = bench.add_subcommand("op", "time and correctness of single operators");
  const auto args = std::make_shared<OpArguments>(*command);
  command->callback([args] { bench_op(*args); });
}

}  // namespace convoy
