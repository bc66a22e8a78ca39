// A step recorded once and replayed by a single launch: kernels, copies and communication alike.
//
//     train_step(compute);                                       // once as usual: NCCL connects
//     auto step = cuda::graph::capture(compute, [&] { train_step(compute); });
//     for (...) { update.set(adamw::at(options, k), compute); step.launch(compute); }
//
// The body runs on the host once, to be recorded; other streams take part by waiting for events of
// the captured one, and it must wait for them in turn (grad_sync does both). Values that the body
// passes to kernels stay as they are, pointers are read anew at every launch. All ranks capture the
// same operations and launch equally often. The graph must go before the communicators in it.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/cuda/stream.hpp>

#include <cstddef>
#include <utility>
#include <vector>

namespace polyrank::cuda {

/// Move-only.
class graph {
 public:
  /// What a graph consists of. Waits between streams are edges, not nodes.
  struct counts {
    std::size_t kernels = 0, copies = 0,
                others = 0; ///< copies: memcpy, memset; others: host, stamps
  };

  /// Records what `body` enqueues on `s` and on streams that wait for it. Throws what `body`
  /// throws, and cuda_error, also where a stream that took part was not waited for.
  template <class Body>
  [[nodiscard]] static graph capture(stream& s, Body body, call_site site = call_site::here()) {
    scoped_device here(s.device());
    graph g;
    check(cudaStreamBeginCapture(s.native(), cudaStreamCaptureModeThreadLocal),
          "cudaStreamBeginCapture", site);
    try {
      body();
    } catch (...) {
      static_cast<void>(cudaStreamEndCapture(s.native(), &g.recorded_));
      static_cast<void>(cudaGetLastError());
      if (g.recorded_ != nullptr) static_cast<void>(cudaGraphDestroy(g.recorded_));
      g.recorded_ = nullptr;
      throw;
    }
    check(cudaStreamEndCapture(s.native(), &g.recorded_), "cudaStreamEndCapture", site);
    check(cudaGraphInstantiate(&g.runs_, g.recorded_, 0), "cudaGraphInstantiate", site);
    return g;
  }

  graph(graph&& other) noexcept
      : recorded_(std::exchange(other.recorded_, nullptr)),
        runs_(std::exchange(other.runs_, nullptr)) {}
  graph& operator=(graph&& other) noexcept {
    std::swap(recorded_, other.recorded_);
    std::swap(runs_, other.runs_);
    return *this;
  }
  ~graph() {
    if (detail::unwinding()) return;
    if (runs_ != nullptr) static_cast<void>(cudaGraphExecDestroy(runs_));
    if (recorded_ != nullptr) static_cast<void>(cudaGraphDestroy(recorded_));
  }

  /// Enqueues all of it on `s`; take the stream it was captured from, so that synchronize() learns
  /// of communication that failed.
  void launch(stream& s, call_site site = call_site::here()) const {
    scoped_device here(s.device());
    check(cudaGraphLaunch(runs_, s.native()), "cudaGraphLaunch", site);
  }

  [[nodiscard]] counts count() const {
    std::size_t n = 0;
    check(cudaGraphGetNodes(recorded_, nullptr, &n), "cudaGraphGetNodes");
    std::vector<cudaGraphNode_t> nodes(n);
    check(cudaGraphGetNodes(recorded_, nodes.data(), &n), "cudaGraphGetNodes");
    counts c;
    for (cudaGraphNode_t node : nodes) {
      cudaGraphNodeType type{};
      if (cudaGraphNodeGetType(node, &type) != cudaSuccess) // a kind that only the driver knows
        type = cudaGraphNodeTypeHost, static_cast<void>(cudaGetLastError());
      if (type == cudaGraphNodeTypeKernel)
        ++c.kernels;
      else if (type == cudaGraphNodeTypeMemcpy || type == cudaGraphNodeTypeMemset)
        ++c.copies;
      else if (type != cudaGraphNodeTypeEmpty)
        ++c.others;
    }
    return c;
  }

 private:
  graph() = default;

  cudaGraph_t recorded_ = nullptr;
  cudaGraphExec_t runs_ = nullptr;
};

} // namespace polyrank::cuda
