// The `.bin` files of llm.c (https://github.com/karpathy/llm.c, train_gpt2.cu): a GPT-2 model, and
// what each of its processes keeps beside it to go on. Little-endian throughout; 1024 bytes of
// header, which are 256 32-bit integers, then data end to end.
//
//   model   [0] 20240326  [1] 3: fp32, 5: bf16  [2] longest sequence T  [3] vocabulary V  [4]
//   layers L
//           [5] heads  [6] channels C  [7] padded vocabulary Vp; then the tensors of tensors_of()
//   state   [0] 20240527  [1] 1  [2] processes N  [3] this one  [4] 1: masters follow  [5] 1: a
//   data
//           loader follows  [10] steps  [20] 64 bits of random state  [30], [32] 64 bits each: data
//           file and sample; then, fp32: first moments, second moments, masters; then the loader
//
// A process has the state of all parameters, or, with llm.c's ZeRO-1, the N-th part of each layer
// of each tensor, those parts end to end. llm.c loads a state on as many processes as saved it.
// Here it becomes whole tensors (`gather`), which any number of processes can be given (`part_of`).
//
//     const llmc::model model(files, "model_00000020.bin");
//     const llmc::state s(files, "state_00000020_00000.bin", model.shape);
//     std::vector<float> m = llmc::gather(model.shape, {&s}, 0);   // plane 0: first moments
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/checkpoint/file_system.hpp>
#include <polyrank/checkpoint/fragments.hpp>
#include <polyrank/core/dtype.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace polyrank::checkpoint::llmc {

inline constexpr std::int32_t model_magic = 20240326, state_magic = 20240527;
inline constexpr std::size_t header_bytes = 1024, loader_random_bytes = 2520;

/// What GPT-2 this is.
struct shape {
  std::uint32_t longest = 0, vocabulary = 0, layers = 0, heads = 0, channels = 0, padded = 0;
  friend bool operator==(const shape&, const shape&) = default;
};

/// The tensors of a model in the order of the file, under llm.c's names. Those of the layers have
/// the layer as their first dimension.
[[nodiscard]] inline std::vector<tensor_info> tensors_of(const shape& s, dtype type) {
  const std::uint64_t c = s.channels, l = s.layers;
  return {{"wte", type, {s.padded, c}},
          {"wpe", type, {s.longest, c}},
          {"ln1w", type, {l, c}},
          {"ln1b", type, {l, c}},
          {"qkvw", type, {l, 3 * c, c}},
          {"qkvb", type, {l, 3 * c}},
          {"attprojw", type, {l, c, c}},
          {"attprojb", type, {l, c}},
          {"ln2w", type, {l, c}},
          {"ln2b", type, {l, c}},
          {"fcw", type, {l, 4 * c, c}},
          {"fcb", type, {l, 4 * c}},
          {"fcprojw", type, {l, c, 4 * c}},
          {"fcprojb", type, {l, c}},
          {"lnfw", type, {c}},
          {"lnfb", type, {c}}};
}
/// Whether tensor number `i` has a part for each layer.
[[nodiscard]] constexpr bool of_layers(std::size_t i) noexcept { return i >= 2 && i <= 13; }

[[nodiscard]] inline std::uint64_t parameter_count(const shape& s) {
  std::uint64_t n = 0;
  for (const tensor_info& t : tensors_of(s, dtype::f32)) n += t.count();
  return n;
}

