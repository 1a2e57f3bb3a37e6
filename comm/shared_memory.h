// A zeroed piece of memory that several processes of a host map, or that the threads of one process share.
#pragma once
#include <cstddef>
#include <memory>
#include <string>

namespace convoy {

class SharedMemory {
 public:
  /// For ranks that are threads of this process.
  static std::shared_ptr<SharedMemory> in_process(size_t bytes);
  /// A new segment /dev/shm/<name>, its pages reserved so that no later write can fail (SIGBUS). Throws Error when
  /// /dev/shm has no room, naming bytes wanted and free, or when the name is taken.
  static std::shared_ptr<SharedMemory> create(const std::string& name, size_t bytes);
  /// Maps the segment that another process has created.
  static std::shared_ptr<SharedMemory> open(const std::string& name, size_t bytes);
  ~SharedMemory();
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

  /// By the creator: takes the name away, so that nothing remains in /dev/shm when the last process ends, however it
  /// ends. To be called as soon as all have opened it (the destructor does it at the latest). Of others: does nothing.
  void unlink();
  void* data() const { return data_; }
  size_t bytes() const { return bytes_; }

 private:
  SharedMemory() = default;
  std::string name_;  // of the creator, until unlinked
  void* data_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace convoy
