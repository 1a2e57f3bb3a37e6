// Weights of files into networks: matching, pretrained weights, checkpoints of the reference, exported models.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>

#include "apps/load_weights.h"
#include "apps/model_state.h"
#include "apps/recipe.h"
#include "fixture.h"
#include "io/config.h"
#include "io/pth.h"

using namespace convoy;
namespace fs = std::filesystem;
using Catch::Matchers::Contains;

namespace {

struct Net {
  explicit Net(const std::string& name, uint64_t seed, int64_t classes = 19, const std::string& backbone = "") {
    NetworkOptions options;
    options.name = name;
    options.backbone = backbone;
    options.classes = classes;
    network = make_network(options, store);
    store.initialize(seed);
  }
  ParamStore store;
  std::unique_ptr<Network> network;
};

bool equal_tensor(const NamedTensor& a, const NamedTensor& b) {
  return a.shape == b.shape && (a.bytes() == 0 || std::memcmp(a.values(), b.values(), a.bytes()) == 0);
}

/// Names whose values differ.
std::vector<std::string> differing(ParamStore& a, ParamStore& b) {
  const auto left = weight_tensors(a), right = weight_tensors(b);
  std::vector<std::string> names;
  for (size_t i = 0; i < left.size(); ++i)
    if (!equal_tensor(left[i], right[i])) names.push_back(left[i].name);
  return names;
}

std::vector<NamedTensor> renamed(std::vector<NamedTensor> tensors, const std::string& taken_off,
                                 const std::string& put_before) {
  std::vector<NamedTensor> result;
  for (NamedTensor& tensor : tensors) {
    if (!tensor.name.starts_with(taken_off)) continue;
    tensor.name = put_before + tensor.name.substr(taken_off.size());
    result.push_back(std::move(tensor));
  }
  return result;
}

/// A legacy .pth as the reference writes {epoch}.pth: a dict of epoch, state_dict, optimizer and lr_scheduler.
class ReferenceCheckpoint {
 public:
  explicit ReferenceCheckpoint(int64_t epoch) {
    pickle_ = "\x80\x02}(";
    text("epoch");
    integer(epoch);
  }
  void state_dict(const std::vector<NamedTensor>& tensors) {
    text("state_dict");
    pickle_ += "}(";
    for (const NamedTensor& t : tensors) {
      text("module." + t.name);
      tensor(t);
    }
    pickle_ += "u";
  }
  void optimizer(const std::vector<NamedTensor>& momentum, size_t stored = SIZE_MAX) {
    text("optimizer");
    pickle_ += "}(";
    text("state");
    pickle_ += "}(";
    for (size_t i = 0; i < std::min(stored, momentum.size()); ++i) {
      integer(static_cast<int64_t>(i));
      pickle_ += "}(";
      text("momentum_buffer");
      tensor(momentum[i]);
      pickle_ += "u";
    }
    pickle_ += "u";
    text("param_groups");
    pickle_ += "(}(";
    text("params");
    pickle_ += "(";
    for (size_t i = 0; i < momentum.size(); ++i) integer(static_cast<int64_t>(i));
    pickle_ += "lulu";
  }
  void write(const fs::path& path) {
    std::string bytes("\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.\x80\x02M\xe9\x03.\x80\x02}.", 25);
    bytes += pickle_ + "u.\x80\x02(";
    std::swap(bytes, pickle_);
    for (size_t i = 0; i < values_.size(); ++i) text(std::to_string(i));
    std::swap(bytes, pickle_);
    bytes += "l.";
    for (const auto& [count, data] : values_) {
      bytes.append(reinterpret_cast<const char*>(&count), sizeof(count));
      bytes += data;
    }
    std::ofstream(path, std::ios::binary) << bytes;
  }

 private:
  void text(const std::string& value) {
    const auto length = static_cast<uint32_t>(value.size());
    pickle_ += 'X';
    pickle_.append(reinterpret_cast<const char*>(&length), sizeof(length));
    pickle_ += value;
  }
  void integer(int64_t value) {
    pickle_ += "\x8a\x08";
    pickle_.append(reinterpret_cast<const char*>(&value), sizeof(value));
  }
  void tensor(const NamedTensor& t) {
    pickle_ += "ctorch._utils\n_rebuild_tensor_v2\n((";
    text("storage");
    pickle_ += t.dtype == ElementType::kF32 ? "ctorch\nFloatStorage\n" : "ctorch\nLongStorage\n";
    text(std::to_string(values_.size()));
    text("cpu");
    integer(t.count());
    pickle_ += "NtQ";
    integer(0);
    pickle_ += "(";
    for (int64_t extent : t.shape) integer(extent);
    pickle_ += "t(";
    for (size_t i = 0; i < t.shape.size(); ++i) {
      int64_t stride = 1;
      for (size_t k = i + 1; k < t.shape.size(); ++k) stride *= t.shape[k];
      integer(stride);
    }
    pickle_ += "t\x89}tR";
    values_.emplace_back(t.count(), std::string(static_cast<const char*>(t.values()), t.bytes()));
  }

