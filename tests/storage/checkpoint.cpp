#include "io/checkpoint.h"

#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <csignal>
#include <limits>
#include <random>

#include "engine/error.h"
#include "temporary_directory.h"
#include "tensors.h"

using namespace convoy;
namespace fs = std::filesystem;

namespace {

CheckpointState state_of(int64_t step, int64_t elements = 6) {
  CheckpointState state;
  const auto seed = static_cast<uint32_t>(step);
  state.tensors.push_back(random_tensor("conv.weight", ElementType::kF32, {2, elements / 2}, seed));
  state.tensors.push_back(
      random_tensor("optimizer.momentum.conv.weight", ElementType::kF32, {2, elements / 2}, seed + 1));
  state.tensors.push_back(random_tensor("bn.num_batches_tracked", ElementType::kI64, {}, seed + 2));
  state.meta = {{"samples_seen", step * 16}, {"lr", 0.1 / 3}, {"config", "SEED: 1\n"}, {"best", nullptr}};
  return state;
}

bool equals(const CheckpointState& loaded, const CheckpointState& expected) {
  if (loaded.meta != expected.meta || loaded.tensors.size() != expected.tensors.size()) return false;
  for (const auto& tensor : expected.tensors) {
    const auto* found = find_tensor(loaded.tensors, tensor.name);
    if (!found || !same(*found, tensor)) return false;
  }
  return true;
}

std::vector<std::string> names_in(const fs::path& directory) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(directory)) names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

void save_now(CheckpointWriter& writer, int64_t step, bool is_best = false, int64_t elements = 6) {
  writer.save(state_of(step, elements), step, is_best);
  writer.wait();
}

// Runs `body` in a child process and returns its exit code.
template <class Body>
int in_child(Body body) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(body());
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

// Returns once a checkpoint of `step` or later is there; a slow machine gets 20 seconds.
void wait_for_checkpoint(const fs::path& directory, int64_t step) {
  for (int i = 0; i < 20000; ++i) {
    for (const auto& name : names_in(directory))
      if (name.size() == checkpoint_name(step).size() && name >= checkpoint_name(step)) return;
    ::usleep(1000);
  }
}

}  // namespace

TEST_CASE("checkpoint round trip from a directory, a checkpoints directory and a run") {
  TemporaryDirectory run;
  {
    CheckpointWriter writer(run / "checkpoints", 3);
    CheckpointState state = state_of(120);
    writer.save(state, 120, true);
    std::fill(state.tensors[0].owned.begin(), state.tensors[0].owned.end(), std::byte{0});  // the copy is what counts
    state.meta["samples_seen"] = -1;
  }
  const fs::path directory = run / "checkpoints/step-00000120";
  CHECK(names_in(directory) == std::vector<std::string>{"state.json", "tensors.safetensors"});
  for (const fs::path& path : {directory, directory / "", run / "checkpoints", run.path()}) {
    CAPTURE(path);
    const LoadedCheckpoint loaded = load_checkpoint(path);
    CHECK(loaded.step == 120);
    CHECK(loaded.path == directory);
    CHECK(loaded.skipped.empty());
    CHECK(equals(loaded, state_of(120)));
  }
  CHECK(find_best(run / "checkpoints") == 120);
  CHECK_THROWS_WITH(load_checkpoint(run / "absent"), Catch::Contains("absent"));
  fs::create_directory(run / "empty");
  CHECK_THROWS_WITH(load_checkpoint(run / "empty"), Catch::Contains("holds no checkpoint"));
  CHECK_FALSE(find_latest(run / "empty"));
  CHECK_FALSE(find_latest(run / "absent"));
}

TEST_CASE("the newest checkpoints and the best one are kept") {
  TemporaryDirectory directory;
  CheckpointWriter writer(directory.path(), 2);
  for (int64_t step = 10; step <= 50; step += 10) save_now(writer, step, step == 20);
  CHECK(names_in(directory.path()) ==
        std::vector<std::string>{"best.json", "step-00000020", "step-00000040", "step-00000050"});
  save_now(writer, 60, true);
  CHECK(names_in(directory.path()) == std::vector<std::string>{"best.json", "step-00000050", "step-00000060"});
  CHECK(find_best(directory.path()) == 60);
}

TEST_CASE("a step saved again replaces its checkpoint") {
  TemporaryDirectory directory;
  CheckpointWriter writer(directory.path(), 2);
  save_now(writer, 10);
  writer.save(state_of(11), 10, false);
  writer.wait();
  CHECK(names_in(directory.path()) == std::vector<std::string>{"step-00000010"});
  CHECK(equals(load_checkpoint(directory.path()), state_of(11)));
}

