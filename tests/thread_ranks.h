// Ranks as threads of a test's process.
#pragma once
#include <catch2/catch.hpp>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "comm/host_communicator.h"

namespace convoy::test {

/// Runs `part` as every rank, each in a thread of its own.
inline void on_ranks(int ranks, const std::function<void(int rank, const std::shared_ptr<Communicator>&)>& part) {
  std::vector<std::shared_ptr<Communicator>> communicators;
  if (ranks == 1)
    communicators.push_back(std::make_shared<NullCommunicator>());
  else
    communicators = thread_communicators(ranks);
  std::vector<std::string> errors(static_cast<size_t>(ranks));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank)
    threads.emplace_back([&, rank] {
      const auto& communicator = communicators[static_cast<size_t>(rank)];
      try {
        part(rank, communicator);
      } catch (const std::exception& error) {
        errors[static_cast<size_t>(rank)] = error.what();
        communicator->fail_all(error.what());
      }
    });
  for (std::thread& thread : threads) thread.join();
  for (const std::string& error : errors) {
    INFO(error);
    REQUIRE(error.empty());
  }
}

}  // namespace convoy::test
