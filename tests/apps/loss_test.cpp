// Which loss a configuration chooses, and trainings with each.
#include "apps/recipe.h"
#include "fixture.h"

using namespace convoy;
using Catch::Matchers::Contains;

namespace {

std::string log_of(const std::filesystem::path& run) {
  std::ifstream log(run / "log.txt");
  return {std::istreambuf_iterator<char>(log), {}};
}

size_t occurrences(const std::string& text, const std::string& part) {
  size_t count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

}  // namespace

TEST_CASE("OHEM that would keep no pixel is refused") {
  const auto options = [](const std::string& ohem, const std::string& kept) {
    loss_options(load_config("", {"SOLVER.OHEM", ohem, "SOLVER.OHEM_THRESH", "0", "SOLVER.OHEM_MIN_KEPT", kept}));
  };
  CHECK_THAT(error_of([&] { options("True", "0"); }),
             Contains("SOLVER.OHEM_THRESH 0") && Contains("SOLVER.OHEM_MIN_KEPT 0") && Contains("no pixel"));
  options("True", "1");
  options("False", "0");
}

TEST_CASE("OHEM goes before the named loss, and both before cross entropy") {
  const auto kind = [](const std::vector<std::string>& settings) {
    return loss_options(load_config("", settings)).kind;
  };
  CHECK(kind({}) == LossKind::kCrossEntropy);
  CHECK(kind({"SOLVER.LOSS_NAME", "lovasz"}) == LossKind::kLovasz);
  CHECK(kind({"SOLVER.LOSS_NAME", "focal"}) == LossKind::kFocal);
  CHECK(kind({"SOLVER.LOSS_NAME", "dice"}) == LossKind::kDice);
  CHECK(kind({"SOLVER.LOSS_NAME", "dice", "SOLVER.OHEM", "True"}) == LossKind::kOhem);
}

TEST_CASE("options of losses come from the configuration") {
  const LossOptions plain = loss_options(load_config(""));
  CHECK(plain.ohem_thresh == 0.7);
  CHECK(plain.ohem_min_kept == 100000);
  CHECK(plain.focal.alpha == 0.5);
  CHECK(plain.focal.gamma == 2);
  CHECK(plain.class_weights.empty());
  CHECK_FALSE(plain.legacy);
  const LossOptions set = loss_options(load_config(
      "", {"SOLVER.OHEM", "True", "SOLVER.OHEM_THRESH", "0.5", "SOLVER.OHEM_MIN_KEPT", "7", "SOLVER.FOCAL_ALPHA", "1",
           "SOLVER.FOCAL_GAMMA", "0.5", "SOLVER.AUX", "True", "SOLVER.AUX_WEIGHT", "0.3", "SOLVER.CLASS_WEIGHTS",
           "[1, 0.5]", "MODEL.ENCNET.SE_WEIGHT", "0.1"}));
  CHECK(set.ohem_thresh == 0.5);
  CHECK(set.ohem_min_kept == 7);
  CHECK(set.focal.alpha == 1);
  CHECK(set.focal.gamma == 0.5);
  CHECK(set.aux);
  CHECK(set.aux_weight == 0.3);
  CHECK(set.presence_weight == 0.1);
  CHECK(set.class_weights == std::vector<float>{1, 0.5f});
  const LossOptions named = loss_options(load_config("", {"SOLVER.CLASS_WEIGHTS", "cityscapes"}));
  CHECK(named.class_weights == cityscapes_class_weights());
  // The reference's OHEM weights classes always.
  const LossOptions legacy = loss_options(load_config("", {"SOLVER.OHEM", "True", "SOLVER.LEGACY_LOSS", "True"}));
  CHECK(legacy.legacy);
  CHECK(legacy.class_weights == cityscapes_class_weights());
  CHECK_THAT(error_of([] {
               loss_options(load_config("", {"SOLVER.LOSS_NAME", "dice", "SOLVER.CLASS_WEIGHTS", "cityscapes"}));
             }),
             Contains("SOLVER.CLASS_WEIGHTS"));
}

TEST_CASE("class weights survive a dump of the configuration; wrong ones are refused") {
  for (const char* weights : {"none", "cityscapes", "[1, 2.5, 0]"}) {
    const Config config = load_config("", {"SOLVER.CLASS_WEIGHTS", weights});
    const Config again = parse_config(dump_yaml(config), "dump");
    CHECK(again.solver.class_weights.cityscapes == config.solver.class_weights.cityscapes);
    CHECK(again.solver.class_weights.values == config.solver.class_weights.values);
  }
  for (const char* weights : {"kitti", "[1, -2]", "3", "[a]"})
    CHECK_THAT(error_of([&] {
                 load_config("", {"SOLVER.CLASS_WEIGHTS", weights});
               }),
               Contains("SOLVER.CLASS_WEIGHTS") && Contains("cityscapes"));
}

TEST_CASE("a training runs with each loss") {
  const TinyRun tiny;
  for (const std::vector<std::string>& settings :
       {std::vector<std::string>{"SOLVER.LOSS_NAME", "focal"},
        {"SOLVER.LOSS_NAME", "dice"},
        {"SOLVER.LOSS_NAME", "lovasz"},
        {"SOLVER.OHEM", "True", "SOLVER.OHEM_MIN_KEPT", "2000", "SOLVER.CLASS_WEIGHTS", "cityscapes"},
        {"SOLVER.LOSS_NAME", "lovasz", "SOLVER.LEGACY_LOSS", "True"}}) {
    const std::string name = fmt::format("{}", fmt::join(settings, "_"));
    INFO(name);
    std::vector<std::string> all(settings);
    all.insert(all.end(), {"TRAIN.MAX_ITERS", "4"});
    CHECK(Trainer(tiny.config(all), tiny.options(name)).run().finished);
    const auto lost = losses(tiny / name);
    REQUIRE(lost.size() == 4);
    CHECK(lost.back().second < lost.front().second);
  }
}

TEST_CASE("that a batch has too few pixels to mine is said once") {
  const TinyRun tiny;
  Trainer(tiny.config({"SOLVER.OHEM", "True", "TRAIN.MAX_ITERS", "3"}), tiny.options("few")).run();
  CHECK(occurrences(log_of(tiny / "few"), "SOLVER.OHEM_MIN_KEPT") == 1);
  Trainer(tiny.config({"SOLVER.OHEM", "True", "SOLVER.OHEM_MIN_KEPT", "100", "TRAIN.MAX_ITERS", "3"}),
          tiny.options("enough"))
      .run();
  CHECK(occurrences(log_of(tiny / "enough"), "SOLVER.OHEM_MIN_KEPT") == 0);
}

TEST_CASE("the Lovasz loss of a whole batch is refused on several ranks") {
  const TinyRun tiny;
  const auto errors = on_ranks(2, [&](const std::shared_ptr<Communicator>& communicator) {
    TrainerOptions options = tiny.options("ranks");
    options.communicator = communicator;
    Trainer(tiny.config({"SOLVER.LOSS_NAME", "lovasz", "SOLVER.LEGACY_LOSS", "True"}), options).run();
  });
  for (const std::string& error : errors) CHECK_THAT(error, Contains("SOLVER.LEGACY_LOSS"));
}
