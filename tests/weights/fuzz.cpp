// Weight files damaged in every way: each is read whole or refused by an Error, within limits of memory and time.
// CONVOY_FUZZ_CASES: how many (default 20000); CONVOY_FUZZ_SEED: the first case's number. With CONVOY_GOLDEN, the
// folder of all golden files, the larger ones are damaged too.
#include <malloc.h>
#include <unistd.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <csignal>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <new>
#include <random>

#include "engine/error.h"
#include "io/tensor_values.h"
#include "io/weights_file.h"
#include "io/zip.h"

namespace {

std::atomic<size_t> live_bytes = 0, peak_bytes = 0;

/// nullptr when there is no memory.
void* counted_allocation(size_t bytes) {
  void* memory = std::malloc(bytes ? bytes : 1);
  if (!memory) return nullptr;
  const size_t live = live_bytes += ::malloc_usable_size(memory);
  if (live > peak_bytes) peak_bytes = live;
  return memory;
}

void counted_free(void* memory) {
  if (memory) live_bytes -= ::malloc_usable_size(memory);
  std::free(memory);
}

}  // namespace

void* operator new(size_t bytes) {
  void* memory = counted_allocation(bytes);
  if (!memory) throw std::bad_alloc();
  return memory;
}
void* operator new[](size_t bytes) {
  return operator new(bytes);
}
void* operator new(size_t bytes, const std::nothrow_t&) noexcept {
  return counted_allocation(bytes);
}
void* operator new[](size_t bytes, const std::nothrow_t&) noexcept {
  return counted_allocation(bytes);
}
void operator delete(void* memory) noexcept {
  counted_free(memory);
}
void operator delete[](void* memory) noexcept {
  counted_free(memory);
}
void operator delete(void* memory, size_t) noexcept {
  counted_free(memory);
}
void operator delete[](void* memory, size_t) noexcept {
  counted_free(memory);
}

using namespace convoy;
namespace fs = std::filesystem;