  std::string pickle_;
  std::vector<std::pair<int64_t, std::string>> values_;
};

std::vector<NamedTensor> momentum_tensors(ParamStore& store) {
  std::vector<NamedTensor> tensors;
  for (size_t i = 0; i < store.parameters().size(); ++i)
    tensors.push_back({store.parameters()[i].name,
                       ElementType::kF32,
                       store.parameters()[i].shape.to_vector(),
                       store.optimizer_state(0, static_cast<int64_t>(i)),
                       {}});
  return tensors;
}

}  // namespace

TEST_CASE("weights find their places under any wrapper") {
  const TinyRun tiny;
  Net trained("FastSCNN", 1);
  const auto tensors = weight_tensors(trained.store);
  const std::pair<const char*, const char*> wrappers[] = {
      {"bare.pth", ""}, {"module.safetensors", "module."}, {"model.pth", "model."}, {"both.pth", "module.model."}};
  for (const auto& [name, prefix] : wrappers) {
    INFO(name);
    if (std::string(name).ends_with(".pth"))
      write_pth(tiny / name, renamed(tensors, "", prefix));
    else
      write_safetensors(tiny / name, renamed(tensors, "", prefix));
    Net other("FastSCNN", 2);
    const std::string table = load_weights(WeightsFile(tiny / name), other.store, {.whole = true});
    CHECK(differing(trained.store, other.store).empty());
    const auto counted = std::count_if(tensors.begin(), tensors.end(), [](const NamedTensor& tensor) {
      return !tensor.name.ends_with("num_batches_tracked");
    });
    CHECK_THAT(table, Contains(fmt::format("{0} of {0} tensors matched (num_batches_tracked not counted)", counted)));
  }
}

TEST_CASE("a classification backbone finds its place in the encoder") {
  const TinyRun tiny;
  Net trained("BiSeNet", 1, 19, "resnet18");
  auto backbone = renamed(weight_tensors(trained.store), "encoder.", "");
  const std::vector<float> wide(1001 * 512);
  for (NamedTensor& tensor : backbone)
    if (tensor.name == "fc.weight") tensor.shape = {1001, 512}, tensor.data = wide.data();
  write_pth(tiny / "resnet18.pth", backbone);
  Net other("BiSeNet", 2, 19, "resnet18");
  const std::string table = load_weights(WeightsFile(tiny / "resnet18.pth"), other.store, {.within = "encoder."});
  CHECK_THAT(table, Contains("encoder.fc.weight: file (1001, 512), network (1000, 512)"));
  for (const std::string& name : differing(trained.store, other.store))
    CHECK((!name.starts_with("encoder.") || name == "encoder.fc.weight"));
  Net without("FastSCNN", 2);
  CHECK_THAT(error_of([&] { load_weights(WeightsFile(tiny / "resnet18.pth"), without.store, {.within = "encoder."}); }),
             Contains("nothing to load"));
  CHECK_THAT(error_of([&] { load_weights(WeightsFile(tiny / "resnet18.pth"), without.store, {}); }),
             Contains("too few weights match"));
}

TEST_CASE("a backbone of another depth is refused, and the one that fits is named") {
  const TinyRun tiny;
  Net shallow("BiSeNet", 1, 19, "resnet18");
  auto backbone = renamed(weight_tensors(shallow.store), "encoder.", "");
  std::erase_if(backbone, [](const NamedTensor& tensor) { return tensor.name.starts_with("fc."); });
  write_pth(tiny / "resnet18.pth", backbone);
  const auto with = [&](const std::string& name) {
    return tiny.config({"MODEL.MODEL_NAME", "BiSeNet", "MODEL.BACKBONE", name, "TRAIN.BACKBONE_PRETRAINED_PATH",
                        (tiny / "resnet18.pth").string()});
  };
  const std::string error = error_of([&] { Trainer(with("resnet34"), tiny.options("deep")); });
  CHECK_THAT(error, Contains("too few weights match: 100 of 180 tensors, fewer than 90 %"));
  CHECK_THAT(error, Contains("100 of 180 tensors matched (fc and num_batches_tracked not counted)"));
  CHECK_THAT(error, Contains("The file fits MODEL.BACKBONE resnet18"));
  CHECK_THAT(error, Contains("missing in the file") && Contains("encoder.layer1.2.conv1.weight"));
  Trainer trainer(with("resnet18"), tiny.options("fits"));
  for (const std::string& name : differing(shallow.store, trainer.parameters()))
    CHECK((!name.starts_with("encoder.") || name.starts_with("encoder.fc.")));
}

