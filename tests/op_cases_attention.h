// Operator cases of attention.
#pragma once
#include "tests/op_case.h"

namespace convoy::test {

inline void add_attention_op_cases(std::vector<OpCase>& t) {
  using Values = std::vector<Value>;
  const auto attended = [](const Shape& s) { return Shape{s[0], s[2] + s[3] - 1, s[2], s[3]}; };
  for (const Shape& s : {Shape{2, 19, 5, 7}, {1, 3, 17, 12}, {1, 33, 1, 6}, {1, 16, 6, 1}, {2, 5, 1, 1}}) {
    t.push_back({.name = "ca_weight " + s.str(),
                 .inputs = {sym("t", s), sym("f", s)},
                 .build = [](Graph&, const Values& v) { return Values{ca_weight(v[0], v[1])}; }});
    t.push_back({.name = "ca_map " + s.str(),
                 .inputs = {sym("w", attended(s)), sym("g", s)},
                 .build = [](Graph&, const Values& v) { return Values{ca_map(v[0], v[1])}; }});
  }
  for (const auto& [q, channels] : {std::pair{Shape{2, 3, 5, 7}, 19}, {{1, 5, 9, 15}, 33}, {{1, 19, 8, 8}, 16}})
    t.push_back({.name = "position_attention " + q.str(),
                 .inputs = {sym("q", q, 0.7), sym("k", q, 0.7), sym("v", {q[0], channels, q[2], q[3]})},
                 .build = [](Graph&, const Values& v) { return Values{position_attention(v[0], v[1], v[2])}; }});
  for (const Shape& s : {Shape{2, 12, 4, 5}, {1, 33, 3, 3}, {1, 1, 2, 3}, {2, 19, 1, 1}})
    t.push_back({.name = "channel_attention " + s.str(),
                 .inputs = {sym("x", s, 0.7)},
                 .build = [](Graph&, const Values& v) { return Values{channel_attention(v[0])}; }});
  for (const auto& [x, words] : {std::pair{Shape{2, 6, 3, 4}, 4}, {{2, 19, 9, 8}, 17}, {{1, 33, 1, 1}, 3}})
    t.push_back(
        {.name = "encnet_encoding " + x.str(),
         .inputs = {sym("x", x, 0.5), sym("codewords", {words, x[1]}, 0.3), between("scale", {words}, -0.4, -0.1)},
         .build = [](Graph&, const Values& v) { return Values{encnet_encoding(v[0], v[1], v[2])}; }});
}

}  // namespace convoy::test
