#ifdef CONVOY_WITH_MPI
#include "comm/mpi_communicator.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "engine/error.h"

namespace convoy {

namespace {

MPI_Op mpi_op(ReduceOp op) {
  return op == ReduceOp::kSum ? MPI_SUM : MPI_MAX;
}

}  // namespace

MpiCommunicator::MpiCommunicator(MPI_Comm comm, int local_rank, int local_size, std::shared_ptr<Liveness> liveness)
    : liveness_(std::move(liveness)),
      local_rank_(local_rank),
      local_size_(local_size),
      inline_(comm, liveness_),
      gradients_(comm, liveness_) {
  rank_ = inline_.rank();
  size_ = inline_.size();
}

MpiCommunicator::~MpiCommunicator() = default;

/// Compares, does `work`, and turns what goes wrong on this rank into the failure of all.
template <class Work>
void MpiCommunicator::collective(const CollectiveHeader& header, Work work) {
  if (liveness_->failed()) throw Error(liveness_->failure());
  liveness_->enter(Channel::kInline, header.name);
  try {
    inline_.compare(header);
    work();
  } catch (const Error& error) {
    liveness_->fail(error.what());
    throw Error(liveness_->failure());
  }
  liveness_->leave(Channel::kInline);
}

void MpiCommunicator::all_reduce(std::span<float> data, ReduceOp op, const std::string& name) {
  const CollectiveHeader header(CollectiveKind::kAllReduceFloat, static_cast<int>(op), data.size_bytes(), name);
  collective(header, [&] {
    if (data.size_bytes() <= kInOrderBytes) {
      std::vector<float> all(data.size() * static_cast<size_t>(size_));
      gather(data.data(), data.size_bytes(), all.data(), name);
      std::copy_n(all.begin(), data.size(), data.begin());
      for (int rank = 1; rank < size_; ++rank) {
        const float* part = all.data() + static_cast<size_t>(rank) * data.size();
        for (size_t i = 0; i < data.size(); ++i) {
          // A maximum is NaN where any is, whatever MPI_MAX would say.
          const bool takes = part[i] > data[i] || part[i] != part[i];
          data[i] = op == ReduceOp::kSum ? data[i] + part[i] : takes ? part[i] : data[i];
        }
      }
      return;
    }
    constexpr size_t kPiece = kMpiPieceBytes / sizeof(float);
    for (size_t done = 0; done < data.size(); done += kPiece) {
      MPI_Request request;
      check_mpi(MPI_Iallreduce(MPI_IN_PLACE, data.data() + done, static_cast<int>(std::min(kPiece, data.size() - done)),
                               MPI_FLOAT, mpi_op(op), inline_.comm(), &request),
                name);
      inline_.wait(request, name);
    }
  });
}

void MpiCommunicator::all_reduce(std::span<int64_t> data, ReduceOp op, const std::string& name) {
  const CollectiveHeader header(CollectiveKind::kAllReduceInt64, static_cast<int>(op), data.size_bytes(), name);
  collective(header, [&] {
    constexpr size_t kPiece = kMpiPieceBytes / sizeof(int64_t);
    for (size_t done = 0; done < data.size(); done += kPiece) {
      MPI_Request request;
      check_mpi(MPI_Iallreduce(MPI_IN_PLACE, data.data() + done, static_cast<int>(std::min(kPiece, data.size() - done)),
                               MPI_INT64_T, mpi_op(op), inline_.comm(), &request),
                name);
      inline_.wait(request, name);
    }
  });
}

/// Parts that are longer than a piece go through a buffer, since MPI puts the pieces of one call side by side.
void MpiCommunicator::gather(const void* part, size_t bytes, void* all, const std::string& name) {
  const auto* from = static_cast<const std::byte*>(part);
  auto* to = static_cast<std::byte*>(all);
  std::vector<std::byte> buffer(bytes > kMpiPieceBytes ? kMpiPieceBytes * static_cast<size_t>(size_) : 0);
  for (size_t done = 0; done < bytes; done += kMpiPieceBytes) {
    const size_t piece = std::min(kMpiPieceBytes, bytes - done);
    std::byte* received = buffer.empty() ? to : buffer.data();
    MPI_Request request;
    check_mpi(MPI_Iallgather(from + done, static_cast<int>(piece), MPI_BYTE, received, static_cast<int>(piece),
                             MPI_BYTE, inline_.comm(), &request),
              name);
    inline_.wait(request, name);
    if (buffer.empty()) return;
    for (size_t rank = 0; rank < static_cast<size_t>(size_); ++rank) {
      std::memcpy(to + rank * bytes + done, received + rank * piece, piece);
    }
  }
}

void MpiCommunicator::all_gather(const void* part, size_t bytes, void* all, const std::string& name) {
  collective(CollectiveHeader(CollectiveKind::kAllGather, 0, bytes, name), [&] { gather(part, bytes, all, name); });
}

void MpiCommunicator::broadcast(void* data, size_t bytes, int root, const std::string& name) {
  CONVOY_CHECK(root >= 0 && root < size_, "broadcast '{}' from rank {} of {}", name, root, size_);
  collective(CollectiveHeader(CollectiveKind::kBroadcast, root, bytes, name), [&] {
    for (size_t done = 0; done < bytes; done += kMpiPieceBytes) {
      MPI_Request request;
      check_mpi(
          MPI_Ibcast(static_cast<std::byte*>(data) + done, static_cast<int>(std::min(kMpiPieceBytes, bytes - done)),
                     MPI_BYTE, root, inline_.comm(), &request),
          name);
      inline_.wait(request, name);
    }
  });
}

void MpiCommunicator::barrier(const std::string& name) {
  collective(CollectiveHeader(CollectiveKind::kBarrier, 0, 0, name), [] {});  // the comparison waits for all
}

std::shared_ptr<Storage> MpiCommunicator::exchange_memory(size_t bytes) {
  collective(CollectiveHeader(CollectiveKind::kBarrier, 0, bytes, "exchange_memory"), [] {});
  std::shared_ptr<Storage> memory = default_allocator()->allocate(bytes);
  std::memset(memory->data, 0, bytes);
  return memory;
}

void MpiCommunicator::start_sum(std::vector<std::span<float>> segments, const std::string& name) {
  gradients_.start(std::move(segments), name);
}

void MpiCommunicator::finish_sums() {
  gradients_.finish();
}

}  // namespace convoy
#endif
