// Plans: what shares memory with what, and the plans of the networks as golden texts.
#include <catch2/catch.hpp>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "engine/ops.h"
#include "engine/param_store.h"
#include "engine/plan_cache.h"
#include "engine/rng.h"
#include "engine/session.h"
#include "kernels/isa.h"
#include "tests/training_step.h"

namespace convoy {

namespace {

/// A random graph of image operators that keep the size, with a loss and its gradients.
struct RandomGraph {
  Context context{{.threads = 1}};
  ParamStore store;
  std::unique_ptr<Graph> graph;
  Value loss;

  explicit RandomGraph(uint64_t seed) {
    constexpr int kParameters = 6;
    constexpr int64_t kWidths[] = {3, 16, 19, 32, 48};
    RandomStream random(seed, "random graph", 0);
    for (int i = 0; i < kParameters; ++i)
      store.add_parameter("w" + std::to_string(i), {kWidths[random.integer(0, 4)], kWidths[i % 5], 1, 1},
                          {.kind = Initializer::Kind::kNormal, .a = 0.3});
    store.allocate();
    store.initialize(seed);
    graph = std::make_unique<Graph>(context, store);
    std::vector<Value> values;
    for (const int64_t c : kWidths) values.push_back(graph->constant(image(c, static_cast<uint64_t>(c))));
    for (int step = 0; step < 25; ++step) values.push_back(next(random, values));
    for (size_t i = values.size() - 4; i < values.size(); ++i) {
      const Value part = dot(values[i], graph->constant(image(values[i].shape()[1], 77 + i)));
      loss = loss ? add(loss, part) : part;
    }
    graph->differentiate(loss);
  }

 private:
  static Tensor image(int64_t channels, uint64_t index) {
    RandomStream random(9, "image", index);
    std::vector<float> v(static_cast<size_t>(2 * channels * 3 * 4));
    for (float& x : v) x = 2 * random.uniform() - 1;
    return Tensor::of({2, channels, 3, 4}, v);
  }

