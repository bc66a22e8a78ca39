// polyrank_checkpoint: looks at checkpoints, and converts them.
//
//     polyrank_checkpoint list run/c
//     polyrank_checkpoint export run/c --out model.safetensors
//     polyrank_checkpoint from-llmc log/model_00000020.bin log/state_00000020_*.bin --out
//     all.safetensors polyrank_checkpoint to-llmc all.safetensors --ranks 4 --zero 1 --out log
//
// SPDX-License-Identifier: Apache-2.0
#include "tools/checkpoint/llmc.hpp"

#include "support/flags.hpp"

#include <polyrank/checkpoint/posix_files.hpp>
#include <polyrank/checkpoint/whole_file.hpp>
#include <polyrank/core/version.hpp>

#include <CLI/CLI.hpp>

#include <cstdio>
#include <exception>

using namespace polyrank::examples;
namespace ckpt = polyrank::checkpoint;

namespace {

/// The checkpoint that is meant by a path: itself, or the newest in this directory.
ckpt::fs::path checkpoint_at(ckpt::file_system& files, const std::string& path) {
  if (ckpt::parse_step_name(ckpt::fs::path(path).filename().string())) return path;
  if (const auto last = ckpt::latest_step(files, path)) return last->path;
  throw polyrank::data_error(path + ": holds no complete checkpoint");
}

int list(const std::string& directory) {
  ckpt::posix_files files;
  const auto all = ckpt::list_steps(files, directory);
  for (const ckpt::step_folder& s : all) {
    if (!s.complete) {
      std::printf("%s  incomplete: a save was interrupted\n", s.path.c_str());
      continue;
    }
    const ckpt::reader r(files, s.path);
    double bytes = 0;
    for (const auto& shard : r.content().shards) bytes += static_cast<double>(shard.bytes);
    std::printf("%s  step %llu, %zu tensors, %zu files, %.1f MB\n", s.path.c_str(),
                static_cast<unsigned long long>(s.step), r.content().tensors.size(),
                r.content().shards.size(), bytes / 1e6);
  }
  if (all.empty()) throw polyrank::data_error(directory + ": holds no checkpoint");
  return 0;
}

/// Reads every byte and compares checksums.
int verify(const std::string& path) {
  ckpt::posix_files files;
  ckpt::reader r(files, checkpoint_at(files, path));
  std::vector<std::byte> bytes;
  for (const ckpt::tensor_info& t : r.content().tensors) {
    bytes.resize(t.count() * polyrank::size_of(t.type));
    r.read(t.name, 0, bytes);
  }
  std::printf("%s: %zu tensors, all as they were written\n", r.path().c_str(),
              r.content().tensors.size());
  return 0;
}

int save_as_one(const std::string& path, const std::string& out, bool everything) {
  ckpt::posix_files files;
  ckpt::reader r(files, checkpoint_at(files, path));
  ckpt::export_safetensors(r, files, out, [&](std::string_view name) {
    return everything || !name.starts_with("optimizer/");
  });
  std::printf("%s: from %s\n", out.c_str(), r.path().c_str());
  return 0;
}

} // namespace

int main(int argc, char** argv) {
  CLI::App app{"Looks at checkpoints, and converts them", "polyrank_checkpoint"};
  app.set_help_flag("--help", "Print this text and exit");
  app.set_version_flag("--version", "polyrank_checkpoint " POLYRANK_VERSION_STRING,
                       "Print the version and exit");
  app.require_subcommand(1);
  std::string path, out;
  bool everything = false;
  from_llmc_flags from;
  to_llmc_flags to;

  const auto* list_command = app.add_subcommand("list", "The checkpoints in a directory");
  const auto* verify_command = app.add_subcommand("verify", "Compare all data with checksums");
  auto* export_command = app.add_subcommand("export", "One safetensors file of a checkpoint");
  for (auto* command : app.get_subcommands({}))
    command->add_option("path", path, "Directory, or one step_* in it")
        ->required()
        ->type_name("DIR");
  export_command->add_option("--out", out, "The file")->required()->type_name("FILE");
  export_command->add_flag("--everything", everything, "Also the optimizer's state");

  auto* from_command = app.add_subcommand("from-llmc", "llm.c's .bin files to safetensors");
  from_command->add_option("model", from.model, "model_*.bin")->required()->type_name("MODEL");
  from_command->add_option("states", from.states, "state_*.bin of all its processes")
      ->type_name("STATE");
  from_command->add_option("--out", from.out, "The file")->required()->type_name("FILE");
  auto* to_command = app.add_subcommand("to-llmc", "safetensors to llm.c's .bin files");
  to_command->add_option("file", to.file, "Tensors under llm.c's names")
      ->required()
      ->type_name("FILE");
  to_command->add_option("--out", to.out, "Directory for model, state, DONE")
      ->required()
      ->type_name("DIR");
  to_command->add_option("--ranks", to.ranks, "Processes that go on from it; default 1")
      ->type_name("N")
      ->check(positive_number());
  to_command->add_option("--zero", to.zero, "llm.c's -z: 0 or 1; default 0")
      ->type_name("Z")
      ->check(CLI::IsMember({0, 1}).description(""));
  to_command->add_option("--precision", to.precision, "fp32 or bf16; default as in the file")
      ->type_name("P")
      ->check(CLI::IsMember({"fp32", "bf16"}).description(""));
  to_command->add_option("--heads", to.heads, "Attention heads, if the file does not say")
      ->type_name("H")
      ->check(positive_number());
  to_command->add_option("--vocabulary", to.vocabulary, "Without padding, if it does not say")
      ->type_name("V")
      ->check(positive_number());
  if (const auto code = parse_flags(app, argc, argv)) return *code;
  try {
    if (list_command->parsed()) return list(path);
    if (verify_command->parsed()) return verify(path);
    if (export_command->parsed()) return save_as_one(path, out, everything);
    std::printf("%s\n", (from_command->parsed() ? from_llmc(from) : to_llmc(to)).c_str());
    return 0;
  } catch (const polyrank::usage_error& e) {
    std::fprintf(stderr, "polyrank_checkpoint: %s\n", e.what());
    return 2;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "polyrank_checkpoint: %s\n", e.what());
    return 1;
  }
}
