// safetensors, fragments and manifests: bytes in, values out.
// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/fake_disk.hpp"
#include "support/catch.hpp"

#include <polyrank/checkpoint/posix_files.hpp>
#include <polyrank/checkpoint/shard.hpp>
#include <polyrank/checkpoint/whole_file.hpp>

#include <cstring>
#include <string>
#include <vector>

#include <unistd.h>

using namespace polyrank;
using namespace polyrank::checkpoint;
using polyrank::test::fake_disk;
using polyrank::test::fake_files;

namespace {

/// A file: the length of the header, the header, the data.
std::vector<std::byte> file_of(const std::string& header, std::size_t data) {
  std::vector<std::byte> out(8 + header.size() + data, std::byte{7});
  const std::uint64_t n = header.size();
  std::memcpy(out.data(), &n, 8);
  std::memcpy(out.data() + 8, header.data(), n);
  return out;
}

std::string fault_of(const std::vector<std::byte>& file) {
  try {
    static_cast<void>(parse_header(file, "f"));
  } catch (const data_error& e) {
    return e.what();
  }
  return {};
}

std::string entry(const std::string& name, const std::string& type, const std::string& shape,
                  const std::string& offsets) {
  return "\"" + name + "\":{\"dtype\":\"" + type + "\",\"shape\":" + shape +
         ",\"data_offsets\":" + offsets + "}";
}

} // namespace

TEST_CASE("a safetensors file has exactly the bytes of the format", "[safetensors]") {
  fake_disk disk;
  fake_files files(disk);
  const std::vector<std::uint8_t> b{1, 2, 3};
  const std::vector<float> w{1.0f, -2.0f};
  files.make_directory("/d");
  write_safetensors(files, "/d/f",
                    {{"b", &type_of(dtype::u8), {3}, bytes_of(b)},
                     {"w\"", &type_of(dtype::f32), {2, 1}, bytes_of(w)}},
                    {{"k", "v"}});
  const std::string header =
      R"({"__metadata__":{"k":"v"},"w\"":{"dtype":"F32","shape":[2,1],"data_offsets":[0,8]},)"
      R"("b":{"dtype":"U8","shape":[3],"data_offsets":[8,11]}})";
  const std::string padding((8 - header.size() % 8) % 8, ' ');
  const std::string data("\x00\x00\x80\x3f\x00\x00\x00\xc0\x01\x02\x03", 11);
  const std::uint64_t n = header.size() + padding.size();
  const std::string expected(reinterpret_cast<const char*>(&n), 8);
  const auto view = files.open("/d/f");
  REQUIRE(std::string(reinterpret_cast<const char*>(view->bytes().data()), view->bytes().size()) ==
          expected + header + padding + data);

  const safetensors_file f(files, "/d/f");
  REQUIRE(f.header().notes == metadata{{"k", "v"}});
  REQUIRE(f.header().tensors.size() == 2);
  float second = 0;
  f.read("w\"", 1, std::as_writable_bytes(std::span(&second, 1)));
  REQUIRE(second == -2.0f);
  REQUIRE_THROWS_AS(f.read("w\"", 2, std::as_writable_bytes(std::span(&second, 1))), usage_error);
  REQUIRE_THROWS_WITH(f.read("x", 0, {}), "/d/f: has no tensor 'x'");
}

