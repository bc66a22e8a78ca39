// SPDX-License-Identifier: Apache-2.0
#include "train_classifier/dataset.hpp"

#include "support/files.hpp"

#include <polyrank/core/error.hpp>
#include <polyrank/data/digits_csv.hpp>
#include <polyrank/data/idx.hpp>

#include <cmath>
#include <optional>
#include <system_error>

namespace polyrank::examples {

namespace fs = std::filesystem;

namespace {

/// `name` or `name`.gz in `directory`.
std::optional<fs::path> find_file(const fs::path& directory, const std::string& name) {
  for (const fs::path& candidate : {directory / (name + ".gz"), directory / name}) {
    std::error_code ignored;
    if (fs::is_regular_file(candidate, ignored)) return candidate;
  }
  return std::nullopt;
}

labelled_images read_idx_pair(const fs::path& directory, const std::string& prefix) {
  const std::string names[] = {prefix + "-images-idx3-ubyte", prefix + "-labels-idx1-ubyte"};
  fs::path paths[2];
  for (std::size_t i = 0; i < 2; ++i) {
    const auto found = find_file(directory, names[i]);
    if (!found) throw data_error(detail::cat((directory / names[i]).string(), ".gz: no such file"));
    paths[i] = *found;
  }
  const auto images = read_file(paths[0]), labels = read_file(paths[1]);
  return parse_idx_images(images, paths[0].string(), labels, paths[1].string());
}

/// Mean and deviation from exact integer sums.
void measure(dataset& d) {
  std::uint64_t sum = 0, squares = 0;
  for (const std::uint64_t p : d.train.pixels) {
    sum += p;
    squares += p * p;
  }
  const auto n = static_cast<double>(d.train.pixels.size());
  const double mean = static_cast<double>(sum) / n;
  const double variance = static_cast<double>(squares) / n - mean * mean;
  d.mean = static_cast<float>(mean);
  d.inv_deviation = static_cast<float>(1 / std::sqrt(std::max(variance, 1e-6)));
}

} // namespace

dataset load_dataset(const fs::path& directory) {
  std::error_code code;
  if (!fs::is_directory(directory, code))
    throw data_error(detail::cat(directory.string(),
                                 ": no such directory; --data names one with the "
                                 "IDX files of Fashion-MNIST, or with digits.csv.gz"));
  dataset d;
  d.where = directory;
  if (find_file(directory, "train-images-idx3-ubyte")) {
    d.name = directory.filename() == "mnist" ? "mnist" : "fashion-mnist";
    const labelled_images all = read_idx_pair(directory, "train");
    d.test = read_idx_pair(directory, "t10k");
    const std::size_t held_out = std::min<std::size_t>(5000, all.count() / 12);
    d.train = slice(all, 0, all.count() - held_out);
    d.validation = slice(all, all.count() - held_out, all.count());
    if (d.name == "fashion-mnist")
      d.class_names = {"T-shirt", "Trouser", "Pullover", "Dress", "Coat",
                       "Sandal",  "Shirt",   "Sneaker",  "Bag",   "Ankle boot"};
  } else if (const auto csv = find_file(directory, "digits.csv")) {
    d.name = "digits";
    const labelled_images all = parse_digits_csv(read_file(*csv), csv->string());
    const std::size_t n = all.count(), test = n - n / 5, validation = test - n / 10;
    d.train = slice(all, 0, validation);
    d.validation = slice(all, validation, test);
    d.test = slice(all, test, n);
  } else {
    throw data_error(detail::cat(directory.string(),
                                 ": holds neither train-images-idx3-ubyte(.gz) nor "
                                 "digits.csv(.gz)"));
  }
  if (d.class_names.empty())
    for (std::size_t c = 0; c < d.train.classes; ++c) d.class_names.push_back(detail::cat(c));
  if (d.train.count() == 0 || d.train.features() == 0)
    throw data_error(detail::cat(directory.string(), ": no training pictures"));
  if (d.test.rows != d.train.rows || d.test.columns != d.train.columns)
    throw data_error(detail::cat(directory.string(), ": training pictures are ", d.train.rows, "x",
                                 d.train.columns, ", test pictures ", d.test.rows, "x",
                                 d.test.columns));
  measure(d);
  return d;
}

fs::path default_data_directory() {
  std::error_code ignored;
  const fs::path fashion = "/usr/share/datasets/fashion-mnist";
  if (fs::is_directory(fashion, ignored)) return fashion;
  const fs::path program = fs::read_symlink("/proc/self/exe", ignored);
  const fs::path installed = program.parent_path().parent_path() / "share/polyrank/data";
  if (fs::is_directory(installed, ignored)) return installed;
  return POLYRANK_EXAMPLE_DATA;
}

} // namespace polyrank::examples
