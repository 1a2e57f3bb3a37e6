// Reading .pth files: the golden ones, hand-written pickles, damage; writing them.
#include "io/pth.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "engine/error.h"
#include "io/pickle.h"
#include "io/pth_globals.h"
#include "io/tensor_values.h"
#include "io/weights_file.h"
#include "temporary_directory.h"
#include "tensors.h"

using namespace convoy;
namespace fs = std::filesystem;
using namespace std::string_literals;

namespace {

fs::path golden(const std::string& name) {
  return fs::path(CONVOY_TEST_DIR) / "golden" / "weights" / name;
}

/// Figures are rounded to nine digits.
bool close(double value, double wanted) {
  return std::abs(value - wanted) <= 1e-8 * std::max(1.0, std::abs(wanted));
}

void compare_with_json(const fs::path& file, const fs::path& description) {
  INFO(file.string());
  const auto json = nlohmann::json::parse(slurp(description));
  const WeightsFile weights(file);
  REQUIRE(weights.tensors().size() == json["tensors"].size());
  for (size_t i = 0; i < weights.tensors().size(); ++i) {
    const auto& wanted = json["tensors"][i];
    const TensorSummary summary = summarize(weights.tensor(i));
    INFO(summary.name);
    CHECK(summary.name == wanted["name"]);
    CHECK(element_name(summary.dtype) == wanted["dtype"]);
    CHECK(summary.shape == wanted["shape"].get<std::vector<int64_t>>());
    CHECK(close(summary.l2, wanted["l2"]));
    REQUIRE(summary.first.size() == wanted["first"].size());
    for (size_t k = 0; k < summary.first.size(); ++k) CHECK(close(summary.first[k], wanted["first"][k]));
  }
  if (!json.contains("other")) return;
  std::map<std::string, nlohmann::json> others;
  for (const WeightLeaf& leaf : weights.others()) others[leaf.name] = leaf.value;
  for (const auto& [name, value] : json["other"].items()) {
    INFO(name);
    REQUIRE(others.contains(name));
    CHECK(others[name] == value);
  }
}

/// A pickle of the bytes, read with the rules of weight files.
std::string error_of_pickle(const std::string& bytes) {
  return message_of<Error>([&] {
    const PickleDocument document = read_pickle(
        {bytes, "f", 0}, [](std::string_view module, std::string_view name) { admit_pth_global("f", module, name); });
    read_pth_tree(document, "f");
  });
}

PthTree tree_of(TemporaryDirectory& directory, const std::string& pickle) {
  spill(directory / "p.pkl", pickle);
  const PthFile file(directory / "p.pkl");
  PthTree tree;
  for (const PthTensor& tensor : file.tensors()) tree.tensors.push_back(tensor);
  tree.others = file.others();
  return tree;
}

nlohmann::json other(const PthTree& tree, const std::string& name) {
  for (const WeightLeaf& leaf : tree.others)
    if (leaf.name == name) return leaf.value;
  return "(missing)";
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("golden weight files are read value by value") {
  for (const char* name : {"mixed", "mixed_legacy"})
    compare_with_json(golden(std::string(name) + ".pth"), golden(std::string(name) + ".json"));
  const char* folder = std::getenv("CONVOY_GOLDEN");
  if (!folder) {
    WARN("CONVOY_GOLDEN is not set: the larger weight files are left out");
    return;
  }
  for (const auto& entry : fs::directory_iterator(fs::path(folder) / "weights"))
    if (entry.path().extension() == ".pth")
      compare_with_json(entry.path(), fs::path(entry.path()).replace_extension(".json"));
}

TEST_CASE("both containers hold the same values") {
  const WeightsFile zip(golden("mixed.pth")), legacy(golden("mixed_legacy.pth"));
  CHECK(zip.format() == "pth (zip)");
  CHECK(legacy.format() == "pth (legacy)");
  for (size_t i = 0; i < zip.tensors().size(); ++i) CHECK(same(zip.tensor(i), legacy.tensor(i)));
}

TEST_CASE("pickles of every protocol") {
  TemporaryDirectory directory;
  // {'a': 1, 'b': [1.5, None, True], 'c': 'd\n'} as Python writes it
  const std::string protocol_0 = "(dp0\nVa\np1\nI1\nsVb\np2\n(lp3\nF1.5\naNaI01\nasVc\np4\nVd\\u000a\np5\ns.";
  const std::string protocol_4(
      "\x80\x04\x95\x2a\0\0\0\0\0\0\0}\x94(\x8c\1a\x94K\1\x8c\1b\x94]\x94(G?\xf8\0\0\0\0\0\0N\x88"
      "e\x8c\1c\x94\x8c\2d\n\x94u.",
      53);
  for (const std::string& pickle : {protocol_0, protocol_4}) {
    const PthTree tree = tree_of(directory, pickle);
    CHECK(other(tree, "a") == 1);
    CHECK(other(tree, "b/0") == 1.5);
    CHECK(other(tree, "b/1").is_null());
    CHECK(other(tree, "b/2") == true);
    CHECK(other(tree, "c") == "d\n");
  }
}

TEST_CASE("whole numbers of any size") {
  const auto root = [](const std::string& pickle) {
    static std::string bytes;
    bytes = pickle;
    return read_pickle({bytes, "f", 0}, [](std::string_view, std::string_view) {}).root();
  };
  CHECK(root("L-5L\n.").integer == -5);
  CHECK(root("L9223372036854775807L\n.").integer == INT64_MAX);
  CHECK(root("L-9223372036854775808L\n.").integer == INT64_MIN);
  CHECK(root("L-10000000000000000L\n.").integer == -10000000000000000);
  CHECK(root("\x8a\x02\xff\x7f.").integer == 32767);
  CHECK(root("\x8a\x01\x80.").integer == -128);
  CHECK(root(std::string("\x8a\0.", 3)).integer == 0);
  const PickleNode magic = root("L119547037146038801333356L\n.");
  CHECK(magic.kind == PickleKind::kBigInt);
}

TEST_CASE("what a pickle may not name is refused by name") {
  const std::string attack = "cos\nsystem\n(S'true'\ntR.";
  CHECK(contains(error_of_pickle(attack), "os.system"));
  CHECK(contains(error_of_pickle("\x80\x04\x8c\5posix\x8c\6system\x93."), "posix.system"));
  CHECK(contains(error_of_pickle("(S'x'\nibuiltins\neval\n."), "builtins.eval"));
  CHECK(contains(error_of_pickle("cmodels.yolo\nDetectionModel\n)\x81."), "models.yolo.DetectionModel"));
  CHECK(contains(error_of_pickle("ctorch._utils\n_rebuild_qtensor\n."), "quantized"));
  CHECK(contains(error_of_pickle("ctorch._utils\n_rebuild_sparse_tensor\n."), "sparse"));
  CHECK(contains(error_of_pickle("cbuiltins\ngetattr\n."), "builtins.getattr"));
}

TEST_CASE("malformed and absurd pickles are errors") {
  CHECK(contains(error_of_pickle(""), "truncated"));
  CHECK(contains(error_of_pickle("]"), "truncated"));
  CHECK(contains(error_of_pickle("."), "0 values"));
  CHECK(contains(error_of_pickle("t."), "no mark"));
  CHECK(contains(error_of_pickle("NN."), "2 values"));
  CHECK(contains(error_of_pickle("\x80\x09."), "protocol 9"));
  CHECK(contains(error_of_pickle("X\xff\xff\xff\x7f."), "truncated"));
  CHECK(contains(error_of_pickle("h\x05."), "memo entry 5"));
  CHECK(contains(error_of_pickle(std::string("]r\0\0\0\x7f.", 7)), "memo entry"));
  CHECK(contains(error_of_pickle("\xff."), "unknown operation 0xff"));
  CHECK(contains(error_of_pickle("]]a]s."), "stack"));
  CHECK(contains(error_of_pickle("}]N]\x85s."), "keys are set"));
  // A list that contains itself; one whose parts are shared 2^60 times.
  CHECK(contains(error_of_pickle("]q\x01h\x01"
                                 "a."),
                 "contains itself"));
  std::string bomb = "(]q\1";
  for (char i = 1; i < 60; ++i) bomb += std::string("](h") + i + "h" + i + "eq" + static_cast<char>(i + 1);
  CHECK(contains(error_of_pickle(bomb + "t."), "too often"));
}

// objects.pth is torch.save, objects_p*.pkl pickle.dump, of the values that are checked here.
TEST_CASE("objects of real checkpoints become values") {
  for (const char* name : {"objects.pth", "objects_p0.pkl", "objects_p5.pkl"}) {
    INFO(name);
    const WeightsFile file(golden(name));
    std::map<std::string, nlohmann::json> others;
    for (const WeightLeaf& leaf : file.others()) others[leaf.name] = leaf.value;
    std::map<std::string, NamedTensor> tensors;
    for (size_t i = 0; i < file.tensors().size(); ++i) tensors[file.tensors()[i].name] = file.tensor(i);
    const auto values = [&](const std::string& tensor) {
      REQUIRE(tensors.contains(tensor));
      std::vector<double> list;
      for (int64_t i = 0; i < tensors[tensor].count(); ++i)
        list.push_back(value_at(tensors[tensor].dtype, tensors[tensor].values(), i));
      return list;
    };
    CHECK(others["args/lr"] == 0.1);
    CHECK(others["args/path"] == "/tmp/a");
    CHECK(others["args/nested/k/1"] == 2);
    CHECK(others["np/f8"] == 1.5);
    CHECK(others["np/f4"] == 0.25);
    CHECK(others["np/i8"] == -7);
    CHECK(others["np/b"] == true);
    CHECK(others["np/u1"] == 200);
    CHECK(others["np/i2"] == -3);
    CHECK(others["counter/3"] == 2);
    CHECK(others["default/a/0"] == 1);
    CHECK(others["deque/1"] == 6);
    CHECK(others["set/0"] == 4);
    CHECK(others["frozen/0"] == 8);
    CHECK(others.contains("when"));
    CHECK(values("array") == std::vector<double>{0, 1, 2, 3, 4, 5});
    CHECK(values("fortran") == std::vector<double>{0, 1, 2, 3, 4, 5});
    CHECK(tensors["fortran"].shape == std::vector<int64_t>{2, 3});
    CHECK(values("big") == std::vector<double>{0, 1, 2});
    if (std::string(name) != "objects.pth") continue;
    CHECK(others["device"] == "cuda:1");
    CHECK(others["size/1"] == 3);
    CHECK(others["dtype"] == "torch.float16");
    CHECK(others["(t, 1)"] == "tuple key");
    CHECK(others["5"] == "int key");
    CHECK(others["null"] == "none key");
    CHECK(values("tied_a") == values("tied_b"));
    CHECK(tensors["tied_a"].values() == tensors["tied_b"].values());
    CHECK(values("expanded") == std::vector<double>(8, 1));
    for (const char* type : {"float8_e4m3fn", "float8_e5m2", "int16", "int8", "int32", "uint8", "uint16", "uint32",
                             "uint64", "complex64", "complex128"}) {
      INFO(type);
      CHECK(values(std::string("types/") + type)[0] == 1);
      CHECK(std::string(element_name(tensors[std::string("types/") + type].dtype)) == type);
    }
    std::vector<double> counted(24);
    for (size_t i = 0; i < counted.size(); ++i) counted[i] = static_cast<double>(i);
    CHECK(values("channels_last") == counted);
  }
}

TEST_CASE("files that are something else are named") {
  TemporaryDirectory directory;
  const auto error = [&](const std::string& bytes) {
    spill(directory / "x.pth", bytes);
    return message_of<Error>([&] { WeightsFile file(directory / "x.pth"); });
  };
  CHECK(contains(error(""), "empty"));
  CHECK(contains(error("version https://git-lfs.github.com/spec/v1\n"), "git lfs pull"));
  for (const char* page : {"<!DOCTYPE html>", "<!doctype html>", "\n<HTML>", "<?xml version"})
    CHECK(contains(error(page), "download"));
  CHECK(contains(error("<x>"), "neither"));
  CHECK(contains(error("\x89HDF\r\n"), "HDF5"));
  CHECK(contains(error("Hello"), "neither"));
  std::string tar(512, '\0');
  tar.replace(0, 8, "sys_info");
  tar.replace(257, 5, "ustar");
  CHECK(contains(error(tar), "tar archive"));
  CHECK(contains(error("PK\x03\x04" + std::string(100, 'x')), "directory"));
}

namespace {

/// A legacy file: {'w': tensor of shape (2)} with `values`, the storage's class and what follows the strides.
std::string legacy_file(const std::string& storage_class, const std::string& values, const std::string& metadata) {
  const std::string begin("\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.\x80\x02M\xe9\x03.\x80\x02}.", 25);
  const std::string tensor = "\x80\x02}(Vw\nctorch._utils\n_rebuild_tensor_v2\n((Vstorage\nctorch\n" + storage_class +
                             "\nV0\nVcpu\nK\2tQK" + std::string(1, '\0') + "(K\2t(K\1t\x89}" + metadata + "tRu.";
  const std::string keys = "\x80\x02(V0\nl.";
  return begin + tensor + keys + std::string("\2\0\0\0\0\0\0\0", 8) + values;
}

template <class T>
std::string bytes_of(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

}  // namespace

TEST_CASE("the negative and conjugate bits of tensors are applied") {
  TemporaryDirectory directory;
  const auto values = [&](const std::string& bytes) {
    spill(directory / "v.pth", bytes);
    const WeightsFile file(directory / "v.pth");
    const NamedTensor tensor = file.tensor(0);
    std::vector<double> list;
    for (int64_t i = 0; i < tensor.count() * element_parts(tensor.dtype); ++i)
      list.push_back(value_at(tensor.dtype, tensor.values(), i));
    return list;
  };
  const std::string floats = bytes_of<float>({1.5f, -2}), complex = bytes_of<float>({1, 2, 3, -4});
  const std::string negative = "}(Vneg\n\x88u", conjugate = "}(Vconj\n\x88u", both = "}(Vconj\n\x88Vneg\n\x88u";
  using List = std::vector<double>;
  CHECK(values(legacy_file("FloatStorage", floats, "")) == List{1.5, -2});
  CHECK(values(legacy_file("FloatStorage", floats, "N")) == List{1.5, -2});
  CHECK(values(legacy_file("FloatStorage", floats, "}(Vneg\n\x89Vconj\n\x89u")) == List{1.5, -2});
  CHECK(values(legacy_file("FloatStorage", floats, negative)) == List{-1.5, 2});
  CHECK(values(legacy_file("FloatStorage", floats, "ccollections\nOrderedDict\n)R(Vneg\n\x88u")) == List{-1.5, 2});
  CHECK(values(legacy_file("LongStorage", bytes_of<int64_t>({1 << 20, -3}), negative)) == List{-(1 << 20), 3});
  CHECK(values(legacy_file("ByteStorage", bytes_of<uint8_t>({0, 3}), negative)) == List{0, 253});
  CHECK(values(legacy_file("ComplexFloatStorage", complex, conjugate)) == List{1, -2, 3, 4});
  CHECK(values(legacy_file("ComplexFloatStorage", complex, negative)) == List{-1, -2, -3, 4});
  CHECK(values(legacy_file("ComplexFloatStorage", complex, both)) == List{-1, 2, -3, -4});

  const auto error = [&](const std::string& type, const std::string& metadata) {
    return message_of<Error>([&] { values(legacy_file(type, std::string(16, '\0'), metadata)); });
  };
  CHECK(contains(error("FloatStorage", "}(Vzero\n\x88u"), "\"w\": the tensor has the property \"zero\""));
  CHECK(contains(error("FloatStorage", "}(Vneg\nK\1u"), "neither True nor False"));
  CHECK(contains(error("FloatStorage", "K\1"), "no dict"));
  CHECK(contains(error("FloatStorage", conjugate), "real numbers"));
  CHECK(contains(error("BoolStorage", negative), "truth values"));
}

TEST_CASE("numpy values that are no numbers are skipped") {
  TemporaryDirectory directory;
  const std::string core = "cnumpy.core.multiarray\n", eight = std::string("C\x08") + "\0\0\xc0\x3f\0\0\x20\xc0"s;
  const auto dtype = [](const std::string& type) { return "cnumpy\ndtype\n(" + type + "\x89\x88tR"; };
  const auto array = [&](const std::string& type, const std::string& cls) {
    return core + "_reconstruct\n(c" + cls + "\n(K\1tVb\ntR(K\1(K\2t" + dtype(type) + "\x89" + eight + "tb";
  };
  const PthTree tree = tree_of(
      directory, "\x80\2}(Vtexts\n" + array("VU1\n", "numpy\nndarray") + "Vfloats\n" +
                     array("Vf4\n", "numpy\nndarray") + "Vrecords\n" + array("VV4\n", "numpy\nndarray") + "Vrec\n" +
                     array("cnumpy\nrecord\n", "numpy.rec\nrecarray") + "Vtext\n" + core + "scalar\n(" +
                     dtype("VU2\n") + eight + "tRVdate\n" + core + "scalar\n(" + dtype("VM8\n") + eight + "tRu.");
  CHECK(other(tree, "texts") == "<numpy array of type 'U1'>");
  CHECK(other(tree, "records") == "<numpy array of type 'V4'>");
  CHECK(other(tree, "rec") == "<numpy array of type 'numpy.record'>");
  CHECK(other(tree, "text") == "<numpy value of type 'U2'>");
  CHECK(other(tree, "date") == "<numpy value of type 'M8'>");
  REQUIRE(tree.tensors.size() == 1);
  CHECK(tree.tensors[0].name == "floats");
}

TEST_CASE("truncated files are errors at every length") {
  TemporaryDirectory directory;
  for (const char* name : {"mixed.pth", "mixed_legacy.pth"}) {
    const std::string bytes = slurp(golden(name));
    for (size_t length = 0; length < bytes.size(); ++length) {
      spill(directory / "t.pth", bytes.substr(0, length));
      const std::string message = message_of<Error>([&] { WeightsFile file(directory / "t.pth"); });
      INFO(name << " cut to " << length << " bytes");
      REQUIRE(contains(message, "t.pth"));
    }
  }
}

TEST_CASE("a flipped bit in the values of a zip container is seen") {
  TemporaryDirectory directory;
  std::string bytes = slurp(golden("mixed.pth"));
  const WeightsFile whole(golden("mixed.pth"));
  const NamedTensor f64 = whole.tensor(2);
  const size_t at = bytes.find(std::string(static_cast<const char*>(f64.values()), f64.bytes()));
  REQUIRE(at != std::string::npos);
  bytes[at + 5] = static_cast<char>(bytes[at + 5] ^ 4);
  spill(directory / "b.pth", bytes);
  const WeightsFile file(directory / "b.pth");
  CHECK(contains(message_of<Error>([&] { file.tensor(2); }), "checksum"));
  CHECK(contains(message_of<Error>([&] { file.tensor(2); }), "checksum"));
}

TEST_CASE("pth files that were written are read back") {
  TemporaryDirectory directory;
  std::vector<NamedTensor> tensors;
  uint32_t seed = 1;
  for (const ElementType type : {ElementType::kF32, ElementType::kF64, ElementType::kF16, ElementType::kBF16,
                                 ElementType::kI64, ElementType::kI32, ElementType::kI16, ElementType::kI8,
                                 ElementType::kU8, ElementType::kC64, ElementType::kC128})
    tensors.push_back(random_tensor(std::string("layer.") + element_name(type), type, {2, 3, 5}, ++seed));
  tensors.push_back(random_tensor("scalar", ElementType::kI64, {}, 3));
  tensors.push_back(random_tensor("empty", ElementType::kF32, {0, 4}, 3));
  tensors.push_back(random_tensor("caf\xc3\xa9", ElementType::kF32, {3}, 3));
  write_pth(directory / "w.pth", tensors);
  const WeightsFile file(directory / "w.pth");
  REQUIRE(file.tensors().size() == tensors.size());
  for (size_t i = 0; i < tensors.size(); ++i) {
    CHECK(same(file.tensor(i), tensors[i]));
    if (tensors[i].bytes() > 0) CHECK(file.tensor(i).owned.empty());  // mapped, not copied
  }
  tensors.push_back(tensors[0]);
  CHECK(contains(message_of<Error>([&] { write_pth(directory / "v.pth", tensors); }), "two tensors"));
  CHECK(!fs::exists(directory / "v.pth"));
}
