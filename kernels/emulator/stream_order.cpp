// Which work of which stream runs next: the adversary that looks for missing events.
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "kernels/emulator/streams.h"

namespace convoy::emulator {
namespace {

uint64_t draw(Device& device) {
  uint64_t& s = device.random;
  s ^= s << 13;
  s ^= s >> 7;
  s ^= s << 17;
  return s >> 11;
}

bool can_run(const Work& work) {
  return work.state == Work::kQueued && work.tried != work.stream->device->round &&
         std::all_of(work.after.begin(), work.after.end(), [](const auto& w) { return w->state == Work::kDone; });
}

// Of each stream the first work, if it can run.
std::vector<std::shared_ptr<Work>> candidates(const Device& device) {
  std::vector<std::shared_ptr<Work>> result;
  for (const auto& stream : device.streams)
    if (!stream->queue.empty() && can_run(*stream->queue.front())) result.push_back(stream->queue.front());
  return result;
}

// The work that has to run first for `target` to run; streams of other threads included.
std::shared_ptr<Work> needed(const std::shared_ptr<Work>& target) {
  const auto first = target->stream->queue.front();
  for (const auto& earlier : first->after)
    if (earlier->state != Work::kDone) return needed(earlier);
  return first;
}

void finish(Work& work) {
  work.state = Work::kDone;
  work.after.clear();
  work.step = nullptr;
}

void fail_device(Device& device, const std::string& fault) {
  if (device.fault.empty()) device.fault = fault;
  for (const auto& stream : device.streams)
    std::erase_if(stream->queue, [&](const auto& work) {
      if (work->state == Work::kRunning) return false;
      device.waiting_for_others -= work->waits_for_others;
      finish(*work);
      return true;
    });
}

// One step of it, outside of the lock.
void run(const std::shared_ptr<Work>& work, StreamLock& lock) {
  Stream& stream = *work->stream;
  Device& device = *stream.device;
  work->state = Work::kRunning;
  ++device.calls;
  lock.unlock();
  bool done = true;
  std::string fault;
  try {
    std::unique_lock turn(check_lock, std::defer_lock);
    if (checked()) turn.lock();
    check_work_begin(*work);
    if (!work->waits_for_others)
      for (const Touched& touched : work->touched) check_host_access(touched);
    if (work->step) done = work->step();
    if (work->waits_for_others && done)
      for (const Touched& touched : work->touched) check_host_access(touched);
  } catch (const std::exception& e) {
    fault = e.what();
    if (fault.find(work->file) == std::string::npos) fault += "\n  in " + describe(*work);
  }
  lock.lock();
  if (done) {
    device.waiting_for_others -= work->waits_for_others;
    finish(*work);
    stream.queue.pop_front();
    if (!fault.empty()) fail_device(device, fault);
    if (stream.destroyed && stream.queue.empty())
      std::erase_if(device.streams, [&](const auto& s) { return s.get() == &stream; });
    ++device.round;  // others may go on by what this one did
  } else {
    work->state = Work::kQueued;
    work->tried = device.round;
  }
  work_done.notify_all();
}

std::shared_ptr<Work> choose(Device& device, const std::shared_ptr<Work>& target) {
  const auto first = needed(target);
  auto others = candidates(device);
  std::erase(others, first);
  const bool possible = can_run(*first);
  switch (options.stream_order) {
    case StreamOrder::kOthersFirst:
      std::erase_if(others, [&](const auto& work) { return work->stream == target->stream; });
      if (!others.empty()) return others.back();
      break;
    case StreamOrder::kRandom: {
      if (others.empty()) break;
      const size_t k = draw(device) % (others.size() + possible);
      return k < others.size() ? others[k] : first;
    }
    default:
      break;
  }
  if (possible) return first;
  if (first->state == Work::kRunning) return nullptr;
  return others.empty() ? nullptr : others.back();  // while it waits for other ranks, other streams go on
}

void run_all_that_can(Device& device, StreamLock& lock) {
  for (;;) {
    const auto ready = candidates(device);
    if (ready.empty()) return;
    run(ready.front(), lock);
  }
}

// Devices whose threads have put work on them that waits for others. Not in a forked child.
struct Caretaker {
  pid_t process = 0;
  std::vector<Device*> devices;
};
Caretaker& caretaker = *new Caretaker;

void take_care() {
  using namespace std::chrono_literals;
  std::vector<uint64_t> seen;
  for (;;) {
    std::this_thread::sleep_for(50ms);
    StreamLock lock(stream_lock);
    seen.resize(caretaker.devices.size());
    for (size_t i = 0; i < seen.size(); ++i) {
      Device& device = *caretaker.devices[i];
      if (device.waiting_for_others && device.calls == seen[i]) run_all_that_can(device, lock);
      seen[i] = device.calls;
    }
  }
}

}  // namespace

void keep_going(Device& device) {
  if (caretaker.process != getpid()) {
    caretaker.process = getpid();
    caretaker.devices.clear();
    sigset_t all, before;  // signals are for the program's threads
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    std::thread(take_care).detach();
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }
  if (std::find(caretaker.devices.begin(), caretaker.devices.end(), &device) == caretaker.devices.end())
    caretaker.devices.push_back(&device);
}

void run_after_call(Device& device, StreamLock& lock) {
  if (options.stream_order == StreamOrder::kImmediate) return run_all_that_can(device, lock);
  if (options.stream_order != StreamOrder::kRandom) return;
  for (uint64_t k = draw(device) % 4; k < 2; ++k) {
    const auto ready = candidates(device);
    if (ready.empty()) return;
    run(ready[draw(device) % ready.size()], lock);
  }
}

void wait_for(Device& device, const std::shared_ptr<Work>& target, StreamLock& lock) {
  using namespace std::chrono_literals;
  ++device.calls;
  auto pause = 20us;
  while (target->state != Work::kDone) {
    if (const auto next = choose(device, target)) {
      run(next, lock);
      if (next->state == Work::kDone) pause = 20us;
    } else {
      work_done.wait_for(lock, pause);
      pause = std::min<std::chrono::microseconds>(pause * 2, 2000us);
      ++device.round;
    }
  }
}

void wait_for_all(Device& device, StreamLock& lock) {
  for (;;) {
    std::shared_ptr<Work> newest;
    for (const auto& stream : device.streams)
      if (!stream->queue.empty()) newest = stream->queue.back();
    if (!newest) return;
    wait_for(device, newest, lock);
  }
}

void drop_work(Device& device, StreamLock& lock) {
  const auto runs = [&] {
    return std::any_of(device.streams.begin(), device.streams.end(), [](const auto& stream) {
      return !stream->queue.empty() && stream->queue.front()->state == Work::kRunning;
    });
  };
  while (runs()) work_done.wait(lock);
  fail_device(device, "dropped");
  std::erase_if(device.streams, [&](const auto& stream) { return stream->destroyed; });
}

}  // namespace convoy::emulator
