// A small, safe XML reader for topology files: elements, attributes and text. No entity is ever
// expanded but the five predefined ones and character references; a DOCTYPE is skipped and must not
// declare anything; size, depth and number of elements are bounded.
//
//     const xml_document doc = parse_xml(text, "topo.xml");
//     for (std::size_t i : doc.nodes[0].children) use(doc.nodes[i].name);
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/probe/source_text.hpp>

#include <charconv>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace polyrank::probe {

struct xml_element {
  std::string name;
  std::vector<std::pair<std::string, std::string>> attributes;
  std::string text;                  ///< character data directly inside, concatenated
  std::vector<std::size_t> children; ///< in document order
  std::size_t parent = 0;            ///< the root is its own
  place at;

  /// The value of an attribute, or null.
  [[nodiscard]] const std::string* find(std::string_view attribute) const noexcept {
    for (const auto& [key, value] : attributes)
      if (key == attribute) return &value;
    return nullptr;
  }
  [[nodiscard]] std::string_view get(std::string_view attribute,
                                     std::string_view otherwise = {}) const noexcept {
    const std::string* value = find(attribute);
    return value != nullptr ? std::string_view(*value) : otherwise;
  }
};

struct xml_document {
  std::string name;               ///< what to call the file in errors
  std::vector<xml_element> nodes; ///< the root first, parents before children
};

/// Bounds of parse_xml.
struct xml_limits {
  std::size_t bytes = max_text_bytes, depth = 200, elements = 1'000'000, attributes = 100;
};

namespace detail {

class xml_parser {
 public:
  xml_parser(std::string_view text, std::string_view name, xml_limits limits)
      : text_(text), limits_(limits) {
    doc_.name = name;
  }

  xml_document run() {
    if (text_.size() > limits_.bytes)
      fail("the file has ", text_.size(), " bytes, the limit is ", limits_.bytes);
    if (text_.starts_with("\xef\xbb\xbf")) advance(3);
    while (position_ < text_.size()) {
      if (text_[position_] != '<')
        character_data();
      else if (looking_at("<!--"))
        skip_past("-->", "the comment");
      else if (looking_at("<?"))
        skip_past("?>", "the processing instruction");
      else if (looking_at("<!DOCTYPE"))
        doctype();
      else if (looking_at("<![CDATA["))
        cdata();
      else if (looking_at("</"))
        end_tag();
      else
        start_tag();
    }
    if (!open_.empty()) {
      const xml_element& e = doc_.nodes[open_.back()];
      refuse(doc_.name, e.at, "<", e.name, "> is never closed; the file is cut off");
    }
    if (doc_.nodes.empty()) fail("no XML element");
    return std::move(doc_);
  }

 private:
  template <class... Pieces>
  [[noreturn]] void fail(const Pieces&... what) const {
    refuse(doc_.name, at_, what...);
  }
  [[nodiscard]] bool looking_at(std::string_view what) const noexcept {
    return text_.substr(position_).starts_with(what);
  }
  void advance(std::size_t n) noexcept {
    for (; n > 0 && position_ < text_.size(); --n, ++position_) {
      if (text_[position_] == '\n') {
        ++at_.line;
        at_.column = 1;
      } else {
        ++at_.column;
      }
    }
  }
  void skip_blanks() noexcept {
    while (position_ < text_.size() && is_blank(text_[position_])) advance(1);
  }
  void skip_past(std::string_view end, std::string_view what) {
    const std::size_t found = text_.find(end, position_);
    if (found == std::string_view::npos) fail(what, " has no end");
    advance(found + end.size() - position_);
  }
  void doctype() {
    const std::size_t end = text_.find_first_of("[>", position_);
    if (end == std::string_view::npos) fail("the DOCTYPE has no end");
    if (text_[end] == '[') fail("the DOCTYPE declares something; that is not read");
    advance(end + 1 - position_);
  }
  void cdata() {
    const place start = at_;
    const std::size_t begin = position_ + 9;
    const std::size_t end = text_.find("]]>", begin);
    if (end == std::string_view::npos) fail("the CDATA section has no end");
    if (open_.empty()) refuse(doc_.name, start, "CDATA outside of the root element");
    doc_.nodes[open_.back()].text += text_.substr(begin, end - begin);
    advance(end + 3 - position_);
  }
  void character_data() {
    const std::size_t end = std::min(text_.find('<', position_), text_.size());
    const std::string_view raw = text_.substr(position_, end - position_);
    const bool blank = trim(raw).empty();
    if (!blank && open_.empty()) {
      skip_blanks();
      fail("text outside of the root element");
    }
    if (!blank) doc_.nodes[open_.back()].text += decode(raw);
    advance(end - position_);
  }

  [[nodiscard]] std::string read_name() {
    const auto is_name = [](char c) {
      return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
             c == '_' || c == '-' || c == '.' || c == ':' || (static_cast<unsigned char>(c) & 0x80);
    };
    std::size_t end = position_;
    while (end < text_.size() && is_name(text_[end])) ++end;
    if (end == position_) fail("a name was expected here");
    if (end - position_ > 256) fail("a name of more than 256 characters");
    std::string name(text_.substr(position_, end - position_));
    advance(end - position_);
    return name;
  }