TEST_CASE("files that break the format are refused with the rule", "[safetensors]") {
  const auto one = [](const std::string& e, std::size_t data) {
    return file_of("{" + e + "}", data);
  };
  const std::string good = entry("a", "F32", "[2]", "[0,8]");
  REQUIRE(fault_of(one(good, 8)).empty());
  REQUIRE(fault_of(one(entry("a", "F32", "[0,5]", "[0,0]"), 0)).empty());
  REQUIRE(fault_of(one(entry("a", "F32", "[]", "[0,4]"), 4)).empty()); // a scalar
  REQUIRE(fault_of(file_of("{}   ", 0)).empty());
  const std::pair<std::vector<std::byte>, const char*> cases[] = {
      {{}, "truncated: it has 0 bytes"},
      {std::vector<std::byte>(7), "truncated: it has 7 bytes"},
      {std::vector<std::byte>(8), "does not start with {"},
      {std::vector<std::byte>(9, std::byte{0xff}), "the limit is 100000000"},
      {one(good, 7), "truncated or damaged"},
      {one(good, 9), "1 bytes after the last tensor"},
      {file_of(" {}", 0), "does not start with {"},
      {file_of("[]", 0), "does not start with {"},
      {file_of("{", 0), "no JSON"},
      {file_of("{} x", 0), "no JSON"},
      {file_of("{\"a\":1}", 0), "a number where"},
      {one(entry("a", "F31", "[2]", "[0,8]"), 8), "unknown dtype 'F31'"},
      {one(entry("a", "F32", "[3]", "[0,8]"), 8), "do not need"},
      {one(entry("a", "F32", "[-2]", "[0,8]"), 8), "a negative number"},
      {one(entry("a", "F32", "[2.0]", "[0,8]"), 8), "not whole"},
      {one(entry("a", "F32", "[2]", "[-8,8]"), 8), "a negative number"},
      {one(entry("a", "F32", "[2]", "[8,0]"), 8), "lies at [8, 0)"},
      {one(entry("a", "F32", "[2]", "[0,18446744073709551615]"), 8), "truncated or damaged"},
      {one(entry("a", "F32", "[2]", "[0]"), 8), "fewer than two"},
      {one(entry("a", "F32", "[2]", "[0,8,8]"), 8), "more than two"},
      {one(entry("a", "F32", "[4294967296,4294967296,4294967296]", "[0,0]"), 0), "do not need"},
      {one(entry("a", "F64", "[2305843009213693952]", "[0,0]"), 0), "do not need"},
      {one(good + "," + entry("b", "F32", "[2]", "[4,12]"), 12), "they overlap"},
      {one(good + "," + entry("b", "F32", "[1]", "[12,16]"), 16), "there is a hole"},
      {one(entry("b", "F32", "[1]", "[4,8]"), 8), "there is a hole"},
      {one(good + "," + entry("a", "F32", "[1]", "[8,12]"), 12), "'a' is there twice"},
      {one("\"a\":{\"dtype\":\"F32\",\"dtype\":\"F32\"}", 0), "dtype is there twice"},
      {one("\"a\":{\"dtype\":\"F32\",\"shape\":[2]}", 0), "is missing"},
      {one("\"a\":{\"type\":\"F32\"}", 0), "unknown key 'type'"},
      {one("\"a\":{\"shape\":[[2]]}", 0), "a list where"},
      {one("\"__metadata__\":{\"k\":1}", 0), "a number where"},
      {one("\"__metadata__\":{\"k\":{\"x\":\"y\"}}", 0), "an object where"},
      {one("\"__metadata__\":{},\"__metadata__\":{}", 0), "__metadata__ is there twice"},
      {one("\"__metadata__\":{\"k\":\"1\",\"k\":\"2\"}", 0), "'k' is there twice"},
      {file_of(std::string(100000, '{'), 0), "no JSON"},
      {file_of("{\"a\":" + std::string(100000, '['), 0), "a list where"},
      {file_of("{\"\xff\":{}}", 0), "no JSON"},
  };
  for (const auto& [file, words] : cases) {
    INFO(words);
    REQUIRE_THAT(fault_of(file), Catch::Contains(words));
  }
  REQUIRE_THAT(fault_of(one(entry("the_tensor", "F31", "[2]", "[0,8]"), 8)),
               Catch::Contains("f: no valid safetensors file: tensor 'the_tensor'"));
}

TEST_CASE("a safetensors file is not written with names or bytes that do not fit",
          "[safetensors]") {
  fake_disk disk;
  fake_files files(disk);
  files.make_directory("/d");
  const std::vector<float> w(4);
  const tensor_source t{"w", &type_of(dtype::f32), {4}, bytes_of(w)};
  REQUIRE_THROWS_WITH(write_safetensors(files, "/d/f", {t, t}), Catch::Contains("'w' is taken"));
  REQUIRE_THROWS_AS(write_safetensors(files, "/d/f", {{"w", t.type, {3}, t.bytes}}), usage_error);
  REQUIRE_THROWS_AS(write_safetensors(files, "/d/f", {{"\xff", t.type, {4}, t.bytes}}),
                    usage_error);
  REQUIRE_THROWS_AS(write_safetensors(files, "/d/f", {{"w", t.type, {1ull << 62, 4}, {}}}),
                    usage_error);
  REQUIRE(files.list("/d").empty());
}

