#include "fixture.h"

using namespace convoy;

TEST_CASE("scores follow from the counts") {
  SegmentationScores scores{.classes = 3, .confusion = {5, 1, 0, 2, 4, 0, 0, 0, 0}};
  CHECK(*scores.pixel_accuracy() == Approx(9.0 / 12));
  CHECK(*scores.iou(0) == Approx(5.0 / 8));
  CHECK(*scores.iou(1) == Approx(4.0 / 7));
  CHECK_FALSE(scores.iou(2));
  CHECK(scores.miou() == Approx((5.0 / 8 + 4.0 / 7) / 3));
  CHECK(*scores.miou_present() == Approx((5.0 / 8 + 4.0 / 7) / 2));
  const SegmentationScores empty{.classes = 1, .confusion = {0}};
  CHECK_FALSE(empty.pixel_accuracy());
  CHECK(empty.json({"x"})["pixel_accuracy"].is_null());
}

TEST_CASE("every image size can be predicted") {
  Context context({.threads = 1});
  ParamStore store;
  const auto network = make_network({.name = "FastSCNN", .classes = 4}, store);
  store.initialize(1);
  Predictor predictor(context, store, *network, {});
  for (const auto& [height, width] : {std::pair<int64_t, int64_t>{1, 1}, {1, 200}, {63, 33}, {97, 131}}) {
    const Image image{height, width, 3, std::vector<uint8_t>(static_cast<size_t>(height * width * 3), 90)};
    const LabelMap labels = predictor.predict(image);
    CHECK(labels.height == height);
    CHECK(labels.width == width);
    CHECK(std::all_of(labels.data.begin(), labels.data.end(), [](int32_t l) { return l >= 0 && l < 4; }));
  }
}

TEST_CASE("the batch size of an evaluation changes no count") {
  const TinyRun tiny;
  const Config config = tiny.config();
  const SegmentationDataset data = open_dataset(config, "train");
  Context context({.threads = 1});
  ParamStore store;
  const auto network = make_network({.name = "FastSCNN", .classes = 19}, store);
  store.initialize(2);
  Predictor predictor(context, store, *network, normalization(config));
  const auto one = evaluate_dataset(predictor, data, {.batch_size = 1}),
             three = evaluate_dataset(predictor, data, {.batch_size = 3});
  REQUIRE((one && three));
  CHECK(one->confusion == three->confusion);
  CHECK(one->images == data.size());
  int64_t labelled = 0;
  for (int64_t i = 0; i < data.size(); ++i)
    for (const int32_t label : data.decode(i).labels.data) labelled += label >= 0;
  CHECK(one->labelled_pixels() == labelled);
}
