// Single values of arrays of any element type, and what `convoy weights` prints of an array.
#pragma once
#include <string>
#include <vector>

#include "io/safetensors.h"

namespace convoy {

/// Element i of row-major values, which need no alignment; of complex numbers, part i (real, imaginary, real, ...).
double value_at(ElementType dtype, const void* values, int64_t i);

/// All values as f32, rounded to nearest. Throws Error for complex numbers, naming the tensor.
std::vector<float> to_floats(const NamedTensor& tensor);

/// Throws Error naming `file`, tensor, index and value where the values are none that a network can go on with: not
/// finite, beyond what f32 holds, or a negative variance (of a name that ends with "running_var").
void require_usable_values(const NamedTensor& tensor, const std::string& file);

/// What `convoy weights list` prints of a tensor.
struct TensorSummary {
  std::string name;
  ElementType dtype = ElementType::kF32;
  std::vector<int64_t> shape;
  double l2 = 0;              ///< Euclidean norm of all values, summed in double
  std::vector<double> first;  ///< the first four values in row-major order (of complex numbers, their parts)
};

TensorSummary summarize(const NamedTensor& tensor);

}  // namespace convoy
