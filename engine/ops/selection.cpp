#include "engine/ops/selection.h"

#include "kernels/selection.h"

namespace convoy {

namespace {

/// The bin that holds the k-th count; `before` counts those in earlier bins.
int64_t bin_of(std::span<const int64_t> bins, int64_t k, int64_t& before) {
  before = 0;
  for (size_t b = 0; b < bins.size(); ++b) {
    if (before + bins[b] >= k) return static_cast<int64_t>(b);
    before += bins[b];
  }
  fail("a selection asks for candidate {}, there are {}", k, before);
}

}  // namespace

KthCandidate kth_candidate(Communicator& communicator, std::span<const View> lanes, int64_t count, bool descending,
                           int64_t k, const std::string& name) {
  std::vector<int64_t> bins(kSelectionBins);
  const auto histogram = [&](int64_t upper) {
    std::fill(bins.begin(), bins.end(), 0);
    for (const View& lane : lanes) CONVOY_CPU(selection_histogram, lane.f32(), count, descending, upper, bins.data());
    communicator.all_reduce(bins, ReduceOp::kSum, name + ", histogram");
  };
  int64_t before_bin = 0, before = 0;
  histogram(-1);
  const int64_t upper = bin_of(bins, k, before_bin);
  histogram(upper);
  const int64_t lower = bin_of(bins, k - before_bin, before);
  return {.value = selection_value(static_cast<uint32_t>(upper * kSelectionBins + lower), descending),
          .before = before_bin + before};
}

Kernel selection_kernel(const PrepareArgs& args, SelectionBody body) {
  if (args.node.op->collective) return {.implementation = "histograms", .exchange = std::move(body)};
  return {.run =
              [body = std::move(body), name = args.node.name](const KernelArgs& a) {
                NullCommunicator alone;
                std::vector<std::vector<View>> in;
                for (const View& v : a.in) in.push_back({v});
                body({.in = in, .out = a.out, .communicator = alone, .name = name});
              },
          .implementation = "histograms"};
}

}  // namespace convoy
