// Attention operators and layers against the reference's figures (tests/golden/ops.json).
#include "layers/attention.h"
#include "tests/golden_compare.h"

namespace convoy::test {

namespace {

/// Compares every case of an operator; there has to be one. All inputs are f32.
void compare_all(const std::string& op, const Build& build) {
  const std::vector<golden::OpCase> cases = golden::op_cases_of(op);
  CHECK(!cases.empty());
  for (const golden::OpCase& g : cases) compare(g, build, {});
}

// Inputs x, gamma, then weight and bias of the query, key and value projections.
struct Projected {
  explicit Projected(const Values& v)
      : query(conv2d(v[0], v[2], v[3])), key(conv2d(v[0], v[4], v[5])), value(conv2d(v[0], v[6], v[7])) {}
  Value query, key, value;
};

std::vector<std::string> names_of(const ParamStore& store) {
  std::vector<std::string> names;
  for (const Parameter& p : store.parameters()) names.push_back(p.name + p.shape.str());
  return names;
}

}  // namespace

TEST_CASE("criss-cross attention has the reference's values", "[device]") {
  compare_all("ca_weight", [](Graph&, const Values& v) { return Values{ca_weight(v[0], v[1])}; });
  compare_all("ca_map", [](Graph&, const Values& v) { return Values{ca_map(v[0], v[1])}; });
  compare_all("criss_cross", [](Graph&, const Values& v) {
    const Projected p(v);
    return Values{criss_cross_attention(v[0], p.query, p.key, p.value, v[1])};
  });
}

TEST_CASE("position attention has the reference's values", "[device]") {
  compare_all("position_attention", [](Graph&, const Values& v) {
    const Projected p(v);
    return Values{add(scale_by(position_attention(p.query, p.key, p.value), v[1]), v[0])};
  });
}

TEST_CASE("channel attention has the reference's values", "[device]") {
  compare_all("channel_attention",
              [](Graph&, const Values& v) { return Values{add(scale_by(channel_attention(v[0]), v[1]), v[0])}; });
}

TEST_CASE("encoding by codewords has the reference's values", "[device]") {
  compare_all("encnet_encoding", [](Graph&, const Values& v) { return Values{encnet_encoding(v[0], v[1], v[2])}; });
}

TEST_CASE("squeeze and excitation has the reference's values", "[device]") {
  compare_all("se_gate", [](Graph&, const Values& v) { return Values{se_gate(v[0], v[1], v[2], v[3], v[4])}; });
  compare_all("se_gate",
              [](Graph&, const Values& v) { return Values{se_gate(v[0], flatten(v[1]), v[2], flatten(v[3]), v[4])}; });
}

TEST_CASE("attention layers have the reference's parameters and start as the identity", "[device]") {
  Context context{on_test_device()};
  ParamStore store;
  const Scope root{store, "head"};
  const CrissCrossAttention criss_cross(root / "cca", 16);
  const PositionAttention position(root / "sa", 16);
  const ChannelAttention channel(root / "sc");
  const Encoding encoding(root / "encoding" / 3, 16, 5);
  const SeGate gate(root / "se", 16, 4);
  const auto projections = [](const std::string& path) {
    return std::vector<std::string>{path + ".gamma(1)",           path + ".query_conv.weight(2,16,1,1)",
                                    path + ".query_conv.bias(2)", path + ".key_conv.weight(2,16,1,1)",
                                    path + ".key_conv.bias(2)",   path + ".value_conv.weight(16,16,1,1)",
                                    path + ".value_conv.bias(16)"};
  };
  std::vector<std::string> wanted = projections("head.cca");
  for (const std::string& name : projections("head.sa")) wanted.push_back(name);
  for (const char* name : {"sc.gamma(1)", "encoding.3.codewords(5,16)", "encoding.3.scale(5)", "se.fc.0.weight(4,16)",
                           "se.fc.0.bias(4)", "se.fc.2.weight(16,4)", "se.fc.2.bias(16)"})
    wanted.push_back(std::string("head.") + name);
  CHECK(names_of(store) == wanted);

  store.allocate();
  store.initialize(1);
  const auto scale = static_cast<size_t>(store.find_parameter("head.encoding.3.scale"));
  for (int i = 0; i < 5; ++i) {
    CHECK(store.value(static_cast<int64_t>(scale))[i] <= 0);
    CHECK(store.value(static_cast<int64_t>(scale))[i] >= -1);
  }
  Graph graph(context, store);
  Builder b{graph, Mode::kTrain};
  const OpInput image = sym("image", {2, 16, 3, 4});
  const Value x = graph.constant(Tensor::of(image.shape, image.values));
  CHECK(evaluate(criss_cross(b, x)).to_floats() == image.values);
  CHECK(evaluate(position(b, x)).to_floats() == image.values);
  CHECK(evaluate(channel(b, x)).to_floats() == image.values);
  CHECK(encoding(b, x).shape() == Shape{2, 5, 16});
  const std::vector<float> gated = evaluate(gate(b, x)).to_floats();
  REQUIRE(gated.size() == image.values.size());
  for (size_t i = 0; i < gated.size(); ++i) {
    CHECK(gated[i] / image.values[i] > 0);
    CHECK(gated[i] / image.values[i] < 1);
  }
}

TEST_CASE("attention operators refuse operands that do not fit", "[device]") {
  Context context{on_test_device()};
  ParamStore store;
  Graph graph(context, store);
  const auto image = [&](const Shape& s) { return graph.constant(Tensor::zeros(DType::kF32, s)); };
  const Value x = image({2, 4, 3, 5});
  CHECK_THROWS_AS(ca_weight(x, image({2, 4, 5, 3})), Error);
  CHECK_THROWS_AS(ca_map(image({2, 8, 3, 5}), x), Error);
  CHECK_THROWS_AS(position_attention(x, image({2, 5, 3, 5}), x), Error);
  CHECK_THROWS_AS(position_attention(x, x, image({1, 4, 3, 5})), Error);
  CHECK_THROWS_AS(channel_attention(image({4, 4})), Error);
  CHECK_THROWS_AS(encnet_encoding(x, image({3, 5}), image({3})), Error);
  CHECK_THROWS_AS(encnet_encoding(x, image({3, 4}), image({4})), Error);
}

}  // namespace convoy::test
