// The checkpoints of one run: resumes from the last one, saves while training goes on, says how it
// went. `Parallel` (parallel.hpp) hands out and takes in fragments of the state.
//
//     checkpointing<Control, Parallel> saves(control, config, pictures, tensors, parallel, how,
//     say); const auto from = saves.resume();                // step and loss, or nothing for (...)
//     {
//       saves.poll();
//       if (saves.due(step)) saves.save(step, loss, stream);
//       ... saves.hold(stream) before the next update ...
//     }
//     saves.finish();
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "train_classifier/checkpoint.hpp"
#include "train_classifier/config.hpp"
#include "train_classifier/mlp.hpp"

#include <polyrank/checkpoint/posix_files.hpp>
#include <polyrank/checkpoint/saver.hpp>
#include <polyrank/checkpoint/snapshot.hpp>
#include <polyrank/hang/ring.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <memory_resource>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace polyrank::examples {

template <class Control, class Parallel>
class checkpointing {
 public:
  using stream = typename Parallel::stream;
  /// `say(line, is_a_problem)` tells a person.
  using listener = std::function<void(const std::string& line, bool problem)>;

  struct options {
    std::pmr::memory_resource* memory = nullptr; ///< of the copy: pinned, where there is a device
    hang::ring* ring = nullptr;                  ///< hang diagnosis hears of waits for the disk
  };
  struct start_point {
    std::uint64_t step = 0;
    float loss = 0; ///< of that step
  };

  /// @collective
  /// @throws data_error, on every rank, if the directory cannot be used
  checkpointing(Control& control, const config& c, std::size_t pictures,
                const std::vector<tensor>& weights, Parallel& parallel, options o, listener say)
      : control_(control), config_(c), pictures_(pictures), parallel_(parallel), options_(o),
        say_(std::move(say)), tensors_(state_tensors(weights, Parallel::plane_count)),
        saver_(control, files_,
               {.directory = c.checkpoint, .keep = c.keep, .memory = o.memory, .ring = o.ring}) {
    checkpoint::together(control, [&] { saver_.reserve(tensors_, parallel_.fragments(tensors_)); });
  }

  /// Fills the state from the newest checkpoint; nothing if there is none. @collective
  /// @throws usage_error without --resume if there is one, or if it was made with other flags;
  /// mismatch_error for another model, data_error for a damaged one; each on every rank
  [[nodiscard]] std::optional<start_point> resume() {
    std::optional<hang::ring::pause_scope> pause;
    if (options_.ring != nullptr)
      pause.emplace(*options_.ring, "checkpoint", std::chrono::hours(1));
    const auto latest = checkpoint::agree_on_latest(control_, files_, config_.checkpoint);
    if (!latest) {
      if (config_.resume)
        say_(detail::cat("resume   ", config_.checkpoint, " has no checkpoint yet: from the start"),
             false);
      return {};
    }
    if (!config_.resume)
      throw on_every_rank(
          usage_error(detail::cat("--checkpoint ", config_.checkpoint, " holds the run that made ",
                                  latest->filename().string(),
                                  "; add --resume to go on with it, or take another directory")));
    start_point from;
    step_record then;
    std::string flags; // wrong ones: the same on every rank, unless the files differ
    checkpoint::together(control_, [&] {
      checkpoint::reader reader(files_, *latest);
      reader.expect(tensors_);
      from.step = reader.content().step;
      try {
        from.loss = judge_notes(reader.content(), config_, pictures_);
        then = record_of(reader.content());
      } catch (const usage_error& e) {
        flags = e.what();
        return;
      }
      parallel_.load(reader, tensors_);
    });
    if (control_.all_reduce_max(flags.empty() ? 0 : 1) != 0)
      throw on_every_rank(usage_error(flags));
    parallel_.loaded(from.step, then);
    say_(detail::cat("resume   step ", from.step, " from ", latest->string()), false);
    last_ = from.step;
    return from;
  }

  /// Whether the checkpoint after `step` steps is one that --save-every asks for.
  [[nodiscard]] bool due(std::uint64_t step) const noexcept {
    return config_.save_every > 0 && step % config_.save_every == 0;
  }

  /// Looks whether a save has ended. @collective
  void poll() { report(saver_.poll()); }

  /// Starts to save the state after `step` steps, whose work is on `s`. @collective
  void save(std::uint64_t step, float loss, stream& s) {
    if (last_ == step) return; // it is saved, or being saved
    report(saver_.wait());
    const std::vector<checkpoint::fragment> mine = parallel_.fragments(tensors_);
    copies_.begin(s);
    saver_.save(
        step, make_notes(config_, pictures_, loss, parallel_.record(step)), tensors_, mine,
        [this](const checkpoint::fragment& f, std::span<std::byte> out) {
          copies_.template take<float>(parallel_.at(f), out);
        },
        &copies_);
    if constexpr (Parallel::updates_early) copies_.synchronize();
    last_ = step;
  }
  /// Later work of `s` may change the state.
  void hold(stream& s) const { copies_.hold(s); }

  /// Waits for the save that is under way; says why the newest one failed, or nothing. @collective
  [[nodiscard]] std::string finish() {
    report(saver_.wait());
    return failed_.value_or(std::string());
  }

 private:
  void report(const std::optional<checkpoint::save_result>& r) {
    if (!r) return;
    failed_.reset();
    if (!r->error.empty()) {
      failed_ = r->error;
      last_.reset();
      say_(detail::cat("the checkpoint of step ", r->step, " was not saved: ", r->error,
                       "; training goes on"),
           true);
      return;
    }
    char facts[64];
    std::snprintf(facts, sizeof facts, " (%.1f MB in %.2f s)", static_cast<double>(r->bytes) / 1e6,
                  r->seconds);
    say_(detail::cat("saved    ", r->path.string(), facts), false);
    if (!r->warning.empty())
      say_(detail::cat("old checkpoints were not removed: ", r->warning), true);
  }

  Control& control_;
  const config& config_;
  std::size_t pictures_;
  Parallel& parallel_;
  options options_;
  listener say_;
  std::vector<checkpoint::tensor_info> tensors_;
  checkpoint::posix_files files_;
  checkpoint::snapshot<typename Parallel::backend> copies_;
  checkpoint::saver<Control> saver_;
  std::optional<std::uint64_t> last_;
  std::optional<std::string> failed_;
};

} // namespace polyrank::examples