TEST_CASE("even fragments cover every element once, whatever the number of ranks", "[fragments]") {
  const std::vector<tensor_info> tensors{{"a", dtype::f32, {3, 5}},
                                         {"none", dtype::f32, {0}},
                                         {"b", dtype::bf16, {1}},
                                         {"c", dtype::f64, {17}}};
  for (const std::size_t parts : {1u, 2u, 3u, 4u, 7u, 8u, 32u, 33u, 34u, 100u}) {
    std::vector<fragment> all;
    for (std::size_t r = 0; r < parts; ++r) {
      const auto mine = even_fragments(tensors, r, parts);
      all.insert(all.end(), mine.begin(), mine.end());
    }
    REQUIRE(coverage_fault(tensors, all).empty());
    all.pop_back();
    REQUIRE_THAT(coverage_fault(tensors, all), Catch::Contains("of tensor 'c' are in no file"));
  }
  std::vector<fragment> twice{{0, 0, 15}, {2, 0, 1}, {3, 0, 10}, {3, 8, 9}};
  REQUIRE_THAT(coverage_fault(tensors, twice), Catch::Contains("'c' are in two fragments"));
  std::vector<fragment> hole{{0, 0, 4}, {0, 5, 10}, {2, 0, 1}, {3, 0, 17}};
  REQUIRE(coverage_fault(tensors, hole) == "elements [4, 5) of tensor 'a' are in no file");
}

TEST_CASE("models that differ are told apart tensor by tensor", "[fragments]") {
  const std::vector<tensor_info> a{{"x", dtype::f32, {2}}, {"y", dtype::f32, {2, 3}}};
  REQUIRE(differences(a, a).empty());
  REQUIRE(differences(a, {{"y", dtype::bf16, {2, 3}}, {"z", dtype::f32, {1}}}) ==
          "\n  'x' f32 [2] is in the checkpoint only"
          "\n  'y' is f32 [2, 3] in the checkpoint, bf16 [2, 3] in the model"
          "\n  'z' f32 [1] is in the model only");
  REQUIRE_THAT(differences(std::vector<tensor_info>(40, a[0]), {}), Catch::Contains("and 28 more"));
}

TEST_CASE("a manifest survives the way to JSON and back; a changed one is refused", "[manifest]") {
  const manifest m{.step = 20,
                   .notes = {{"seed", "1"}, {"scale", "65536"}},
                   .tensors = {{"w", dtype::f32, {3, 4}}, {"s", dtype::f64, {}}},
                   .shards = {{"shard_0.safetensors", 123, 0xfedcba9876543210ULL}}};
  const std::string text = to_json(m);
  const auto parse = [](const std::string& t) {
    return parse_manifest(std::as_bytes(std::span<const char>(t)), "m");
  };
  const manifest back = parse(text);
  REQUIRE((back.step == 20 && back.notes == m.notes && back.tensors == m.tensors));
  REQUIRE(back.shards.at(0).header_checksum == m.shards[0].header_checksum);
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string t = text;
    const std::size_t at = t.find(from);
    REQUIRE(at != std::string::npos);
    return t.replace(at, from.size(), to);
  };
  REQUIRE_THROWS_WITH(parse(with("\"seed\": \"1\"", "\"seed\": \"2\"")),
                      "m: was changed or damaged: its checksum does not fit its content");
  REQUIRE_THROWS_WITH(parse(with("\"version\": 1", "\"version\": 2")),
                      Catch::Contains("written by a newer polyrank"));
  REQUIRE_THROWS_AS(parse(with("polyrank checkpoint", "something")), data_error);
  for (std::size_t n = 0; n + 2 < text.size(); n += 7)
    REQUIRE_THROWS_AS(parse(text.substr(0, n)), data_error);
}