  Value next(RandomStream& random, const std::vector<Value>& values) {
    const auto any = [&] {  // mostly a recent one
      const auto last = static_cast<int64_t>(values.size()) - 1;
      return values[static_cast<size_t>(
          random.integer(random.uniform() < 0.7f ? std::max<int64_t>(0, last - 6) : 0, last))];
    };
    const Value x = any();
    const int64_t channels = x.shape()[1];
    switch (random.integer(0, 8)) {
      case 0:
        return relu(x);
      case 1:
        return scale(x, 0.5);
      case 2:
        for (const Value& y : values)
          if (y.shape() == x.shape() && !(y == x)) return add(x, y);
        return add(x, x);
      case 3:
        for (const Value& y : values)
          if (y.shape() == x.shape()) return mul(y, x);
        return sigmoid(x);
      case 4:
      case 5: {
        std::vector<Value> parts{x};
        for (int64_t n = random.integer(1, 2); n > 0; --n) parts.push_back(any());
        int64_t sum = 0;
        for (const Value& p : parts) sum += p.shape()[1];
        return sum > 128 ? scale(x, 2) : concat(parts);
      }
      case 6: {
        const int64_t first = random.uniform() < 0.5f ? 0 : (channels / 2) / 16 * 16;
        return slice_channels(x, first, random.integer(1, channels - first));
      }
      case 7:
        for (const Parameter& p : store.parameters())
          if (p.shape[1] == channels) return conv2d(x, graph->parameter(p.name), {});
        return sigmoid(x);
      default: {
        const auto [mean, var] = bn_stats(x);
        const Value one = graph->constant(Tensor::of({channels}, std::vector<float>(static_cast<size_t>(channels), 1)));
        const Value y = bn_apply(x, mean, var, one, one, 1e-5, true);
        return random.uniform() < 0.5f ? relu(y) : y;
      }
    }
  }
};

bool disjoint(const PlanBuffer& a, const PlanBuffer& b) {
  return a.offset + a.bytes <= b.offset || b.offset + b.bytes <= a.offset;
}

/// No launch writes over a value that is still to be read. Works out lifetimes by itself.
void check_memory(const Plan& plan) {
  const int end = static_cast<int>(plan.launches.size());
  std::vector<int> born(plan.values.size(), end + 1), last_read(plan.values.size(), -1);
  for (int l = 0; l < end; ++l) {
    for (const int v : plan.launches[static_cast<size_t>(l)].in) last_read[static_cast<size_t>(v)] = l;
    for (const int v : plan.launches[static_cast<size_t>(l)].out)
      if (v >= 0) born[static_cast<size_t>(v)] = l;
  }
  for (const int t : plan.targets)
    if (t >= 0) last_read[static_cast<size_t>(t)] = end;

  for (int l = 0; l < end; ++l) {
    const Launch& launch = plan.launches[static_cast<size_t>(l)];
    const bool view = launch.op == "concat" || launch.op == "slice_channels";
    std::vector<std::pair<int, int>> written;  // buffer, value (-1: workspace)
    for (const int v : launch.out)
      if (v >= 0 && plan.values[static_cast<size_t>(v)].place == PlanValue::Place::kArena)
        written.emplace_back(plan.values[static_cast<size_t>(v)].buffer, v);
    if (launch.workspace >= 0) written.emplace_back(launch.workspace, -1);
    for (const auto& [buffer, out] : written) {
      const PlanBuffer& target = plan.buffers[static_cast<size_t>(buffer)];
      CHECK(target.offset % 64 == 0);
      CHECK(target.offset + target.bytes <= plan.arena_bytes);
      for (size_t v = 0; v < plan.values.size(); ++v) {
        const PlanValue& value = plan.values[v];
        const bool is_input = last_read[v] == l && born[v] < l;
        const bool alive = (born[v] < l && last_read[v] > l) || is_input;
        if (!alive || value.place != PlanValue::Place::kArena || static_cast<int>(v) == out) continue;
        INFO("launch " << l << " " << launch.op << " writes value " << out << ", value " << v << " is alive");
        if (value.buffer != buffer) {
          CHECK(disjoint(plan.buffers[static_cast<size_t>(value.buffer)], target));
          continue;
        }
        if (view || out < 0) continue;  // a view writes what is there already
        const PlanValue& o = plan.values[static_cast<size_t>(out)];
        const bool apart = value.channel_offset + value.geometry.blocks() * value.geometry.block <= o.channel_offset ||
                           o.channel_offset + o.geometry.blocks() * o.geometry.block <= value.channel_offset;
        CHECK((apart || is_input));  // in place: nobody reads it afterwards
      }
    }
  }
}

std::vector<std::vector<float>> gradients_of(const ParamStore& store) {
  std::vector<std::vector<float>> all;
  for (size_t p = 0; p < store.parameters().size(); ++p)
    if (store.parameters()[p].has_gradient) {
      const float* g = store.gradient(static_cast<int64_t>(p));
      all.emplace_back(g, g + store.parameters()[p].shape.count());
    }
  return all;
}

}  // namespace

TEST_CASE("random graphs: nothing is overwritten before its last use, and sharing memory changes no bit") {
  size_t views = 0, in_place = 0;
  for (uint64_t seed = 0; seed < 60; ++seed) {
    INFO("graph " << seed);
    RandomGraph shared(seed);
    Session session(*shared.graph, {shared.loss});
    const Plan& plan = session.plan();
    check_memory(plan);
    CHECK(plan.arena_bytes >= plan.lower_bound_bytes);
    size_t sum = 0;
    for (const PlanBuffer& b : plan.buffers) sum += (b.bytes + 63) / 64 * 64;
    CHECK(plan.arena_bytes <= sum);
    for (const Launch& l : plan.launches) {
      views += l.op == "concat" && l.copied_bytes == 0;
      for (const int v : l.in)
        in_place += l.op != "concat" && l.op != "slice_channels" && !l.out.empty() && l.out[0] >= 0 &&
                    plan.values[static_cast<size_t>(v)].buffer >= 0 &&
                    plan.values[static_cast<size_t>(v)].buffer == plan.values[static_cast<size_t>(l.out[0])].buffer;
    }
    test::poison_arena(shared.context, session);
    session.run({});

    // The same with every value asked for: nothing can be shared.
    RandomGraph kept(seed);
    std::vector<Value> targets{kept.loss};
    for (NodeId id = 0; id < static_cast<NodeId>(kept.graph->size()); ++id)
      for (int32_t o = 0; o < static_cast<int32_t>(kept.graph->node(id).outputs.size()); ++o)
        if (const Value v{kept.graph.get(), id, o}; !is_leaf(*kept.graph, v)) targets.push_back(v);
    Session all(*kept.graph, targets);
    test::poison_arena(kept.context, all);
    all.run({});
    CHECK(session.fetch(0).item() == all.fetch(0).item());
    CHECK(std::isfinite(session.fetch(0).item()));
    CHECK(gradients_of(shared.store) == gradients_of(kept.store));
    CHECK(all.plan().arena_bytes >= plan.arena_bytes);
  }
  CHECK(views > 10);
  CHECK(in_place > 50);
}

TEST_CASE("a concat is a view where its parts allow it, else a copy that the plan counts") {
  Context context;
  ParamStore store;
  const auto copied = [&](int64_t first_part, bool part_is_target) {
    Graph graph(context, store);
    const Value x = graph.input("x", DType::kF32, {2, first_part, 3, 4}),
                z = graph.input("z", DType::kF32, {2, 5, 3, 4});
    const Value a = relu(conv2d(x, graph.input("w", DType::kF32, {first_part, first_part, 1, 1}), {}));
    const Value b = avg_pool2d(z, {.kernel_h = 1, .kernel_w = 1, .stride_h = 1, .stride_w = 1});
    std::vector<Value> targets{scale(concat({a, b}), 2)};
    if (part_is_target) targets.push_back(b);
    const Plan plan = compile(graph, make_schedule(graph, targets, false), context);
    for (const Launch& l : plan.launches)
      if (l.op == "concat") return l.copied_bytes;
    return size_t{1} << 40;
  };
  const size_t part = static_cast<size_t>(2 * cpu::channel_block() * 3 * 4) * sizeof(float);
  CHECK(copied(32, false) == 0);
  CHECK(copied(32, true) == part);
  CHECK(copied(19, false) == 0);  // plain layout: every channel may start a part
}

TEST_CASE("gradient buckets hold every gradient once, in order of completion") {
  test::TrainingStep step("BiSeNet", {2, 3, 32, 32}, {});
  const Plan plan = compile(step.graph, make_schedule(step.graph, step.graph.gradient_effects(), true), step.context,
                            {.first_bucket_bytes = 1 << 18, .bucket_bytes = 1 << 20});
  CHECK(plan.buckets.size() > 3);
  std::vector<int> seen(step.store.parameters().size(), 0);
  int previous = -1;
  for (const GradientBucket& b : plan.buckets) {
    CHECK(b.ready_after > previous);
    previous = b.ready_after;
    size_t bytes = 0;
    for (const int64_t p : b.parameters) {
      ++seen[static_cast<size_t>(p)];
      bytes += static_cast<size_t>(step.store.parameters()[static_cast<size_t>(p)].shape.count()) * sizeof(float);
    }
    CHECK(bytes == b.bytes);
  }
  for (size_t p = 0; p < seen.size(); ++p) CHECK(seen[p] == (step.store.parameters()[p].has_gradient ? 1 : 0));
}

// tests/golden/plans: write them anew with CONVOY_UPDATE_GOLDEN=1 (and again with CONVOY_ISA=base), then read the
// difference.
TEST_CASE("plans of the networks are the recorded ones") {
  const std::string network = GENERATE("FastSCNN", "BiSeNet", "DeepLabV3_Plus");
  test::TrainingStep step(network, {2, 3, 64, 128}, {});
  Session session(step.graph, {step.loss});
  const std::string text = session.plan().dump(false);
  const std::filesystem::path folder = std::filesystem::path(CONVOY_TEST_DIR) / "golden" / "plans";
  const std::filesystem::path path = folder / (network + "." + cpu::isa_name() + ".txt");
  if (std::getenv("CONVOY_UPDATE_GOLDEN")) {
    std::filesystem::create_directories(folder);
    std::ofstream(path) << text;
  }
  std::ifstream file(path);
  INFO(path.string());
  REQUIRE(file);
  std::string line, got;
  std::istringstream lines(text);
  int number = 0;
  while (std::getline(file, line)) {
    ++number;
    INFO("line " << number);
    REQUIRE(std::getline(lines, got));
    REQUIRE(got == line);
  }
  CHECK_FALSE(std::getline(lines, got));
  CHECK(session.plan().dump().find("arena") != std::string::npos);
  CHECK(text.find("arena") == std::string::npos);
}

TEST_CASE("the plan cache forgets the least recently used") {
  Context context;
  ParamStore store;
  PlanCache cache(2);
  const auto get = [&](int64_t size) {
    Graph graph(context, store);
    cache.get(graph, make_schedule(graph, {relu(graph.input("x", DType::kF32, {size}))}, false), context);
  };
  get(1), get(2), get(1), get(3);  // 2 goes
  CHECK(cache.size() == 2);
  CHECK(cache.misses() == 3);
  get(1), get(3);
  CHECK(cache.misses() == 3);
  get(2);
  CHECK(cache.misses() == 4);
}

TEST_CASE("structural hashes tell graphs apart by what matters") {
  Context context;
  ParamStore store;
  store.add_parameter("a", {3});
  store.add_parameter("b", {3});
  store.allocate();
  const auto hash = [&](const std::function<Value(Graph&)>& build, const std::string& scope = "") {
    Graph graph(context, store);
    const Graph::Scope in(graph, scope);
    return make_schedule(graph, {build(graph)}, false).hash;
  };
  const auto base = [](Graph& g) { return scale(g.parameter("a"), 2); };
  CHECK(hash(base) == hash(base, "elsewhere"));
  CHECK(hash(base) != hash([](Graph& g) { return scale(g.parameter("b"), 2); }));
  CHECK(hash(base) != hash([](Graph& g) { return scale(g.parameter("a"), 2.5); }));
  CHECK(hash(base) != hash([](Graph& g) { return scale(scale(g.parameter("a"), 2), 2); }));
  CHECK(hash([](Graph& g) { return add(g.parameter("a"), g.parameter("b")); }) !=
        hash([](Graph& g) { return add(g.parameter("a"), g.parameter("a")); }));
  CHECK(hash([](Graph& g) {
          return g.input("x", DType::kF32, {2, 3});
        }) != hash([](Graph& g) {
          return g.input("x", DType::kF32, {3, 2});
        }));
}

}  // namespace convoy
