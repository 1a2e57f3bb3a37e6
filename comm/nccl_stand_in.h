// NCCL's functions for the emulated device: ranks of one host, processes or threads.
#pragma once
#include "comm/nccl_api.h"

namespace convoy::nccl {

/// As NCCL has them, and with its rules. A collective is work on its stream: it reads its buffer when the stream gets
/// there, and the stream goes on when all ranks have come; collectives of one communicator run in the order in which
/// they were called. Sums are formed in the order of ranks. Communicators are non-blocking: ncclCommGetAsyncError tells
/// when a new one is ready and when one has failed.
///
/// What NCCL answers with a hang or wrong data is found here: ranks whose collectives differ in kind, type, operation,
/// bytes, root or label. ncclCommGetAsyncError then gives ncclInvalidUsage and ncclGetLastError both collectives on
/// every rank; the streams wait, as after any failure, until ncclCommAbort.
const NcclApi& nccl_stand_in();

}  // namespace convoy::nccl
