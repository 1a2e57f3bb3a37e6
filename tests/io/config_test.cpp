#include "io/config.h"

#include <catch2/catch.hpp>

#include "io/config_value.h"
#include "tests/io/support.h"

using namespace convoy;
using convoy::testing::error_of;
using convoy::testing::TemporaryFolder;

TEST_CASE("a name is suggested only where it is near", "[io][config]") {
  const std::vector<std::string> names = {"BiSeNet", "DeepLabV3_Plus", "FastSCNN"};
  CHECK(nearest_name("fastscn", names) == "FastSCNN");
  CHECK(nearest_name("BiSNet", names) == "BiSeNet");
  CHECK(nearest_name("enet", names).empty());
  CHECK(nearest_name("", names).empty());
  CHECK(nearest_name("x", {}).empty());
  CHECK(nearest_hint("BiSNet", names) == "; the nearest is 'BiSeNet'");
  CHECK(nearest_hint("enet", names).empty());
}

TEST_CASE("values follow Python's literal rules", "[io][config]") {
  CHECK(*parse_python_literal("1e-3").get_if<double>() == 1e-3);
  CHECK(*parse_python_literal("12").get_if<int64_t>() == 12);
  CHECK(*parse_python_literal("-7").get_if<int64_t>() == -7);
  CHECK(*parse_python_literal(".5").get_if<double>() == .5);
  CHECK(parse_python_literal("None").is_none());
  CHECK(*parse_python_literal("True").get_if<bool>());
  CHECK(*parse_python_literal("'text'").get_if<std::string>() == "text");
  const ConfigValue tuple = parse_python_literal("(512, 1024)");
  REQUIRE(tuple.get_if<ConfigValue::List>());
  CHECK(*(*tuple.get_if<ConfigValue::List>())[1].get_if<int64_t>() == 1024);
  CHECK(parse_python_literal("512, 1024").get_if<ConfigValue::List>()->size() == 2);
  CHECK(parse_python_literal("(3,)").get_if<ConfigValue::List>()->size() == 1);
  CHECK(*parse_python_literal("(3)").get_if<int64_t>() == 3);
  CHECK(parse_python_literal("()").get_if<ConfigValue::List>()->empty());
  for (const char* text : {"true", "resnet18", "runs/x", "", "(1, 2", "1 2", "inf", "nan", "1e", "--3", "[1,,2]"}) {
    INFO(text);
    REQUIRE(parse_python_literal(text).get_if<std::string>());
    CHECK(*parse_python_literal(text).get_if<std::string>() == text);
  }
  CHECK(*parse_plain_scalar("true").get_if<bool>());
  CHECK(parse_plain_scalar("~").is_none());
}

TEST_CASE("aliases that never end, or that blow up, are refused", "[io][config]") {
  CHECK_THAT(error_of([] { parse_config("TRAIN: {CROP_SIZE: &a [*a]}", "r.yaml"); }), Catch::Contains("alias"));
  std::string bomb = "TRAIN: {CROP_SIZE: [&a0 [x, x]";
  for (int i = 1; i < 40; ++i) bomb += fmt::format(", &a{0} [*a{1}, *a{1}]", i, i - 1);
  CHECK_THAT(error_of([&] { parse_config(bomb + "]}", "r.yaml"); }), Catch::Contains("alias"));
}

TEST_CASE("values and groups are not confused, and no value is out of all bounds", "[io][config]") {
  CHECK_THAT(error_of([] { parse_config("TRAIN: {CROP_SIZE: {A: 1}}", "r.yaml"); }),
             Catch::Contains("found a group of keys"));
  CHECK_THAT(error_of([] { parse_config("", "", {"TRAIN", "3"}); }), Catch::Contains("group of keys"));
  for (const char* key : {"TRAIN.BASE_SIZE", "TRAIN.EPOCHS", "TRAIN.MAX_ITERS", "TRAIN.BATCH_SIZE",
                          "TRAIN.GLOBAL_BATCH", "TRAIN.THREADS", "SOLVER.WARMUP.EPOCHS", "TEST.BATCH_SIZE"})
    CHECK_THAT(error_of([&] { parse_config("", "", {key, "9000000000000000000"}); }), Catch::Contains(key));
  CHECK(error_of([] { parse_config("", "", {"SOLVER.LR", std::string(100000, '(')}); }).size() < 1000);
}

