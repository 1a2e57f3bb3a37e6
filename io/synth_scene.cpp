#include "io/synth_scene.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "engine/error.h"
#include "engine/rng.h"
#include "io/synth_objects.h"

namespace convoy {
namespace {

using namespace synth;

constexpr double kCameraHeight = 1.4;  // metres
constexpr double kNearest = 3;         // metres to the nearest object; the farthest stands eight times as far
constexpr double kBackdrop = 60;       // where the street ends

/// A facade's piece along the street.
struct Segment {
  double end;     // depth at which the next one begins
  int32_t id;     // building, vegetation (hedge, trees) or fence
  double height;  // metres
  Rgb color;
  uint64_t key;
  double pitch;  // metres between windows or bars
};

class Street {
 public:
  Street(int64_t height, int64_t width, uint64_t seed, uint64_t index)
      : height_(height), width_(width), random_(seed, "scene", index), key_(mix(fnv1a("scene texture", seed), index)) {
    choose_camera();
    choose_surfaces();
    for (const int side : {0, 1}) choose_facade(facades_[static_cast<size_t>(side)]);
    choose_objects();
  }

  Scene render() {
    scene_.image = {height_, width_, 3, {}, 8};
    scene_.labels = {height_, width_, std::vector<int32_t>(static_cast<size_t>(height_ * width_), 0)};
    colors_.resize(scene_.labels.data.size());
    owners_.assign(scene_.labels.data.size(), -1);
    paint_street();
    for (size_t i = 0; i < objects_.size(); ++i) paint_object(static_cast<int32_t>(i));
    paint_bonnet();
    develop();
    collect_boxes();
    return std::move(scene_);
  }

 private:
  // --- choices ---

  double draw(double low, double high) { return random_.uniform(low, high); }
  bool chance(double share) { return draw(0, 1) < share; }

  /// Any colour: all surfaces share this palette half of the time.
  Rgb any_color() {
    const double value = draw(.15, .95), saturation = chance(.5) ? draw(0, .15) : draw(.1, .7);
    const double hue = draw(0, 6);
    Rgb color;
    for (size_t c = 0; c < 3; ++c) {
      double distance = std::abs(hue - 2 * static_cast<double>(c));
      distance = std::min(distance, 6 - distance);
      color[c] = value * (1 - saturation * std::clamp(distance - 1, 0.0, 1.0));
    }
    return color;
  }
  Rgb near_color(const Rgb& typical, double spread) {
    Rgb color;
    for (size_t c = 0; c < 3; ++c) color[c] = std::clamp(typical[c] + draw(-spread, spread), .05, .98);
    return color;
  }
  Rgb surface_color(const Rgb& typical, double any_share) {
    return chance(any_share) ? any_color() : near_color(typical, .14);
  }

  void choose_camera() {
    horizon_ = static_cast<double>(height_) * draw(.38, .5);
    vanish_x_ = static_cast<double>(width_) * draw(.38, .62);
    focal_ = (static_cast<double>(height_) - horizon_) * kNearest / kCameraHeight;
  }

  void choose_surfaces() {
    const double gray = draw(.25, .6);
    road_ = near_color({gray, gray, gray}, .06);
    sidewalk_ = surface_color({gray, gray, gray}, .3);
    sky_ = surface_color({.62, .74, .88}, .2);
    sky_low_ = blended(sky_, {.85, .82, .8}, draw(.2, .8));
    road_half_ = draw(2.8, 5);
    for (double& kerb : walk_) kerb = draw(1.5, 3.2);
    lane_ = draw(-1, 1);
    clouds_ = draw(.0, .35);
    fog_ = chance(.3) ? draw(.2, .6) : draw(0, .15);
  }

  void choose_facade(std::vector<Segment>& facade) {
    double end = draw(2, 9);
    while (true) {
      Segment segment{end, kBuilding, 0, {}, mix(key_, random_.next_word()), 0};
      const double kind = draw(0, 1);
      if (kind < .55) {
        segment.height = draw(4, 14);
        segment.color = any_color();
        segment.pitch = draw(1.6, 3);
      } else if (kind < .75) {
        segment.id = kVegetation;
        segment.height = draw(1.5, 6);
        segment.color = surface_color({.28, .42, .2}, .2);
      } else {
        segment.id = kFence;
        segment.height = draw(1.6, 3);
        segment.color = any_color();
        segment.pitch = draw(.5, .9);
      }
      facade.push_back(segment);
      if (end > kBackdrop) return;
      end += draw(3, 12);
    }
  }

