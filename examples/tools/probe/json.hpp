// The probe's report as JSON, schema polyrank.probe/1 (docs/probe.md), and back.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/probe/report.hpp>

#include <map>
#include <string>
#include <string_view>

namespace polyrank::examples {

[[nodiscard]] std::string report_json(const probe::report& r);

/// The machines and findings of a report. @throws data_error with the place, or the field that is
/// wrong
[[nodiscard]] probe::report read_report_json(std::string_view text, std::string_view name);

/// A file in any format that the probe reads, JSON included.
[[nodiscard]] probe::report read_any(const std::string& path,
                                     const std::map<std::string, int>& numa = {});

} // namespace polyrank::examples
