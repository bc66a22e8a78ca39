// Any bytes: as a safetensors file, a manifest or a fragment's name they are read, or refused with
// data_error. What was read survives being written.
// SPDX-License-Identifier: Apache-2.0
#include <polyrank/checkpoint/manifest.hpp>
#include <polyrank/checkpoint/safetensors.hpp>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <span>
#include <string>
#include <vector>

using namespace polyrank;
using namespace polyrank::checkpoint;

namespace {

void require(bool condition) {
  if (!condition) std::abort();
}

void read_safetensors(std::span<const std::byte> file) {
  safetensors_header h;
  try {
    h = parse_header(file, "f");
  } catch (const data_error&) {
    return;
  }
  std::uint64_t at = 0;
  for (const tensor_entry& t : h.tensors) {
    require(t.begin == at && t.end >= t.begin && h.find(t.name) == &t);
    at = t.end;
  }
  require(h.data_begin + at == file.size());
  // Written anew, with its data, it reads the same.
  std::vector<tensor_entry> entries = h.tensors;
  const std::string header = make_header(entries, h.notes);
  std::vector<std::byte> again(header.size() + at);
  std::memcpy(again.data(), header.data(), header.size());
  const safetensors_header back = parse_header(again, "g");
  require(back.notes == h.notes && back.tensors.size() == h.tensors.size());
  for (const tensor_entry& t : h.tensors) {
    const tensor_entry* twin = back.find(t.name);
    require(twin != nullptr && twin->type == t.type && twin->shape == t.shape);
  }
}

void read_manifest(std::span<const std::byte> bytes) {
  manifest m;
  try {
    m = parse_manifest(bytes, "m");
  } catch (const data_error&) {
    return;
  }
  const std::string text = to_json(m);
  const manifest back = parse_manifest(std::as_bytes(std::span<const char>(text)), "n");
  require(back.step == m.step && back.notes == m.notes && back.tensors == m.tensors &&
          back.shards.size() == m.shards.size());
}

/// The content with a checksum that fits, so that what lies behind the checksum is reached too.
void read_content(std::string_view text) {
  const auto content = nlohmann::ordered_json::parse(text, nullptr, false);
  if (content.is_discarded()) return;
  std::string dumped;
  try {
    dumped = content.dump();
  } catch (const nlohmann::json::exception&) {
    return;
  }
  const std::string page = nlohmann::ordered_json{
      {"format", "polyrank checkpoint"},
      {"version", manifest_version},
      {"checksum", hex16(checksum(std::as_bytes(std::span<const char>(dumped))))},
      {"content", content}}.dump();
  read_manifest(std::as_bytes(std::span<const char>(page)));
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 1) return 0;
  const auto* rest = reinterpret_cast<const std::byte*>(data + 1);
  const std::span<const std::byte> bytes(rest, size - 1);
  const std::string_view text(reinterpret_cast<const char*>(rest), size - 1);
  std::vector<std::byte> file;
  switch (data[0] % 5) {
  case 0:
    read_safetensors(bytes);
    break;
  case 1: { // the header alone: its length and as much data as it asks for are put there
    const std::uint64_t length = text.rfind('}') == text.npos ? text.size() : text.rfind('}') + 1;
    const std::uint64_t room = size > 1 ? data[1 + (size - 2)] : 0;
    file.resize(8 + length + room);
    std::memcpy(file.data(), &length, 8);
    std::memcpy(file.data() + 8, rest, length);
    read_safetensors(file);
    break;
  }
  case 2:
    read_manifest(bytes);
    break;
  case 3:
    read_content(text);
    break;
  default: {
    std::string_view tensor;
    std::uint64_t offset = 0;
    if (split_fragment_name(text, tensor, offset)) require(tensor.size() < text.size());
  }
  }
  return 0;
}
