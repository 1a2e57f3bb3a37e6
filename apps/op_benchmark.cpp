#include "apps/op_benchmark.h"

#include <dlfcn.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <limits>

#include "apps/progress.h"
#include "engine/rng.h"
#include "kernels/roofline.h"
#include "kernels/user_kernel.h"

namespace convoy {

namespace {

using Clock = std::chrono::steady_clock;
constexpr int64_t kUserWorkspace = int64_t{64} << 20;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

/// Bytes that hold a view, a slice's neighbours included.
size_t memory_bytes(const View& v) {
  const int64_t lanes = std::max(v.pitch, v.blocks() * v.block);
  return static_cast<size_t>(v.n * lanes * v.pixels()) * dtype_size(v.dtype);
}

/// Calls f(element offset) for all elements in logical order.
template <class F>
void for_each_element(const View& v, F f) {
  for (int64_t n = 0; n < v.n; ++n)
    for (int64_t c = 0; c < v.c; ++c)
      for (int64_t p = 0; p < v.pixels(); ++p) {
        const int64_t image = n * v.image_stride();
        f(v.layout == Layout::kNhwc      ? image + p * v.pitch + c
          : v.layout == Layout::kBlocked ? image + (c / v.block * v.pixels() + p) * v.block + c % v.block
                                         : image + c * v.pixels() + p);
      }
}

/// An operand on the host: memory aligned to a page, and beside it memory of the device.
struct Operand {
  std::shared_ptr<void> host;
  std::shared_ptr<Storage> device;
  View view;  ///< where the kernel looks; null data for an output that nobody wants

  static Operand of(const View& geometry, Device* device, unsigned char fill) {
    Operand o;
    o.view = geometry;
    const size_t bytes = memory_bytes(geometry), page = 4096;
    o.host.reset(std::aligned_alloc(page, (bytes + page) / page * page), std::free);
    CONVOY_CHECK(o.host, "out of memory: {} bytes for one operand", bytes);
    std::memset(o.host.get(), fill, bytes);
    if (device && bytes) o.device = device->memory()->allocate(bytes);
    if (geometry.n > 0) o.view.data = device ? o.device->data : o.host.get();
    return o;
  }
  void send(Device* to) const {
    if (to && device) to->upload(device->data, host.get(), memory_bytes(view));
  }
  /// Values in logical order.
  std::vector<double> values(Device* from) const {
    if (from && device) from->download(host.get(), device->data, memory_bytes(view));
    std::vector<double> result;
    result.reserve(static_cast<size_t>(view.count()));
    for_each_element(view, [&](int64_t at) {
      result.push_back(view.dtype == DType::kI32   ? static_cast<const int32_t*>(host.get())[at]
                       : view.dtype == DType::kI64 ? static_cast<double>(static_cast<const int64_t*>(host.get())[at])
                                                   : static_cast<double>(static_cast<const float*>(host.get())[at]));
    });
    return result;
  }
};

/// Random values that suit most operators: images in -1..1, arrays (variances, weights, factors) in 0.5..1.5, integers
/// (labels, positions) 0 or 1. They depend on the operand's place alone, not on its layout.
void draw(const Operand& o, size_t place) {
  RandomStream random(1, "bench op", static_cast<int64_t>(place));
  const bool image = o.view.n * o.view.c * o.view.pixels() > o.view.c && (o.view.pixels() > 1 || o.view.n > 1);
  for_each_element(o.view, [&](int64_t at) {
    const double u = random.uniform();
    switch (o.view.dtype) {
      case DType::kF32:
        static_cast<float*>(o.host.get())[at] = static_cast<float>(image ? 2 * u - 1 : 0.5 + u);
        break;
      case DType::kI32:
        static_cast<int32_t*>(o.host.get())[at] = u < 0.5 ? 0 : 1;
        break;
      case DType::kI64:
        static_cast<int64_t*>(o.host.get())[at] = 1;
        break;
      default:
        fail("operands of type {} cannot be drawn", dtype_name(o.view.dtype));
    }
  });
}

/// A kernel with its operands on one device.
class Call {
 public:
  Call(const Kernel& kernel, const std::vector<View>& in, const std::vector<View>& out, Device* device)
      : kernel_(kernel), device_(device) {
    for (size_t i = 0; i < in.size(); ++i) {
      in_.push_back(Operand::of(in[i], device, 0));
      draw(in_.back(), i);
      in_.back().send(device);
    }
    const auto workspace = static_cast<int64_t>(std::max<size_t>(kernel.workspace_bytes, 64));
    workspace_ = Operand::of({.dtype = DType::kU8, .n = workspace}, device, 0);
    fault_ = Operand::of({.dtype = DType::kI64}, device, 0);
    *static_cast<int64_t*>(fault_.host.get()) = std::numeric_limits<int64_t>::max();
    fault_.send(device);
    make_outputs(out);
  }