  void choose_objects() {
    struct Range {
      double low, high;
    };
    // Each call draws one number as an argument at most: the order of draws must not be the compiler's choice.
    const auto add = [this](Shape shape, double x, Range widths, Range heights) {
      const double width = draw(widths.low, widths.high), height = draw(heights.low, heights.high);
      // Sizes are spread over three octaves, near ones a little more often.
      double octaves = draw(0, 1);
      octaves *= 1.2 + 1.8 * octaves;
      double z = kNearest;
      for (; octaves > 0; octaves -= 1) z *= octaves >= 1 ? 2 : 1 + octaves;
      objects_.push_back({shape, x, z, width, height, false, 0, any_color(), any_color(), any_color(),
                          mix(key_, random_.next_word())});
    };
    const auto beside = [this](double near_kerb, double far) {
      const int side = chance(.5);
      const double from_kerb = near_kerb + draw(0, 1) * std::max(0.0, std::min(far, walk_[side] - near_kerb));
      return (side ? 1 : -1) * (road_half_ + from_kerb);
    };
    for (int64_t n = random_.integer(1, 5); n > 0; --n) {
      if (chance(.5))
        add(Shape::car_rear, draw(-road_half_ + 1, road_half_ - 1), {1.7, 2}, {1.4, 1.7});
      else
        add(Shape::car_side, draw(-road_half_, road_half_), {3.6, 4.6}, {1.35, 1.6});
    }
    for (int64_t n = random_.integer(3, 8); n > 0; --n) {
      const double x = chance(.75) ? beside(.3, 3) : draw(-road_half_, road_half_);
      add(Shape::person, x, {.65, .9}, {1.5, 1.95});
    }
    for (int64_t n = random_.integer(2, 5); n > 0; --n) {
      add(Shape::pole, beside(.2, .5), {.26, .42}, {2.4, 4.2});
      objects_.back().sign = chance(.75);
      objects_.back().sign_shape = static_cast<int>(random_.integer(0, 2));
      objects_.back().first = surface_color({.5, .5, .52}, .4);
      objects_.back().second = chance(.5) ? surface_color({.8, .12, .1}, .4) : surface_color({.1, .2, .7}, .4);
      objects_.back().third = surface_color({.85, .85, .8}, .4);
    }
    for (int64_t n = random_.integer(0, 3); n > 0; --n) {
      add(Shape::tree, beside(.6, 2), {1.8, 3.4}, {3.5, 6});
      objects_.back().first = surface_color({.28, .42, .2}, .2);
    }
    for (int64_t n = random_.integer(0, 2); n > 0; --n) add(Shape::bin, beside(.3, 1), {.5, .8}, {.7, 1.1});
    std::stable_sort(objects_.begin(), objects_.end(), [](const Object& a, const Object& b) { return a.z > b.z; });
    bonnet_ = chance(.25) ? draw(.02, .06) : 0;
    bonnet_color_ = any_color();
  }

  // --- the street behind the objects ---

  void put(int64_t y, int64_t x, int32_t id, const Rgb& color, double depth) {
    const auto at = static_cast<size_t>(y * width_ + x);
    scene_.labels.data[at] = id;
    colors_[at] = blended(color, sky_low_, fog_ * std::min(1.0, depth / kBackdrop));
  }

  void paint_street() {
    for (int64_t y = 0; y < height_; ++y) {
      for (int64_t x = 0; x < width_; ++x) {
        const double right = (static_cast<double>(x) + .5 - vanish_x_) / focal_;
        const double up = (horizon_ - static_cast<double>(y) - .5) / focal_;
        paint_street_pixel(y, x, right, up);
      }
    }
  }

  void paint_street_pixel(int64_t y, int64_t x, double right, double up) {
    const size_t side = right > 0;
    const double wall_x = road_half_ + walk_[side];
    const double wall_depth = right != 0 ? wall_x / std::abs(right) : kBackdrop;
    const double ground_depth = up < 0 ? -kCameraHeight / up : 2 * kBackdrop;
    if (ground_depth <= wall_depth && ground_depth < kBackdrop) {
      return paint_ground(y, x, right * ground_depth, ground_depth);
    }
    if (wall_depth < kBackdrop) {
      const double above = kCameraHeight + up * wall_depth;
      for (const Segment& segment : facades_[side]) {
        if (wall_depth >= segment.end) continue;
        if (above < top_of(segment, wall_depth)) return paint_wall(y, x, segment, wall_depth, above);
        break;
      }
    } else if (up < .02 + .05 * noise(right * 30, 0, key_)) {
      return put(y, x, kVegetation, scaled(facades_[0].back().color, .6 + .5 * noise(right * 200, up * 200, key_)),
                 kBackdrop);
    }
    paint_sky(y, x, right, up);
  }

