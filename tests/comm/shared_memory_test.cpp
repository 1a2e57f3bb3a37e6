#include "comm/shared_memory.h"

#include <fmt/format.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <filesystem>
#include <string>

#include "engine/error.h"

using namespace convoy;
using Catch::Matchers::Contains;

namespace {
std::string segment_name(const char* what) {
  return fmt::format("convoy-test-{}-{}", getpid(), what);
}
bool exists(const std::string& name) {
  return std::filesystem::exists("/dev/shm/" + name);
}
bool all_zero(const SharedMemory& memory) {
  auto* bytes = static_cast<const char*>(memory.data());
  return std::all_of(bytes, bytes + memory.bytes(), [](char c) { return c == 0; });
}
}  // namespace

TEST_CASE("shared memory is zeroed, shared by name and gone after unlink", "[comm]") {
  const std::string name = segment_name("shared");
  auto mine = SharedMemory::create(name, 10001);
  REQUIRE(mine->bytes() == 10001);
  REQUIRE(all_zero(*mine));
  {
    auto other = SharedMemory::open(name, 10001);
    REQUIRE(other->data() != mine->data());
    static_cast<char*>(other->data())[10000] = 7;
  }
  REQUIRE(static_cast<char*>(mine->data())[10000] == 7);
  REQUIRE(exists(name));  // the end of one that opened it takes nothing away
  auto kept = SharedMemory::open(name, 10001);
  mine->unlink();
  REQUIRE_FALSE(exists(name));
  mine.reset();
  REQUIRE(static_cast<char*>(kept->data())[10000] == 7);
}

TEST_CASE("shared memory's name goes with its creator", "[comm]") {
  const std::string name = segment_name("creator");
  SharedMemory::create(name, 100).reset();
  REQUIRE_FALSE(exists(name));
}

TEST_CASE("shared memory passes between processes", "[comm]") {
  const std::string name = segment_name("process");
  auto memory = SharedMemory::create(name, 64);
  const pid_t child = fork();
  if (child == 0) {
    try {
      static_cast<char*>(SharedMemory::open(name, 64)->data())[3] = 42;
    } catch (...) {
      _exit(1);
    }
    _exit(0);
  }
  int status = -1;
  REQUIRE(waitpid(child, &status, 0) == child);
  REQUIRE(status == 0);
  REQUIRE(static_cast<char*>(memory->data())[3] == 42);
}

TEST_CASE("shared memory between threads is zeroed", "[comm]") {
  auto memory = SharedMemory::in_process(5000);
  REQUIRE(memory->bytes() == 5000);
  REQUIRE(all_zero(*memory));
}

TEST_CASE("errors of shared memory name the segment and what is wrong", "[comm]") {
  const std::string name = segment_name("errors");
  REQUIRE_THROWS_WITH(SharedMemory::open(name, 100), Contains(name) && Contains("No such file"));
  auto memory = SharedMemory::create(name, 100);
  REQUIRE_THROWS_WITH(SharedMemory::create(name, 100), Contains(name) && Contains("File exists"));
  REQUIRE(exists(name));  // of the first one still
  REQUIRE_THROWS_WITH(SharedMemory::open(name, 101), Contains("100 bytes, 101 expected"));

  struct statvfs info {};
  REQUIRE(statvfs("/dev/shm", &info) == 0);
  const std::string large = segment_name("large");
  const size_t wanted = static_cast<size_t>(info.f_blocks) * info.f_frsize + 1;
  REQUIRE_THROWS_WITH(SharedMemory::create(large, wanted),
                      Contains(large) && Contains(std::to_string(wanted) + " bytes wanted") && Contains(" free"));
  REQUIRE_FALSE(exists(large));
}