TEST_CASE("going on from an older checkpoint") {
  TemporaryDirectory directory;
  {
    CheckpointWriter writer(directory.path(), 3);
    for (int64_t step : {10, 20, 30}) save_now(writer, step, step == 30);
  }
  SECTION("later ones are set aside") {
    CheckpointWriter writer(directory.path(), 3);
    CHECK(writer.set_aside_after(10) == 2);
    CHECK(names_in(directory.path()) ==
          std::vector<std::string>{"step-00000010", "step-00000020.abandoned", "step-00000030.abandoned"});
    CHECK(find_latest(directory.path())->step == 10);
    CHECK_FALSE(find_best(directory.path()));
  }
  SECTION("without that a new checkpoint is never the one that is removed") {
    CheckpointWriter writer(directory.path(), 1);
    save_now(writer, 15);
    CHECK(names_in(directory.path()) == std::vector<std::string>{"best.json", "step-00000015", "step-00000030"});
  }
}

TEST_CASE("left-overs of a killed run are removed at the start") {
  TemporaryDirectory directory;
  fs::create_directories(directory / "step-00000030.tmp");
  spill(directory / "step-00000030.tmp/tensors.safetensors", "half");
  spill(directory / "best.json.tmp", "{");
  CheckpointWriter writer(directory.path(), 1);
  CHECK(fs::is_empty(directory.path()));
}

TEST_CASE("state that cannot be stored is refused at once") {
  TemporaryDirectory directory;
  CheckpointWriter writer(directory.path(), 1);
  CheckpointState state = state_of(1);
  state.meta["best"]["loss"] = std::numeric_limits<double>::quiet_NaN();
  CHECK_THROWS_WITH(writer.save(state, 1, false), Catch::Contains("/best/loss"));
  state = state_of(1);
  state.tensors.push_back(state.tensors[0]);
  CHECK_THROWS_WITH(writer.save(state, 1, false), Catch::Contains("conv.weight"));
  CHECK_THROWS_AS(CheckpointWriter(directory / "x", 0), Error);
  CHECK(fs::is_empty(directory.path()));
}

TEST_CASE("damaged checkpoints are skipped with a reason, or refused with advice") {
  TemporaryDirectory run;
  const fs::path directory = run / "checkpoints";
  {
    CheckpointWriter writer(directory, 3);
    for (int64_t step : {10, 20, 30}) save_now(writer, step);
  }
  const fs::path tensors = directory / "step-00000030/tensors.safetensors";
  const fs::path state = directory / "step-00000030/state.json";
  std::string file, reason;
  SECTION("checksum") {
    std::string bytes = slurp(tensors);
    bytes[bytes.size() - 3] ^= 1;
    spill(tensors, bytes);
    file = tensors, reason = "checksum";
  }
  SECTION("truncated") {
    fs::resize_file(tensors, fs::file_size(tensors) - 1);
    file = tensors, reason = "truncated";
  }
  SECTION("no tensors") {
    fs::remove(tensors);
    file = tensors, reason = "No such file";
  }
  SECTION("no state") {
    fs::remove(state);
    file = state, reason = "No such file";
  }
  SECTION("missing key") {
    auto json = nlohmann::json::parse(slurp(state));
    json.erase("crc64");
    spill(state, json.dump());
    file = state, reason = "\"crc64\" is missing";
  }
  SECTION("nested without end") {
    spill(state, std::string(500000, '['));
    file = state, reason = "nested";
  }
  const auto found = find_latest(directory);
  REQUIRE(found);
  CHECK(found->step == 20);
  REQUIRE(found->skipped.size() == 1);
  CHECK_THAT(found->skipped[0], Catch::Contains(file) && Catch::Contains(reason));
  const auto loaded = load_checkpoint(run.path());
  CHECK(loaded.step == 20);
  CHECK(loaded.skipped == found->skipped);
  CHECK_THROWS_WITH(load_checkpoint(directory / "step-00000030"), Catch::Contains(file) && Catch::Contains(reason) &&
                                                                      Catch::Contains("step-00000010") &&
                                                                      Catch::Contains("step-00000020"));
  for (const char* name : {"step-00000010", "step-00000020"}) fs::resize_file(directory / name / "state.json", 9);
  CHECK_THROWS_WITH(find_latest(directory), Catch::Contains("all 3 checkpoints are damaged"));
}

TEST_CASE("every damaged byte and every truncation of a checkpoint: an Error or the same content") {
  TemporaryDirectory directory;
  {
    CheckpointWriter writer(directory.path(), 1);
    save_now(writer, 7);
  }
  const fs::path checkpoint = directory / "step-00000007";
  for (const char* name : {"tensors.safetensors", "state.json"}) {
    const std::string good = slurp(checkpoint / name);
    const auto error_or_equal = [&](const std::string& bytes) {
      spill(checkpoint / name, bytes);
      bool equal = true;
      const std::string message = message_of<Error>([&] { equal = equals(load_checkpoint(checkpoint), state_of(7)); });
      return message.empty() ? equal : message.find(name) != std::string::npos;
    };
    for (size_t length = 0; length < good.size(); ++length) {
      CAPTURE(name, length);
      CHECK(error_or_equal(good.substr(0, length)));
    }
    for (size_t at = 0; at < good.size(); ++at) {
      for (int flip : {0x01, 0x20, 0x80, 0xff}) {
        CAPTURE(name, at, flip);
        std::string bad = good;
        bad[at] = static_cast<char>(bad[at] ^ flip);
        CHECK(error_or_equal(bad));
      }
    }
    spill(checkpoint / name, good);
  }
  CHECK(equals(load_checkpoint(checkpoint), state_of(7)));
}