  /// Hedges and trees have a ragged outline.
  static double top_of(const Segment& segment, double depth) {
    if (segment.id != kVegetation) return segment.height;
    return segment.height * (.7 + .5 * noise(depth * .8, 0, segment.key) + .15 * noise(depth * 4, 1, segment.key));
  }

  void paint_ground(int64_t y, int64_t x, double across, double depth) {
    const double grain = noise(across * 14, depth * 14, key_) - .5;
    if (std::abs(across) < road_half_) {
      double light = 1 + .12 * grain + .1 * (noise(across * .7, depth * .35, key_ + 1) - .5);
      Rgb color = scaled(road_, light);
      const bool dashed = std::abs(across - lane_) < .09 && fraction(depth / 3.5) < .5;
      const bool edge = std::abs(std::abs(across) - road_half_ + .35) < .06;
      if (dashed || edge) color = blended(color, {.9, .9, .85}, .75);
      return put(y, x, kRoad, color, depth);
    }
    const double from_kerb = std::abs(across) - road_half_;
    Rgb color = scaled(sidewalk_, 1 + .1 * grain +
                                      .12 * (lattice(static_cast<int64_t>(std::floor(from_kerb / .5)),
                                                     static_cast<int64_t>(std::floor(depth / .5)), key_) -
                                             .5));
    if (fraction(from_kerb / .5) < .1 || fraction(depth / .5) < .1) color = scaled(color, .72);
    if (from_kerb < .15) color = scaled(color, 1.25);
    put(y, x, kSidewalk, color, depth);
  }

  void paint_wall(int64_t y, int64_t x, const Segment& segment, double depth, double above) {
    Rgb color = segment.color;
    if (segment.id == kBuilding) {
      color = scaled(color, .92 + .16 * noise(depth * 3, above * 3, segment.key));
      const double u = fraction(depth / segment.pitch), v = fraction(above / 2.8);
      if (u > .3 && u < .75 && v > .35 && v < .8) {
        const auto column = static_cast<int64_t>(std::floor(depth / segment.pitch));
        const auto floor = static_cast<int64_t>(std::floor(above / 2.8));
        color = blended(scaled(color, .35), sky_, .5 * lattice(column, floor, segment.key));
      }
    } else if (segment.id == kVegetation) {
      color = scaled(
          color, .45 + .6 * noise(depth * 5, above * 5, segment.key) + .5 * noise(depth * 14, above * 14, segment.key));
    } else {
      const bool bar = fraction(depth / segment.pitch) < .55 || above > segment.height - .15;
      color = scaled(color, bar ? 1.05 : .4);
    }
    put(y, x, segment.id, color, depth);
  }

  void paint_sky(int64_t y, int64_t x, double right, double up) {
    Rgb color = blended(sky_low_, sky_, std::clamp(up * 2.5, 0.0, 1.0));
    const double cloud = noise(right * 5, up * 12, key_ + 2) * .65 + noise(right * 14, up * 30, key_ + 3) * .35;
    color = blended(color, {.93, .93, .94}, clouds_ * std::clamp(3 * cloud - 1.2, 0.0, 1.0));
    put(y, x, kSky, color, kBackdrop * .5);
  }

  // --- objects ---

  void paint_object(int32_t index) {
    const Object& o = objects_[static_cast<size_t>(index)];
    const double scale = focal_ / o.z;
    const double foot_x = vanish_x_ + o.x * scale, foot_y = horizon_ + kCameraHeight * scale;
    const double reach = std::max(o.width * .75, o.sign ? 1.1 * kSignRadius : 0.0) * scale;
    const auto clip = [](double value, int64_t limit) {
      return static_cast<int64_t>(std::clamp(value, 0.0, static_cast<double>(limit)));
    };
    // What lies outside the picture counts as hidden too.
    int64_t area = 0;
    for (double y = std::floor(foot_y - o.height * scale); y <= foot_y; y += 1) {
      for (double x = std::floor(foot_x - reach); x <= foot_x + reach; x += 1) {
        const double u = (x + .5 - foot_x) / (o.width * scale), v = (foot_y - y - .5) / (o.height * scale);
        if (v < 0 || v > 1) continue;
        const bool outer = std::abs(u) > .5 && o.shape != Shape::pole;
        const Spot spot = outer ? Spot{} : spot_of(o, u, v);
        if (spot.id == 0) continue;
        area += spot.thing;
        if (x < 0 || y < 0 || x >= static_cast<double>(width_) || y >= static_cast<double>(height_)) continue;
        const int64_t px = clip(x, width_ - 1), py = clip(y, height_ - 1);
        put(py, px, spot.id, spot.color, o.z);
        owners_[static_cast<size_t>(py * width_ + px)] = spot.thing ? index : -1;
      }
    }
    areas_.push_back(area);
  }

