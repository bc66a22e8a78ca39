// The square tables that `nvidia-smi topo` prints, cut into cells: header, one row per device,
// trailing columns ("CPU Affinity", ...). Knows how such tables get damaged on their way into a
// file: tabs turned into blanks, Markdown tables, cells that touch, rows broken over several lines.
//
// A table is accepted only if it can be cut in exactly one way: every cell must be a word that such
// a table has, the count must be right, and each row must have its X on the diagonal. So a column
// is never shifted: what cannot be told is refused with line and column.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/probe/clean_line.hpp>
#include <polyrank/probe/source_text.hpp>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace polyrank::probe {

struct matrix_cell {
  std::string text;
  place at;
};
struct matrix_row {
  std::string name;
  place at;
  std::vector<matrix_cell> cells; ///< one per device of the header
  std::vector<matrix_cell> tail;  ///< one per trailing column, empty text where there is none
};
struct matrix_table {
  std::vector<std::string> devices; ///< of the header
  std::vector<std::string> tail;    ///< "CPU Affinity", "NUMA Affinity", "GPU NUMA ID"
  std::vector<matrix_row> rows;
  std::size_t end = 0; ///< index of the first line after the table
};

namespace detail {

[[nodiscard]] inline bool is_digit(char c) noexcept { return c >= '0' && c <= '9'; }

/// "GPU12" -> 5; 0 if `text` does not start like that.
[[nodiscard]] inline std::size_t numbered(std::string_view text, std::string_view word) noexcept {
  if (!text.starts_with(word)) return 0;
  std::size_t i = word.size();
  while (i < text.size() && is_digit(text[i])) ++i;
  return i > word.size() ? i : 0;
}

/// Length of the word of a `topo -m` or `topo -p2p` cell at the start of `text`; 0 for none.
[[nodiscard]] inline std::size_t cell_word(std::string_view text) noexcept {
  if (const std::size_t n = numbered(text, "NV"); n > 0) return n;
  for (const std::string_view word : {"PIX", "PXB", "PHB", "NODE", "SYS", "SOC", "N/A", "CNS",
                                      "GNS", "TNS", "DR", "OK", "NS", "X", "U"})
    if (text.starts_with(word)) return word.size();
  return 0;
}

class matrix_reader {
 public:
  matrix_reader(std::string_view text, std::string_view name) : name_(name) {
    if (text.size() > max_text_bytes) refuse(name, {1, 1}, "a table of more than 64 MiB");
    std::size_t number = 0;
    for (const std::string_view line : lines_of(text)) lines_.push_back(clean(line, ++number));
  }

  [[nodiscard]] const std::vector<clean_line>& lines() const noexcept { return lines_; }

  /// The line of the header, counted from 1; no_line if there is none.
  [[nodiscard]] std::size_t header_line() const {
    const std::size_t i = find_header();
    return i == no_line ? no_line : lines_[i].line;
  }

  matrix_table run() {
    const std::size_t start = find_header();
    if (start == no_line)
      refuse(name_, {1, 1}, "no table of `nvidia-smi topo`: a header GPU0 GPU1 ..., then rows");
    std::size_t i = header(start);
    while (i < lines_.size()) {
      const std::string_view rest = trim(lines_[i].text);
      if (is_rule(rest)) {
        ++i;
        continue;
      }
      if (rest.empty()) { // tickets double the line ends: empty lines between rows are no end
        std::size_t next = i;
        while (next < lines_.size() && trim(lines_[next].text).empty()) ++next;
        if (next == lines_.size() || row_name(lines_[next]).empty()) break;
        i = next;
      }
      if (row_name(lines_[i]).empty()) {
        if (!table_.rows.empty()) break;
        refuse(name_, lines_[i].at(skip(lines_[i], 0)), "a row that starts with ",
               table_.devices[0], " was expected");
      }
      i = row(i);
    }
    table_.end = i;
    if (table_.rows.empty()) refuse(name_, lines_[start].at(0), "a header without rows");
    for (const std::string& device : table_.devices)
      if (device.starts_with("GPU") && !has_row(device))
        refuse(name_, i < lines_.size() ? lines_[i].at(0) : place{lines_.size(), 1}, "the row of ",
               device, " is missing; the table is cut off");
    return std::move(table_);
  }

