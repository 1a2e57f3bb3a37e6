// oneDNN convolutions behind kernels/conv2d_onednn.h.
//   FLOPs  2 N O OH OW (C/groups) KH KW per direction.
//   Bytes  x, y and w once each, plus one reorder of w per call and, where oneDNN refuses our layout, of x and y.
//   Numerics: fp32 with fused adds in oneDNN's order; weight gradients of slices are added in slice order.
#include "kernels/conv2d_onednn.h"

#ifdef CONVOY_WITH_ONEDNN
#include <omp.h>

#include <algorithm>
#include <oneapi/dnnl/dnnl.hpp>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

namespace convoy {
namespace {

using Direction = OneDnnConv::Direction;
using dnnl::memory;
using Tag = memory::format_tag;

constexpr int64_t kMaxSlices = 8;
constexpr int64_t kMaxParts = 4;  // of the output channels, each of at least:
constexpr int64_t kMinPartChannels = 32;
// Images in turns: for maps so small that adding up partial sums in memory would take long beside computing them.
constexpr int64_t kMaxTurnPixels = 512;
constexpr int64_t kTurnParts = 8;
constexpr int64_t kMaxPartialBytes = int64_t{64} << 20;

const dnnl::engine& engine() {
  static const dnnl::engine cpu(dnnl::engine::kind::cpu, 0);
  return cpu;
}

size_t aligned(size_t bytes) {
  return (bytes + 63) / 64 * 64;
}

/// oneDNN fixes a primitive's thread count when it is created.
class CreationThreads {
 public:
  explicit CreationThreads(int count) : before_(omp_get_max_threads()) { omp_set_num_threads(count); }
  ~CreationThreads() { omp_set_num_threads(before_); }

 private:
  int before_;
};

struct Shape {
  memory::dims x, y, w, bias, strides, dilates, pads;
  Tag x_tag, y_tag, w_tag;
};

Tag view_tag(const View& v) {
  if (v.layout == Layout::kNchw) return Tag::nchw;
  return v.block == 16 ? Tag::nChw16c : Tag::nChw8c;
}

memory::desc describe(const memory::dims& dims, Tag tag) {
  return {dims, memory::data_type::f32, tag};
}

dnnl::primitive_attr user_scratchpad() {
  dnnl::primitive_attr attr;
  attr.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  return attr;
}

/// A tensor as the caller holds it and as the primitive wants it.
struct Operand {
  memory::desc outside, inside;
  std::optional<dnnl::reorder> reorder;  // towards the primitive for inputs, away from it for outputs
  memory::desc reorder_scratch;

  Operand() = default;
  Operand(const memory::desc& out, const memory::desc& in, bool is_input) : outside(out), inside(in) {
    if (out == in) return;
    const dnnl::reorder::primitive_desc pd(engine(), is_input ? out : in, engine(), is_input ? in : out,
                                           user_scratchpad());
    reorder.emplace(pd);
    reorder_scratch = pd.scratchpad_desc();
  }
  size_t bytes() const { return reorder ? aligned(inside.get_size()) : 0; }
  size_t scratch_bytes() const { return reorder ? aligned(reorder_scratch.get_size()) : 0; }

  void move(const dnnl::stream& stream, void* from, void* to, bool is_input, void* scratch) const {
    memory source(is_input ? outside : inside, engine(), from), target(is_input ? inside : outside, engine(), to);
    memory pad(reorder_scratch, engine(), scratch);
    reorder->execute(stream, {{DNNL_ARG_FROM, source}, {DNNL_ARG_TO, target}, {DNNL_ARG_SCRATCHPAD, pad}});
  }
};

/// A primitive for one slice size, with its operands.
struct Prepared {
  dnnl::primitive primitive;
  std::string name;
  Operand x, y, w;
  memory::desc bias, scratchpad;

