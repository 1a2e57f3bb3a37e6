#include "comm/socket.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include "engine/error.h"

namespace convoy {
namespace {

using Clock = std::chrono::steady_clock;

int milliseconds_until(Clock::time_point end) {
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end - Clock::now()).count();
  return static_cast<int>(std::clamp<int64_t>(left, 0, 60'000));
}

void set_options(int descriptor) {
  const int on = 1;
  setsockopt(descriptor, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

/// One attempt. `error` receives why it failed.
Socket connect_once(const std::string& host, const std::string& port, Clock::time_point end, std::string* error) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* first = nullptr;
  if (const int code = getaddrinfo(host.c_str(), port.c_str(), &hints, &first); code != 0) {
    *error = gai_strerror(code);
    return {};
  }
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> addresses(first, freeaddrinfo);
  for (const addrinfo* at = first; at != nullptr; at = at->ai_next) {
    Socket socket(::socket(at->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!socket.is_open()) continue;
    int code = connect(socket.descriptor(), at->ai_addr, at->ai_addrlen) == 0 ? 0 : errno;
    if (code == EINPROGRESS) {
      pollfd wait{socket.descriptor(), POLLOUT, 0};
      socklen_t length = sizeof code;
      code = ETIMEDOUT;
      if (poll(&wait, 1, milliseconds_until(end)) == 1) {
        getsockopt(socket.descriptor(), SOL_SOCKET, SO_ERROR, &code, &length);
      }
    }
    if (code == 0) {
      set_options(socket.descriptor());
      return socket;
    }
    *error = std::strerror(code);
  }
  return {};
}

/// Sends `hello` and returns what came back, of at most `bytes` bytes; empty when the other side has hung up.
std::string exchange(const Socket& socket, const std::string& hello, size_t bytes, Clock::time_point end) {
  if (send(socket.descriptor(), hello.data(), hello.size(), MSG_NOSIGNAL) != static_cast<ssize_t>(hello.size()))
    return {};
  std::string reply;
  while (reply.size() < bytes) {
    pollfd wait{socket.descriptor(), POLLIN, 0};
    if (poll(&wait, 1, milliseconds_until(end)) == 0) return {};
    char buffer[256];
    const ssize_t count = recv(socket.descriptor(), buffer, std::min(sizeof buffer, bytes - reply.size()), 0);
    if (count == 0 || (count < 0 && errno != EAGAIN && errno != EINTR)) return {};
    if (count > 0) reply.append(buffer, static_cast<size_t>(count));
  }
  return reply;
}

}  // namespace

Socket::~Socket() {
  if (descriptor_ >= 0) close(descriptor_);
}

Socket listen_on_any_port() {
  // One socket for both families where there is IPv6.
  for (const int family : {AF_INET6, AF_INET}) {
    Socket socket(::socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!socket.is_open()) continue;
    const int off = 0;
    if (family == AF_INET6) setsockopt(socket.descriptor(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
    sockaddr_storage any{};
    any.ss_family = static_cast<sa_family_t>(family);
    const socklen_t length = family == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
    if (bind(socket.descriptor(), reinterpret_cast<sockaddr*>(&any), length) == 0 &&
        listen(socket.descriptor(), SOMAXCONN) == 0) {
      return socket;
    }
  }
  fail("no TCP port can be opened for the link between hosts: {}", std::strerror(errno));
}

std::string address_of(const Socket& listening) {
  sockaddr_storage own{};
  socklen_t length = sizeof own;
  CONVOY_CHECK(getsockname(listening.descriptor(), reinterpret_cast<sockaddr*>(&own), &length) == 0,
               "the link between hosts has no address: {}", std::strerror(errno));
  const bool both = own.ss_family == AF_INET6;
  const in_port_t port =
      both ? reinterpret_cast<sockaddr_in6&>(own).sin6_port : reinterpret_cast<sockaddr_in&>(own).sin_port;
  std::string addresses;
  ifaddrs* first = nullptr;
  if (getifaddrs(&first) == 0) {
    const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> interfaces(first, freeifaddrs);
    for (const ifaddrs* at = first; at != nullptr; at = at->ifa_next) {
      if (at->ifa_addr == nullptr || (at->ifa_flags & IFF_UP) == 0 || (at->ifa_flags & IFF_LOOPBACK) != 0) continue;
      const int family = at->ifa_addr->sa_family;
      if (family != AF_INET && !(family == AF_INET6 && both)) continue;
      const auto* v6 = reinterpret_cast<const sockaddr_in6*>(at->ifa_addr);
      if (family == AF_INET6 && IN6_IS_ADDR_LINKLOCAL(&v6->sin6_addr)) continue;
      const void* address = family == AF_INET6 ? static_cast<const void*>(&v6->sin6_addr)
                                               : &reinterpret_cast<const sockaddr_in*>(at->ifa_addr)->sin_addr;
      char text[INET6_ADDRSTRLEN];
      if (inet_ntop(family, address, text, sizeof text) != nullptr) addresses += std::string(text) + ",";
    }
  }
  return fmt::format("{}127.0.0.1/{}", addresses, ntohs(port));
}

Socket connect_to(const std::string& address, const std::string& hello, size_t reply_bytes,
                  bool (*is_right)(const std::string& reply, const std::string& hello), double timeout_seconds) {
  const size_t slash = address.rfind('/');
  CONVOY_CHECK(slash != std::string::npos && slash > 0, "'{}' is no address of a host: ADDRESS,ADDRESS.../PORT wanted",
               address);
  const std::string port = address.substr(slash + 1);
  std::vector<std::string> hosts;
  for (size_t start = 0; start < slash;) {
    const size_t end = std::min(address.find(',', start), slash);
    hosts.push_back(address.substr(start, end - start));
    start = end + 1;
  }
  const auto end =
      Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(timeout_seconds));
  std::string error = "no attempt was made";
  do {
    for (const std::string& host : hosts) {
      const auto attempt_end = std::min(end, Clock::now() + std::chrono::seconds(5));
      Socket socket = connect_once(host, port, attempt_end, &error);
      if (!socket.is_open()) continue;
      if (is_right(exchange(socket, hello, reply_bytes, attempt_end), hello)) return socket;
      error = "something answers there, but it is not this run";
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  } while (Clock::now() < end);
  fail("the first host of the run cannot be reached at {} within {:.0f} s: {} (is there a firewall between the hosts?)",
       address, timeout_seconds, error);
}

Socket accept_from(const Socket& listening) {
  Socket socket(accept4(listening.descriptor(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (socket.is_open()) set_options(socket.descriptor());
  return socket;
}

}  // namespace convoy