  /// Outputs become NaN.
  void make_outputs(const std::vector<View>& geometry) {
    out_.clear();
    for (const View& v : geometry) {
      out_.push_back(Operand::of(v, device_, 0xff));
      out_.back().send(device_);
    }
  }
  double run() {
    const std::vector<View> in = views(in_), out = views(out_);
    const auto start = Clock::now();
    kernel_.run({.in = in,
                 .out = out,
                 .workspace = workspace_.view.data,
                 .step = step_,
                 .on_device = device_ != nullptr,
                 .stream = device_ ? device_->compute() : nullptr,
                 .fault = device_ && kernel_.explain ? static_cast<int64_t*>(fault_.view.data) : nullptr});
    if (device_) device_->synchronize();
    return seconds_since(start);
  }
  /// Seconds; the function's refusal is an Error.
  double run_user(const UserKernel& user, const Operand& workspace, const std::string& attributes) {
    const std::vector<View> in = views(in_), out = views(out_);
    const auto start = Clock::now();
    const int code =
        user.run(device_ ? device_->compute() : nullptr, in, out, workspace.view.data, kUserWorkspace, attributes);
    if (device_) device_->synchronize();
    CONVOY_CHECK(code == 0, "the user's kernel does not take these arguments (it returned {})", code);
    return seconds_since(start);
  }
  std::vector<std::vector<double>> results() const {
    std::vector<std::vector<double>> all;
    for (const Operand& o : out_) all.push_back(o.values(device_));
    return all;
  }

 private:
  static std::vector<View> views(const std::vector<Operand>& operands) {
    std::vector<View> all;
    for (const Operand& o : operands) all.push_back(o.view);
    return all;
  }

