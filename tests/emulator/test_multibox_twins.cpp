// kernels/multibox.cu in the emulator against the CPU twins.
#include <climits>

#include "kernels/multibox.h"
#include "tests/emulator/twins.h"

namespace convoy::test {
namespace {

struct Problem {
  int64_t images, anchors, classes;
  size_t count() const { return static_cast<size_t>(images * anchors); }
};

constexpr Problem kProblems[] = {{1, 1, 1}, {2, 37, 3}, {3, 300, 21}, {1, 1000, 5}};

/// A positive in seven, or none.
std::vector<int32_t> classes_of(const Problem& p, bool positives) {
  const golden::Stream u("classes");
  std::vector<int32_t> t(p.count(), 0);
  for (size_t i = 0; i < t.size(); i += 7)
    if (positives) t[i] = static_cast<int32_t>(u[i] * static_cast<double>(p.classes));
  return t;
}

TEST_CASE("hardness and numbers of boxes equal the CPU's", "[multibox]") {
  for (const Problem& p : kProblems)
    for (const int wrong : {0, 1, 2}) {
      INFO(p.images << "x" << p.anchors << "x" << p.classes << ", wrong classes " << wrong);
      const auto conf = random_values("conf", p.images * p.anchors * p.classes, 6);
      auto classes = classes_of(p, true);
      if (wrong > 0) classes[p.count() - 1] = -1;
      if (wrong > 1) classes[p.count() / 2] = static_cast<int32_t>(p.classes);
      int64_t fault = 0;
      const Results got = over_orders([&] {
        const DeviceBuffer<float> dconf(conf), hardness(p.count()), counts(2);
        const DeviceBuffer<int32_t> dclasses(classes);
        const DeviceBuffer<int64_t> dfault(std::vector<int64_t>{INT64_MAX});
        const DeviceBuffer<unsigned char> workspace(multibox_cuda_workspace_bytes(p.images, p.anchors));
        device::box_hardness(nullptr, dconf.data(), dclasses.data(), p.images, p.anchors, p.classes, 3.f,
                             hardness.data(), counts.data(), dfault.data(), workspace.data());
        fault = dfault.host()[0];
        return Results{hardness.host(), counts.host()};
      });
      std::vector<float> hardness(p.count()), counts(2);
      int64_t bad = -2;
      CONVOY_CPU(box_hardness, conf.data(), classes.data(), p.images, p.anchors, p.classes, 3.f, hardness.data(),
                 counts.data(), &bad);
      CHECK(relative_error(got[0], hardness) <= 1e-6);
      CHECK(got[1] == counts);
      CHECK(fault == (bad < 0 ? INT64_MAX : bad));
      CHECK((bad < 0) == (wrong == 0));
    }
}

TEST_CASE("multibox loss and gradients equal the CPU's", "[multibox]") {
  int turn = 0;
  for (const Problem& p : kProblems)
    for (const bool positives : {true, false}) {
      INFO(p.images << "x" << p.anchors << "x" << p.classes << ", positives " << positives);
      const int64_t count = p.images * p.anchors;
      auto conf = random_values("conf", count * p.classes, 4), loc = random_values("loc", count * 4, 3);
      const auto boxes = random_values("boxes", count * 4, 3);
      for (size_t i = 0; i < conf.size(); i += 5) conf[i] *= 10;  // some probabilities below the floor
      const auto classes = classes_of(p, positives);
      std::vector<float> hardness(p.count());
      for (size_t i = 0; i < hardness.size(); ++i)  // many equals
        hardness[i] = classes[i] > 0 ? -1.f : static_cast<float>(i % 4) / 4;
      const BoxSelection last{0.5f, 7 + p.images / 2, p.anchors / 3};
      const float normalizer = turn % 4 == 3 ? 0.f : 12.5f;
      const bool gradients = turn++ % 5 != 4;
      const Results got = over_orders([&] {
        const DeviceBuffer<float> dloc(loc), dconf(conf), dboxes(boxes), dhardness(hardness), loss(1),
            d_loc(loc.size()), d_conf(conf.size()), dnormalizer(std::vector<float>{normalizer}),
            selection(std::vector<float>{last.hardness, static_cast<float>(last.last_image),
                                         static_cast<float>(last.last_anchor)});
        const DeviceBuffer<int32_t> dclasses(classes);
        const DeviceBuffer<unsigned char> workspace(multibox_cuda_workspace_bytes(p.images, p.anchors));
        device::multibox_loss(nullptr, dloc.data(), dconf.data(), dboxes.data(), dclasses.data(), dhardness.data(),
                              p.images, p.anchors, p.classes, 0.7f, selection.data(), 7, dnormalizer.data(),
                              loss.data(), gradients ? d_loc.data() : nullptr, gradients ? d_conf.data() : nullptr,
                              workspace.data());
        Results r{loss.host()};
        if (gradients) r.push_back(d_loc.host()), r.push_back(d_conf.host());
        return r;
      });
      std::vector<float> loss(1), d_loc(loc.size()), d_conf(conf.size());
      CONVOY_CPU(multibox_loss, loc.data(), conf.data(), boxes.data(), classes.data(), hardness.data(), p.images,
                 p.anchors, p.classes, 0.7f, last, 7, normalizer, loss.data(), d_loc.data(), d_conf.data());
      CHECK(relative_error(got[0], loss) <= 3e-6);
      if (!gradients) continue;
      CHECK(relative_error(got[1], d_loc) <= 1e-6);
      CHECK(relative_error(got[2], d_conf) <= 3e-6);
    }
}

}  // namespace
}  // namespace convoy::test
