// llm.c's files, written here byte by byte.
// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/fake_disk.hpp"
#include "support/catch.hpp"

#include <polyrank/checkpoint/llmc.hpp>

#include <cstring>
#include <functional>
#include <numeric>
#include <string>
#include <vector>

using namespace polyrank;
using namespace polyrank::checkpoint;
using polyrank::test::contents;
using polyrank::test::fake_disk;
using polyrank::test::fake_files;

namespace {

constexpr llmc::shape tiny{
    .longest = 3, .vocabulary = 5, .layers = 2, .heads = 2, .channels = 4, .padded = 8};
// wte 8x4, wpe 3x4; a layer: 2 norms of 2x4, 12x4 + 12, 4x4 + 4, 16x4 + 16, 4x16 + 4; lnf 2x4
constexpr std::size_t tiny_count = 32 + 12 + 2 * (16 + 60 + 20 + 80 + 68) + 8;

struct file {
  contents bytes;
  template <class T>
  void add(T value) {
    const auto* p = reinterpret_cast<const std::byte*>(&value);
    bytes.insert(bytes.end(), p, p + sizeof value);
  }
  template <class T>
  void set(std::size_t field, T value) {
    std::memcpy(bytes.data() + 4 * field, &value, sizeof value);
  }
};

file model_file(std::int32_t version = 3) {
  file f;
  for (const std::int32_t v : {20240326, version, 3, 5, 2, 2, 4, 8}) f.add(v);
  f.bytes.resize(1024);
  for (std::size_t i = 0; i < tiny_count; ++i)
    if (version == 3)
      f.add(static_cast<float>(i));
    else
      f.add(static_cast<std::uint16_t>(i));
  return f;
}

/// Plane p of a process: 1000 p + its place, and 10000 for each process.
file state_file(int ranks, int rank, std::size_t count, bool masters = true, bool loader = false) {
  file f;
  for (const std::int32_t v : {20240527, 1, ranks, rank, masters ? 1 : 0, loader ? 1 : 0}) f.add(v);
  f.bytes.resize(1024);
  f.set<std::int32_t>(10, 20);
  f.set<std::uint64_t>(20, 13371337);
  f.set<std::uint64_t>(30, 2);
  f.set<std::uint64_t>(32, 77);
  for (int p = 0; p < (masters ? 3 : 2); ++p)
    for (std::size_t i = 0; i < count; ++i)
      f.add(static_cast<float>(10000 * rank + 1000 * p) + static_cast<float>(i));
  if (loader) {
    f.add<std::uint64_t>(1);
    f.add<std::int32_t>(0);
    f.add<std::uint64_t>(2);
    f.add<std::uint64_t>(0); // two samples
    f.bytes.resize(f.bytes.size() + 2520);
  }
  return f;
}

struct folder {
  fake_disk disk;
  fake_files files{disk};
  folder() { files.make_directory("/d"); }
  fs::path put(const std::string& name, const file& f) {
    const fs::path path = "/d/" + name;
    files.create(path)->write(f.bytes);
    return path;
  }
};

std::string fault_of(const std::function<void()>& work) {
  try {
    work();
  } catch (const data_error& e) {
    return e.what();
  }
  return "no fault";
}

} // namespace

TEST_CASE("llm.c models are read and written to the byte", "[llmc]") {
  REQUIRE(llmc::parameter_count(tiny) == tiny_count);
  for (const std::int32_t version : {3, 5}) {
    folder d;
    const file original = model_file(version);
    const llmc::model m(d.files, d.put("m.bin", original));
    REQUIRE(m.shape == tiny);
    REQUIRE(m.type == (version == 3 ? dtype::f32 : dtype::bf16));
    const auto tensors = llmc::tensors_of(tiny, m.type);
    REQUIRE(tensors.size() == 16);
    REQUIRE(tensors[12].name == "fcprojw");
    REQUIRE(tensors[12].shape == std::vector<std::uint64_t>{2, 4, 16});
    llmc::write_model(d.files, "/d/again.bin", m.shape, m.type,
                      [&](std::size_t i) { return m.bytes(i); });
    REQUIRE(d.disk.visible["/d/again.bin"]->visible == original.bytes);
  }
}

TEST_CASE("what is no llm.c model is refused with the reason", "[llmc]") {
  folder d;
  const auto fault = [&](auto change) {
    file f = model_file();
    change(f);
    return fault_of([&] { llmc::model(d.files, d.put("m.bin", f)); });
  };
  REQUIRE(fault([](file&) {}) == "no fault");
  REQUIRE(fault([](file& f) { f.bytes.resize(1000); }) ==
          "/d/m.bin: truncated: 1000 bytes; the header alone has 1024");
  REQUIRE(fault([](file& f) { f.set(0, 20240520); }) ==
          "/d/m.bin: is no model of llm.c: it starts with 20240520, not 20240326");
  REQUIRE(fault([](file& f) { f.set(1, 1); }) ==
          "/d/m.bin: has version 1; known are 3 (fp32) and 5 (bf16)");
  REQUIRE_THAT(fault([](file& f) { f.set(1, 5); }),
               Catch::Contains("bytes, a model of this header"));
  REQUIRE_THAT(fault([](file& f) { f.bytes.pop_back(); }), Catch::EndsWith("truncated"));
  REQUIRE_THAT(fault([](file& f) { f.set(4, -2); }), Catch::Contains("-2 at place 4"));
  REQUIRE_THAT(fault([](file& f) { f.set(5, 3); }), Catch::Contains("4 channels in 3 heads"));
  REQUIRE_THAT(fault([](file& f) { f.set(7, 4); }), Catch::Contains("vocabulary 5 of 4"));
}

