// The list of operators that come with the engine: one function per file of engine/ops.
#pragma once
#include <vector>

#include "engine/op.h"

namespace convoy {

std::vector<OpDef> leaf_ops();
std::vector<OpDef> conv_ops();
std::vector<OpDef> batch_norm_ops();
std::vector<OpDef> elementwise_ops();
std::vector<OpDef> pool_ops();
std::vector<OpDef> resize_ops();
std::vector<OpDef> channel_ops();
std::vector<OpDef> dropout_ops();
std::vector<OpDef> loss_ops();
std::vector<OpDef> loss_ohem_ops();
std::vector<OpDef> loss_region_ops();
std::vector<OpDef> loss_plain_ops();
std::vector<OpDef> loss_box_ops();
std::vector<OpDef> exchange_ops();
std::vector<OpDef> shape_ops();
std::vector<OpDef> attention_ops();
std::vector<OpDef> activation_ops();
std::vector<OpDef> softmax_ops();
std::vector<OpDef> group_norm_ops();
std::vector<OpDef> shuffle_ops();
std::vector<OpDef> sample_ops();

/// All of them.
inline std::vector<OpDef> built_in_ops() {
  std::vector<OpDef> all;
  for (auto group :
       {leaf_ops,    conv_ops,      batch_norm_ops, elementwise_ops, pool_ops,       resize_ops,   channel_ops,
        dropout_ops, loss_ops,      loss_ohem_ops,  loss_region_ops, loss_plain_ops, loss_box_ops, exchange_ops,
        shape_ops,   attention_ops, activation_ops, softmax_ops,     group_norm_ops, shuffle_ops,  sample_ops})
    for (OpDef& op : group()) all.push_back(std::move(op));
  return all;
}

}  // namespace convoy
