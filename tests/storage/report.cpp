#include "io/report.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <pugixml.hpp>

#include "engine/error.h"
#include "io/base64.h"
#include "io/chart.h"
#include "temporary_directory.h"

using namespace convoy;
namespace fs = std::filesystem;

namespace {

// A picture of one grey pixel.
const unsigned char kPng[] = {0x89, 'P',  'N',  'G',  '\r', '\n', 0x1a, '\n', 0,    0,    0,    13,   'I',  'H',
                              'D',  'R',  0,    0,    0,    1,    0,    0,    0,    1,    8,    0,    0,    0,
                              0,    0x3a, 0x7e, 0x9b, 0x55, 0,    0,    0,    10,   'I',  'D',  'A',  'T',  0x78,
                              0x9c, 0x63, 0x68, 0x00, 0x00, 0x00, 0x82, 0x00, 0x81, 0x77, 0xcd, 0x72, 0xb6, 0,
                              0,    0,    0,    'I',  'E',  'N',  'D',  0xae, 0x42, 0x60, 0x82};

void fill_run(const fs::path& run) {
  fs::create_directories(run / "predictions");
  std::string metrics;
  for (int step = 10; step <= 2000; step += 10) {
    metrics += fmt::format(
        R"({{"step":{},"epoch":{},"loss":{},"lr":{},"images_per_second":12.5,"data_wait_ms":32,"comm_wait_ms":64,"peak_memory_bytes":1610612736}})"
        "\n",
        step, step / 500, step == 500 ? "null" : fmt::format("{}", 3 * std::exp(-step / 500.0)),
        0.01 * (1 - step / 2001.0));
    if (step % 500 == 0)
      metrics += fmt::format(
          R"({{"step":{},"eval":true,"pixel_accuracy":0.91,"miou":{},"miou_present":0.625,"iou":{{"road <1>":0.875,"wall":0,"train":null}},"prediction":"scales 0.5, 1, mirrored"}})"
          "\n",
          step, step / 4000.0);
  }
  spill(run / "metrics.jsonl", metrics + "{\"step\":20");
  spill(
      run / "config.yaml",
      "MODEL:\n  MODEL_NAME: BiSeNet\n  BACKBONE: resnet18\nDATASET:\n  NAME: scenes & more\nTRAIN:\n  BATCH_SIZE: 4\n"
      "  GLOBAL_BATCH: 0\n");
  spill(run / "manifest.json", R"({"command_line":["convoy","train"],"threads":2,"ranks":1,"host":"<host>"})");
  for (const char* name : {"street_1_overlay.png", "street_1_image.png", "street_1_label.png", "other.png"})
    spill(run / "predictions" / name, std::string(reinterpret_cast<const char*>(kPng), sizeof kPng));
  spill(run / "predictions/broken_image.png", "GIF89a");
}

}  // namespace

TEST_CASE("base64 by the examples of RFC 4648") {
  CHECK(base64("") == "");
  CHECK(base64("f") == "Zg==");
  CHECK(base64("fo") == "Zm8=");
  CHECK(base64("foo") == "Zm9v");
  CHECK(base64("foobar") == "Zm9vYmFy");
  CHECK(base64("\xff\xfe\xfd") == "//79");
}

TEST_CASE("a report shows the run and needs nothing else") {
  TemporaryDirectory directory;
  fill_run(directory / "street");
  const fs::path file = write_report(directory / "street" / "");
  CHECK(file == directory / "street/report.html");
  const std::string page = slurp(file);
  const auto has = [&](const char* text) { CHECK_THAT(page, Catch::Contains(text)); };
  has("<h1>street</h1>");
  has("BiSeNet / resnet18 on scenes &amp; more");
  has("<th>steps</th><td>2000</td>");
  has("<th>final loss</th><td>0.05495</td>");
  has("<th>mIoU, last</th><td>50.00 %</td>");
  has("<th>mIoU of present classes, last</th><td>62.50 %</td>");
  has("<th>pixel accuracy, last</th><td>91.00 %</td>");
  has("<th>images/s</th><td>12.5</td>");
  has("<th>data wait</th><td>10.00 % of the step</td>");
  has("<th>exchanges</th><td>20.00 % of the step</td>");
  has("<th>peak memory</th><td>1.50 GiB</td>");
  has("<td>&lt;host&gt;</td>");
  for (const char* title : {"Training loss", "Evaluation", "Learning rate", "Images per second", "waiting for data",
                            "in exchanges with other ranks", "smoothed</text>"})
    has(title);
  has("<th>road &lt;1&gt;</th><td class=\"bar\"><i style=\"width:87.50%\"></i></td><td>87.50 %</td>");
  has("<th>train</th><td class=\"bar\"></td><td>absent</td>");
  has("<th>predictions of evaluations</th><td>scales 0.5, 1, mirrored</td>");
  const size_t road = page.find("<th>road"), wall = page.find("<th>wall"), train = page.find("<th>train");
  CHECK((road < wall && wall < train));  // the order of the classes, not of the alphabet
  has("1 damaged lines");
  has("broken_image.png is no PNG file");
  const size_t image = page.find("street_1: image"), label = page.find("street_1: label"),
               overlay = page.find("street_1: overlay");
  CHECK(image < label);
  CHECK(label < overlay);
  CHECK(overlay != std::string::npos);
  has(base64({reinterpret_cast<const char*>(kPng), sizeof kPng}).c_str());
  has("  MODEL_NAME: BiSeNet");
  for (const char* outside : {"http://", "https://", "<script", "url(", "@import", "nan"})
    CHECK(page.find(outside) == std::string::npos);
}