TEST_CASE("batch norm groups are all, rank or a number of images", "[io][config]") {
  CHECK(load_config("").model.bn_group.empty());
  for (const char* group : {"all", "rank", "1", "16", ""}) {
    const Config config = load_config("", {"MODEL.BN_GROUP", group});
    CHECK(config.model.bn_group == group);
    CHECK(parse_config(dump_yaml(config), "dump").model.bn_group == group);
  }
  for (const char* group : {"0", "-1", "ranks", "1.5", "99999999", "2 3"})
    CHECK_THAT(error_of([&] { load_config("", {"MODEL.BN_GROUP", group}); }), Catch::Contains("all, rank"));
  CHECK(load_config("", {"TRAIN.MICRO_BATCH", "2"}).train.micro_batch == 2);
  CHECK_THAT(error_of([] { load_config("", {"TRAIN.MICRO_BATCH", "-1"}); }), Catch::Contains("TRAIN.MICRO_BATCH"));
}

TEST_CASE("defaults are the reference's", "[io][config]") {
  const Config config = load_config("");
  CHECK(config.seed == 1024);
  CHECK(config.train.crop_size.height == 769);
  CHECK(config.solver.lr == 1e-4);
  CHECK(config.solver.warmup.factor == 1.0 / 3);
  CHECK(config.model.hrnet.stage4.num_channels == std::vector<int64_t>{32, 64, 128, 256});
  CHECK_FALSE(config.test.crop_size.has_value());
  CHECK(config.notes.empty());
}

TEST_CASE("a recipe is read with its overrides", "[io][config]") {
  const std::string text = R"(
DATASET: {NAME: "Cityscapes", MEAN: [0.485, 0.456, 0.406]}
AUG:
    COLOR_JITTER: (0.1, 0.2, 0.3, 0.4)
TRAIN:
    CROP_SIZE: (512, 1024)
TEST:
    CROP_SIZE: 100
SOLVER:
    LR: 1e-3
    WEIGHT_DECAY: "4e-5"
    WARMUP:
        EPOCHS: 3
MODEL:
    MODEL_NAME: fast_scnn
    BN_EPS_FOR_ENCODER: 1e-3
    DEEPLABV3_PLUS: {ENCODER_WITH_ASPP: False}
    HRNET:
        STAGE2:
            NUM_BLOCKS:
                - 2
                - 2
)";
  const Config config = parse_config(
      text, "recipe.yaml",
      {"TRAIN.BATCH_SIZE", "3", "TRAIN.CROP_SIZE", "(64, 96)", "AUG.MIRROR", "False", "DATASET.ROOT", "2024"});
  CHECK(config.dataset.name == "cityscape");
  CHECK(config.model.model_name == "FastSCNN");
  CHECK(config.dataset.mean[2] == .406);
  CHECK(config.aug.color_jitter.hue == .4);
  CHECK(config.train.crop_size.height == 64);
  CHECK(config.train.crop_size.width == 96);
  CHECK(config.test.crop_size->width == 100);
  CHECK(config.solver.lr == 1e-3);
  CHECK(config.solver.weight_decay == 4e-5);
  CHECK(config.solver.warmup.epochs == 3.0);
  CHECK(config.model.bn_eps_for_encoder.value() == 1e-3);
  CHECK_FALSE(config.model.deeplabv3_plus.use_aspp);
  CHECK(config.model.hrnet.stage2.num_blocks == std::vector<int64_t>{2, 2});
  CHECK(config.train.batch_size == 3);
  CHECK_FALSE(config.aug.mirror);
  CHECK(config.dataset.root == "2024");

  SECTION("and the dump loads equal") {
    const Config again = parse_config(dump_yaml(config), "dump");
    CHECK(dump_yaml(again) == dump_yaml(config));
    CHECK(again.solver.warmup.factor == config.solver.warmup.factor);
    CHECK(again.dataset.root == "2024");
    CHECK(again.notes.empty());
  }
}

TEST_CASE("texts that look like other values survive the dump", "[io][config]") {
  Config config;
  for (const std::string root : {"it's", "a: b # c", "~", "tab\there", "\xc3\xa9", "C:\\data", "1e5", " spaced "}) {
    config.dataset.root = root;
    CHECK(parse_config(dump_yaml(config), "dump").dataset.root == root);
  }
}

