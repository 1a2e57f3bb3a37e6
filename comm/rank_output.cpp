#include "comm/rank_output.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace convoy {

int write_fully(int descriptor, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(descriptor, bytes.data(), bytes.size());
    if (written >= 0) {
      bytes.remove_prefix(static_cast<size_t>(written));
    } else if (errno == EAGAIN) {
      pollfd room{descriptor, POLLOUT, 0};
      ::poll(&room, 1, -1);
    } else if (errno != EINTR) {
      return errno;
    }
  }
  return 0;
}

void RankOutput::take(std::string_view bytes) {
  while (!bytes.empty()) {
    const size_t end = bytes.find('\n');
    const size_t length = std::min(end == bytes.npos ? bytes.size() : end, kLongestLine - pending_.size());
    pending_.append(bytes.substr(0, length));
    bytes.remove_prefix(length);
    const bool complete = !bytes.empty() && bytes.front() == '\n';
    if (complete) bytes.remove_prefix(1);
    if (complete || pending_.size() == kLongestLine) {
      write_line(pending_);
      pending_.clear();
    }
  }
}

void RankOutput::flush() {
  if (!pending_.empty()) write_line(pending_);
  pending_.clear();
}

void RankOutput::write_line(std::string_view line) {
  line_ = prefix_;
  line_ += line;
  line_ += '\n';
  const int error = write_fully(descriptor_, line_);
  if (error_ == 0) error_ = error;
}

}  // namespace convoy
