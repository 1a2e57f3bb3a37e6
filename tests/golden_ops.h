// Golden cases of single operators: tests/golden/ops.json + ops.bin (float64 results of the reference, rounded to
// float32). Inputs and upstream gradients are not stored; they are drawn from named number streams.
#pragma once
#include <cmath>
#include <cstdint>
#include <fstream>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "engine/rng.h"

namespace convoy::golden {

using Stream = ReferenceStream;

/// An input, output or gradient of a case: values in row-major order.
struct Array {
  std::string name;
  std::vector<int64_t> shape;
  std::vector<float> values;
  std::vector<float> upstream;  ///< outputs that take part in the gradient: the gradient flowing into them

  size_t count() const { return values.size(); }
};

/// One case. `gradients` are those of sum over outputs of (output * upstream) with respect to the named inputs.
struct OpCase {
  std::string id, op;
  nlohmann::json attrs;
  std::vector<Array> inputs, outputs, gradients;

  const Array& input(std::string_view name) const { return find(inputs, name); }
  const Array& output(std::string_view name) const { return find(outputs, name); }
  const Array& gradient(std::string_view name) const { return find(gradients, name); }

 private:
  const Array& find(const std::vector<Array>& arrays, std::string_view name) const {
    for (const Array& a : arrays)
      if (a.name == name) return a;
    throw std::out_of_range("golden case " + id + " has no array " + std::string(name));
  }
};

namespace detail {

inline size_t element_count(const std::vector<int64_t>& shape) {
  size_t count = 1;
  for (const int64_t extent : shape) count *= static_cast<size_t>(extent);
  return count;
}

inline Array draw_input(const nlohmann::json& entry, const std::string& case_id) {
  Array a{entry.at("name"), entry.at("shape"), {}, {}};
  const std::string stream_name = case_id + "." + a.name;
  const Stream u(stream_name), ignored(stream_name + ".ignore");
  const std::string rule = entry.at("rule");
  a.values.resize(element_count(a.shape));
  for (size_t i = 0; i < a.values.size(); ++i) {
    if (rule == "sym") {
      a.values[i] = static_cast<float>((2 * u[i] - 1) * entry.at("scale").get<double>());
    } else if (rule == "affine") {
      a.values[i] = static_cast<float>(entry.at("lo").get<double>() + entry.at("span").get<double>() * u[i]);
    } else if (rule == "labels") {
      const bool ignore = entry.contains("ignore") && ignored[i] < entry.value("ignore_frac", 0.0);
      a.values[i] = static_cast<float>(ignore ? entry.at("ignore").get<double>()
                                              : std::floor(u[i] * entry.at("classes").get<double>()));
    } else {
      throw std::runtime_error("golden case " + case_id + ": unknown rule " + rule);
    }
  }
  return a;
}

inline Array stored_array(const nlohmann::json& entry, const std::string& case_id, const std::vector<float>& data) {
  Array a{entry.at("name"), entry.at("shape"), {}, {}};
  const size_t offset = entry.at("offset"), count = element_count(a.shape);
  if (offset + count > data.size()) throw std::runtime_error("golden case " + case_id + " reaches past ops.bin");
  a.values.assign(data.data() + offset, data.data() + offset + count);
  if (entry.value("gout", false)) {
    const Stream u(case_id + ".gout." + a.name);
    for (size_t i = 0; i < count; ++i) a.upstream.push_back(static_cast<float>(2 * u[i] - 1));
  }
  return a;
}

inline std::vector<OpCase> read_op_cases(const std::string& folder) {
  std::ifstream text(folder + "/ops.json"), binary(folder + "/ops.bin", std::ios::binary);
  if (!text || !binary) throw std::runtime_error("cannot read ops.json and ops.bin in " + folder);
  const nlohmann::json root = nlohmann::json::parse(text);
  std::vector<float> data(root.at("count").get<size_t>());
  binary.read(reinterpret_cast<char*>(data.data()), static_cast<std::streamsize>(data.size() * sizeof(float)));
  if (!binary) throw std::runtime_error(folder + "/ops.bin is shorter than ops.json says");
  std::vector<OpCase> cases;
  for (const nlohmann::json& entry : root.at("ops")) {
    OpCase c{entry.at("id"), entry.at("op"), entry.at("attrs"), {}, {}, {}};
    for (const nlohmann::json& e : entry.at("inputs")) c.inputs.push_back(draw_input(e, c.id));
    for (const nlohmann::json& e : entry.at("outputs")) c.outputs.push_back(stored_array(e, c.id, data));
    for (const nlohmann::json& e : entry.at("grads")) c.gradients.push_back(stored_array(e, c.id, data));
    cases.push_back(std::move(c));
  }
  return cases;
}

}  // namespace detail

/// All cases, read once from CONVOY_TEST_DIR/golden.
inline const std::vector<OpCase>& op_cases() {
  static const std::vector<OpCase> cases = detail::read_op_cases(CONVOY_TEST_DIR "/golden");
  return cases;
}

/// The case of that id, for example "bn.train". Throws std::out_of_range when there is none.
inline const OpCase& op_case(std::string_view id) {
  for (const OpCase& c : op_cases())
    if (c.id == id) return c;
  throw std::out_of_range("no golden case " + std::string(id));
}

/// All cases of one operator, for example "max_pool2d".
inline std::vector<OpCase> op_cases_of(std::string_view op) {
  std::vector<OpCase> found;
  for (const OpCase& c : op_cases())
    if (c.op == op) found.push_back(c);
  return found;
}

}  // namespace convoy::golden
