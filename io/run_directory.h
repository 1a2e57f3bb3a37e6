// runs/<name>/: the folder in which a run keeps everything it writes.
#pragma once
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "io/log.h"
#include "io/metrics_file.h"

namespace convoy {

/// What manifest.json records beside host, process id and time.
struct RunManifest {
  std::vector<std::string> command_line;
  std::string version;
  int threads = 0;
  int ranks = 1;
  std::string device;        ///< "cpu", "cuda", "emulated"
  std::string dataset_hash;  ///< of the sorted manifest of the dataset
};

/// A run's directory, held by this process until destruction. Of several ranks only rank 0 opens it.
///   config.yaml, manifest.json, metrics.jsonl, log.txt, checkpoints/, predictions/, report.html, event files
class RunDirectory {
 public:
  /// Creates the directory where it is missing and takes its lock (file "lock" with process id and host). Throws Error
  /// naming the holder when another process uses it; the lock of a process that is gone is taken over.
  explicit RunDirectory(std::filesystem::path path);
  ~RunDirectory();
  RunDirectory(const RunDirectory&) = delete;
  RunDirectory& operator=(const RunDirectory&) = delete;

  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path checkpoints() const { return path_ / "checkpoints"; }
  std::filesystem::path predictions() const { return path_ / "predictions"; }

  /// A run was here before: it left metrics or checkpoints.
  bool has_earlier_run() const;

  /// Writes config.yaml, the resolved configuration.
  void write_config(const std::string& yaml) const;
  /// Writes manifest.json; those of earlier starts (before a resume) are kept in its list "earlier".
  void write_manifest(const RunManifest& manifest) const;

  MetricsFile& metrics() { return *metrics_; }
  Log& log() { return *log_; }

 private:
  void take_lock();

  std::filesystem::path path_;
  int lock_ = -1;
  std::unique_ptr<MetricsFile> metrics_;
  std::unique_ptr<Log> log_;
};

}  // namespace convoy
