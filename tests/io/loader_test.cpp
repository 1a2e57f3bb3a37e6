#include "io/loader.h"

#include <catch2/catch.hpp>
#include <numeric>

#include "tests/io/scenes.h"

using namespace convoy;
using convoy::testing::error_of;
using convoy::testing::TemporaryFolder;
using convoy::testing::write_folder_dataset;

namespace {

constexpr AugmentOptions kAugment{{16, 24}, 20, true, 0.3, 0, {.3, .3, .3, .1}};

LoaderOptions options_for(int64_t batch, int64_t workers) {
  LoaderOptions options;
  options.global_batch = batch;
  options.workers = workers;
  options.report = [](const std::string&) {};
  return options;
}

bool same(const Batch& a, const Batch& b) {
  return a.images == b.images && a.labels == b.labels && a.names == b.names && a.sample_ids == b.sample_ids &&
         a.epoch == b.epoch && a.step == b.step;
}

std::vector<Batch> take(Loader& loader, int count) {
  std::vector<Batch> batches;
  for (int i = 0; i < count; ++i) batches.push_back(loader.next());
  return batches;
}

}  // namespace

TEST_CASE("the loader's batches depend on nothing but seed, epoch and position", "[io][loader]") {
  TemporaryFolder folder;
  const SegmentationDataset dataset = open_folder(write_folder_dataset(folder.path(), 11), "train");
  Loader plain(dataset, kAugment, {}, options_for(4, 0));
  const std::vector<Batch> expected = take(plain, 9);
  CHECK(plain.steps_per_epoch() == 2);
  CHECK(expected[8].epoch == 4);
  CHECK_FALSE(expected[0].images == expected[2].images);
  CHECK(expected[0].images.size() == 4 * 3 * 16 * 24);

  for (const int64_t workers : {1, 2, 4}) {
    Loader loader(dataset, kAugment, {}, options_for(4, workers));
    for (const Batch& batch : expected) {
      Batch got = loader.next();
      CHECK(same(got, batch));
      loader.recycle(std::move(got));
    }
    loader.seek(3);
    for (size_t step = 3; step < expected.size(); ++step) CHECK(same(loader.next(), expected[step]));
    loader.seek(0);
    CHECK(same(loader.next(), expected[0]));
  }

  SECTION("and a rank's slots are a part of the same global batch") {
    LoaderOptions part = options_for(4, 2);
    part.first_slot = 1;
    part.slots = 2;
    Loader loader(dataset, kAugment, {}, part);
    for (const Batch& whole : expected) {
      const Batch got = loader.next();
      REQUIRE(got.count == 2);
      const size_t pixels = 16 * 24;
      CHECK(std::equal(got.images.begin(), got.images.end(), whole.images.begin() + 3 * pixels));
      CHECK(std::equal(got.labels.begin(), got.labels.end(), whole.labels.begin() + pixels));
      CHECK(got.sample_ids[1] == whole.sample_ids[2]);
    }
  }

  SECTION("and a rank without samples gets empty batches and reads nothing") {
    for (const int64_t workers : {0, 2}) {
      LoaderOptions none = options_for(4, workers);
      none.first_slot = 4;
      none.slots = 0;
      none.reading = [](const std::string& file) { FAIL(file); };
      Loader loader(dataset, kAugment, {}, none);
      for (const Batch& whole : expected) {
        Batch got = loader.next();
        CHECK(got.count == 0);
        CHECK(got.images.empty());
        CHECK(got.step == whole.step);
        CHECK(got.epoch == whole.epoch);
        loader.recycle(std::move(got));
      }
      loader.seek(5);
      CHECK(loader.next().step == 5);
    }
  }

  SECTION("and each file is announced before it is read") {
    LoaderOptions announcing = options_for(4, 0);
    std::vector<std::string> files;
    announcing.reading = [&](const std::string& file) { files.push_back(file); };
    Loader loader(dataset, kAugment, {}, announcing);
    const Batch batch = loader.next();
    REQUIRE(files.size() == 4);
    for (size_t i = 0; i < 4; ++i) CHECK(files[i] == dataset.image_path(batch.sample_ids[i]));
  }
}