 private:
  [[nodiscard]] bool has_row(std::string_view device) const {
    return std::any_of(table_.rows.begin(), table_.rows.end(),
                       [&](const matrix_row& r) { return r.name == device; });
  }
  /// The line under a Markdown header, a code fence, a frame.
  [[nodiscard]] static bool is_rule(std::string_view text) noexcept {
    return !text.empty() && text.find_first_not_of("|-:+= \t~") == std::string_view::npos;
  }
  [[nodiscard]] static bool separates(char c) noexcept { return is_blank(c) || c == '|'; }
  [[nodiscard]] static std::size_t skip(const clean_line& l, std::size_t i) noexcept {
    while (i < l.text.size() && separates(l.text[i])) ++i;
    return i;
  }
  [[nodiscard]] static std::string_view word_at(const clean_line& l, std::size_t i) noexcept {
    std::size_t end = i;
    while (end < l.text.size() && !separates(l.text[end])) ++end;
    return std::string_view(l.text).substr(i, end - i);
  }

  /// A header starts with GPU0 and goes on with anything but a cell; so may prose. The one that
  /// stands last above the first row counts. no_line if no header stands above rows.
  [[nodiscard]] std::size_t find_header() const {
    std::size_t best = no_line;
    std::pair<std::size_t, std::string_view> device; // compares "GPU2" < "GPU10"
    for (std::size_t i = 0; i < lines_.size(); ++i) {
      const clean_line& l = lines_[i];
      const std::string_view word = word_at(l, skip(l, 0));
      const std::size_t n = numbered(word, "GPU");
      if (n == 0) continue;
      const std::string_view rest = word.substr(n);
      const std::pair found(n, word.substr(0, n));
      if (starts_row(l)) {
        if (best != no_line) return best;
      } else if (rest.empty() || rest.starts_with("GPU") || rest.starts_with("NIC") ||
                 rest.starts_with("CPU")) {
        if (best == no_line || found <= device) { // else it continues a broken header
          best = i;
          device = found;
        }
      }
    }
    return no_line;
  }

  /// Devices and trailing columns; returns the first line of the rows.
  std::size_t header(std::size_t start) {
    std::size_t end = start + 1;
    // A header that was broken over lines goes on up to the first row: a name and then a cell.
    while (end < lines_.size() && !is_rule(trim(lines_[end].text)) && !starts_row(lines_[end]))
      ++end;
    if (end - start > 16) end = start + 1;
    std::optional<std::string> why;
    for (const char* joint : {" ", ""}) {
      clean_line l = lines_[start];
      for (std::size_t i = start + 1; i < end; ++i) join(l, lines_[i], joint);
      table_.devices.clear();
      table_.tail.clear();
      try {
        read_header(l);
        if (table_.devices.size() > 4096) refuse(name_, l.at(0), "more than 4096 devices");
        return end;
      } catch (const data_error& e) {
        if (!why) why = e.what();
      }
    }
    throw data_error(*why);
  }
  [[nodiscard]] static bool starts_row(const clean_line& l) noexcept {
    const std::size_t at = skip(l, 0);
    const std::string_view word = word_at(l, at);
    if (word.empty()) return true; // an empty line ends a header too
    const std::size_t n = numbered(word, "GPU");
    if (n > 0 && n < word.size() && cell_word(word.substr(n)) > 0) return true; // "GPU0X"
    return cell_word(word_at(l, skip(l, at + word.size()))) > 0;
  }
  static void join(clean_line& l, const clean_line& more, std::string_view joint) {
    l.columns.resize(l.text.size());
    l.text += joint;
    l.columns.insert(l.columns.end(), joint.size(), 1);
    l.text += more.text;
    l.columns.insert(l.columns.end(), more.columns.begin(), more.columns.end());
  }

  void read_header(const clean_line& l) {
    std::size_t i = skip(l, 0);
    while (i < l.text.size()) {
      const std::string_view rest = std::string_view(l.text).substr(i);
      std::size_t n = 0;
      std::string name;
      for (const std::string_view column : {"CPU Affinity", "NUMA Affinity", "GPU NUMA ID"})
        if ((n = phrase(rest, column)) > 0) {
          name = column;
          break;
        }
      if (n > 0) {
        if (table_.tail.empty()) tail_column_ = l.screen_column(i);
        table_.tail.push_back(name);
      } else {
        n = numbered(rest, "GPU");
        if (n == 0) n = numbered(rest, "NIC");
        if (n == 0)
          while (n < rest.size() && !separates(rest[n])) ++n;
        name = rest.substr(0, n);
        if (!table_.tail.empty())
          refuse(name_, l.at(i), "\"", name, "\" after ", table_.tail.back(),
                 ": not a column of `nvidia-smi topo` that is known");
        if (std::find(table_.devices.begin(), table_.devices.end(), name) != table_.devices.end())
          refuse(name_, l.at(i), "column ", name, " appears twice");
        table_.devices.push_back(name);
      }
      i = skip(l, i + n);
    }
  }
  /// Length of `words` at the start of `text`, its blanks being any number of blanks, also none.
  [[nodiscard]] static std::size_t phrase(std::string_view text, std::string_view words) noexcept {
    std::size_t i = 0;
    for (const char c : words) {
      if (c == ' ') {
        while (i < text.size() && is_blank(text[i])) ++i;
      } else if (i >= text.size() || text[i++] != c) {
        return 0;
      }
    }
    return i;
  }