  /// Workspace of one slice; weights are not part of it.
  size_t bytes() const {
    return x.bytes() + y.bytes() + std::max({aligned(scratchpad.get_size()), x.scratch_bytes(), y.scratch_bytes()});
  }
};

dnnl::convolution_forward::primitive_desc forward_descriptor(const Shape& s, const memory::desc& x,
                                                             const memory::desc& w, const memory::desc& y) {
  const auto kind = dnnl::prop_kind::forward_training;
  const auto algorithm = dnnl::algorithm::convolution_direct;
  const memory::desc bias = s.bias.empty() ? memory::desc() : describe(s.bias, Tag::a);
#if DNNL_VERSION_MAJOR >= 3
  return {engine(), kind, algorithm, x, w, bias, y, s.strides, s.dilates, s.pads, s.pads, user_scratchpad()};
#else
  return {{kind, algorithm, x, w, bias, y, s.strides, s.dilates, s.pads, s.pads}, user_scratchpad(), engine()};
#endif
}

Prepared prepare_as(Direction direction, const Shape& s, Tag x_tag, Tag y_tag) {
  const memory::desc x = describe(s.x, x_tag), y = describe(s.y, y_tag), w = describe(s.w, Tag::any);
  const memory::desc outer_x = describe(s.x, s.x_tag), outer_y = describe(s.y, s.y_tag),
                     outer_w = describe(s.w, s.w_tag);
  const auto algorithm = dnnl::algorithm::convolution_direct;
  const auto forward = forward_descriptor(s, x, w, y);
  Prepared r;
  const auto finish = [&](const auto& pd, const memory::desc& in_x, const memory::desc& in_w,
                          const memory::desc& in_y) {
    r.name = pd.impl_info_str();
    r.scratchpad = pd.scratchpad_desc();
    if (r.name.find("ref") != std::string::npos) return;
    r.x = Operand(outer_x, in_x, direction != Direction::kBackwardData);
    r.y = Operand(outer_y, in_y, direction != Direction::kForward);
    r.w = Operand(outer_w, in_w, direction != Direction::kBackwardWeights);
  };
  if (direction == Direction::kForward) {
    finish(forward, forward.src_desc(), forward.weights_desc(), forward.dst_desc());
    r.bias = forward.bias_desc();
    r.primitive = dnnl::convolution_forward(forward);
  } else if (direction == Direction::kBackwardData) {
#if DNNL_VERSION_MAJOR >= 3
    const dnnl::convolution_backward_data::primitive_desc pd(engine(), algorithm, x, w, y, s.strides, s.dilates, s.pads,
                                                             s.pads, forward, user_scratchpad());
#else
    const dnnl::convolution_backward_data::primitive_desc pd({algorithm, x, w, y, s.strides, s.dilates, s.pads, s.pads},
                                                             user_scratchpad(), engine(), forward);
#endif
    finish(pd, pd.diff_src_desc(), pd.weights_desc(), pd.diff_dst_desc());
    r.primitive = dnnl::convolution_backward_data(pd);
  } else {
#if DNNL_VERSION_MAJOR >= 3
    const dnnl::convolution_backward_weights::primitive_desc pd(engine(), algorithm, x, w, y, s.strides, s.dilates,
                                                                s.pads, s.pads, forward, user_scratchpad());
#else
    const dnnl::convolution_backward_weights::primitive_desc pd(
        {algorithm, x, w, y, s.strides, s.dilates, s.pads, s.pads}, user_scratchpad(), engine(), forward);
#endif
    finish(pd, pd.src_desc(), pd.diff_weights_desc(), pd.diff_dst_desc());
    r.primitive = dnnl::convolution_backward_weights(pd);
  }
  return r;
}

/// Our layout first; then what oneDNN likes best, and the two plain ones. Nothing where all of them are reference code.
std::optional<Prepared> prepare(Direction direction, const Shape& s) {
  const std::pair<Tag, Tag> choices[] = {
      {s.x_tag, s.y_tag}, {Tag::any, Tag::any}, {Tag::nhwc, Tag::nhwc}, {Tag::nchw, Tag::nchw}};
  for (const auto& [x_tag, y_tag] : choices) {
    try {
      Prepared p = prepare_as(direction, s, x_tag, y_tag);
      if (p.name.find("ref") == std::string::npos) return p;
    } catch (const dnnl::error&) {
      continue;  // oneDNN has no implementation at all for these layouts
    }
  }
  return std::nullopt;
}

/// A slice of the work, computed by one primitive call: some images and, of y, some channels.
struct Slice {
  int64_t image = 0, channel = 0;
  size_t kind = 0;  // index into Impl::kinds
};

/// How the work is cut. Weight gradients: image slices, the partial sums of which are added in order, times parts of
/// the output channels (only where a slice is one image, since just then the channels of y are contiguous). For
/// small maps of many channels a thread takes the images of a part in turns: its partial sums then stay in the cache.
struct Cut {
  int64_t image_slices = 1, parts = 1;
  bool in_turns = false;
};

Cut cut_weight_gradient(const View& x, const View& y, const Conv2dParams& params, int64_t weight_bytes) {
  Cut cut;
  cut.image_slices = std::max<int64_t>(1, std::min({x.n, kMaxSlices, kMaxPartialBytes / weight_bytes}));
  if (params.groups != 1 || y.layout != Layout::kBlocked) return cut;
  if (x.n > 1 && y.pixels() <= kMaxTurnPixels && y.c >= kTurnParts * kMinPartChannels) return {x.n, kTurnParts, true};
  if (cut.image_slices == x.n)
    cut.parts = std::clamp<int64_t>(std::min(kMaxSlices / cut.image_slices, y.c / kMinPartChannels), 1, kMaxParts);
  return cut;
}

char* take(char*& space, size_t bytes) {
  char* p = space;
  space += bytes;
  return p;
}

}  // namespace

std::string onednn_version() {
  const dnnl_version_t* version = dnnl_version();
  return std::to_string(version->major) + "." + std::to_string(version->minor) + "." + std::to_string(version->patch);
}

struct OneDnnConv::Impl {
  Direction direction;
  int threads = 1;
  int64_t x_image = 0, y_image = 0, y_pixels = 0;  // elements of one image, of one channel
  int64_t weights_per_channel = 0;                 // plain weights of one output channel
  std::vector<Prepared> kinds;                     // distinct slice shapes
  std::vector<Slice> slices;                       // one slice: oneDNN itself uses all threads
  int64_t parts = 1;                               // slices p, p + parts, ... are partial sums of part p
  bool in_turns = false;                           // a thread adds up the slices of a part, one after the other
  size_t slice_bytes = 0, weight_bytes = 0, weight_scratch = 0;