TEST_CASE("another number of classes leaves the head as it was, and says so") {
  const TinyRun tiny;
  Net trained("FastSCNN", 1, 5);
  write_pth(tiny / "five.pth", weight_tensors(trained.store));
  const WeightsFile file(tiny / "five.pth");
  Net other("FastSCNN", 2, 19), untouched("FastSCNN", 2, 19);
  const std::string table = load_weights(file, other.store, {});
  CHECK_THAT(table, Contains("classifier.conv.1.weight: file (5, 128, 1, 1), network (19, 128, 1, 1)"));
  const auto left = weight_tensors(other.store), right = weight_tensors(untouched.store),
             from = weight_tensors(trained.store);
  for (size_t i = 0; i < left.size(); ++i) {
    INFO(left[i].name);
    CHECK(equal_tensor(left[i], left[i].shape == from[i].shape ? from[i] : right[i]));
  }
  CHECK_THAT(error_of([&] { load_weights(file, other.store, {.whole = true}); }), Contains("do not fit"));
}

TEST_CASE("a training starts from pretrained weights on one rank and on several") {
  const TinyRun tiny;
  Net trained("FastSCNN", 77);
  write_pth(tiny / "best_model.pth", renamed(weight_tensors(trained.store), "", "module."));
  const auto config =
      tiny.config({"SOLVER.AUX", "False", "TRAIN.PRETRAINED_MODEL_PATH", (tiny / "best_model.pth").string()});
  Trainer trainer(config, tiny.options("one"));
  CHECK(differing(trained.store, trainer.parameters()).empty());
  const auto errors = on_ranks(2, [&](const std::shared_ptr<Communicator>& communicator) {
    TrainerOptions options = tiny.options("two");
    options.communicator = communicator;
    Trainer rank(config, options);
    if (!differing(trained.store, rank.parameters()).empty()) fail("other weights");
  });
  CHECK(errors == std::vector<std::string>(2));
  CHECK_THAT(error_of([&] {
               Trainer(tiny.config({"TRAIN.BACKBONE_PRETRAINED_PATH", (tiny / "best_model.pth").string()}),
                       tiny.options("three"));
             }),
             Contains("has no backbone"));
}

TEST_CASE("a run goes on from a checkpoint of the reference, bit for bit") {
  const TinyRun tiny;
  Trainer whole(tiny.config(), tiny.options("whole"));
  CHECK(whole.run().finished);
  TrainerOptions options = tiny.options("first");
  options.stop_at_step = 4;  // an epoch
  Trainer first(tiny.config(), options);
  CHECK(first.run().step == 4);

  ReferenceCheckpoint file(1);
  file.state_dict(weight_tensors(first.parameters()));
  file.optimizer(momentum_tensors(first.parameters()));
  file.write(tiny / "1.pth");
  options = tiny.options("second");
  options.resume = (tiny / "1.pth").string();
  Trainer second(tiny.config(), options);
  CHECK(second.run().step == 8);
  CHECK(differing(whole.parameters(), second.parameters()).empty());

  Net five("FastSCNN", 1, 5);
  ReferenceCheckpoint other_classes(1);
  other_classes.state_dict(weight_tensors(five.store));
  other_classes.write(tiny / "5.pth");
  options = tiny.options("other");
  options.resume = (tiny / "5.pth").string();
  const std::string error = error_of([&] { Trainer(tiny.config({"SOLVER.AUX", "False"}), options); });
  CHECK_THAT(error, Contains("do not fit the configured network") && Contains("TRAIN.PRETRAINED_MODEL_PATH"));
  CHECK_THAT(error, Contains("classifier.conv.1.weight: file (5, 128, 1, 1), network (19, 128, 1, 1)"));
  const size_t begin = error.find("network: ") + 9;
  const std::string counts = error.substr(begin, error.find(" tensors match", begin) - begin);
  CHECK_THAT(error, Contains(counts + " tensors matched (num_batches_tracked not counted)"));

  ReferenceCheckpoint some_momentum(1);
  some_momentum.state_dict(weight_tensors(first.parameters()));
  some_momentum.optimizer(momentum_tensors(first.parameters()), 10);
  some_momentum.write(tiny / "some.pth");
  options = tiny.options("some");
  options.resume = (tiny / "some.pth").string();
  CHECK(Trainer(tiny.config(), options).run().step == 8);

  ReferenceCheckpoint weights_only(1);
  weights_only.state_dict(weight_tensors(first.parameters()));
  weights_only.write(tiny / "2.pth");
  options = tiny.options("third");
  options.resume = (tiny / "2.pth").string();
  CHECK_THAT(error_of([&] { Trainer(tiny.config(), options); }), Contains("its states cannot be assigned"));
  write_pth(tiny / "3.pth", weight_tensors(first.parameters()));
  options = tiny.options("fourth");
  options.resume = (tiny / "3.pth").string();
  CHECK_THAT(error_of([&] { Trainer(tiny.config(), options); }), Contains("TRAIN.PRETRAINED_MODEL_PATH"));
}

