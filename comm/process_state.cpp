#include "comm/process_state.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

namespace convoy {

ProcessState process_state(int64_t pid) {
  const std::string path = fmt::format("/proc/{}/stat", pid);
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return {errno == ENOENT || errno == ESRCH ? '\0' : '?', 0};
  char text[1024];
  const ssize_t count = read(file, text, sizeof text - 1);
  const int error = errno;
  close(file);
  if (count <= 0) return {count < 0 && error == ESRCH ? '\0' : '?', 0};
  text[count] = 0;
  // The program's name stands in parentheses and may hold any characters; the last ')' ends it. Then come the state
  // (field 3) and, as field 22, the start time.
  const char* at = strrchr(text, ')');
  if (at == nullptr || at[1] != ' ' || at[2] == 0) return {'?', 0};
  ProcessState state{at[2], 0};
  at += 2;
  for (int field = 3; field < 22; ++field) {
    at = strchr(at, ' ');
    if (at == nullptr) return {'?', 0};
    ++at;
  }
  state.start_time = strtoull(at, nullptr, 10);
  return state;
}

ProcessState process_state(int64_t pid, uint64_t start_time) {
  const ProcessState state = process_state(pid);
  const bool another = !state.ended() && state.letter != '?' && state.start_time != start_time;
  return another ? ProcessState{'X', start_time} : state;
}

uint64_t pid_namespace() {
  struct stat info;
  return stat("/proc/self/ns/pid", &info) == 0 ? static_cast<uint64_t>(info.st_ino) : 0;
}

}  // namespace convoy