namespace detail {

using polyrank::detail::cat;

template <class... Pieces>
[[noreturn]] void refuse(const std::string& name, const Pieces&... what) {
  throw data_error(cat(name, ": ", what...));
}
template <class T = std::int32_t>
[[nodiscard]] T field(std::span<const std::byte> file, std::size_t i) {
  T value;
  std::memcpy(&value, file.data() + 4 * i, sizeof value);
  return value;
}
template <class T>
void put(std::vector<std::byte>& header, std::size_t i, T value) {
  std::memcpy(header.data() + 4 * i, &value, sizeof value);
}
/// The first bytes of every file: which it is, and its version.
inline void judge_start(std::span<const std::byte> file, const std::string& name,
                        std::int32_t magic, const char* what) {
  if (file.size() < header_bytes)
    refuse(name, "truncated: ", file.size(), " bytes; the header alone has ", header_bytes);
  if (field(file, 0) != magic)
    refuse(name, "is no ", what, " of llm.c: it starts with ", field(file, 0), ", not ", magic);
}

/// Visits the pieces of what process `rank` of `ranks` keeps, in its order: visit(offset among all
/// parameters, count).
template <class Visit>
void for_each_piece(const shape& s, std::uint64_t ranks, std::uint64_t rank, Visit visit) {
  std::uint64_t at = 0;
  const auto all = tensors_of(s, dtype::f32);
  for (std::size_t i = 0; i < all.size(); ++i) {
    const std::uint64_t layers = of_layers(i) ? s.layers : 1, size = all[i].count() / layers;
    for (std::uint64_t l = 0; l < layers; ++l, at += size)
      visit(at + rank * (size / ranks), size / ranks);
  }
}

} // namespace detail

/// A model file that is open.
class model {
 public:
  llmc::shape shape;
  dtype type = dtype::f32;

