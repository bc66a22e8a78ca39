// A disk in memory that keeps apart what is visible and what is on the medium, and file systems of
// several ranks on it, each of whose operations a test can watch, slow, fail, or make the last.
//
//     fake_disk disk;
//     fake_files rank0(disk, [](const std::string& what, const fs::path&) { ... });
//     disk.lose_power(seed);     // each thing that was not synced is there, or not, or half there
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/checkpoint/file_system.hpp>
#include <polyrank/core/hash.hpp>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace polyrank::test {

namespace fs = std::filesystem;
using contents = std::vector<std::byte>;

class fake_disk {
 public:
  struct inode {
    contents visible, durable;
  };
  using names = std::map<std::string, std::shared_ptr<inode>>; // null: a folder

  /// Everything below /, as it is seen.
  names visible;
  /// What names there are on the medium.
  names durable;
  std::set<std::string> locks;
  std::recursive_mutex mutex;
  bool frozen = false; ///< the machine is off: nothing changes any more

  /// A copy of all that is on it.
  [[nodiscard]] std::shared_ptr<fake_disk> copy() const {
    auto other = std::make_shared<fake_disk>();
    std::map<const inode*, std::shared_ptr<inode>> same;
    const auto clone = [&](const names& from, names& to) {
      for (const auto& [name, node] : from) {
        if (node == nullptr) {
          to[name] = nullptr;
          continue;
        }
        auto& twin = same[node.get()];
        if (twin == nullptr) twin = std::make_shared<inode>(*node);
        to[name] = twin;
      }
    };
    clone(visible, other->visible);
    clone(durable, other->durable);
    return other;
  }

  /// What was not synced takes its chances: a name that appeared or went, the content of a file.
  void lose_power(std::uint64_t seed) {
    std::uint64_t draw = 0;
    const auto chance = [&](std::uint64_t of) { return mix(hash_combine(seed, ++draw)) % of; };
    names after;
    std::set<std::string> all;
    for (const auto& [name, node] : visible) all.insert(name);
    for (const auto& [name, node] : durable) all.insert(name);
    for (const std::string& name : all) { // a folder comes before what it holds
      const bool seen = visible.contains(name), kept = durable.contains(name);
      const bool there = seen == kept ? kept : chance(2) == 0;
      if (!there) continue;
      const std::string folder = fs::path(name).parent_path();
      if (folder != "/" && !after.contains(folder)) continue;
      after[name] = seen ? visible[name] : durable[name];
    }
    for (const auto& [name, node] : after) {
      if (node == nullptr || node->visible == node->durable) continue;
      const std::uint64_t what = chance(3);
      if (what == 0) node->visible = node->durable;
      if (what == 1) node->visible.resize(chance(node->visible.size() + 1)); // torn
      node->durable = node->visible;
    }
    visible = durable = after;
    locks.clear();
    frozen = false;
  }
};

/// Called before each operation that changes the disk, with its name and the path.
using before_operation = std::function<void(const std::string& what, const fs::path& path)>;

class fake_files final : public checkpoint::file_system {
 public:
  explicit fake_files(fake_disk& disk, before_operation before = {})
      : disk_(&disk), before_(std::move(before)) {}

  std::unique_ptr<checkpoint::output_file> create(const fs::path& path) override {
    const auto guard = change("create", path);
    need_folder(path.parent_path());
    auto node = std::make_shared<fake_disk::inode>();
    disk_->visible[path] = node;
    return std::make_unique<output>(*this, path, node);
  }
  std::unique_ptr<checkpoint::file_view> open(const fs::path& path) override {
    const std::lock_guard guard(disk_->mutex);
    const auto at = disk_->visible.find(path);
    if (at == disk_->visible.end() || at->second == nullptr) fail(path, "cannot open", ENOENT);
    return std::make_unique<view>(at->second->visible);
  }
  void rename(const fs::path& from, const fs::path& to) override {
    const auto guard = change("rename", to);
    const auto at = disk_->visible.find(from);
    if (at == disk_->visible.end()) fail(to, "cannot rename to this", ENOENT);
    const auto node = at->second;
    disk_->visible.erase(at);
    disk_->visible[to] = node;
  }
  void remove(const fs::path& path) override {
    const auto guard = change("remove", path);
    for (const auto& [name, node] : disk_->visible)
      if (fs::path(name).parent_path() == path) fail(path, "cannot remove", ENOTEMPTY);
    disk_->visible.erase(path);
  }
  bool make_directory(const fs::path& path) override {
    const auto guard = change("mkdir", path);
    if (path.parent_path() != "/") need_folder(path.parent_path());
    return disk_->visible.emplace(path, nullptr).second;
  }
  void sync_directory(const fs::path& path) override {
    const auto guard = change("syncdir", path);
    if (path != "/") need_folder(path);
    const auto below = [&](const auto& entry) {
      return fs::path(entry.first).parent_path() == path;
    };
    std::erase_if(disk_->durable, below);
    for (const auto& entry : disk_->visible)
      if (below(entry)) disk_->durable.insert(entry);
  }
  std::vector<std::string> list(const fs::path& path) override {
    const std::lock_guard guard(disk_->mutex);
    std::vector<std::string> found;
    for (const auto& [name, node] : disk_->visible)
      if (fs::path(name).parent_path() == path) found.push_back(fs::path(name).filename());
    return found;
  }
  bool exists(const fs::path& path) override {
    const std::lock_guard guard(disk_->mutex);
    return path == "/" || disk_->visible.contains(path);
  }
  std::unique_ptr<checkpoint::file_lock> lock(const fs::path& path) override {
    const std::lock_guard guard(disk_->mutex);
    if (!disk_->locks.insert(path).second) return nullptr;
    return std::make_unique<held>(*disk_, path);
  }

  [[noreturn]] static void fail(const fs::path& path, const char* what, int code) {
    checkpoint::detail::fail(path, what, code);
  }

 private:
  struct view final : checkpoint::file_view {
    explicit view(contents b) : content(std::move(b)) {}
    [[nodiscard]] std::span<const std::byte> bytes() const noexcept override { return content; }
    contents content;
  };
  struct held final : checkpoint::file_lock {
    held(fake_disk& d, std::string p) : disk(&d), path(std::move(p)) {}
    ~held() override {
      const std::lock_guard guard(disk->mutex);
      disk->locks.erase(path);
    }
    fake_disk* disk;
    std::string path;
  };
  struct output final : checkpoint::output_file {
    output(fake_files& f, fs::path p, std::shared_ptr<fake_disk::inode> n)
        : files(&f), path(std::move(p)), node(std::move(n)) {}
    void write(std::span<const std::byte> b) override {
      const auto guard = files->change("write", path);
      node->visible.insert(node->visible.end(), b.begin(), b.end());
    }
    void sync() override {
      const auto guard = files->change("sync", path);
      node->durable = node->visible;
    }
    fake_files* files;
    fs::path path;
    std::shared_ptr<fake_disk::inode> node;
  };

  std::unique_lock<std::recursive_mutex> change(const char* what, const fs::path& path) {
    if (before_) before_(what, path);
    std::unique_lock guard(disk_->mutex);
    if (disk_->frozen) fail(path, what, EIO);
    return guard;
  }
  void need_folder(const fs::path& path) {
    if (!disk_->visible.contains(path)) fail(path, "no such folder", ENOENT);
  }

  fake_disk* disk_;
  before_operation before_;
};

} // namespace polyrank::test