TEST_CASE("weights with which no network can go on are refused") {
  const TinyRun tiny;
  Net net("FastSCNN", 3);
  const auto error = [&](const std::string& ending, ElementType type, double value) {
    std::vector<NamedTensor> tensors = weight_tensors(net.store);
    const auto one =
        std::find_if(tensors.begin(), tensors.end(), [&](const NamedTensor& t) { return t.name.ends_with(ending); });
    REQUIRE(one != tensors.end());
    std::vector<double> doubles(static_cast<size_t>(one->count()), 1);
    std::vector<float> floats(doubles.size(), 1);
    doubles.back() = value;
    floats.back() = static_cast<float>(value);
    one->dtype = type;
    one->data = type == ElementType::kF64 ? static_cast<const void*>(doubles.data()) : floats.data();
    write_pth(tiny / "bad.pth", tensors);
    return error_of([&] { load_weights(WeightsFile(tiny / "bad.pth"), net.store, {}); });
  };
  CHECK_THAT(error("bn.weight", ElementType::kF32, NAN),
             Contains("bad.pth") && Contains("bn.weight\" holds nan at (31)"));
  CHECK_THAT(error("conv.weight", ElementType::kF32, -INFINITY), Contains("holds -inf at (31, 2, 2, 2)"));
  CHECK_THAT(error("running_var", ElementType::kF32, -0.5), Contains("holds -0.5 at (31), and a variance"));
  CHECK_THAT(error("conv.weight", ElementType::kF64, 1e39), Contains("holds 1e+39") && Contains("float32 cannot hold"));
  CHECK(error("conv.weight", ElementType::kF64, -3e38).empty());

  CheckpointState state;
  net.store.require_optimizer_states({"momentum"});
  state.tensors = state_tensors(net.store);
  net.store.optimizer_state(0, 0)[0] = NAN;
  CHECK_THAT(error_of([&] { restore_tensors(state, "step-1", net.store, true); }),
             Contains("step-1: tensor \"optimizer.momentum.") && Contains("not finite"));
}

TEST_CASE("exported weights carry what they need") {
  const TinyRun tiny;
  Trainer trainer(tiny.config({"TRAIN.MAX_ITERS", "2"}), tiny.options("run"));
  trainer.run();
  const auto model = load_model(tiny / "run");
  write_safetensors(tiny / "model.safetensors", weight_tensors(model->store), weights_metadata(*model));
  const auto again = load_model({.checkpoint = tiny / "model.safetensors"}, false);
  CHECK(differing(model->store, again->store).empty());
  CHECK(again->classes.names == model->classes.names);
  CHECK(dump_yaml(again->config) == dump_yaml(model->config));
  CHECK_THAT(
      error_of([&] {
        load_model({.checkpoint = tiny / "model.safetensors", .overrides = {"DATASET.MEAN", "[0.1, 0.2, 0.3]"}}, false);
      }),
      Contains("mean is 0.5 0.5 0.5"));

  // A bare .pth needs the recipe.
  write_pth(tiny / "best_model.pth", weight_tensors(model->store));
  CHECK_THAT(error_of([&] { load_model({.checkpoint = tiny / "best_model.pth"}, false); }), Contains("--config-file"));
  std::ofstream(tiny / "recipe.yaml") << dump_yaml(tiny.config());
  const auto named = load_model({.config_file = (tiny / "recipe.yaml").string(),
                                 .overrides = {"TEST.TEST_MODEL_PATH", (tiny / "best_model.pth").string()}},
                                false);
  CHECK(differing(model->store, named->store).empty());
  CHECK_THAT(error_of([&] { load_model(ModelSource{}, false); }), Contains("the weights are missing"));
}
