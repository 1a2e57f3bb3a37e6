#include "apps/measured_communicator.h"

#include <chrono>

namespace convoy {

namespace {

template <class Call>
void measure(ExchangeAccount::Channel& channel, int64_t messages, size_t bytes, Call call) {
  const auto start = std::chrono::steady_clock::now();
  call();
  channel.calls.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  channel.seconds += channel.calls.back();
  channel.messages += messages;
  channel.bytes += static_cast<int64_t>(bytes);
}

}  // namespace

void MeasuredCommunicator::all_reduce(std::span<float> data, ReduceOp op, const std::string& name) {
  measure(account_.inline_channel, 1, data.size_bytes(), [&] { inner_->all_reduce(data, op, name); });
}

void MeasuredCommunicator::all_reduce(std::span<int64_t> data, ReduceOp op, const std::string& name) {
  measure(account_.inline_channel, 1, data.size_bytes(), [&] { inner_->all_reduce(data, op, name); });
}

void MeasuredCommunicator::all_gather(const void* part, size_t bytes, void* all, const std::string& name) {
  measure(account_.inline_channel, 1, bytes, [&] { inner_->all_gather(part, bytes, all, name); });
}

void MeasuredCommunicator::broadcast(void* data, size_t bytes, int root, const std::string& name) {
  measure(account_.inline_channel, 1, rank() == root ? bytes : 0, [&] { inner_->broadcast(data, bytes, root, name); });
}

void MeasuredCommunicator::barrier(const std::string& name) {
  measure(account_.inline_channel, 1, 0, [&] { inner_->barrier(name); });
}

void MeasuredCommunicator::start_sum(std::vector<std::span<float>> segments, const std::string& name) {
  size_t bytes = 0;
  for (const std::span<float> segment : segments) bytes += segment.size_bytes();
  measure(account_.gradients, 1, bytes, [&] { inner_->start_sum(std::move(segments), name); });
}

void MeasuredCommunicator::finish_sums() {
  measure(account_.gradients, 0, 0, [&] { inner_->finish_sums(); });
}

}  // namespace convoy