  /// weights: in the primitive's format. What the direction reads and writes differs, oneDNN's handles are never const.
  void run_slice(const Slice& slice, const float* x, const void* weights, const float* bias, const float* y,
                 char* space) const;
  void run_slices(const float* x, const char* weights, size_t weight_step, const float* bias, const float* y,
                  char* space) const;
  /// The weight gradient of every part, summed over its slices; sums and one partial sum of each part.
  void run_in_turns(const float* x, const float* dy, char* sums, char* partials, char* space) const;
};

void OneDnnConv::Impl::run_slice(const Slice& slice, const float* x, const void* weights, const float* bias,
                                 const float* y, char* space) const {
  const Prepared& p = kinds[slice.kind];
  const dnnl::stream stream(engine());
  void* outer_x = const_cast<float*>(x + slice.image * x_image);
  void* outer_y = const_cast<float*>(y + slice.image * y_image + slice.channel * y_pixels);
  void* inner_x = p.x.reorder ? take(space, p.x.bytes()) : outer_x;
  void* inner_y = p.y.reorder ? take(space, p.y.bytes()) : outer_y;
  const memory mx(p.x.inside, engine(), inner_x), my(p.y.inside, engine(), inner_y);
  const memory mw(p.w.inside, engine(), const_cast<void*>(weights)), scratch(p.scratchpad, engine(), space);
  const bool reads_x = direction != Direction::kBackwardData, reads_y = direction != Direction::kForward;
  if (reads_x && p.x.reorder) p.x.move(stream, outer_x, inner_x, true, space);
  if (reads_y && p.y.reorder) p.y.move(stream, outer_y, inner_y, true, space);
  const int x_arg = reads_x ? DNNL_ARG_SRC : DNNL_ARG_DIFF_SRC, y_arg = reads_y ? DNNL_ARG_DIFF_DST : DNNL_ARG_DST;
  const int w_arg = direction == Direction::kBackwardWeights ? DNNL_ARG_DIFF_WEIGHTS : DNNL_ARG_WEIGHTS;
  std::unordered_map<int, memory> arguments{{x_arg, mx}, {w_arg, mw}, {y_arg, my}, {DNNL_ARG_SCRATCHPAD, scratch}};
  if (bias) arguments.emplace(DNNL_ARG_BIAS, memory(p.bias, engine(), const_cast<float*>(bias)));
  p.primitive.execute(stream, arguments);
  if (!reads_x && p.x.reorder) p.x.move(stream, inner_x, outer_x, false, space);
  if (!reads_y && p.y.reorder) p.y.move(stream, inner_y, outer_y, false, space);
}

void OneDnnConv::Impl::run_slices(const float* x, const char* weights, size_t weight_step, const float* bias,
                                  const float* y, char* space) const {
  const int64_t count = static_cast<int64_t>(slices.size());
  if (count == 1) return run_slice(slices[0], x, weights, bias, y, space);
#pragma omp parallel for schedule(dynamic) num_threads(threads)
  for (int64_t i = 0; i < count; ++i) {
    const size_t k = static_cast<size_t>(i);
    run_slice(slices[k], x, weights + k * weight_step, bias, y, space + k * slice_bytes);
  }
}

void OneDnnConv::Impl::run_in_turns(const float* x, const float* dy, char* sums, char* partials, char* space) const {
#pragma omp parallel for schedule(dynamic) num_threads(threads)
  for (int64_t p = 0; p < parts; ++p) {
    const size_t part = static_cast<size_t>(p), values = kinds[slices[part].kind].w.inside.get_size() / sizeof(float);
    float* sum = reinterpret_cast<float*>(sums + part * weight_bytes);
    float* partial = reinterpret_cast<float*>(partials + part * weight_bytes);
    for (size_t k = part; k < slices.size(); k += static_cast<size_t>(parts)) {
      run_slice(slices[k], x, k == part ? sum : partial, nullptr, dy, space + part * slice_bytes);
      if (k != part)
        for (size_t e = 0; e < values; ++e) sum[e] += partial[e];
    }
  }
}

std::unique_ptr<OneDnnConv> OneDnnConv::create(Direction direction, const View& x, const View& y, int64_t kernel_h,
                                               int64_t kernel_w, const Conv2dParams& params, bool bias, int threads) {
  Shape s;
  s.x = {x.n, x.c, x.h, x.w};
  s.strides = {params.stride_h, params.stride_w};
  s.dilates = {params.dilation_h - 1, params.dilation_w - 1};
  s.pads = {params.pad_h, params.pad_w};
  s.x_tag = view_tag(x);
  s.y_tag = view_tag(y);
  s.w_tag = params.groups == 1 ? Tag::oihw : Tag::goihw;
  const auto set_size = [&](int64_t images, int64_t out_channels) {
    const int64_t g = params.groups;
    s.x[0] = images;
    s.y = {images, out_channels, y.h, y.w};
    s.w = g == 1 ? memory::dims{out_channels, x.c, kernel_h, kernel_w}
                 : memory::dims{g, out_channels / g, x.c / g, kernel_h, kernel_w};
    if (bias && direction == Direction::kForward) s.bias = {out_channels};
  };

  auto impl = std::make_unique<Impl>();
  impl->direction = direction;
  impl->threads = threads;
  impl->x_image = x.image_stride();
  impl->y_image = y.image_stride();
  impl->y_pixels = y.pixels();
  impl->weights_per_channel = x.c / params.groups * kernel_h * kernel_w;
  const int64_t weight_bytes = y.c * impl->weights_per_channel * static_cast<int64_t>(sizeof(float));

  Cut cut;
  bool one_thread = direction == Direction::kBackwardWeights;
  if (one_thread) {
    cut = cut_weight_gradient(x, y, params, weight_bytes);
  } else {
    CreationThreads scope(threads);
    set_size(x.n, y.c);
    std::optional<Prepared> whole = prepare(direction, s);
    if (!whole) return nullptr;
    // Direct kernels give one thread a whole output element; a matrix product may cut its inner dimension by threads.
    one_thread = whole->name.find("gemm") != std::string::npos;
    if (one_thread)
      cut.image_slices = x.n;
    else
      impl->kinds.push_back(std::move(*whole));
  }

  if (!one_thread) {
    impl->slices.push_back({});
  } else {
    const int64_t align = y.block * cut.parts;
    const int64_t part_channels = cut.parts == 1 ? y.c : (y.c + align - 1) / align * y.block;
    impl->parts = cut.parts = (y.c + part_channels - 1) / part_channels;
    impl->in_turns = cut.in_turns;
    std::vector<std::pair<int64_t, int64_t>> sizes;
    for (int64_t i = 0; i < cut.image_slices; ++i)
      for (int64_t part = 0; part < cut.parts; ++part) {
        const int64_t image = i * x.n / cut.image_slices, channel = part * part_channels;
        const std::pair size((i + 1) * x.n / cut.image_slices - image, std::min(part_channels, y.c - channel));
        const size_t kind = static_cast<size_t>(std::find(sizes.begin(), sizes.end(), size) - sizes.begin());
        if (kind == sizes.size()) {
          set_size(size.first, size.second);
          CreationThreads scope(1);
          std::optional<Prepared> p = prepare(direction, s);
          if (!p) return nullptr;
          for (size_t k = 0; k < kind; ++k)  // partial sums of one part must agree in format
            if (sizes[k].second == size.second && impl->kinds[k].w.inside != p->w.inside) return nullptr;
          impl->kinds.push_back(std::move(*p));
          sizes.push_back(size);
        }
        impl->slices.push_back({image, channel, kind});
      }
  }
  CreationThreads scope(threads);
  for (Prepared& p : impl->kinds) {
    p.w = Operand(p.w.outside, p.w.inside, direction != Direction::kBackwardWeights);  // moved by all threads
    impl->slice_bytes = std::max(impl->slice_bytes, p.bytes());
    impl->weight_bytes = std::max(impl->weight_bytes, aligned(p.w.inside.get_size()));
    impl->weight_scratch = std::max(impl->weight_scratch, p.w.scratch_bytes());
  }
  return std::unique_ptr<OneDnnConv>(new OneDnnConv(std::move(impl)));
}

size_t OneDnnConv::workspace_bytes() const {
  const Impl& i = *impl_;
  const size_t parts = static_cast<size_t>(i.parts), concurrent = i.in_turns ? parts : i.slices.size();
  const size_t weights = i.direction != Direction::kBackwardWeights ? 1 : i.in_turns ? 2 * parts : i.slices.size();
  return i.weight_bytes * weights + std::max(i.slice_bytes * concurrent, i.weight_scratch);
}

std::string OneDnnConv::implementation() const {
  const Prepared& p = impl_->kinds[0];
  std::string text = p.name;
  if (p.x.reorder) text += " +reorder x";
  if (p.y.reorder) text += " +reorder y";
  if (impl_->in_turns)
    text += " in " + std::to_string(impl_->parts) + " parts, image by image";
  else if (impl_->slices.size() > 1)
    text += " in " + std::to_string(impl_->slices.size()) + " slices";
  return text;
}

void OneDnnConv::forward(const float* x, const float* w, const float* bias, float* y, void* workspace) const {
  char* space = static_cast<char*>(workspace);
  const Operand& weights = impl_->kinds[0].w;
  const void* inner = w;
  if (weights.reorder) {
    char* packed = take(space, impl_->weight_bytes);
    weights.move(dnnl::stream(engine()), const_cast<float*>(w), packed, true, space);
    inner = packed;
  }
  impl_->run_slices(x, static_cast<const char*>(inner), 0, bias, y, space);
}

void OneDnnConv::backward_data(const float* dy, const float* w, float* dx, void* workspace) const {
  forward(dx, w, nullptr, const_cast<float*>(dy), workspace);
}

void OneDnnConv::backward_weights(const float* x, const float* dy, float* dw, void* workspace) const {
  const Impl& i = *impl_;
  const int64_t count = static_cast<int64_t>(i.slices.size());
  char* partials = static_cast<char*>(workspace);
  char* space = partials + i.weight_bytes * (i.in_turns ? static_cast<size_t>(2 * i.parts) : i.slices.size());
  if (i.in_turns)
    i.run_in_turns(x, dy, partials, partials + static_cast<size_t>(i.parts) * i.weight_bytes, space);
  else
    i.run_slices(x, partials, i.weight_bytes, nullptr, dy, space);
  const int64_t step = static_cast<int64_t>(i.weight_bytes / sizeof(float)) * i.parts;
  const dnnl::stream stream(engine());
  for (int64_t part = 0; part < i.parts; ++part) {
    const Slice& slice = i.slices[static_cast<size_t>(part)];
    const Operand& weights = i.kinds[slice.kind].w;
    const int64_t values = static_cast<int64_t>(weights.inside.get_size() / sizeof(float));
    char* packed = partials + static_cast<size_t>(part) * i.weight_bytes;
    float* sum = reinterpret_cast<float*>(packed);
    if (i.parts < count && !i.in_turns) {
#pragma omp parallel for num_threads(i.threads)
      for (int64_t e = 0; e < values; ++e) {
        float s = sum[e];
        for (int64_t k = 1; k < count / i.parts; ++k) s += sum[e + k * step];
        sum[e] = s;
      }
    }
    float* plain = dw + slice.channel * i.weights_per_channel;
    if (weights.reorder)
      weights.move(stream, packed, plain, false, space);
    else
      std::copy_n(sum, values, plain);
  }
}

OneDnnConv::OneDnnConv(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
OneDnnConv::~OneDnnConv() = default;

}  // namespace convoy

#else

namespace convoy {

std::string onednn_version() {
  return "";
}

struct OneDnnConv::Impl {};
OneDnnConv::OneDnnConv(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
OneDnnConv::~OneDnnConv() = default;

std::unique_ptr<OneDnnConv> OneDnnConv::create(Direction, const View&, const View&, int64_t, int64_t,
                                               const Conv2dParams&, bool, int) {
  return nullptr;
}
size_t OneDnnConv::workspace_bytes() const {
  return 0;
}
std::string OneDnnConv::implementation() const {
  return "none";
}
void OneDnnConv::forward(const float*, const float*, const float*, float*, void*) const {}
void OneDnnConv::backward_data(const float*, const float*, float*, void*) const {}
void OneDnnConv::backward_weights(const float*, const float*, float*, void*) const {}

}  // namespace convoy

#endif
