// Measures launches one by one: time, against the machine's limits, and values, against the CPU's kernels.
#pragma once
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "apps/op_shapes.h"

namespace convoy {

/// A kernel of somebody else in a shared object (kernels/user_kernel.h).
class UserKernel {
 public:
  /// "LIB.so:FUNCTION". Throws Error where there is no such library or function.
  explicit UserKernel(const std::string& name);
  ~UserKernel();
  UserKernel(const UserKernel&) = delete;
  UserKernel& operator=(const UserKernel&) = delete;
  /// What the function returns: 0 where it has done its work.
  int run(void* stream, const std::vector<View>& in, const std::vector<View>& out, void* workspace, int64_t bytes,
          const std::string& attributes) const;

 private:
  void* library_ = nullptr;
  void* function_ = nullptr;
};

/// What the machine can do at best, measured by a stream triad and by multiply-adds on registers.
struct Roofline {
  double bytes_per_second = 0, flops_per_second = 0;
  /// Least seconds that the work can take.
  double seconds(const Cost& cost) const;
};
/// With as many threads as the process computes with.
Roofline measure_cpu_roofline();

struct OpBenchmarkOptions {
  int repeats = 20;
  double max_seconds = 1;  ///< for each row; one repeat is always made
  const UserKernel* user_kernel = nullptr;
};

struct OpTiming {
  std::vector<double> seconds;  ///< of each repeat, after one that does not count
  double median() const;
};

struct OpMeasurement {
  OpTiming ours;
  std::optional<OpTiming> user;
  /// Largest difference over all outputs, relative to the largest value of each; none where there is nothing to
  /// compare with.
  std::optional<double> error, user_error;
  std::string note;  ///< why something is missing
};

/// Runs a shape on random data on the context's device. On a device its outputs are compared with the CPU's kernel, on
/// the CPU dense convolutions with the plain kernel; a user's kernel always with ours. Never throws for what a kernel
/// has to say of the random data: that becomes the note.
OpMeasurement measure_op(Context& context, Context& cpu, const OpShape& shape, const OpBenchmarkOptions& options);

}  // namespace convoy