TEST_CASE("a report copes with whatever is missing or damaged") {
  TemporaryDirectory directory;
  const fs::path run = directory / "run";
  fs::create_directories(run);
  const auto page = [&] { return slurp(write_report(run)); };
  CHECK_THAT(page(), Catch::Contains("metrics.jsonl is missing") && Catch::Contains("config.yaml is missing"));
  fill_run(run);
  for (const char* name : {"metrics.jsonl", "config.yaml", "manifest.json", "predictions"}) {
    CAPTURE(name);
    fs::remove_all(run / name);
    CHECK_THAT(page(), Catch::Contains("<h1>run</h1>") && Catch::Contains("</html>"));
    spill(run / name, "{\x01\xff: [}");
    CHECK_THAT(page(), Catch::Contains("<h1>run</h1>") && Catch::Contains("</html>"));
  }
  spill(run / "metrics.jsonl",
        "{\"step\":1}\n{\"step\":2,\"loss\":\"x\"}\n{\"step\":null,\"loss\":1}\n{\"step\":3,\"loss\":null}\n"
        "{\"step\":4,\"eval\":1,\"iou\":[]}\n{\"step\":4,\"eval\":true,\"iou\":{\"a\":\"b\"},\"miou\":null}\n"
        "{\"step\":-9e300,\"loss\":9e300}\n{\"step\":9e300,\"loss\":-9e300}\n");
  CHECK_THAT(page(), Catch::Contains("</html>"));
  CHECK_THROWS_WITH(write_report(directory / "absent"), Catch::Contains("absent"));
}

TEST_CASE("line charts are well-formed and keep spikes and gaps") {
  ChartSeries series{"loss & more", {}, 0, false};
  for (int i = 0; i < 20000; ++i) series.points.emplace_back(i, i == 12345 ? 50 : std::sin(i * 0.01));
  series.points[777].second = std::nan("");
  const std::string svg = line_chart_svg({"title <t>", "step", {series, series}, {}, false, false});
  pugi::xml_document document;
  REQUIRE(document.load_string(svg.c_str()));
  const std::string path = document.child("svg").child("path").attribute("d").value();
  CHECK(std::count(path.begin(), path.end(), 'M') == 2);
  CHECK(std::count(path.begin(), path.end(), 'L') < 1100);
  // y 50 lies near the top of the plot (34 of 300 units), everything else near its bottom.
  double top = 300;
  for (size_t at = path.find(' '); at != std::string::npos; at = path.find(' ', at + 1))
    top = std::min(top, std::stod(path.substr(at + 1)));
  CHECK(top < 80);

  for (const auto& points : {ChartSeries{}.points,
                             {{1, std::nan("")}},
                             {{5, 3}},
                             {{0, 0}, {0, 0}},
                             {{1e16, 1}, {1e16 + 2, 2}},
                             {{1, 2}, {1e300, -1e300}}}) {
    const std::string small = line_chart_svg({"t", "x", {{"s", points, 0, false}}, {}, false, false});
    CHECK(document.load_string(small.c_str()));
    CHECK(small.find("nan") == std::string::npos);
    CHECK(small.size() < 20000);
  }
}

TEST_CASE("smoothing and numbers for people") {
  const auto flat = smoothed({{0, 2}, {1, 2}, {2, std::nan("")}, {3, 2}}, 10);
  CHECK(flat[0].second == Approx(2));
  CHECK(std::isnan(flat[2].second));
  CHECK(flat[3].second == Approx(2));
  CHECK(smoothed({{0, 1}, {1, 3}}, 3)[1].second == Approx(7.0 / 3));  // weights 1/4 and 1/2 of 3/4
  CHECK(short_number(0) == "0");
  CHECK(short_number(12.5) == "12.5");
  CHECK(short_number(2500) == "2500");
  CHECK(short_number(1.2e6) == "1.2M");
  CHECK(short_number(0.00031) == "3.1e-4");
}
