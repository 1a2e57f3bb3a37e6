#include "comm/shared_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <new>

#include "engine/error.h"

namespace convoy {
namespace {

// Closes on every path out: the mapping needs no descriptor.
struct Descriptor {
  int value = -1;
  ~Descriptor() {
    if (value >= 0) close(value);
  }
};

size_t free_bytes() {
  struct statvfs info {};
  if (statvfs("/dev/shm", &info) != 0) fail("/dev/shm cannot be examined: {}", std::strerror(errno));
  return static_cast<size_t>(info.f_bavail) * info.f_frsize;
}

[[noreturn]] void fail_for_room(const std::string& name, size_t bytes) {
  fail("/dev/shm has no room for '{}': {} bytes wanted, {} free; enlarge it (in containers: --shm-size)", name, bytes,
       free_bytes());
}

void* map(const std::string& name, int descriptor, size_t bytes) {
  void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  CONVOY_CHECK(data != MAP_FAILED, "shared memory '/dev/shm/{}' of {} bytes cannot be mapped: {}", name, bytes,
               std::strerror(errno));
  return data;
}

}  // namespace

std::shared_ptr<SharedMemory> SharedMemory::in_process(size_t bytes) {
  std::shared_ptr<SharedMemory> memory(new SharedMemory);
  void* data =
      mmap(nullptr, bytes == 0 ? 1 : bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  CONVOY_CHECK(data != MAP_FAILED, "no memory: {} bytes wanted: {}", bytes, std::strerror(errno));
  memory->data_ = data;
  memory->bytes_ = bytes;
  return memory;
}

std::shared_ptr<SharedMemory> SharedMemory::create(const std::string& name, size_t bytes) {
  CONVOY_CHECK(bytes > 0, "shared memory '{}' of 0 bytes", name);
  std::shared_ptr<SharedMemory> memory(new SharedMemory);
  if (bytes > free_bytes()) fail_for_room(name, bytes);
  Descriptor file{shm_open(("/" + name).c_str(), O_CREAT | O_EXCL | O_RDWR, 0600)};
  CONVOY_CHECK(file.value >= 0, "shared memory '/dev/shm/{}' cannot be created: {}", name, std::strerror(errno));
  memory->name_ = name;  // from here on the destructor takes the name away
  int error;
  do {
    error = posix_fallocate(file.value, 0, static_cast<off_t>(bytes));
  } while (error == EINTR);
  if (error == ENOSPC) fail_for_room(name, bytes);
  CONVOY_CHECK(error == 0, "shared memory '/dev/shm/{}': {} bytes cannot be reserved: {}", name, bytes,
               std::strerror(error));
  memory->data_ = map(name, file.value, bytes);
  memory->bytes_ = bytes;
  return memory;
}

std::shared_ptr<SharedMemory> SharedMemory::open(const std::string& name, size_t bytes) {
  CONVOY_CHECK(bytes > 0, "shared memory '{}' of 0 bytes", name);
  std::shared_ptr<SharedMemory> memory(new SharedMemory);
  Descriptor file{shm_open(("/" + name).c_str(), O_RDWR, 0)};
  CONVOY_CHECK(file.value >= 0, "shared memory '/dev/shm/{}' cannot be opened: {}", name, std::strerror(errno));
  struct stat info {};
  CONVOY_CHECK(fstat(file.value, &info) == 0, "shared memory '/dev/shm/{}' cannot be examined: {}", name,
               std::strerror(errno));
  CONVOY_CHECK(static_cast<size_t>(info.st_size) == bytes,
               "shared memory '/dev/shm/{}' has {} bytes, {} expected; do all ranks run the same program?", name,
               info.st_size, bytes);
  memory->data_ = map(name, file.value, bytes);
  memory->bytes_ = bytes;
  return memory;
}

SharedMemory::~SharedMemory() {
  unlink();
  if (data_ != nullptr) munmap(data_, bytes_ == 0 ? 1 : bytes_);
}

void SharedMemory::unlink() {
  if (name_.empty()) return;
  shm_unlink(("/" + name_).c_str());
  name_.clear();
}

}  // namespace convoy