namespace {

using Random = std::mt19937_64;

std::string slurp(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

size_t below(Random& random, size_t end) {
  return end == 0 ? 0 : random() % end;
}

template <class T>
void put(std::string& bytes, size_t at, T value) {
  if (at + sizeof(T) <= bytes.size()) bytes.replace(at, sizeof(T), reinterpret_cast<const char*>(&value), sizeof(T));
}

/// Numbers at which arithmetic goes wrong.
uint64_t nasty(Random& random) {
  constexpr uint64_t kNumbers[] = {0,          1,          0x7f,       0x80,       0xff,       0xffff,     0x7fffffff,
                                   0x80000000, 0xffffffff, 0xfffffffe, 1ull << 40, ~0ull >> 1, 1ull << 63, ~0ull};
  return random() % 4 == 0 ? random() : kNumbers[below(random, std::size(kNumbers))];
}

void change_zip_header(std::string& bytes, Random& random) {
  static const std::string signatures[] = {"PK\x03\x04", "PK\x01\x02", "PK\x05\x06", "PK\x06\x06", "PK\x06\x07"};
  size_t at = bytes.find(signatures[below(random, std::size(signatures))], below(random, bytes.size()));
  if (at == std::string::npos) at = bytes.rfind("PK");
  if (at == std::string::npos) return;
  const size_t field = at + below(random, 50);
  if (random() % 2)
    put(bytes, field, static_cast<uint16_t>(nasty(random)));
  else
    put(bytes, field, static_cast<uint32_t>(nasty(random)));
}

/// Runs of an operation, or of a short sequence of them, up to 4 KiB.
std::string operations(Random& random) {
  static const std::string all =
      "(.012FIJKLMNPQRSTUVXabcd}eghijl]opqrst)uGBC\x80\x81\x82\x85\x86\x87\x88\x89\x8a\x8b\x8c"
      "\x8d\x8e\x8f\x90\x91\x92\x93\x94\x95\x96\x97\x98";
  std::string unit;
  for (size_t i = 0; i <= below(random, 4); ++i) {
    unit += all[below(random, all.size())];
    if (random() % 2) unit += static_cast<char>(random());
  }
  std::string run;
  for (size_t i = below(random, 1 << below(random, 11)) + 1; i > 0; --i) run += unit;
  return run;
}

void mutate(std::string& bytes, const std::string& other, Random& random) {
  if (bytes.empty()) return;
  const size_t at = below(random, bytes.size());
  const size_t span = below(random, size_t{1} << below(random, 10));
  switch (random() % 9) {
    case 0:
      for (size_t i = 0; i <= below(random, 8); ++i)
        bytes[below(random, bytes.size())] ^= static_cast<char>(1 << random() % 8);
      break;
    case 1:
      bytes.resize(at);
      break;
    case 2:
      bytes.erase(at, span);
      break;
    case 3:
      bytes.insert(at, other, below(random, other.size()), span);
      break;
    case 4:
      bytes.replace(at, span, bytes.substr(below(random, bytes.size()), span));
      break;
    case 5:  // the length of a text, the size of a storage, a count
      if (random() % 2)
        put(bytes, bytes.find('X', at) + 1, static_cast<uint32_t>(nasty(random)));
      else
        put(bytes, at, nasty(random));
      break;
    case 6:
      bytes.insert(at, operations(random));
      break;
    case 7:
      bytes[at] = static_cast<char>(nasty(random));
      break;
    case 8:
      change_zip_header(bytes, random);
      break;
  }
}

/// An archive with these contents and right checksums, so that damage inside them is not stopped at the door.
std::string archive(const std::vector<std::pair<std::string, std::string>>& entries) {
  const auto number = [](uint64_t value, size_t bytes) { return std::string(reinterpret_cast<char*>(&value), bytes); };
  std::string out, directory;
  for (const auto& [name, content] : entries) {
    const std::string common = number(20, 2) + number(0, 8) + number(zip_crc32(content), 4) +
                               number(content.size(), 4) + number(content.size(), 4) + number(name.size(), 2) +
                               number(0, 2);
    directory += "PK\x01\x02" + number(20, 2) + common + std::string(10, '\0') + number(out.size(), 4) + name;
    out += "PK\x03\x04" + common + name + content;
  }
  const size_t at = out.size();
  return out + directory + "PK\x05\x06" + number(0, 4) + number(entries.size(), 2) + number(entries.size(), 2) +
         number(directory.size(), 4) + number(at, 4) + number(0, 2);
}

/// A file to begin with; of an archive also its entries.
struct Seed {
  std::string name, bytes;
  std::vector<std::pair<std::string, std::string>> entries;
};

std::vector<Seed> seeds() {
  std::vector<fs::path> paths;
  for (const char* name : {"mixed.pth", "mixed_legacy.pth", "objects.pth", "objects_p0.pkl", "objects_p5.pkl"})
    paths.push_back(fs::path(CONVOY_TEST_DIR) / "golden" / "weights" / name);
  if (const char* folder = std::getenv("CONVOY_GOLDEN"))
    for (const auto& entry : fs::directory_iterator(fs::path(folder) / "weights"))
      if (entry.path().extension() == ".pth" && entry.file_size() < 2'000'000) paths.push_back(entry.path());
  std::vector<Seed> all;
  for (const fs::path& path : paths) {
    Seed seed{path.filename().string(), slurp(path), {}};
    REQUIRE(!seed.bytes.empty());
    if (ZipDirectory::is_zip(seed.bytes)) {
      const ZipDirectory zip(seed.bytes, seed.name);
      for (const ZipEntry& entry : zip.entries())
        seed.entries.emplace_back(std::string(entry.name), std::string(zip.bytes(entry)));
    }
    all.push_back(std::move(seed));
  }
  return all;
}

std::string damaged(const std::vector<Seed>& seeds, Random& random) {
  // The larger files are rare: they take longer and have no other structure.
  const size_t common = std::min<size_t>(5, seeds.size());
  const Seed& seed = seeds[random() % 64 ? below(random, common) : below(random, seeds.size())];
  const std::string& other = seeds[below(random, common)].bytes;
  const size_t times = 1 + below(random, 4);
  if (!seed.entries.empty() && random() % 3) {
    auto entries = seed.entries;
    auto& entry = entries[random() % 4 ? 0 : below(random, entries.size())];
    for (size_t i = 0; i < times; ++i) mutate(entry.second, other, random);
    return archive(entries);
  }
  std::string bytes = seed.bytes;
  for (size_t i = 0; i < times; ++i) mutate(bytes, other, random);
  return bytes;
}

/// Reads everything; whether the file was accepted. Only Error may come out.
bool read_whole(const fs::path& path) {
  try {
    const WeightsFile file(path);
    double sum = 0;
    for (size_t i = 0; i < file.tensors().size(); ++i) sum += summarize(file.tensor(i)).l2;
    size_t length = 0;
    for (const WeightLeaf& leaf : file.others()) length += leaf.name.size() + leaf.value.size();
    return sum >= 0 || length > 0;
  } catch (const Error&) {
    return false;
  }
}

double cpu_seconds() {
  timespec now{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

uint64_t number_of(const char* name, uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text ? std::strtoull(text, nullptr, 10) : otherwise;
}

}  // namespace

TEST_CASE("damaged weight files are read or refused, within memory and time") {
  constexpr size_t kMemory = size_t{48} << 20, kMemoryPerByte = 300;
  constexpr double kSeconds = 20;         // of one case; sanitizers are slow
  constexpr unsigned kHangSeconds = 300;  // of the clock, for the machine may be busy
  const uint64_t cases = number_of("CONVOY_FUZZ_CASES", 20'000), first = number_of("CONVOY_FUZZ_SEED", 0);
  const std::vector<Seed> files = seeds();
  const bool in_memory = ::access("/dev/shm", W_OK) == 0;
  const fs::path path = (in_memory ? fs::path("/dev/shm") : fs::temp_directory_path()) /
                        ("convoy-fuzz-" + std::to_string(::getpid()) + ".pth");
  uint64_t accepted = 0;
  size_t most_memory = 0;
  double longest = 0;
  for (uint64_t i = first; i < first + cases; ++i) {
    Random random(i);
    const std::string bytes = damaged(files, random);
    std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
    ::alarm(kHangSeconds);  // ends the program: the file stays for a look at it
    const size_t before = live_bytes;
    peak_bytes = before;
    const double start = cpu_seconds();
    accepted += read_whole(path);
    const double seconds = cpu_seconds() - start;
    const size_t memory = peak_bytes - before;
    most_memory = std::max(most_memory, memory);
    longest = std::max(longest, seconds);
    if (memory > kMemory + kMemoryPerByte * bytes.size() || seconds > kSeconds)
      FAIL("case " << i << ", " << bytes.size() << " bytes, took " << memory << " bytes and " << seconds << " s");
  }
  ::alarm(0);
  fs::remove(path);
  std::printf("%llu damaged files: %llu were still readable; at most %.1f MiB and %.2f s\n",
              static_cast<unsigned long long>(cases), static_cast<unsigned long long>(accepted),
              static_cast<double>(most_memory) / (1 << 20), longest);
  CHECK(accepted > 0);
  CHECK(accepted < cases);
}