  const Kernel& kernel_;
  Device* device_;
  std::vector<Operand> in_, out_;
  Operand workspace_, fault_;
  StepState step_{.seed = 1};
};

double largest_error(const std::vector<std::vector<double>>& got, const std::vector<std::vector<double>>& want) {
  double worst = 0;
  for (size_t o = 0; o < got.size(); ++o) {
    double size = 0, error = 0;
    for (size_t i = 0; i < got[o].size(); ++i) {
      const double a = got[o][i], b = want[o][i];
      if (std::isnan(a) != std::isnan(b)) return std::numeric_limits<double>::infinity();
      if (std::isnan(a) || a == b) continue;
      error = std::max(error, std::abs(a - b));
      size = std::max(size, std::abs(b));
    }
    worst = std::max(worst, size > 0 ? error / size : error);
  }
  return worst;
}

template <class Run>
OpTiming time(const OpBenchmarkOptions& options, Run run) {
  OpTiming timing;
  run();
  const auto start = Clock::now();
  do {
    timing.seconds.push_back(run());
  } while (static_cast<int>(timing.seconds.size()) < options.repeats && seconds_since(start) < options.max_seconds);
  return timing;
}

/// Operators whose kernels may use either of inputs that say the same in a step (an output and what it is made of),
/// which random inputs do not.
bool needs_fitting_inputs(const std::string& op) {
  return op == "position_attention_backward";
}

/// The operands of a node as the CPU's kernel wants them; images that came as nhwc or blocked are offered as blocked.
void on_cpu(const OpShape& shape, std::vector<View>& in, std::vector<View>& out) {
  const auto offered = [](const View& v) { return v.layout == Layout::kNchw ? Layout::kNchw : Layout::kBlocked; };
  const auto is_image = [](DType dtype, const Shape& s) { return dtype == DType::kF32 && s.rank() == 4; };
  const Node& node = *shape.node;
  LayoutChoice choice{.node = node, .device = DeviceKind::kCpu, .in = {}, .out = {}};
  for (size_t i = 0; i < node.inputs.size(); ++i) choice.in.push_back(offered(shape.in[i]));
  for (const TensorInfo& o : node.outputs)
    choice.out.push_back(is_image(o.dtype, o.shape) ? Layout::kBlocked : Layout::kNchw);
  if (node.op->layout) node.op->layout(choice);
  const auto view = [](const TensorInfo& info, Layout layout) {
    if (layout != Layout::kBlocked) return plain_view(nullptr, info.dtype, info.shape);
    View blocked = blocked_view(nullptr, info.shape, cpu::channel_block());
    blocked.dtype = info.dtype;
    return blocked;
  };
  for (size_t i = 0; i < node.inputs.size(); ++i) {
    if (!node.op->layout && is_image(node.inputs[i].dtype(), node.inputs[i].shape())) choice.in[i] = Layout::kBlocked;
    in.push_back(view({node.inputs[i].dtype(), node.inputs[i].shape()}, choice.in[i]));
  }
  for (size_t o = 0; o < node.outputs.size(); ++o)
    out.push_back(shape.out[o].n ? view(node.outputs[o], choice.out[o]) : shape.out[o]);
}

}  // namespace

UserKernel::UserKernel(const std::string& name) {
  const size_t colon = name.rfind(':');
  CONVOY_CHECK(colon != std::string::npos && colon > 0 && colon + 1 < name.size(),
               "--user-kernel {}: expected LIB.so:FUNCTION", name);
  std::string file = name.substr(0, colon);
  if (file.find('/') == std::string::npos) file = "./" + file;
  library_ = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  CONVOY_CHECK(library_, "--user-kernel {}: {}", name, dlerror());
  function_ = dlsym(library_, name.substr(colon + 1).c_str());
  if (!function_) dlclose(library_);
  CONVOY_CHECK(function_, "--user-kernel {}: {} has no function '{}' (in C++ it is to be extern \"C\")", name, file,
               name.substr(colon + 1));
}

UserKernel::~UserKernel() {
  dlclose(library_);
}

int UserKernel::run(void* stream, const std::vector<View>& in, const std::vector<View>& out, void* workspace,
                    int64_t bytes, const std::string& attributes) const {
  const auto convert = [](const std::vector<View>& views) {
    std::vector<convoy_view> all;
    for (const View& v : views)
      all.push_back({v.data, static_cast<int32_t>(v.dtype), static_cast<int32_t>(v.layout), v.n, v.c, v.h, v.w, v.pitch,
                     v.block});
    return all;
  };
  const std::vector<convoy_view> inputs = convert(in), outputs = convert(out);
  convoy_kernel* function;
  std::memcpy(&function, &function_, sizeof function);
  return function(stream, inputs.data(), static_cast<int32_t>(inputs.size()), outputs.data(),
                  static_cast<int32_t>(outputs.size()), workspace, bytes, attributes.c_str());
}

double Roofline::seconds(const Cost& cost) const {
  return std::max(cost.bytes / bytes_per_second, cost.flops / flops_per_second);
}

Roofline measure_cpu_roofline() {
  constexpr int64_t kFloats = int64_t{16} << 20;
  constexpr int kRepeats = 5;
  std::vector<float> a(kFloats, 1), b(kFloats, 2), c(kFloats, 3);
  Roofline best;
  float sink = 0;
  for (int k = 0; k <= kRepeats; ++k) {
    auto start = Clock::now();
    CONVOY_CPU(triad, a.data(), b.data(), c.data(), 0.5f, kFloats);
    const double bytes = 12.0 * kFloats / seconds_since(start);
    start = Clock::now();
    const double flops = CONVOY_CPU(fma_chains, 2'000'000, &sink) / seconds_since(start);
    if (k == 0) continue;
    best.bytes_per_second = std::max(best.bytes_per_second, bytes);
    best.flops_per_second = std::max(best.flops_per_second, flops);
  }
  return best;
}

double OpTiming::median() const {
  std::vector<double> sorted = seconds;
  std::sort(sorted.begin(), sorted.end());
  const size_t half = sorted.size() / 2;
  return sorted.size() % 2 ? sorted[half] : (sorted[half - 1] + sorted[half]) / 2;
}

OpMeasurement measure_op(Context& context, Context& cpu, const OpShape& shape, const OpBenchmarkOptions& options) {
  OpMeasurement m;
  Device* device = context.device();
  // Operands here and on the CPU's side, and the results as doubles.
  const double needed = 4 * shape.cost.bytes + static_cast<double>(shape.kernel.workspace_bytes);
  if (const auto free = static_cast<double>(available_memory_bytes()); needed > free) {
    m.note = fmt::format("not run: it needs {:.1f} GiB, {:.1f} GiB are free", needed / (1 << 30), free / (1 << 30));
    return m;
  }
  std::vector<std::vector<double>> results;
  try {
    Call call(shape.kernel, shape.in, shape.out, device);
    m.ours = time(options, [&] { return call.run(); });
    results = call.results();
    if (options.user_kernel) {
      const Operand workspace = Operand::of({.dtype = DType::kU8, .n = kUserWorkspace}, device, 0);
      call.make_outputs(shape.out);
      try {
        m.user = time(options, [&] { return call.run_user(*options.user_kernel, workspace, shape.attrs); });
        m.user_error = largest_error(call.results(), results);
      } catch (const std::exception& error) {
        m.note = error.what();
      } catch (...) {
        m.note = "the user kernel threw something that is no std::exception";
      }
    }
  } catch (const std::exception& error) {
    m.note = error.what();
    return m;
  }
  const bool has_other = device || shape.op.starts_with("conv2d");
  if (!has_other || !shape.node || !shape.node->op->prepare_cpu) return m;
  if (needs_fitting_inputs(shape.op)) {
    if (m.note.empty()) m.note = "not compared: its inputs belong together, random ones do not";
    return m;
  }
  try {
    std::vector<View> in, out;
    on_cpu(shape, in, out);
    const Kernel twin = shape.node->op->prepare_cpu({.node = *shape.node, .in = in, .out = out, .context = cpu});
    Call call(twin, in, out, nullptr);
    call.run();
    m.error = largest_error(results, call.results());
  } catch (const std::exception& error) {
    m.note = error.what();
  }
  return m;
}

}  // namespace convoy