TEST_CASE("each epoch is another permutation and holds no sample twice", "[io][loader]") {
  TemporaryFolder folder;
  const SegmentationDataset dataset = open_folder(write_folder_dataset(folder.path(), 12), "train");
  Loader loader(dataset, kAugment, {}, options_for(3, 2));
  std::vector<std::vector<int64_t>> epochs;
  for (int epoch = 0; epoch < 3; ++epoch) {
    std::vector<int64_t> ids;
    for (const Batch& batch : take(loader, 4)) ids.insert(ids.end(), batch.sample_ids.begin(), batch.sample_ids.end());
    epochs.push_back(ids);
    std::sort(ids.begin(), ids.end());
    std::vector<int64_t> all(12);
    std::iota(all.begin(), all.end(), 0);
    CHECK(ids == all);
  }
  CHECK(epochs[0] != epochs[1]);
  CHECK(epochs[1] != epochs[2]);
  CHECK(epochs[0] == epoch_order(12, 1024, 0));
}

TEST_CASE("a data set smaller than a batch is refused, or wraps when told so", "[io][loader]") {
  TemporaryFolder folder;
  const SegmentationDataset dataset = open_folder(write_folder_dataset(folder.path(), 3), "train");
  CHECK_THAT(error_of([&] { Loader(dataset, kAugment, {}, options_for(4, 1)); }),
             Catch::Contains("3 images, fewer than one global batch of 4") && Catch::Contains("TRAIN.DROP_LAST"));
  LoaderOptions wrapping = options_for(4, 2);
  wrapping.drop_last = false;
  Loader loader(dataset, kAugment, {}, wrapping);
  std::vector<int64_t> ids;
  for (const Batch& batch : take(loader, 3)) ids.insert(ids.end(), batch.sample_ids.begin(), batch.sample_ids.end());
  for (const size_t epoch : {0, 1, 2, 3}) {
    std::vector<int64_t> part(ids.begin() + static_cast<int64_t>(3 * epoch),
                              ids.begin() + static_cast<int64_t>(3 * epoch + 3));
    CHECK(part == epoch_order(3, 1024, static_cast<int64_t>(epoch)));
  }
}

TEST_CASE("a damaged file ends the run by name or is replaced, as chosen", "[io][loader]") {
  TemporaryFolder folder;
  const DatasetConfig config = write_folder_dataset(folder.path(), 6);
  const std::vector<uint8_t> bytes = read_file_bytes(folder / "images/train/004.png");
  testing::write_text(folder / "images/train/004.png", std::string(bytes.begin(), bytes.begin() + 200));
  const SegmentationDataset dataset = open_folder(config, "train");
  for (const int64_t workers : {0, 2}) {
    Loader failing(dataset, kAugment, {}, options_for(6, workers));
    CHECK_THAT(error_of([&] { failing.next(); }), Catch::Contains("images/train/004.png"));

    LoaderOptions skipping = options_for(6, workers);
    skipping.on_bad_sample = BadSamplePolicy::skip;
    std::vector<std::string> reports;
    std::mutex mutex;
    skipping.report = [&](const std::string& line) {
      const std::lock_guard lock(mutex);
      reports.push_back(line);
    };
    Loader loader(dataset, kAugment, {}, skipping);
    const Batch batch = loader.next();
    const std::vector<int64_t> order = epoch_order(6, 1024, 0);
    for (size_t i = 0; i < 6; ++i) CHECK(batch.sample_ids[i] == (order[i] == 4 ? order[(i + 1) % 6] : order[i]));
    take(loader, 3);
    REQUIRE(reports.size() == 1);
    CHECK_THAT(reports[0], Catch::Contains("004.png"));
  }
}

TEST_CASE("a data set without a readable file is an error, not an endless search", "[io][loader]") {
  TemporaryFolder folder;
  const DatasetConfig config = write_folder_dataset(folder.path(), 2);
  for (const std::string name : {"000", "001"}) testing::write_text(folder / ("images/train/" + name + ".png"), "x");
  const SegmentationDataset dataset = open_folder(config, "train");
  LoaderOptions skipping = options_for(2, 2);
  skipping.on_bad_sample = BadSamplePolicy::skip;
  Loader loader(dataset, kAugment, {}, skipping);
  CHECK_THAT(error_of([&] { loader.next(); }), Catch::Contains("none of the 2 images"));
}

TEST_CASE("a loader can be dropped at any time", "[io][loader]") {
  TemporaryFolder folder;
  const SegmentationDataset dataset = open_folder(write_folder_dataset(folder.path(), 8), "train");
  for (int round = 0; round < 20; ++round) {
    Loader loader(dataset, kAugment, {}, options_for(2, 3));
    if (round % 2) loader.next();
    if (round % 3) loader.seek(round);
  }
  SUCCEED();
}
