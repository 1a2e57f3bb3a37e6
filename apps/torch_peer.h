// PyTorch in a process of its own, which takes turns with us.
#pragma once
#include <sys/types.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace convoy {

/// A program at the other end of two pipes: a command per line, a JSON object per answer. It ends with its input.
class TorchPeer {
 public:
  /// Starts the program and waits for its first answer. Each answer may take `timeout_seconds`.
  /// Throws Error when it cannot be started, ends, or is silent for too long; it is ended then.
  TorchPeer(const std::vector<std::string>& command_line, double timeout_seconds);
  ~TorchPeer();
  TorchPeer(const TorchPeer&) = delete;
  TorchPeer& operator=(const TorchPeer&) = delete;

  /// Throws Error when the program ends instead, is silent for too long, or answers with something else or "error".
  nlohmann::json ask(const std::string& command);
  /// Its first answer.
  const nlohmann::json& announcement() const { return announcement_; }

 private:
  nlohmann::json read_answer(const std::string& what);
  /// Ends the program: by the end of its input, and where that is not enough by force.
  void end(double patience_seconds);

  std::string program_;
  double timeout_seconds_;
  pid_t pid_ = -1;
  int to_ = -1, from_ = -1;
  std::string received_;  // what came behind the last answer
  nlohmann::json announcement_;
};

}  // namespace convoy
