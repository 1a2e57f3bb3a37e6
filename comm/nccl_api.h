// The functions of NCCL that Convoy calls, as a table, so that a program may choose between implementations: the types
// are those of nccl.h (2.18 and later), which is not needed. comm/nccl_stand_in.h implements them for the emulated
// device.
#pragma once
#include <climits>
#include <cstddef>

#include "kernels/cuda_stream.h"

namespace convoy::nccl {

struct ncclComm;
using ncclComm_t = ncclComm*;

struct ncclUniqueId {
  char internal[128];
};

enum ncclResult_t {
  ncclSuccess = 0,
  ncclUnhandledCudaError = 1,
  ncclSystemError = 2,
  ncclInternalError = 3,
  ncclInvalidArgument = 4,
  ncclInvalidUsage = 5,
  ncclRemoteError = 6,
  ncclInProgress = 7
};
enum ncclDataType_t { ncclInt8 = 0, ncclInt64 = 4, ncclFloat32 = 7 };
enum ncclRedOp_t { ncclSum = 0, ncclMax = 2 };

/// NCCL knows by size and version which fields there are; INT_MIN and null leave the choice to it.
struct ncclConfig_t {
  size_t size = sizeof(ncclConfig_t);
  unsigned magic = 0xcafebeef;
  unsigned version = 21800;
  int blocking = INT_MIN;
  int cgaClusterSize = INT_MIN;
  int minCTAs = INT_MIN;
  int maxCTAs = INT_MIN;
  const char* netName = nullptr;
  int splitShare = INT_MIN;
};

struct NcclApi {
  ncclResult_t (*ncclGetUniqueId)(ncclUniqueId* id);
  ncclResult_t (*ncclCommInitRankConfig)(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank, ncclConfig_t* config);
  ncclResult_t (*ncclCommGetAsyncError)(ncclComm_t comm, ncclResult_t* error);
  ncclResult_t (*ncclCommAbort)(ncclComm_t comm);
  ncclResult_t (*ncclCommDestroy)(ncclComm_t comm);
  ncclResult_t (*ncclAllReduce)(const void* send, void* receive, size_t count, ncclDataType_t type, ncclRedOp_t op,
                                ncclComm_t comm, cudaStream_t stream);
  ncclResult_t (*ncclAllGather)(const void* send, void* receive, size_t send_count, ncclDataType_t type,
                                ncclComm_t comm, cudaStream_t stream);
  ncclResult_t (*ncclBroadcast)(const void* send, void* receive, size_t count, ncclDataType_t type, int root,
                                ncclComm_t comm, cudaStream_t stream);
  ncclResult_t (*ncclGroupStart)();
  ncclResult_t (*ncclGroupEnd)();
  const char* (*ncclGetErrorString)(ncclResult_t result);
  const char* (*ncclGetLastError)(ncclComm_t comm);
  /// Not NCCL's: names the calls that follow for messages, and ranks must agree on it. Null where there is none.
  void (*label)(ncclComm_t comm, const char* name);
};

}  // namespace convoy::nccl
