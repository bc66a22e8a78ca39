// What NCCL's own watcher (RAS, since NCCL 2.24) says about a job: a second witness beside the
// flight recorders. It counts launches by communicator and knows dead peers; it does not know what
// an operation was, nor what the GPU did.
//
//     for (const std::string& line : launch::ras_findings(launch::ras_status())) ...
//
// It listens on localhost:28028 (NCCL_RAS_ADDR) in every process that uses NCCL; one answers for
// all. Where there is none the status is empty.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/core/text.hpp>
#include <polyrank/launch/socket.hpp>

#include <chrono>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

namespace polyrank::launch {

/// Where RAS listens, as the environment says.
[[nodiscard]] inline std::string ras_address() {
  const char* text = std::getenv("NCCL_RAS_ADDR");
  return text != nullptr && *text != '\0' ? text : "localhost:28028";
}

/// RAS's verbose status as text, at most 256 KiB; empty where nobody answers within `patience`.
/// Never throws.
[[nodiscard]] inline std::string ras_status(std::chrono::milliseconds patience,
                                            const std::string& at = ras_address()) noexcept {
  std::string text;
  try {
    const auto until = std::chrono::steady_clock::now() + patience;
    const socket line = socket::connect(address::parse(at), std::chrono::steady_clock::now() +
                                                                std::chrono::milliseconds(50));
    constexpr std::string_view ask = "CLIENT PROTOCOL 2\nTIMEOUT 1\nVERBOSE STATUS\n";
    if (::send(line.native(), ask.data(), ask.size(), MSG_NOSIGNAL) !=
        static_cast<ssize_t>(ask.size()))
      return text;
    char part[4096];
    while (text.size() < (std::size_t{1} << 18)) { // it closes the line at the end
      const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
          until - std::chrono::steady_clock::now());
      pollfd p{line.native(), POLLIN, 0};
      if (left.count() <= 0 || ::poll(&p, 1, static_cast<int>(left.count())) <= 0) break;
      const ssize_t n = ::recv(line.native(), part, sizeof part, 0);
      if (n <= 0) break;
      text.append(part, static_cast<std::size_t>(n));
    }
  } catch (...) { // no address, nobody there
  }
  return text;
}

/// What a status complains of, a line each, at most 16: pure. Empty where all is well, and for any
/// text that is no status.
[[nodiscard]] inline std::vector<std::string> ras_findings(std::string_view status) {
  std::vector<std::string> found;
  bool complains = false;
  std::string_view before;
  while (!status.empty() && found.size() < 16) {
    const std::size_t end = status.find('\n');
    std::string_view line = status.substr(0, end);
    status.remove_prefix(end == std::string_view::npos ? status.size() : end + 1);
    while (!line.empty() && (line.back() == ' ' || line.back() == '\r')) line.remove_suffix(1);
    // A heading is underlined.
    if (line.size() > 3 && line.find_first_not_of('=') == std::string_view::npos) {
      if (complains && !found.empty() && found.back() == before) found.pop_back();
      complains = before.starts_with("Errors") || before.starts_with("Warnings");
    } else if (complains && !line.empty()) {
      std::string text;
      for (const char c : line.substr(line.find_first_not_of(' ')))
        text += static_cast<unsigned char>(c) < 32 || c == 127 ? '?' : c;
      if (line[0] == ' ' && !found.empty() && found.back().size() < 400)
        found.back() += "; " + text; // what belongs to the line above
      else
        found.push_back(text.substr(0, 400));
    }
    before = line;
  }
  return found;
}

/// What RAS complains of now, as findings; nothing where it is not there. Takes a second at most.
[[nodiscard]] inline std::vector<std::string> ras_witness() {
  std::vector<std::string> said;
  for (const std::string& line : ras_findings(ras_status(std::chrono::milliseconds(900))))
    said.push_back("NCCL RAS: " + line);
  return said;
}

} // namespace polyrank::launch