  /// Replaces character references; `raw` starts at the current place.
  [[nodiscard]] std::string decode(std::string_view raw) const {
    std::string out;
    out.reserve(raw.size());
    for (std::size_t i = 0; i < raw.size();) {
      if (raw[i] != '&') {
        out += raw[i++];
        continue;
      }
      const std::size_t end = raw.find(';', i);
      if (end == std::string_view::npos || end - i > 10) fail("'&' that starts no reference");
      const std::string_view word = raw.substr(i + 1, end - i - 1);
      if (word == "lt")
        out += '<';
      else if (word == "gt")
        out += '>';
      else if (word == "amp")
        out += '&';
      else if (word == "quot")
        out += '"';
      else if (word == "apos")
        out += '\'';
      else if (word.starts_with('#'))
        append_character(out, word.substr(1));
      else
        fail("entity &", word, "; is not expanded");
      i = end + 1;
    }
    return out;
  }
  void append_character(std::string& out, std::string_view number) const {
    const bool hex = number.starts_with('x');
    if (hex) number.remove_prefix(1);
    std::uint32_t c = 0;
    const auto [end, code] =
        std::from_chars(number.data(), number.data() + number.size(), c, hex ? 16 : 10);
    if (code != std::errc() || end != number.data() + number.size() || number.empty() ||
        c > 0x10ffff || c == 0)
      fail("not a character reference");
    const auto byte = [&](std::uint32_t b) {
      out += static_cast<char>(static_cast<unsigned char>(b));
    };
    if (c < 0x80) {
      byte(c);
    } else if (c < 0x800) {
      byte(0xc0 | c >> 6);
      byte(0x80 | (c & 0x3f));
    } else if (c < 0x10000) {
      byte(0xe0 | c >> 12);
      byte(0x80 | (c >> 6 & 0x3f));
      byte(0x80 | (c & 0x3f));
    } else {
      byte(0xf0 | c >> 18);
      byte(0x80 | (c >> 12 & 0x3f));
      byte(0x80 | (c >> 6 & 0x3f));
      byte(0x80 | (c & 0x3f));
    }
  }

  void start_tag() {
    xml_element e;
    e.at = at_;
    advance(1);
    e.name = read_name();
    if (open_.empty() && !doc_.nodes.empty())
      refuse(doc_.name, e.at, "<", e.name, "> after the end of the root element");
    if (doc_.nodes.size() >= limits_.elements) fail("more than ", limits_.elements, " elements");
    if (open_.size() >= limits_.depth) fail("elements nested more than ", limits_.depth, " deep");
    bool closed = false;
    while (true) {
      skip_blanks();
      if (looking_at("/>")) {
        advance(2);
        closed = true;
        break;
      }
      if (looking_at(">")) {
        advance(1);
        break;
      }
      if (position_ >= text_.size())
        refuse(doc_.name, e.at, "<", e.name, " has no end; the file is cut off");
      read_attribute(e);
    }
    const std::size_t index = doc_.nodes.size();
    e.parent = open_.empty() ? 0 : open_.back();
    doc_.nodes.push_back(std::move(e));
    if (!open_.empty()) doc_.nodes[open_.back()].children.push_back(index);
    if (!closed) open_.push_back(index);
  }
  void read_attribute(xml_element& e) {
    if (e.attributes.size() >= limits_.attributes)
      fail("more than ", limits_.attributes, " attributes");
    const place start = at_;
    std::string key = read_name();
    if (e.find(key) != nullptr) refuse(doc_.name, start, "attribute ", key, " appears twice");
    skip_blanks();
    if (!looking_at("=")) fail("'=' expected after attribute ", key);
    advance(1);
    skip_blanks();
    if (!looking_at("\"") && !looking_at("'")) fail("a quoted value expected for ", key);
    const char quote = text_[position_];
    advance(1);
    const std::size_t end = text_.find(quote, position_);
    if (end == std::string_view::npos) fail("the value of ", key, " has no end");
    const std::string_view raw = text_.substr(position_, end - position_);
    if (raw.find('<') != std::string_view::npos) fail("'<' in the value of ", key);
    e.attributes.emplace_back(std::move(key), decode(raw));
    advance(end + 1 - position_);
  }
  void end_tag() {
    const place start = at_;
    advance(2);
    const std::string name = read_name();
    skip_blanks();
    if (!looking_at(">")) fail("'>' expected");
    advance(1);
    if (open_.empty()) refuse(doc_.name, start, "</", name, "> without a start");
    const xml_element& e = doc_.nodes[open_.back()];
    if (e.name != name)
      refuse(doc_.name, start, "</", name, "> ends <", e.name, "> of line ", e.at.line);
    open_.pop_back();
  }

  std::string_view text_;
  xml_limits limits_;
  std::size_t position_ = 0;
  place at_;
  xml_document doc_;
  std::vector<std::size_t> open_;
};

} // namespace detail

/// Reads a whole document. @throws data_error with line and column
[[nodiscard]] inline xml_document parse_xml(std::string_view text, std::string_view name,
                                            xml_limits limits = {}) {
  return detail::xml_parser(text, name, limits).run();
}

} // namespace polyrank::probe
