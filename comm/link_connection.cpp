#include "comm/link_connection.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace convoy {
namespace {

struct FrameHeader {
  uint32_t bytes;  ///< of the payload
  uint32_t type;
};

constexpr size_t kMostFailureBytes = 16 << 10;

template <size_t N>
void terminate(char (&text)[N]) {
  text[N - 1] = 0;
}

template <class T>
void append(std::string& to, const T& value) {
  to.append(reinterpret_cast<const char*>(&value), sizeof value);
}

}  // namespace

LinkConnection::LinkConnection(Socket socket, int ranks)
    : socket_(std::move(socket)),
      most_bytes_(std::max(kMostFailureBytes, static_cast<size_t>(ranks) * sizeof(LinkRecord))) {}

void LinkConnection::close() {
  closed_ = true;
  socket_ = Socket();
}

void LinkConnection::hang_up() {
  flush();
  if (closed_) return;
  // Closing with unread input would be a reset, which may overtake what was sent.
  shutdown(descriptor(), SHUT_WR);
  receive();
  close();
}

void LinkConnection::send_frame(FrameType type, std::string_view payload) {
  append(output_, FrameHeader{static_cast<uint32_t>(payload.size()), static_cast<uint32_t>(type)});
  output_ += payload;
}

void LinkConnection::send_hello(const LinkHello& hello) {
  append(output_, hello);
}

void LinkConnection::send_records(std::span<const LinkRecord> records) {
  if (closed_ || output_.size() > 2 * most_bytes_) return;
  send_frame(FrameType::kRecords, {reinterpret_cast<const char*>(records.data()), records.size_bytes()});
}

void LinkConnection::send_failure(const Failure& failure) {
  if (closed_) return;
  std::string payload;
  append(payload, static_cast<uint32_t>(failure.at_fault.size()));
  for (const int rank : failure.at_fault) append(payload, static_cast<int32_t>(rank));
  payload += failure.message;
  send_frame(FrameType::kFailure, payload);
}

void LinkConnection::flush() {
  while (!closed_ && !output_.empty()) {
    const ssize_t count = send(descriptor(), output_.data(), output_.size(), MSG_NOSIGNAL);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) {
      // What the other side has sent before it hung up is still to be read: receive() notices the end.
      if (errno != EAGAIN && errno != EPIPE && errno != ECONNRESET) close();
      return;
    }
    output_.erase(0, static_cast<size_t>(count));
  }
}

void LinkConnection::receive() {
  char buffer[16 << 10];
  while (!closed_ && input_.size() <= most_bytes_ + sizeof(FrameHeader)) {
    const ssize_t count = recv(descriptor(), buffer, sizeof buffer, 0);
    if (count > 0) {
      input_.append(buffer, static_cast<size_t>(count));
    } else if (count < 0 && errno == EINTR) {
      continue;
    } else if (count < 0 && errno == EAGAIN) {
      return;
    } else {
      hung_up_ = count == 0 || errno == ECONNRESET;
      close();
    }
  }
}

bool LinkConnection::take_hello(LinkHello* hello) {
  if (input_.size() < sizeof *hello) return false;
  memcpy(static_cast<void*>(hello), input_.data(), sizeof *hello);
  input_.erase(0, sizeof *hello);
  return true;
}

bool LinkConnection::take_frame(FrameType* type, std::string* payload) {
  FrameHeader header;
  if (input_.size() < sizeof header) return false;
  memcpy(&header, input_.data(), sizeof header);
  *type = static_cast<FrameType>(header.type);
  if (header.bytes > most_bytes_ || (*type != FrameType::kRecords && *type != FrameType::kFailure)) {
    input_.clear();
    close();
    return false;
  }
  if (input_.size() < sizeof header + header.bytes) return false;
  payload->assign(input_, sizeof header, header.bytes);
  input_.erase(0, sizeof header + header.bytes);
  return true;
}

bool parse_records(const std::string& payload, int ranks, std::vector<LinkRecord>* records) {
  if (payload.size() % sizeof(LinkRecord) != 0) return false;
  records->resize(payload.size() / sizeof(LinkRecord));
  if (records->empty()) return true;
  memcpy(static_cast<void*>(records->data()), payload.data(), payload.size());
  for (LinkRecord& record : *records) {
    if (record.rank < 0 || record.rank >= ranks) return false;
    terminate(record.record.process.host);
    for (ChannelRecord& channel : record.record.channels) terminate(channel.name);
    terminate(record.record.activity.what);
    terminate(record.record.data_file.file);
  }
  return true;
}

bool parse_failure(const std::string& payload, int ranks, Failure* failure) {
  uint32_t count;
  if (payload.size() < sizeof count) return false;
  memcpy(&count, payload.data(), sizeof count);
  const size_t room = (payload.size() - sizeof count) / sizeof(int32_t);
  if (count > room) return false;
  failure->at_fault.clear();
  for (uint32_t i = 0; i < count; ++i) {
    int32_t rank;
    memcpy(&rank, payload.data() + sizeof count + i * sizeof rank, sizeof rank);
    if (rank < 0 || rank >= ranks) return false;
    failure->at_fault.push_back(rank);
  }
  failure->message = payload.substr(sizeof count + count * sizeof(int32_t));
  return true;
}

}  // namespace convoy
