// TCP sockets between hosts.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

namespace convoy {

/// Owns a descriptor.
class Socket {
 public:
  Socket() = default;
  explicit Socket(int descriptor) : descriptor_(descriptor) {}
  Socket(Socket&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}
  Socket& operator=(Socket&& other) noexcept {
    std::swap(descriptor_, other.descriptor_);
    return *this;
  }
  ~Socket();
  int descriptor() const { return descriptor_; }
  bool is_open() const { return descriptor_ >= 0; }

 private:
  int descriptor_ = -1;
};

/// Listens on all interfaces, on a port that the system chooses. Does not block. Throws Error.
Socket listen_on_any_port();
/// Where others reach such a socket: "ADDRESS,ADDRESS.../PORT" with all addresses of this host, loopback last.
std::string address_of(const Socket& listening);
/// Tries the addresses of `address` in turn, again and again until one answers with `reply` bytes to `hello`, for which
/// `is_right(reply)` holds. Returns a socket that does not block. Throws Error when `timeout_seconds` have passed.
Socket connect_to(const std::string& address, const std::string& hello, size_t reply_bytes,
                  bool (*is_right)(const std::string& reply, const std::string& hello), double timeout_seconds);
/// The next connection that waits, not blocking; closed when there is none.
Socket accept_from(const Socket& listening);

}  // namespace convoy