  void paint_bonnet() {
    if (bonnet_ == 0) return;
    for (int64_t y = 0; y < height_; ++y) {
      for (int64_t x = 0; x < width_; ++x) {
        const double u = (static_cast<double>(x) + .5) / static_cast<double>(width_) - .5;
        const double top = static_cast<double>(height_) * (1 - bonnet_ * (1.4 - 5 * u * u));
        if (static_cast<double>(y) < top) continue;
        put(y, x, kEgo, bonnet_color_, 0);
        owners_[static_cast<size_t>(y * width_ + x)] = -1;
      }
    }
  }

  // --- camera ---

  /// Shadows, exposure, tint, vignette, noise, 8 bits.
  void develop() {
    const double exposure = draw(.55, 1.3), noise_level = draw(.01, .045), shade = draw(.35, .8);
    const Rgb tint = {draw(.9, 1.1), draw(.95, 1.05), draw(.9, 1.1)};
    const double slant = draw(-1.5, 1.5), shadow_size = draw(.15, .5), gradient = draw(-.25, .25);
    const double h = static_cast<double>(height_), w = static_cast<double>(width_);
    scene_.image.data.resize(static_cast<size_t>(height_ * width_ * 3));
    for (int64_t y = 0; y < height_; ++y) {
      for (int64_t x = 0; x < width_; ++x) {
        const auto at = static_cast<size_t>(y * width_ + x);
        const double u = static_cast<double>(x) / w - .5, v = static_cast<double>(y) / h - .5;
        double light = exposure * (1 + gradient * u * 2) * (1 - .5 * (u * u + v * v));
        if (scene_.labels.data[at] != kSky && noise((u + slant * v) * 5, v * 2, key_ + 4) < shadow_size) light *= shade;
        for (size_t c = 0; c < 3; ++c) {
          // The sum of four uniform numbers stands for a normal one.
          const std::array<uint32_t, 4> words = philox(key_, c, at);
          double spread = -2;
          for (const uint32_t word : words) spread += unit_float(word);
          const double value = colors_[at][c] * light * tint[c] + noise_level * spread * 1.7;
          scene_.image.data[at * 3 + c] = static_cast<uint8_t>(std::clamp(value, 0.0, 1.0) * 255 + .5);
        }
      }
    }
  }

  void collect_boxes() {
    std::vector<SceneBox> boxes(objects_.size());
    std::vector<int64_t> visible(objects_.size(), 0);
    for (int64_t y = 0; y < height_; ++y) {
      for (int64_t x = 0; x < width_; ++x) {
        const int32_t owner = owners_[static_cast<size_t>(y * width_ + x)];
        if (owner < 0) continue;
        SceneBox& box = boxes[static_cast<size_t>(owner)];
        if (visible[static_cast<size_t>(owner)]++ == 0) box = {"", x, y, x, y, false, false};
        box.xmin = std::min(box.xmin, x);
        box.xmax = std::max(box.xmax, x);
        box.ymax = y;
      }
    }
    for (size_t i = 0; i < boxes.size(); ++i) {
      if (visible[i] < 4) continue;
      SceneBox& box = boxes[i];
      const Shape shape = objects_[i].shape;
      box.name = shape == Shape::person ? "person" : shape == Shape::pole ? "traffic sign" : "car";
      box.truncated = box.xmin == 0 || box.ymin == 0 || box.xmax == width_ - 1 || box.ymax == height_ - 1;
      box.difficult = visible[i] * 4 < areas_[i] || visible[i] < 12;
      scene_.boxes.push_back(box);
    }
  }

  int64_t height_, width_;
  RandomStream random_;
  uint64_t key_;
  double horizon_ = 0, vanish_x_ = 0, focal_ = 0;
  double road_half_ = 0, lane_ = 0, clouds_ = 0, fog_ = 0, bonnet_ = 0;
  std::array<double, 2> walk_{};
  Rgb road_{}, sidewalk_{}, sky_{}, sky_low_{}, bonnet_color_{};
  std::array<std::vector<Segment>, 2> facades_;
  std::vector<Object> objects_;
  std::vector<int64_t> areas_;
  std::vector<Rgb> colors_;
  std::vector<int32_t> owners_;
  Scene scene_;
};

}  // namespace

Scene render_scene(int64_t height, int64_t width, uint64_t seed, uint64_t index) {
  CONVOY_CHECK(height >= 32 && width >= 32 && height <= 8192 && width <= 8192,
               "scenes have 32 to 8192 pixels a side, found {} x {}", height, width);
  return Street(height, width, seed, index).render();
}

}  // namespace convoy
