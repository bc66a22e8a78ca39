// The typed errors of the library. Library headers throw; only programs print or exit.
//
//   error             base: text, the call that failed, where it was made, rank
//   |- usage_error    the caller's argument, flag or size is wrong (programs exit with 2)
//   |- data_error     a file or byte stream is missing, truncated or corrupt
//   |- mismatch_error ranks disagree: other model, order, count or type
//   |- comm_error     a communication call failed (code of the library beneath)
//   |- timeout_error  a deadline passed
//   |- aborted_error  another rank failed; the text repeats that rank's cause
//   '- out_of_memory  an allocation failed (bytes asked, bytes free)
//
// A text says what is wrong, where, and what to do.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/core/call_site.hpp>
#include <polyrank/core/text.hpp>

#include <cstddef>
#include <stdexcept>
#include <string>

namespace polyrank {

/// Base of all errors thrown by polyrank.
class error : public std::runtime_error {
 public:
  explicit error(const std::string& text, call_site site = call_site::here())
      : std::runtime_error(text), site_(site) {}

  /// Where the failing call was made.
  [[nodiscard]] call_site site() const noexcept { return site_; }

  /// True where every rank throws this same error, so that one rank should print it for all.
  [[nodiscard]] bool collective() const noexcept { return collective_; }

  /// Marks the error as agreed by all ranks; returns itself, for `throw
  /// on_every_rank(usage_error{...})`.
  template <class Self>
  friend Self on_every_rank(Self e) {
    e.collective_ = true;
    return e;
  }

 private:
  call_site site_;
  bool collective_ = false;
};

// Constructors are written out: nvcc 13.0 cannot inherit one with a call_site default.
class usage_error : public error {
 public:
  explicit usage_error(const std::string& text, call_site site = call_site::here())
      : error(text, site) {}
};

class data_error : public error {
 public:
  explicit data_error(const std::string& text, call_site site = call_site::here())
      : error(text, site) {}
};

class mismatch_error : public error {
 public:
  explicit mismatch_error(const std::string& text, call_site site = call_site::here())
      : error(text, site) {}
};

class timeout_error : public error {
 public:
  explicit timeout_error(const std::string& text, call_site site = call_site::here())
      : error(text, site) {}
};

/// Another rank failed first. `cause()` is that rank's text.
class aborted_error : public error {
 public:
  explicit aborted_error(const std::string& cause, call_site site = call_site::here())
      : error(detail::cat("aborted: ", cause), site), cause_(cause) {}
  [[nodiscard]] const std::string& cause() const noexcept { return cause_; }

 private:
  std::string cause_;
};

/// A call into MPI, NCCL or CUDA failed. `code()` is that library's code.
class comm_error : public error {
 public:
  comm_error(const std::string& call, int code, const std::string& reason,
             call_site site = call_site::here())
      : error(detail::cat(call, " -> ", reason, " (code ", code, ")"), site), code_(code) {}
  [[nodiscard]] int code() const noexcept { return code_; }

 private:
  int code_;
};

/// An allocation failed.
class out_of_memory : public error {
 public:
  out_of_memory(const std::string& what_for, std::size_t bytes_asked, std::size_t bytes_free,
                call_site site = call_site::here())
      : error(detail::cat("out of memory: ", what_for, " asked for ", bytes_asked, " bytes, ",
                          bytes_free, " are free"),
              site),
        bytes_asked_(bytes_asked) {}
  /// With a text that says all, such as that of another rank.
  out_of_memory(const std::string& text, std::size_t bytes_asked,
                call_site site = call_site::here())
      : error(text, site), bytes_asked_(bytes_asked) {}
  [[nodiscard]] std::size_t bytes_asked() const noexcept { return bytes_asked_; }

 private:
  std::size_t bytes_asked_;
};

/// Throws usage_error built from `pieces` unless `condition` holds.
template <class... Pieces>
void expects(bool condition, const Pieces&... pieces) {
  if (!condition) throw usage_error(detail::cat(pieces...));
}

} // namespace polyrank
