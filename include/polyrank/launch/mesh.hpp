// The ranks of a job as a grid with named axes: data parallel, pipeline, tensor, ...
//
//     mesh grid(comm, {{"pp", 2}, {"dp", rest}, {"tp", 2}});   // 8 ranks: 2 x 2 x 2
//     grid.along("dp")          // the communicator of the ranks that differ from this one in dp
//     only grid.coordinate("pp")     // this rank's pipeline stage
//
// The last axis varies fastest: ranks that are neighbours on it have neighbouring numbers, so put
// the axis that talks most (tensor parallel) last, where mpirun fills one host first.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/backend/concepts.hpp>
#include <polyrank/core/error.hpp>

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace polyrank::launch {

/// As many ranks as the other axes leave.
inline constexpr int rest = 0;

struct axis {
  std::string name;
  int size = rest;
};

/// The arithmetic of the grid; pure.
class mesh_shape {
 public:
  /// Throws usage_error unless the sizes (at most one of them `rest`) multiply to `ranks`.
  mesh_shape(std::vector<axis> axes, int ranks) : axes_(std::move(axes)) {
    expects(!axes_.empty(), "mesh: name at least one axis");
    long long product = 1;
    axis* open = nullptr;
    for (std::size_t i = 0; i < axes_.size(); ++i) {
      axis& a = axes_[i];
      for (std::size_t k = 0; k < i; ++k)
        expects(axes_[k].name != a.name, "mesh: two axes are named '", a.name, "'");
      expects(a.size >= 0, "mesh: axis '", a.name, "' has ", a.size, " ranks");
      if (a.size == rest) {
        expects(open == nullptr, "mesh: both '", open == nullptr ? "" : open->name, "' and '",
                a.name, "' take the rest; give one of them a size");
        open = &a;
      } else {
        product *= a.size;
        expects(product <= ranks, "mesh: ", text(), " needs more than the ", ranks,
                " ranks of the job");
      }
    }
    if (open != nullptr && ranks % product == 0) {
      open->size = ranks / static_cast<int>(product);
      product = ranks;
    }
    expects(product == ranks, "mesh: ", text(), " does not fit ", ranks, " ranks");
  }

  [[nodiscard]] const std::vector<axis>& axes() const noexcept { return axes_; }

  /// Position of `name`. Throws usage_error for an unknown one.
  [[nodiscard]] std::size_t find(std::string_view name) const {
    for (std::size_t i = 0; i < axes_.size(); ++i)
      if (axes_[i].name == name) return i;
    throw usage_error(detail::cat("mesh: there is no axis '", name, "' in ", text()));
  }
  [[nodiscard]] int coordinate(int rank, std::size_t axis) const {
    return rank / stride(axis) % axes_[axis].size;
  }
  /// The rank that differs from `rank` in having `coordinate` on `axis`.
  [[nodiscard]] int neighbour(int rank, std::size_t axis, int coordinate) const {
    return rank + (coordinate - this->coordinate(rank, axis)) * stride(axis);
  }
  /// The ranks that differ from `rank` on `axis` only, by coordinate.
  [[nodiscard]] std::vector<int> group(int rank, std::size_t axis) const {
    std::vector<int> members;
    for (int c = 0; c < axes_[axis].size; ++c) members.push_back(neighbour(rank, axis, c));
    return members;
  }
  /// "pp 2 x dp 2 x tp 2"
  [[nodiscard]] std::string text() const {
    std::string out;
    for (const axis& a : axes_)
      out += detail::cat(out.empty() ? "" : " x ", a.name, ' ',
                         a.size == rest ? "rest" : detail::cat(a.size));
    return out;
  }

 private:
  [[nodiscard]] int stride(std::size_t axis) const {
    int ranks = 1;
    for (std::size_t i = axis + 1; i < axes_.size(); ++i) ranks *= axes_[i].size;
    return ranks;
  }

  std::vector<axis> axes_;
};

/// The grid with one communicator per axis.
template <splittable Comm>
class mesh {
 public:
  /// Splits `comm` once per axis. @collective
  mesh(Comm& comm, std::vector<axis> axes)
      : shape_(std::move(axes), comm.size()), rank_(comm.rank()) {
    along_.reserve(shape_.axes().size());
    for (std::size_t i = 0; i < shape_.axes().size(); ++i)
      along_.push_back(comm.split(shape_.neighbour(rank_, i, 0), shape_.coordinate(rank_, i)));
  }

  [[nodiscard]] const mesh_shape& shape() const noexcept { return shape_; }
  /// The communicator of the ranks that differ from this one on `name` only.
  [[nodiscard]] Comm& along(std::string_view name) { return along_[shape_.find(name)]; }
  [[nodiscard]] int coordinate(std::string_view name) const {
    return shape_.coordinate(rank_, shape_.find(name));
  }

 private:
  mesh_shape shape_;
  int rank_;
  std::vector<Comm> along_;
};

} // namespace polyrank::launch