TEST_CASE("a flipped bit is found, with file and tensor", "[shard]") {
  fake_disk disk;
  fake_files files(disk);
  files.make_directory("/d");
  const std::vector<tensor_info> tensors{{"w", dtype::f32, {8}}, {"v", dtype::u8, {3}}};
  const std::map<std::string, std::size_t, std::less<>> index{{"w", 0}, {"v", 1}};
  const std::vector<float> w(4, 1.5f);
  const std::vector<std::uint8_t> v{1, 2, 3};
  const shard_record record =
      write_shard(files, "/d/s", tensors, {{{1, 0, 3}, bytes_of(v)}, {{0, 4, 4}, bytes_of(w)}});
  const auto open = [&] { return shard_file(files, "/d/s", record, tensors, index); };
  auto& content = disk.visible["/d/s"]->visible;
  const auto good = content;
  shard_file shard = open();
  REQUIRE(shard.fragments() == std::vector<fragment>{{0, 4, 4}, {1, 0, 3}});
  REQUIRE(shard.bytes(1).size() == 3);
  std::size_t in_header = 0, in_data = 0;
  for (std::size_t bit = 0; bit < 8 * good.size(); bit += 5) {
    content = good;
    content[bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
    try {
      shard_file s = open();
      static_cast<void>(s.bytes(0));
      static_cast<void>(s.bytes(1));
      FAIL("bit " << bit << " was not noticed");
    } catch (const data_error& e) {
      const std::string text = e.what();
      REQUIRE_THAT(text, Catch::StartsWith("/d/s: "));
      const bool data = text.find("the data of '") != std::string::npos;
      ++(data ? in_data : in_header);
      if (bit / 8 >= good.size() - 3) REQUIRE_THAT(text, Catch::Contains("'v@0'"));
    }
  }
  REQUIRE(in_header > 0);
  REQUIRE(in_data > 0);
}

TEST_CASE("a model starts from the tensors of a file that fit", "[whole_file]") {
  fake_disk disk;
  fake_files files(disk);
  files.make_directory("/d");
  const std::vector<float> w{1, 2, 3, 4, 5, 6};
  const std::vector<bf16> b{bf16(0.5f), bf16(-3.0f)};
  const std::vector<std::int32_t> n{7};
  write_safetensors(files, "/d/f",
                    {{"w", &type_of(dtype::f32), {2, 3}, bytes_of(w)},
                     {"b", &type_of(dtype::bf16), {2}, bytes_of(b)},
                     {"n", &type_of(dtype::i32), {1}, bytes_of(n)}});
  const safetensors_file f(files, "/d/f");
  const match m = match_tensors(
      f.header(), {{"w", dtype::f32, {2, 3}}, {"b", dtype::f32, {2}}, {"head", dtype::f32, {5}}});
  REQUIRE(m.both == std::vector<std::size_t>{0, 1});
  REQUIRE(m.text() == "\n  kept as it was: 'head' [5] is not in the file"
                      "\n  in the file only: 'n' [1]");
  std::vector<float> out(2);
  read_floats(f, "b", out);
  REQUIRE(out == std::vector<float>{0.5f, -3.0f});
  std::vector<float> one(1);
  REQUIRE_THROWS_WITH(read_floats(f, "n", one), Catch::Contains("'n' is I32; only F32"));
  REQUIRE_THAT(match_tensors(f.header(), {{"w", dtype::f32, {3, 2}}}).text(),
               Catch::Contains("'w' is [3, 2] in the model, [2, 3] in the file"));
}

TEST_CASE("real files: what goes wrong is said with the path and the reason", "[posix]") {
  posix_files files;
  const fs::path dir = fs::temp_directory_path() / ("polyrank_format_" + std::to_string(getpid()));
  fs::remove_all(dir);
  REQUIRE(files.make_directory(dir));
  REQUIRE_FALSE(files.make_directory(dir));
  const std::vector<float> w{1, 2};
  const std::vector<tensor_source> t{{"w", &type_of(dtype::f32), {2}, bytes_of(w)}};
  write_safetensors(files, dir / "f", t);
  REQUIRE(files.list(dir) == std::vector<std::string>{"f"});
  REQUIRE(safetensors_file(files, dir / "f").header().find("w") != nullptr);
  REQUIRE_THROWS_WITH(files.open(dir / "g"), Catch::Contains("g: cannot open: No such file"));
  REQUIRE_THROWS_WITH(files.open(dir), Catch::Contains("cannot read: Is a directory"));
  REQUIRE_THROWS_WITH(write_safetensors(files, dir / "no" / "f", t),
                      Catch::Contains("cannot create"));
  if (fs::exists("/dev/full")) {
    const auto full = files.create("/dev/full");
    REQUIRE_THROWS_WITH(full->write(bytes_of(w)),
                        Catch::Contains("/dev/full: cannot write: No space"));
  }
  REQUIRE_THROWS_WITH(files.list(dir / "f"), Catch::Contains("cannot list"));
  REQUIRE(files.list(dir / "nowhere").empty());
  const auto held = files.lock(dir / "lock");
  REQUIRE(held != nullptr);
  REQUIRE(files.lock(dir / "lock") == nullptr);
  fs::remove_all(dir);
}
