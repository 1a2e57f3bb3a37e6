// What two hosts say to each other: frames over a TCP connection, never blocking.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "comm/liveness.h"
#include "comm/socket.h"

namespace convoy {

/// First words of either side. Whoever knows the token belongs to the run.
struct LinkHello {
  char magic[8] = {'c', 'o', 'n', 'v', 'o', 'y', 'L', '1'};
  uint64_t token = 0;
  uint32_t host = 0, hosts = 0, ranks = 0;
  uint32_t record_bytes = sizeof(RankRecord);
};

enum class FrameType : uint32_t {
  kRecords = 1,  ///< LinkRecord, one after the other
  kFailure = 2,  ///< number of ranks at fault, the ranks, the message
};

struct LinkRecord {
  int32_t rank = 0;
  uint32_t host = 0;
  /// Times are ages here: hosts have different clocks. The heartbeat is the rank's own, to be compared with itself
  /// only.
  RankRecord record;
};

/// One connection. After send_* call flush() whenever the socket may be written to, receive() when it may be read from.
class LinkConnection {
 public:
  /// `ranks` of the whole run bounds the length of a frame that is believed.
  LinkConnection(Socket socket, int ranks);

  int descriptor() const { return socket_.descriptor(); }
  /// Closed by either side, by an error or by nonsense.
  bool is_closed() const { return closed_; }
  /// Closed by the other side's process rather than by a silent network.
  bool was_hung_up() const { return hung_up_; }
  void close();
  /// Sends what can be sent at once, then closes so that it arrives.
  void hang_up();

  void send_hello(const LinkHello& hello);
  /// Left out while much is waiting to be sent: the next ones tell more.
  void send_records(std::span<const LinkRecord> records);
  void send_failure(const Failure& failure);
  bool has_output() const { return !output_.empty(); }
  void flush();

  void receive();
  /// Takes a hello from the input: true when one is there whole.
  bool take_hello(LinkHello* hello);
  /// Takes a frame from the input: true when one is there whole. A frame that cannot be closes the connection.
  bool take_frame(FrameType* type, std::string* payload);

 private:
  void send_frame(FrameType type, std::string_view payload);

  Socket socket_;
  size_t most_bytes_;
  std::string input_, output_;
  bool closed_ = false, hung_up_ = false;
};

/// Throw nothing; false or nothing when the payload cannot be such.
bool parse_records(const std::string& payload, int ranks, std::vector<LinkRecord>* records);
bool parse_failure(const std::string& payload, int ranks, Failure* failure);

}  // namespace convoy
