#include "io/metrics_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <optional>

#include "engine/error.h"
#include "io/file.h"
#include "io/json_text.h"

namespace convoy {
namespace fs = std::filesystem;
namespace {

constexpr int kMaxDepth = 64;

// The object on a line; discarded (nlohmann's word for "not valid") otherwise.
nlohmann::ordered_json parse_line(const std::string& line) {
  const auto depth_limit = [](int depth, auto, auto&) {
    if (depth > kMaxDepth) fail("nested too deep");
    return true;
  };
  try {
    auto object = nlohmann::ordered_json::parse(line, depth_limit, false);
    if (object.is_object()) return object;
  } catch (const Error&) {
  }
  return nlohmann::ordered_json(nlohmann::ordered_json::value_t::discarded);
}

std::optional<int64_t> step_of(const nlohmann::ordered_json& object) {
  if (object.is_discarded()) return std::nullopt;
  const auto step = object.find("step");
  if (step == object.end() || !step->is_number_integer()) return std::nullopt;
  return step->get<int64_t>();
}

std::ifstream open_lines(const fs::path& path) {
  require_regular_file(path);
  std::ifstream lines(path);
  if (!lines) fail("{}: cannot be opened: {}", path.string(), std::strerror(errno));
  return lines;
}

}  // namespace

MetricsFile::MetricsFile(fs::path path) : path_(std::move(path)) {
  open();
}

MetricsFile::~MetricsFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

void MetricsFile::open() {
  if (descriptor_ >= 0) ::close(descriptor_);
  descriptor_ = ::open(path_.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  if (descriptor_ < 0) fail("{}: cannot be opened for writing: {}", path_.string(), std::strerror(errno));
  const off_t size = ::lseek(descriptor_, 0, SEEK_END);
  off_t end = size;
  char last = 0;
  while (end > 0 && ::pread(descriptor_, &last, 1, end - 1) == 1 && last != '\n') --end;
  if (end < size && ::ftruncate(descriptor_, end) != 0)
    fail("{}: its torn last line cannot be removed: {}", path_.string(), std::strerror(errno));
}

void MetricsFile::append(const nlohmann::ordered_json& object) {
  CONVOY_CHECK(step_of(object), "{}: an object without an integer \"step\" cannot be appended", path_.string());
  const std::string line = json_text(object) + "\n";
  const off_t before = ::lseek(descriptor_, 0, SEEK_END);
  ssize_t done;
  do {
    done = ::write(descriptor_, line.data(), line.size());
  } while (done < 0 && errno == EINTR);
  if (done == static_cast<ssize_t>(line.size())) return;
  const int error = done < 0 ? errno : ENOSPC;  // a short write to a file means that no more fits
  if (::ftruncate(descriptor_, before) != 0) {
    fail("{}: {} bytes cannot be appended: {}; half a line was left", path_.string(), line.size(),
         std::strerror(error));
  }
  fail("{}: {} bytes cannot be appended: {}", path_.string(), line.size(), std::strerror(error));
}

MetricsFile::Cut MetricsFile::truncate_after(int64_t step) {
  Cut cut;
  {
    std::ifstream lines = open_lines(path_);
    DurableFile file(path_);
    std::string line;
    while (std::getline(lines, line)) {
      const auto at = step_of(parse_line(line));
      if (!at) {
        ++cut.damaged;
      } else if (*at > step) {
        ++cut.removed;
      } else {
        ++cut.kept;
        file.write(line + "\n");
      }
    }
    file.commit();
  }
  open();
  return cut;
}

std::vector<nlohmann::ordered_json> read_metrics(const fs::path& path, int64_t* damaged) {
  std::vector<nlohmann::ordered_json> objects;
  if (damaged) *damaged = 0;
  std::error_code ignored;
  if (!fs::exists(path, ignored)) return objects;
  std::ifstream lines = open_lines(path);
  std::string line;
  while (std::getline(lines, line)) {
    auto object = parse_line(line);
    if (!object.is_discarded()) {
      objects.push_back(std::move(object));
    } else if (damaged) {
      ++*damaged;
    }
  }
  return objects;
}

}  // namespace convoy
