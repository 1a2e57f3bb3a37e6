// How each operator of a forward pass is written in PyTorch: the table that `convoy plan --export-torch` reads.
#pragma once
#include <map>
#include <string>

#include "engine/graph.h"

namespace convoy {

/// A node that is to become one line of Python. Numbers come as Python expressions: those that follow from the image's
/// size are written so ("image.shape[2]"), all others as literals.
class TorchCall {
 public:
  virtual ~TorchCall() = default;
  virtual const Node& node() const = 0;
  /// Python expression of input i.
  virtual std::string input(int i) = 0;
  /// Whether anybody reads output i of the node.
  virtual bool reads(int output) const = 0;
  /// Whether the memory of input i may be overwritten: nobody else reads it, and its own gradient does not need it.
  virtual bool may_overwrite(int i) const = 0;
  /// Integer attribute.
  virtual std::string integer(const std::string& key) = 0;
  /// Real attribute: a literal, or one divided by the elements of input 0 where it is a mean's factor.
  virtual std::string real(const std::string& key) = 0;
  /// Extent of an output or input.
  virtual std::string output_extent(int output, int dim) = 0;
  virtual std::string input_extent(int i, int dim) = 0;
  /// All extents of an output, with a comma in between; one that does not follow from others is -1.
  virtual std::string output_shape(int output) = 0;
  /// (height, width) from two attributes: the size of a value where both are, else a pair.
  virtual std::string size(const std::string& height, const std::string& width) = 0;
  /// For a node whose statistics come from bn_stats or from buffers: "module, training, momentum" as they stand behind
  /// x in the call of the file's own batch_norm.
  virtual std::string norm_arguments() = 0;

  int inputs() const { return static_cast<int>(node().inputs.size()); }
  bool flag(const std::string& key) const { return node().attrs.flag(key); }
  int64_t literal(const std::string& key) const { return node().attrs.integer(key); }
  /// ", name=value", or nothing where both attributes have the default; one number where they are equal.
  std::string pair(const std::string& name, const std::string& height, const std::string& width,
                   int64_t default_value) const;
};

/// An expression with the value of the node's outputs: of the first, or of a tuple of those that are read.
using TorchForm = std::string (*)(TorchCall&);

/// By operator name. Operators that are not in it never stand in a forward pass or its loss: leaves, gradients, fused
/// forms, exchanges.
const std::map<std::string, TorchForm>& torch_forms();

/// Whether the gradient of this operator reads neither its output nor anything that shares memory with it, so that an
/// activation may overwrite the output.
bool output_is_free(const std::string& op);

/// A real number as Python writes it.
std::string python_real(double value);

}  // namespace convoy
