// Pictures for people: a small SVG writer, a line chart, and a sheet of captioned photos.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace polyrank::examples {

/// Text with &, <, > and quotes made safe for XML.
[[nodiscard]] std::string xml_escape(std::string_view text);

/// An SVG under construction. Units are pixels, y points down.
class svg {
 public:
  svg(double width, double height, std::string_view title);

  struct text_style {
    double size = 12;
    std::string_view colour = "#222";
    std::string_view anchor = "start"; ///< start, middle, end
    bool bold = false;
  };
  void text(double x, double y, std::string_view words, const text_style& style);
  void line(double x0, double y0, double x1, double y1, std::string_view colour, double width = 1);
  void rectangle(double x, double y, double w, double h, std::string_view fill,
                 std::string_view stroke, double stroke_width = 1);
  void polyline(std::span<const std::pair<double, double>> points, std::string_view colour,
                double width = 1.5);
  void circle(double x, double y, double radius, std::string_view colour);
  /// A grey picture, its pixels drawn as squares.
  void picture(double x, double y, double w, double h, std::span<const std::uint8_t> pixels,
               std::size_t rows, std::size_t columns);

  [[nodiscard]] std::string finish() const { return body_ + "</svg>\n"; }

 private:
  std::string body_;
};

/// One curve of a chart.
struct series {
  std::string name;
  std::string colour;
  std::vector<std::pair<double, double>> points; ///< non-finite ones are left out
  bool markers = false;                          ///< dots, for few points
  double width = 2;
};

/// Curves over one pair of axes.
struct chart {
  std::string title, x_label, y_label;
  std::vector<series> curves;
};
/// Charts side by side.
[[nodiscard]] std::string charts_svg(std::string_view title, std::span<const chart> charts);

/// A photo with two lines under it.
struct card {
  std::vector<std::uint8_t> pixels; ///< 0 ... 255
  std::string caption;              ///< first line: what was predicted
  std::string note;                 ///< second line: what is true
  bool good = true;                 ///< green frame, else red
};
struct sheet {
  std::string title, subtitle;
  std::size_t rows = 0, columns = 0; ///< of a picture, in pixels
  std::vector<card> cards;
};
[[nodiscard]] std::string contact_sheet_svg(const sheet& s, std::size_t cards_per_line = 10);

/// Round numbers that cover [low, high] in about `count` steps: 0, 0.2, 0.4, ...
[[nodiscard]] std::vector<double> axis_ticks(double low, double high, std::size_t count = 5);

} // namespace polyrank::examples
