// What a model brings to a pipeline: stages, each of which enqueues its forward and its backward.
//
//     struct block {                                     // one hidden layer
//       std::vector<boundary> inputs() const { return {{"x", dtype::f32, width}}; }
//       std::vector<boundary> outputs() const { return {{"y", dtype::f32, width}}; }
//       stage_bytes bytes(std::size_t rows) const { return {.activation = 8 * rows * width}; }
//       void forward(const pass<stream>& p);             // p.input, p.memory -> p.output
//       void backward(const pass<stream>& p);            // p.output_gradient -> p.input_gradient
//     };
//
// Schedules with I and W (zb_h1, zb_h2, zb_v, v_half, v_min, dualpipe_v) call two functions
// instead:
//
//       void backward_input(const pass<stream>& p);      // p.output_gradient -> p.input_gradient
//       void backward_weight(const pass<stream>& p);     // adds to the weight gradients
//
// The first stage has no inputs, it reads the batch; the last has no outputs, it computes the loss
// and scales its gradient by p.seed. Weight gradients are added up by the stage itself.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/core/dtype.hpp>
#include <polyrank/core/error.hpp>
#include <polyrank/core/partition.hpp>
#include <polyrank/core/text.hpp>

#include <concepts>
#include <cstddef>
#include <span>
#include <string>
#include <vector>

namespace polyrank::pipeline {

/// A tensor that goes from one stage to the next, a row per sample.
struct boundary {
  std::string name;
  dtype type = dtype::f32;
  std::size_t row = 0;    ///< elements of a row
  bool needs_grad = true; ///< its gradient goes back; false for masks, indices ...

  [[nodiscard]] std::size_t row_bytes() const noexcept { return row * size_of(type); }
  /// "'h' f32 x 256"
  [[nodiscard]] std::string text() const {
    return polyrank::detail::cat('\'', name, "' ", name_of(type), " x ", row,
                                 needs_grad ? "" : " without gradient");
  }
  friend bool operator==(const boundary&, const boundary&) = default;
};

/// What one microbatch needs of the executor's memory.
struct stage_bytes {
  std::size_t activation = 0;     ///< from F to B or I
  std::size_t weight_context = 0; ///< its first bytes, which I leaves for W; at most `activation`
};

/// One call of a stage. Everything is enqueued on `stream`; pointers are valid for that work.
template <class Stream>
struct pass {
  Stream& stream;
  std::size_t stage = 0, microbatch = 0;
  std::size_t rows = 0;        ///< of this microbatch
  std::size_t first_row = 0;   ///< rows of the microbatches before it
  float seed = 1;              ///< factor of the loss gradient: 1 / (samples of the global batch)
  std::byte* memory = nullptr; ///< of `activation` bytes, later `weight_context`
  std::span<void* const> input{};           ///< in the order of inputs(); also in backward
  std::span<void* const> output{};          ///< forward only: write it
  std::span<void* const> output_gradient{}; ///< null where the tensor has none
  std::span<void* const> input_gradient{};  ///< write it; null where the tensor has none
};

template <class S, class Stream>
concept stage_shape = requires(const S& s, std::size_t rows) {
  { s.inputs() } -> std::convertible_to<std::vector<boundary>>;
  { s.outputs() } -> std::convertible_to<std::vector<boundary>>;
  { s.bytes(rows) } -> std::convertible_to<stage_bytes>;
};

/// The two halves of a backward apart. backward_input must not need what backward_weight does.
template <class S, class Stream>
concept split_stage = stage_shape<S, Stream> && requires(S& s, const pass<Stream>& p) {
  s.forward(p);
  s.backward_input(p);
  s.backward_weight(p);
};

/// A backward in one piece.
template <class S, class Stream>
concept whole_stage = stage_shape<S, Stream> && requires(S& s, const pass<Stream>& p) {
  s.forward(p);
  s.backward(p);
};

template <class S, class Stream>
concept stage = whole_stage<S, Stream> || split_stage<S, Stream>;

/// Optional: an overlapped pair of dualpipe_v, the forward of this stage with the backward of
/// another one of the rank. Without it the two run one after the other.
template <class S, class Stream>
concept overlap_stage = stage<S, Stream> && requires(S& f, S& b, const pass<Stream>& p) {
  f.forward_backward(p, b, p);
};

namespace detail {

/// How the tensors of a boundary lie in one message: a header, then tensor after tensor.
class message {
 public:
  static constexpr std::size_t unit = 256;

  message() = default;
  /// `gradients`: of the tensors that have one, else all.
  message(const std::vector<boundary>& tensors, bool gradients) {
    for (const boundary& b : tensors)
      row_bytes_.push_back(gradients && !b.needs_grad ? 0 : b.row_bytes());
  }
  [[nodiscard]] std::size_t bytes(std::size_t rows) const noexcept {
    if (row_bytes_.empty()) return 0;
    std::size_t sum = unit;
    for (const std::size_t b : row_bytes_) sum += round_up(b * rows, unit);
    return sum;
  }
  /// Pointers to the tensors of a message at `base`; null where there is none.
  void point(std::vector<void*>& out, std::byte* base, std::size_t rows) const {
    out.clear();
    std::size_t offset = unit;
    for (const std::size_t b : row_bytes_) {
      out.push_back(b > 0 ? base + offset : nullptr);
      offset += round_up(b * rows, unit);
    }
  }

 private:
  std::vector<std::size_t> row_bytes_;
};

} // namespace detail

} // namespace polyrank::pipeline
