// A libnccl.so.2 of our own, for tests of the preloaded library where there is no GPU: a collective
// is a barrier in shared memory, in the caller's thread. It calculates nothing.
// SPDX-License-Identifier: Apache-2.0
#include <nccl.h>

#include <atomic>
#include <cstdio>
#include <cstring>
#include <string>

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

struct ncclComm {
  std::atomic<int>* arrived; // by operation
  int size, rank, next;
};

namespace {

constexpr int operations = 1000;
thread_local int depth = 0;
thread_local ncclComm* in_group = nullptr;

ncclResult_t meet(ncclComm* c) {
  std::atomic<int>& arrived = c->arrived[c->next++ % operations];
  for (++arrived; arrived < c->size;) usleep(500);
  return ncclSuccess;
}

} // namespace

extern "C" {

const char* ncclGetErrorString(ncclResult_t) { return "made up"; }
const char* ncclGetLastError(ncclComm_t) { return ""; }
ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  std::memset(id, 0, sizeof *id);
  std::snprintf(id->internal, sizeof id->internal, "/fake_nccl_%d", static_cast<int>(getpid()));
  return ncclSuccess;
}
ncclResult_t ncclCommInitRank(ncclComm_t* comm, int n, ncclUniqueId id, int rank) {
  const int f = shm_open(id.internal, O_RDWR | O_CREAT, 0600);
  const std::size_t bytes = operations * sizeof(int);
  if (f < 0 || ftruncate(f, static_cast<off_t>(bytes)) != 0) return ncclSystemError;
  void* p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, f, 0);
  close(f);
  *comm = new ncclComm{static_cast<std::atomic<int>*>(p), n, rank, 0};
  const ncclResult_t code = meet(*comm);
  shm_unlink(id.internal); // everybody has it
  return code;
}
ncclResult_t ncclCommUserRank(const ncclComm_t comm, int* rank) {
  *rank = comm->rank;
  return ncclSuccess;
}
ncclResult_t ncclCommCount(const ncclComm_t comm, int* n) {
  *n = comm->size;
  return ncclSuccess;
}
ncclResult_t ncclCommGetAsyncError(ncclComm_t, ncclResult_t* e) {
  *e = ncclSuccess;
  return ncclSuccess;
}
ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  delete comm;
  return ncclSuccess;
}
ncclResult_t ncclAllReduce(const void*, void*, size_t, ncclDataType_t, ncclRedOp_t, ncclComm_t comm,
                           cudaStream_t) {
  return meet(comm);
}
ncclResult_t ncclBroadcast(const void*, void*, size_t, ncclDataType_t, int, ncclComm_t comm,
                           cudaStream_t) {
  return meet(comm);
}
ncclResult_t ncclSend(const void*, size_t, ncclDataType_t, int, ncclComm_t comm, cudaStream_t) {
  in_group = comm;
  return ncclSuccess;
}
ncclResult_t ncclRecv(void*, size_t, ncclDataType_t, int, ncclComm_t comm, cudaStream_t) {
  in_group = comm;
  return ncclSuccess;
}
ncclResult_t ncclGroupStart() {
  ++depth;
  return ncclSuccess;
}
ncclResult_t ncclGroupEnd() {
  return --depth == 0 && in_group != nullptr ? meet(in_group) : ncclSuccess;
}
}