  /// The device of the header that a line starts with; empty if none.
  [[nodiscard]] std::string_view row_name(const clean_line& l) const {
    const std::string_view word = word_at(l, skip(l, 0));
    for (const std::string& d : table_.devices)
      if (word == d) return d;
    // A name that touches its first cell: "GPU0X".
    for (const std::string& d : table_.devices)
      if (word.starts_with(d) && !is_digit(word[d.size()]) && cell_word(word.substr(d.size())) > 0)
        return d;
    return {};
  }

  /// Reads the row that starts at line `first`, with the lines that continue it; returns the next
  /// line.
  std::size_t row(std::size_t first) {
    std::size_t last = first + 1;
    while (last < lines_.size() && !trim(lines_[last].text).empty() &&
           !is_rule(trim(lines_[last].text)) && row_name(lines_[last]).empty() &&
           trim(lines_[last].text).find("Legend") == std::string_view::npos && last - first < 8)
      ++last;
    std::optional<matrix_row> found;
    std::optional<std::string> why;
    // A broken line may have been broken between cells or inside of one: all ways are tried.
    const std::size_t joints = last - first - 1;
    for (std::size_t ways = 0; ways < std::size_t{1} << joints; ++ways) {
      clean_line l = lines_[first];
      for (std::size_t j = 0; j < joints; ++j) {
        const clean_line& more = lines_[first + 1 + j];
        join(l, more, (ways >> j & 1) == 0 ? " " : "");
      }
      try {
        matrix_row r = cut(l, joints > 0);
        if (found && !same(*found, r))
          refuse(name_, lines_[first].at(0), "the row of ", r.name, " is broken over ", joints + 1,
                 " lines and can be joined in more than one way");
        found = std::move(r);
      } catch (const data_error& e) {
        if (found) throw;
        if (!why) why = e.what();
      }
    }
    // A prompt or a remark may follow the last row without an empty line between.
    if (!found && joints > 0 && (last == lines_.size() || row_name(lines_[last]).empty())) {
      matrix_row r = cut(lines_[first], false);
      if (table_.tail.empty() || !r.name.starts_with("GPU") || !r.tail.back().text.empty()) {
        found = std::move(r);
        last = first + 1;
      }
    }
    if (!found) throw data_error(*why);
    if (has_row(found->name))
      refuse(name_, found->at, "the row of ", found->name, " appears twice");
    table_.rows.push_back(std::move(*found));
    return last;
  }
  [[nodiscard]] static bool same(const matrix_row& a, const matrix_row& b) {
    const auto equal = [](const std::vector<matrix_cell>& x, const std::vector<matrix_cell>& y) {
      return std::equal(
          x.begin(), x.end(), y.begin(), y.end(),
          [](const matrix_cell& c, const matrix_cell& d) { return c.text == d.text; });
    };
    return equal(a.cells, b.cells) && equal(a.tail, b.tail);
  }

