#include "io/run_directory.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <nlohmann/json.hpp>

#include "engine/error.h"
#include "io/checkpoint_files.h"
#include "io/file.h"
#include "io/json_text.h"

namespace convoy {
namespace fs = std::filesystem;
namespace {

std::string host_name() {
  char name[256] = {};
  return ::gethostname(name, sizeof name - 1) == 0 ? name : "unknown";
}

struct Holder {
  int64_t pid = 0;
  std::string host;
};

Holder read_holder(const fs::path& lock) {
  const auto json = nlohmann::json::parse(read_text_file(lock, 4096), nullptr, false);
  if (!json.is_object()) return {};
  Holder holder;
  if (const auto pid = json.find("pid"); pid != json.end() && pid->is_number_integer()) holder.pid = *pid;
  if (const auto host = json.find("host"); host != json.end() && host->is_string()) holder.host = *host;
  return holder;
}

bool is_alive(const Holder& holder) {
  if (holder.host != host_name()) return !holder.host.empty();  // cannot be asked: assume that it lives
  return holder.pid > 0 && holder.pid != ::getpid() &&
         (::kill(static_cast<pid_t>(holder.pid), 0) == 0 || errno == EPERM);
}

}  // namespace

RunDirectory::RunDirectory(fs::path path) : path_(std::move(path)) {
  make_directories(path_);
  take_lock();
  try {
    make_directories(checkpoints());
    make_directories(predictions());
    metrics_ = std::make_unique<MetricsFile>(path_ / "metrics.jsonl");
    log_ = std::make_unique<Log>(path_ / "log.txt");
  } catch (...) {
    ::close(lock_);
    throw;
  }
}

RunDirectory::~RunDirectory() {
  // The file stays, empty: removing it would let two processes lock two files of one name.
  [[maybe_unused]] const int result = ::ftruncate(lock_, 0);
  ::close(lock_);
}

// The lock is flock's, which ends with its process however that ends; what the file says is for people, and for file
// systems without flock.
void RunDirectory::take_lock() {
  const fs::path file = path_ / "lock";
  lock_ = ::open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  if (lock_ < 0) fail("{}: cannot be opened for writing: {}", file.string(), std::strerror(errno));
  const bool locked = ::flock(lock_, LOCK_EX | LOCK_NB) == 0;
  const bool refused = !locked && errno == EWOULDBLOCK;
  const Holder holder = read_holder(file);
  if (refused || (!locked && is_alive(holder))) {
    ::close(lock_);
    fail("{}: the run directory is in use by process {} on {}; choose another --run-dir, or stop that process",
         path_.string(), holder.pid, holder.host.empty() ? "an unknown host" : holder.host);
  }
  const std::string text = json_text(nlohmann::json{{"pid", ::getpid()}, {"host", host_name()}}) + "\n";
  if (::ftruncate(lock_, 0) != 0 || ::pwrite(lock_, text.data(), text.size(), 0) != static_cast<ssize_t>(text.size())) {
    const int error = errno;
    ::close(lock_);
    fail("{}: cannot be written: {}", file.string(), std::strerror(error));
  }
}

bool RunDirectory::has_earlier_run() const {
  std::error_code ignored;
  const auto size = fs::file_size(path_ / "metrics.jsonl", ignored);
  return (!ignored && size > 0) || !list_steps(checkpoints()).empty();
}

void RunDirectory::write_config(const std::string& yaml) const {
  write_text_file(path_ / "config.yaml", yaml);
}

void RunDirectory::write_manifest(const RunManifest& manifest) const {
  const fs::path file = path_ / "manifest.json";
  nlohmann::json json = {{"command_line", manifest.command_line},
                         {"version", manifest.version},
                         {"threads", manifest.threads},
                         {"ranks", manifest.ranks},
                         {"device", manifest.device},
                         {"dataset_hash", manifest.dataset_hash},
                         {"host", host_name()},
                         {"pid", ::getpid()},
                         {"time", timestamp()},
                         {"earlier", nlohmann::json::array()}};
  std::error_code ignored;
  if (fs::exists(file, ignored)) {
    auto before = nlohmann::json::parse(read_text_file(file), nullptr, false);
    if (before.is_object()) {
      if (before.contains("earlier") && before["earlier"].is_array()) json["earlier"] = std::move(before["earlier"]);
      before.erase("earlier");
      json["earlier"].push_back(std::move(before));
    }
  }
  write_text_file(file, json_text(json, 1) + "\n");
}

}  // namespace convoy