TEST_CASE("a wrong configuration is named by file, line and key", "[io][config]") {
  const auto message = [](const std::string& text) { return error_of([&] { parse_config(text, "my.yaml"); }); };
  CHECK(message("SEED: 1\nTRAIN:\n  CROP_SIZ: 3\n") ==
        "my.yaml:3: unknown key TRAIN.CROP_SIZ; the nearest is 'TRAIN.CROP_SIZE'");
  CHECK_THAT(message("SOLVR:\n  LR: 1\n"), Catch::Contains("my.yaml:1: unknown key SOLVR"));
  CHECK_THAT(message("SOLVER:\n  LR: fast\n"),
             Catch::Contains("my.yaml:2: SOLVER.LR expects a number >= 0, found the text 'fast'"));
  CHECK_THAT(message("TRAIN:\n  EPOCHS: 2.5\n"), Catch::Contains("my.yaml:2") && Catch::Contains("2.5"));
  CHECK_THAT(message("TRAIN:\n  CROP_SIZE: (1, 2, 3)\n"), Catch::Contains("the list (1, 2, 3)"));
  CHECK_THAT(message("TRAIN:\n  CROP_SIZE: -5\n"), Catch::Contains("-5"));
  CHECK_THAT(message("TRAIN:\n  CROP_SIZE: 400000\n"), Catch::Contains("32768"));
  CHECK_THAT(message("MODEL:\n  BN_EPS_FOR_ENCODER: 0\n"), Catch::Contains("None or a number > 0"));
  CHECK_THAT(message("TRAIN: 3\n"), Catch::Contains("TRAIN is a group of keys"));
  CHECK_THAT(message("SOLVER:\n  LR:\n    X: 1\n"), Catch::Contains("my.yaml:2") && Catch::Contains("SOLVER.LR"));
  CHECK_THAT(message("SOLVER:\n  OPTIMIZER: sdg\n"), Catch::Contains("one of sgd adam adamw"));
  CHECK_THAT(message("SOLVER:\n  OPTIMIZER: adamww\n"), Catch::Contains("the nearest is 'adamw'"));
  CHECK_THAT(message("SEED: 1\nSEED: 2\n"), Catch::Contains("my.yaml:2: SEED is set twice, first in line 1"));
  CHECK_THAT(message("SEED: [1\n"), Catch::Contains("not valid YAML"));
  CHECK_THAT(message("- 1\n"), Catch::Contains("a map of keys"));
  CHECK_THAT(error_of([] { parse_config("", "", {"TRAIN.EPOCHS"}); }), Catch::Contains("TRAIN.EPOCHS has no value"));
  CHECK_THAT(error_of([] {
               parse_config("", "", {"TRAIN.EPOCS", "3"});
             }),
             Catch::Contains("command line: unknown key TRAIN.EPOCS; the nearest is 'TRAIN.EPOCHS'"));
  CHECK_THAT(error_of([] { load_config("/nowhere/x.yaml"); }), Catch::Contains("/nowhere/x.yaml"));
}

TEST_CASE("settings without effect are noted", "[io][config]") {
  const Config config = parse_config("TRAIN:\n  SNAPSHOT_EPOCH: 5\n", "my.yaml", {"MODEL.MULTI_LOSS_WEIGHT", "[1, 2]"});
  REQUIRE(config.notes.size() == 2);
  CHECK(config.notes[0] == "my.yaml:2: TRAIN.SNAPSHOT_EPOCH has no effect; set TRAIN.CHECKPOINT_ITERS");
  CHECK_THAT(config.notes[1], Catch::StartsWith("command line: MODEL.MULTI_LOSS_WEIGHT"));
}

TEST_CASE("the shipped recipes load", "[io][config]") {
  const std::string folder = std::string(CONVOY_TEST_DIR) + "/../configs/";
  const Config fast_scnn = load_config(folder + "cityscapes_fast_scnn.yaml");
  CHECK(fast_scnn.train.crop_size.width == 1024);
  CHECK(fast_scnn.solver.weight_decay == 4e-5);
  CHECK(load_config(folder + "cityscapes_bisenet.yaml").model.model_name == "BiSeNet");
  CHECK(load_config(folder + "synth_demo.yaml").train.global_batch == 8);
  CHECK(load_config(folder + "camvid_fast_scnn.yaml").dataset.name == "camvid");
}