  [[nodiscard]] matrix_row cut(const clean_line& l, bool joined) const {
    matrix_row r;
    r.name = row_name(l);
    std::size_t i = skip(l, 0);
    r.at = l.at(i);
    i += r.name.size();
    bool touching = false;
    while (r.cells.size() < table_.devices.size()) {
      const std::string_view column = table_.devices[r.cells.size()];
      const std::size_t before = i;
      i = empty_cell(l, i);
      // Hands that align a table double its tabs: then tabs no longer tell the trailing columns.
      const std::string_view gap = std::string_view(l.text).substr(before, i - before);
      if (i == before ? !r.cells.empty() : std::count(gap.begin(), gap.end(), '\t') > 1)
        touching = true;
      if (i >= l.text.size())
        refuse(name_, l.at(i), "row ", r.name, " ends before column ", column);
      const std::string_view rest = std::string_view(l.text).substr(i);
      const std::size_t n = cell_word(rest);
      if (n == 0)
        refuse(name_, l.at(i), "row ", r.name, ", column ", column, ": \"", word_at(l, i),
               "\" is no link that nvidia-smi prints");
      r.cells.push_back({std::string(rest.substr(0, n)), l.at(i)});
      i += n;
      const bool own = r.name == column, x = rest.substr(0, n) == "X";
      if (own != x)
        refuse(name_, r.cells.back().at, "row ", r.name, ", column ", column, ": ",
               own ? "X expected on the diagonal, not \"" : "\"", rest.substr(0, n),
               own ? "\"" : "\" away from the diagonal; a column is missing or shifted");
    }
    if (i < l.text.size() && !separates(l.text[i])) touching = true;
    tail(l, i, r, touching, joined);
    return r;
  }
  /// Skips what lies between two cells: blanks and one '|'; two would hold an empty cell.
  std::size_t empty_cell(const clean_line& l, std::size_t i) const {
    int pipes = 0;
    for (; i < l.text.size() && separates(l.text[i]); ++i) pipes += l.text[i] == '|' ? 1 : 0;
    if (pipes > 1 && i < l.text.size()) refuse(name_, l.at(i - 1), "an empty cell between devices");
    return i;
  }

  /// The trailing columns.
  void tail(const clean_line& l, std::size_t i, matrix_row& r, bool touching, bool joined) const {
    struct found {
      std::string text;
      std::size_t at;
      std::size_t field; ///< number of tabs or pipes before it
    };
    std::vector<found> words;
    std::size_t field = 0;
    bool fields = false;
    while (i < l.text.size()) {
      if (separates(l.text[i])) {
        if (l.text[i] == '\t' || l.text[i] == '|') {
          ++field;
          fields = true;
        }
        ++i;
        continue;
      }
      const std::string_view word = word_at(l, i);
      if (!words.empty() && words.back().text.ends_with(','))
        words.back().text += word; // "0-3, 8"
      else
        words.push_back({std::string(word), i, field});
      i += word.size();
    }
    r.tail.assign(table_.tail.size(), {"", l.at(l.text.size())});
    if (words.empty()) return;
    const auto put = [&](std::size_t column, const found& w) {
      r.tail[column] = {w.text, l.at(w.at)};
    };
    const auto says_nothing = [](const found& w) { return w.text == "N/A"; };
    if (words.size() > table_.tail.size())
      refuse(name_, l.at(words[table_.tail.size()].at), "row ", r.name, ": \"",
             words[table_.tail.size()].text, "\" stands beyond the last column of the header");
    if (std::all_of(words.begin(), words.end(), says_nothing)) return; // whichever they are
    if (words.size() == table_.tail.size()) {
      for (std::size_t k = 0; k < words.size(); ++k) put(k, words[k]);
      return;
    }
    if (!touching && !joined && fields) {
      // nvidia-smi writes CPU \t NUMA \t\t GPU-NUMA: the third is the fourth field.
      const bool piped = l.text.find('|') != std::string::npos;
      bool good = true;
      for (const found& w : words) {
        std::size_t column = w.field - 1;
        if (!piped && table_.tail.size() == 3 && column == 3)
          column = 2;
        else if (!piped && table_.tail.size() == 3 && column == 2)
          good = false;
        good = good && w.field > 0 && column < table_.tail.size();
        if (good) put(column, w);
      }
      if (good) return;
    } else if (!touching && !joined && tail_column_ > 0) {
      // Blanks in place of tabs: what starts below "CPU Affinity" belongs there; an empty first
      // cell pushes the second to the next tab stop.
      const std::size_t column = l.screen_column(words[0].at);
      if (column == tail_column_ && std::all_of(words.begin() + 1, words.end(), says_nothing)) {
        put(0, words[0]);
        return;
      }
      if (column == tail_column_ + 8 && words.size() + 1 == table_.tail.size()) {
        for (std::size_t k = 0; k < words.size(); ++k) put(k + 1, words[k]);
        return;
      }
    }
    refuse(name_, l.at(words[0].at), "row ", r.name, ": ", words.size(), " values for ",
           table_.tail.size(), " columns after the devices; which is missing cannot be told");
  }

  std::string_view name_;
  std::vector<clean_line> lines_;
  matrix_table table_;
  std::size_t tail_column_ = 0; ///< on the screen
};

} // namespace detail

/// The line of the header of such a table; no_line if a text holds none.
[[nodiscard]] inline std::size_t matrix_line(std::string_view text) {
  if (text.find("GPU") == std::string_view::npos) return no_line;
  return detail::matrix_reader(text, {}).header_line();
}

} // namespace polyrank::probe