TEST_CASE("a writer killed at any moment leaves only loadable checkpoints") {
  TemporaryDirectory directory;
  std::mt19937 random(3);
  int64_t next = 1, reached = 0;
  for (int round = 0; round < 25; ++round) {
    const pid_t child = ::fork();
    if (child == 0) {
      CheckpointWriter writer(directory.path(), 2);
      for (int64_t step = next;; ++step) writer.save(state_of(step, 40000), step, step % 3 == 0);
    }
    if (round % 2 == 0) wait_for_checkpoint(directory.path(), next);
    ::usleep(static_cast<useconds_t>(1000 + random() % 60000));
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
    for (const auto& name : names_in(directory.path())) {
      if (name.ends_with(".tmp") || name == "best.json") continue;
      CAPTURE(round, name);
      CHECK_NOTHROW(load_checkpoint(directory / name));
    }
    if (const auto best = find_best(directory.path())) CHECK(fs::exists(directory / checkpoint_name(*best)));
    if (const auto latest = find_latest(directory.path())) {
      CHECK(latest->step >= reached);
      CHECK(latest->skipped.empty());
      CHECK(equals(load_checkpoint(latest->path), state_of(latest->step, 40000)));
      reached = latest->step;
      next = reached + 1;
    }
  }
  CHECK(reached > 0);
}

TEST_CASE("a file-size limit while saving surfaces at the next call and leaves nothing half-written") {
  TemporaryDirectory directory;
  const int code = in_child([&] {
    ::signal(SIGXFSZ, SIG_IGN);
    CheckpointWriter writer(directory.path(), 2);
    save_now(writer, 1);
    const rlimit limit{65536, 65536};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    writer.save(state_of(2, 100000), 2, false);
    const std::string message = message_of<Error>([&] { writer.save(state_of(3), 3, false); });
    if (message.find("tensors.safetensors") == std::string::npos ||
        message.find("File too large") == std::string::npos || message.find("needs 8") == std::string::npos)
      return 1;
    if (names_in(directory.path()) != std::vector<std::string>{"step-00000001"}) return 2;
    save_now(writer, 3);  // small enough: the writer goes on
    return load_checkpoint(directory.path()).step == 3 ? 0 : 3;
  });
  CHECK(code == 0);
}

TEST_CASE("a full disk while saving names path, reason and bytes, and leaves the older checkpoint") {
  TemporaryDirectory directory;
  // Too few inodes: the free-space check passes, the real write fails.
  if (::mount("none", directory.path().c_str(), "tmpfs", 0, "size=1m,nr_inodes=6") != 0) {
    WARN("skipped: mounting a tmpfs needs root");
    return;
  }
  std::string inodes, space;
  std::vector<std::string> names;
  int64_t latest = 0;
  {
    CheckpointWriter writer(directory.path(), 2);
    save_now(writer, 1);
    inodes = message_of<Error>([&] { save_now(writer, 2); });
    writer.wait();
  }
  ::umount(directory.path().c_str());
  if (::mount("none", directory.path().c_str(), "tmpfs", 0, "size=1m") == 0) {
    CheckpointWriter writer(directory.path(), 2);
    save_now(writer, 1);
    space = message_of<Error>([&] { save_now(writer, 2, false, 200000); });
    // Exactly the tensors fit: the free-space check passes, state.json meets the full disk.
    const auto page = static_cast<uintmax_t>(::sysconf(_SC_PAGESIZE));
    spill(directory / "filler", std::string(fs::space(directory.path()).available - page, 'x'));
    const std::string tight = message_of<Error>([&] { save_now(writer, 3); });
    CHECK_THAT(tight, Catch::Contains("state.json") && Catch::Contains("No space left on device") &&
                          Catch::Contains("needs") && Catch::Contains("free space"));
    names = names_in(directory.path());
    latest = load_checkpoint(directory.path()).step;
    ::umount(directory.path().c_str());
  }
  CHECK_THAT(inodes, Catch::Contains("step-00000002") && Catch::Contains("No space left on device"));
  CHECK_THAT(space, Catch::Contains("a checkpoint needs 16") && Catch::Contains("free"));
  CHECK(names == std::vector<std::string>{"filler", "step-00000001"});
  CHECK(latest == 1);
}

TEST_CASE("an unwritable directory is named") {
  TemporaryDirectory directory;
  spill(directory / "file", "");
  CHECK_THROWS_WITH(CheckpointWriter(directory / "file/checkpoints", 1), Catch::Contains("file/checkpoints"));
  CheckpointWriter writer(directory / "gone", 1);
  fs::remove(directory / "gone");
  spill(directory / "gone", "");
  writer.save(state_of(1), 1, false);
  CHECK_THROWS_WITH(writer.wait(), Catch::Contains("gone"));
}