  /// @throws data_error naming the file and what is wrong with it
  model(file_system& files, const fs::path& path) : view_(files.open(path)) {
    const std::string name = path.string();
    const std::span<const std::byte> file = view_->bytes();
    detail::judge_start(file, name, model_magic, "model");
    const std::int32_t version = detail::field(file, 1);
    if (version != 3 && version != 5)
      detail::refuse(name, "has version ", version, "; known are 3 (fp32) and 5 (bf16)");
    type = version == 3 ? dtype::f32 : dtype::bf16;
    std::uint32_t* const to[] = {&shape.longest, &shape.vocabulary, &shape.layers,
                                 &shape.heads,   &shape.channels,   &shape.padded};
    for (std::size_t i = 0; i < 6; ++i) {
      const std::int32_t value = detail::field(file, 2 + i);
      // Far above any GPT-2, and every product stays below 2^62.
      if (value < 1 || value > (i == 2 ? 10'000 : 1'000'000))
        detail::refuse(name, "its header has ", value, " at place ", 2 + i, ", which no model has");
      *to[i] = static_cast<std::uint32_t>(value);
    }
    if (shape.padded < shape.vocabulary || shape.channels % shape.heads != 0)
      detail::refuse(name, "its header does not fit together: vocabulary ", shape.vocabulary,
                     " of ", shape.padded, ", ", shape.channels, " channels in ", shape.heads,
                     " heads");
    const std::uint64_t need = header_bytes + parameter_count(shape) * size_of(type);
    if (file.size() != need)
      detail::refuse(name, "has ", file.size(), " bytes, a model of this header has ", need,
                     file.size() < need ? ": truncated" : "");
  }

  /// The values of tensor number `i` of tensors_of(); valid as long as this lives.
  [[nodiscard]] std::span<const std::byte> bytes(std::size_t i) const {
    const auto all = tensors_of(shape, type);
    std::uint64_t at = 0;
    for (std::size_t k = 0; k < i; ++k) at += all[k].count();
    return view_->bytes().subspan(header_bytes + at * size_of(type),
                                  all[i].count() * size_of(type));
  }

 private:
  std::unique_ptr<file_view> view_;
};

/// Writes a model file, atomically. `values(i)` are the bytes of tensor number i.
/// @throws usage_error for a type that llm.c does not have, or wrong sizes
template <class Values>
void write_model(file_system& files, const fs::path& path, const shape& s, dtype type,
                 Values values) {
  expects(type == dtype::f32 || type == dtype::bf16, "llm.c models are fp32 or bf16, not ",
          name_of(type));
  std::vector<std::byte> header(header_bytes);
  detail::put(header, 0, model_magic);
  detail::put<std::int32_t>(header, 1, type == dtype::f32 ? 3 : 5);
  const std::uint32_t fields[] = {s.longest, s.vocabulary, s.layers, s.heads, s.channels, s.padded};
  for (std::size_t i = 0; i < 6; ++i) detail::put(header, 2 + i, fields[i]);
  const auto all = tensors_of(s, type);
  write_atomically(files, path, [&](output_file& f) {
    f.write(header);
    for (std::size_t i = 0; i < all.size(); ++i) {
      const std::span<const std::byte> data = values(i);
      expects(data.size() == all[i].count() * size_of(type), "llm.c: tensor '", all[i].name,
              "' has ", data.size(), " bytes, not ", all[i].count() * size_of(type));
      f.write(data);
    }
  });
}

/// Where a run stands, as the header of a state file has it.
struct progress {
  std::uint32_t ranks = 1, rank = 0, step = 0;
  bool masters = true; ///< whether an fp32 copy of the parameters is kept
  std::uint64_t random = 0, data_file = 0, data_sample = 0;
};

/// A state file that is open.
class state {
 public:
  llmc::progress progress;
  bool whole = true; ///< state of all parameters; else of this process's part

  /// `of` is the model that it belongs to.
  /// @throws data_error naming the file and what is wrong with it
  state(file_system& files, const fs::path& path, const shape& of)
      : name_(path.string()), view_(files.open(path)) {
    const std::span<const std::byte> file = view_->bytes();
    detail::judge_start(file, name_, state_magic, "state");
    if (detail::field(file, 1) != 1)
      detail::refuse(name_, "has version ", detail::field(file, 1), "; known is 1");
    const std::int32_t numbers[] = {detail::field(file, 2), detail::field(file, 3),
                                    detail::field(file, 4), detail::field(file, 5),
                                    detail::field(file, 10)};
    const auto [ranks, rank, masters, shuffles, step] = std::to_array(numbers);
    if (ranks < 1 || rank < 0 || rank >= ranks || masters < 0 || masters > 1 || shuffles < 0 ||
        shuffles > 1 || step < 0)
      detail::refuse(name_, "its header is damaged: process ", rank, " of ", ranks, ", masters ",
                     masters, ", loader ", shuffles, ", step ", step);
    progress = {.ranks = static_cast<std::uint32_t>(ranks),
                .rank = static_cast<std::uint32_t>(rank),
                .step = static_cast<std::uint32_t>(step),
                .masters = masters == 1,
                .random = detail::field<std::uint64_t>(file, 20),
                .data_file = detail::field<std::uint64_t>(file, 30),
                .data_sample = detail::field<std::uint64_t>(file, 32)};
    const std::uint64_t all = parameter_count(of);
    for (const bool part : {false, true}) {
      if (part && all % progress.ranks != 0) break;
      whole = !part;
      count_ = part ? all / progress.ranks : all;
      const std::uint64_t end = header_bytes + planes() * count_ * sizeof(float);
      if (file.size() < end) continue;
      loader_ = file.subspan(end);
      if (shuffles == 1 ? is_loader(loader_) : loader_.empty()) return;
    }
    detail::refuse(name_, "has ", file.size(), " bytes, which fits neither all ", all,
                   " parameters of the model nor a part of ", progress.ranks,
                   ": truncated, or of another model");
  }

  [[nodiscard]] std::size_t planes() const noexcept { return progress.masters ? 3 : 2; }
  /// First moments (0), second moments (1), masters (2); valid as long as this lives.
  [[nodiscard]] std::span<const std::byte> plane(std::size_t p) const {
    return view_->bytes().subspan(header_bytes + p * count_ * sizeof(float),
                                  count_ * sizeof(float));
  }
  /// The shuffled data loader of this process, as it stands in the file; empty if there is none.
  [[nodiscard]] std::span<const std::byte> loader() const noexcept { return loader_; }
  [[nodiscard]] const std::string& name() const noexcept { return name_; }

 private:
  /// Number of data files and their order, number of samples and theirs, a Mersenne twister.
  [[nodiscard]] static bool is_loader(std::span<const std::byte> bytes) {
    for (int list = 0; list < 2; ++list) {
      std::uint64_t n = 0;
      if (bytes.size() < 8) return false;
      std::memcpy(&n, bytes.data(), 8);
      if (n > (bytes.size() - 8) / 4) return false;
      bytes = bytes.subspan(8 + 4 * n);
    }
    return bytes.size() == loader_random_bytes;
  }

  std::string name_;
  std::unique_ptr<file_view> view_;
  std::uint64_t count_ = 0;
  std::span<const std::byte> loader_;
};

/// Plane `p` of all parameters, in the order of the model file, from the states of all processes of
/// one moment.
/// @throws data_error if a process is missing, there twice, or of another moment
[[nodiscard]] inline std::vector<float>
gather(const shape& s, const std::vector<const state*>& states, std::size_t p) {
  if (states.empty()) throw usage_error("llmc::gather: no state");
  const progress& first = states[0]->progress;
  std::vector<bool> seen(first.ranks);
  std::vector<float> all(parameter_count(s));
  for (const state* one : states) {
    const progress& here = one->progress;
    if (here.ranks != first.ranks || here.step != first.step || here.masters != first.masters ||
        one->whole != states[0]->whole)
      detail::refuse(one->name(), "is of step ", here.step, " on ", here.ranks, " processes, ",
                     states[0]->name(), " of step ", first.step, " on ", first.ranks);
    if (seen[here.rank]) detail::refuse(one->name(), "process ", here.rank, " is there twice");
    seen[here.rank] = true;
    expects(p < one->planes(), one->name(), ": has no masters");
    const std::byte* from = one->plane(p).data();
    if (one->whole) {
      std::memcpy(all.data(), from, all.size() * sizeof(float));
      continue;
    }
    detail::for_each_piece(s, here.ranks, here.rank, [&](std::uint64_t at, std::uint64_t count) {
      std::memcpy(all.data() + at, from, count * sizeof(float));
      from += count * sizeof(float);
    });
  }
  for (std::size_t r = 0; r < seen.size(); ++r)
    if (!seen[r] && !states[0]->whole)
      throw data_error(
          polyrank::detail::cat("the state of process ", r, " of ", seen.size(), " is missing"));
  return all;
}

/// What process `rank` of `ranks` keeps of a plane of all parameters.
[[nodiscard]] inline std::vector<float> part_of(const shape& s, std::span<const float> all,
                                                std::uint64_t ranks, std::uint64_t rank) {
  std::vector<float> mine;
  detail::for_each_piece(s, ranks, rank, [&](std::uint64_t at, std::uint64_t count) {
    const auto piece = all.subspan(at, count);
    mine.insert(mine.end(), piece.begin(), piece.end());
  });
  return mine;
}

/// Whether llm.c's ZeRO-1 can have this model on `ranks` processes: each layer of each tensor must
/// divide by them.
[[nodiscard]] inline bool divides(const shape& s, std::uint64_t ranks) {
  bool even = true;
  const auto all = tensors_of(s, dtype::f32);
  for (std::size_t i = 0; i < all.size(); ++i)
    even = even && all[i].count() / (of_layers(i) ? s.layers : 1) % ranks == 0;
  return even;
}

/// Writes a state file, atomically. `planes` are those of this process, 2, or 3 with masters.
inline void write_state(file_system& files, const fs::path& path, const progress& at,
                        const std::vector<std::span<const float>>& planes,
                        std::span<const std::byte> loader = {}) {
  expects(planes.size() == (at.masters ? 3u : 2u),
          "llm.c: a state has 3 planes with masters, else 2");
  std::vector<std::byte> header(header_bytes);
  detail::put(header, 0, state_magic);
  detail::put<std::int32_t>(header, 1, 1);
  detail::put(header, 2, at.ranks);
  detail::put(header, 3, at.rank);
  detail::put<std::int32_t>(header, 4, at.masters ? 1 : 0);
  detail::put<std::int32_t>(header, 5, loader.empty() ? 0 : 1);
  detail::put(header, 10, at.step);
  detail::put(header, 20, at.random);
  detail::put(header, 30, at.data_file);
  detail::put(header, 32, at.data_sample);
  write_atomically(files, path, [&](output_file& f) {
    f.write(header);
    for (const auto& plane : planes) f.write(std::as_bytes(plane));
    f.write(loader);
  });
}

} // namespace polyrank::checkpoint::llmc