TEST_CASE("llm.c states are read and written to the byte", "[llmc]") {
  folder d;
  for (const bool masters : {false, true})
    for (const bool loader : {false, true}) {
      const file original = state_file(4, 3, tiny_count / 4, masters, loader);
      const llmc::state s(d.files, d.put("s.bin", original), tiny);
      REQUIRE_FALSE(s.whole);
      REQUIRE(s.progress.step == 20);
      REQUIRE(s.progress.data_sample == 77);
      std::vector<std::span<const float>> planes;
      for (std::size_t p = 0; p < s.planes(); ++p)
        planes.emplace_back(reinterpret_cast<const float*>(s.plane(p).data()), tiny_count / 4);
      llmc::write_state(d.files, "/d/again.bin", s.progress, planes, s.loader());
      REQUIRE(d.disk.visible["/d/again.bin"]->visible == original.bytes);
    }
}

TEST_CASE("the parts of llm.c's processes become whole tensors, for any number", "[llmc]") {
  // The N-th part of each layer of each tensor, those parts end to end.
  folder d;
  const llmc::state a(d.files, d.put("a", state_file(2, 0, tiny_count / 2)), tiny),
      b(d.files, d.put("b", state_file(2, 1, tiny_count / 2)), tiny);
  const std::vector<float> all = llmc::gather(tiny, {&b, &a}, 1);
  REQUIRE(all[0] == 1000);
  REQUIRE(all[15] == 1015);
  REQUIRE(all[16] == 11000); // the second half of wte is process 1's
  REQUIRE(all[32] == 1016);  // wpe
  REQUIRE(all[44] == 1022);  // ln1w, layer 0
  REQUIRE(all[46] == 11022); // its second half
  REQUIRE(all[48] == 1024);  // ln1w, layer 1
  REQUIRE(all[tiny_count - 1] == 11000 + tiny_count / 2 - 1);
  for (const std::uint64_t n : {1u, 2u, 4u}) {
    REQUIRE(llmc::divides(tiny, n));
    std::vector<std::vector<float>> parts;
    std::size_t total = 0;
    for (std::uint64_t r = 0; r < n; ++r) {
      parts.push_back(llmc::part_of(tiny, all, n, r));
      total += parts.back().size();
      if (n == 2) {
        REQUIRE(std::memcmp(parts[r].data(), (r == 0 ? a : b).plane(1).data(),
                            parts[r].size() * sizeof(float)) == 0);
      }
    }
    REQUIRE(total == tiny_count);
  }
  REQUIRE_FALSE(llmc::divides(tiny, 3));
  const llmc::state whole(d.files, d.put("w", state_file(2, 1, tiny_count)), tiny);
  REQUIRE(whole.whole);
  REQUIRE(llmc::gather(tiny, {&whole}, 0)[5] == 10005); // every process has everything
  REQUIRE(fault_of([&] { (void)llmc::gather(tiny, {&a}, 0); }) ==
          "the state of process 1 of 2 is missing");
  REQUIRE_THAT(fault_of([&] {
                 (void)llmc::gather(tiny, {&a, &a}, 0);
               }),
               Catch::Contains("process 0 is there twice"));
  const llmc::state other(d.files, d.put("o", state_file(4, 1, tiny_count / 4)), tiny);
  REQUIRE_THAT(fault_of([&] {
                 (void)llmc::gather(tiny, {&a, &other}, 0);
               }),
               Catch::Contains("on 4 processes"));
}

TEST_CASE("what is no llm.c state is refused with the reason", "[llmc]") {
  folder d;
  const auto fault = [&](auto change, bool loader = false) {
    file f = state_file(2, 1, tiny_count / 2, true, loader);
    change(f);
    return fault_of([&] { llmc::state(d.files, d.put("s.bin", f), tiny); });
  };
  REQUIRE(fault([](file&) {}) == "no fault");
  REQUIRE(fault([](file& f) { f.set(0, 20240326); }) ==
          "/d/s.bin: is no state of llm.c: it starts with 20240326, not 20240527");
  REQUIRE(fault([](file& f) { f.set(1, 2); }) == "/d/s.bin: has version 2; known is 1");
  REQUIRE_THAT(fault([](file& f) { f.set(3, 2); }), Catch::Contains("process 2 of 2"));
  REQUIRE_THAT(fault([](file& f) { f.bytes.resize(f.bytes.size() - 4); }),
               Catch::Contains("truncated, or of another model"));
  REQUIRE_THAT(fault([](file& f) { f.bytes.resize(f.bytes.size() + 4); }),
               Catch::Contains("truncated, or of another model"));
  REQUIRE(fault([](file&) {}, true) == "no fault");
  REQUIRE_THAT(fault([](file& f) { f.bytes.pop_back(); }, true), Catch::Contains("truncated"));
  REQUIRE_THAT(fault([](file& f) { f.set(5, 1); }),
               Catch::Contains("truncated")); // no loader follows
}
