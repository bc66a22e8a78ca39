// The control channel of a CUDA communicator with its type erased: start-up agreement, split, and
// the wire on which ranks tell each other that one of them has failed.
//
// Any communicator of the host side will do (over MPI: launch::world::communicator()), or a store
// where the processes have no MPI. Device memory never travels on it.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/backend/concepts.hpp>
#include <polyrank/core/error.hpp>

#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace polyrank::cuda {

/// A model of control_channel. Shared by the communicator and its watcher.
class control {
 public:
  /// Takes over `host`, which must be used for nothing else.
  template <class Host>
    requires splittable<Host> && abortable<Host>
  explicit control(Host host) : line_(std::make_shared<model<Host>>(std::move(host))) {}

  /// Takes over a channel of processes without MPI: launch::tcp_store, launch::file_store. It
  /// cannot be split, and a rank's cause does not travel on it: the others learn from NCCL that it
  /// is gone.
  template <class Store>
    requires(control_channel<Store> && !communicator<Store>)
  explicit control(Store store) : line_(std::make_shared<store_model<Store>>(std::move(store))) {}

  [[nodiscard]] int rank() const { return line_->rank(); }
  [[nodiscard]] int size() const { return line_->size(); }
  /// The bytes of every rank. @collective
  [[nodiscard]] std::vector<std::string> all_gather(std::string_view bytes) {
    return line_->all_gather(bytes);
  }
  /// @collective
  [[nodiscard]] std::int64_t all_reduce_max(std::int64_t value) {
    return line_->all_reduce_max(value);
  }
  /// Throws timeout_error. @collective
  void barrier(std::chrono::milliseconds deadline) { line_->barrier(deadline); }
  /// @collective
  [[nodiscard]] control split(int colour, int key) { return control(line_->split(colour, key)); }

  /// Tells every rank. Any thread.
  void abort(std::string_view cause) noexcept { line_->abort(cause); }
  /// The cause, if some rank has aborted; else empty. Any thread.
  [[nodiscard]] std::string heard() noexcept {
    try {
      line_->check();
    } catch (const aborted_error& e) {
      return e.cause();
    } catch (const std::exception& e) {
      return e.what();
    }
    return {};
  }

 private:
  struct line {
    virtual ~line() = default;
    virtual int rank() = 0;
    virtual int size() = 0;
    virtual std::vector<std::string> all_gather(std::string_view) = 0;
    virtual std::int64_t all_reduce_max(std::int64_t) = 0;
    virtual void barrier(std::chrono::milliseconds) = 0;
    virtual std::shared_ptr<line> split(int, int) = 0;
    virtual void abort(std::string_view) noexcept = 0;
    virtual void check() = 0;
  };

  template <class Host>
  struct model final : line {
    explicit model(Host h) : host(std::move(h)) {}
    int rank() override { return host.rank(); }
    int size() override { return host.size(); }
    std::vector<std::string> all_gather(std::string_view bytes) override {
      return host.control().all_gather(bytes);
    }
    std::int64_t all_reduce_max(std::int64_t value) override {
      return host.control().all_reduce_max(value);
    }
    void barrier(std::chrono::milliseconds d) override { host.control().barrier(d); }
    std::shared_ptr<line> split(int colour, int key) override {
      return std::make_shared<model>(host.split(colour, key));
    }
    void abort(std::string_view cause) noexcept override { host.abort(cause); }
    void check() override { host.check(); }

    Host host;
  };

  template <class Store>
  struct store_model final : line {
    explicit store_model(Store s) : store(std::move(s)) {}
    int rank() override { return store.rank(); }
    int size() override { return store.size(); }
    std::vector<std::string> all_gather(std::string_view bytes) override {
      return store.all_gather(bytes);
    }
    std::int64_t all_reduce_max(std::int64_t value) override { return store.all_reduce_max(value); }
    void barrier(std::chrono::milliseconds d) override { store.barrier(d); }
    std::shared_ptr<line> split(int, int) override {
      throw on_every_rank(usage_error("split: ranks that met over a store have no control channel "
                                      "for parts; give each part a store of its own"));
    }
    void abort(std::string_view) noexcept override {}
    void check() override {}

    Store store;
  };

  explicit control(std::shared_ptr<line> l) : line_(std::move(l)) {}

  std::shared_ptr<line> line_;
};

} // namespace polyrank::cuda
