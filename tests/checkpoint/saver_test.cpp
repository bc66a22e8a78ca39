// Saving and reading on many ranks: resharding, crashes at every point, lost power, full disks.
// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/fake_disk.hpp"
#include "support/catch.hpp"

#include <polyrank/checkpoint/posix_files.hpp>
#include <polyrank/checkpoint/saver.hpp>
#include <polyrank/checkpoint/whole_file.hpp>
#include <polyrank/hang/process.hpp>
#include <polyrank/hang/ring.hpp>
#include <polyrank/host/loopback.hpp>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <sys/wait.h>
#include <unistd.h>

using namespace polyrank;
using namespace polyrank::checkpoint;
using polyrank::test::before_operation;
using polyrank::test::fake_disk;
using polyrank::test::fake_files;

namespace {

using control = host::loopback::control;

const std::vector<tensor_info> tensors{{"embed", dtype::f32, {7, 3}},
                                       {"empty", dtype::f32, {0}},
                                       {"bias", dtype::bf16, {5}},
                                       {"adamw.m/embed", dtype::f32, {7, 3}},
                                       {"count", dtype::i64, {}}};

/// Byte `i` of a tensor after `step` steps.
std::byte value(std::size_t tensor, std::uint64_t step, std::uint64_t i) {
  return static_cast<std::byte>(mix(hash_combine(hash_combine(tensor, step), i)));
}

auto filler(std::uint64_t step) {
  return [step](const fragment& f, std::span<std::byte> out) {
    const std::size_t width = size_of(tensors[f.tensor].type);
    for (std::size_t i = 0; i < out.size(); ++i)
      out[i] = value(f.tensor, step, f.offset * width + i);
  };
}

void begin_save(saver<control>& s, control& c, std::uint64_t step) {
  s.save(step, {{"scale", "1024"}}, tensors,
         even_fragments(tensors, static_cast<std::size_t>(c.rank()),
                        static_cast<std::size_t>(c.size())),
         filler(step));
}

save_result save_now(saver<control>& s, control& c, std::uint64_t step) {
  begin_save(s, c, step);
  return s.wait().value();
}

/// True if the checkpoint holds exactly the state after its step, read in `parts` parts.
bool holds_its_step(reader& r, std::size_t parts) {
  r.expect(tensors);
  for (std::size_t p = 0; p < parts; ++p)
    for (const fragment& f : even_fragments(tensors, p, parts)) {
      const std::size_t width = size_of(tensors[f.tensor].type);
      std::vector<std::byte> got(f.count * width), want(got.size());
      r.read(tensors[f.tensor].name, f.offset, got);
      filler(r.content().step)(f, want);
      if (got != want) return false;
    }
  return true;
}

/// The step of the newest checkpoint on the disk, which must hold what it says; 0 if there is none.
std::uint64_t good_latest(file_system& files, const fs::path& dir, std::size_t parts = 2) {
  const auto latest = latest_step(files, dir);
  if (!latest) return 0;
  reader r(files, latest->path);
  REQUIRE(r.content().step == latest->step);
  REQUIRE(holds_its_step(r, parts));
  return latest->step;
}

/// Runs `body(comm, saver)` on loopback ranks whose files are on `disk`.
template <class Body>
void on_ranks(int n, fake_disk& disk, Body body, saver_options o = {.directory = "/run/c"},
              const std::function<before_operation(int rank)>& watch = {}) {
  host::loopback::run(n, [&](host::loopback::communicator& comm) {
    fake_files files(disk, watch ? watch(comm.rank()) : before_operation());
    saver<control> s(comm.control(), files, o);
    body(comm.control(), s);
  });
}

} // namespace

TEST_CASE("what N ranks saved, M ranks read", "[saver]") {
  for (const int n : {1, 2, 3, 4, 8}) {
    fake_disk disk;
    on_ranks(n, disk, [&](control& c, saver<control>& s) {
      const save_result r = save_now(s, c, 20);
      if (!r.error.empty()) throw error(r.error);
    });
    fake_files files(disk);
    for (const std::size_t m : {1u, 2u, 3u, 4u, 8u}) {
      reader r(files, "/run/c/step_000000000020");
      REQUIRE(r.content().notes.at("scale") == "1024");
      REQUIRE(r.content().shards.size() == static_cast<std::size_t>(n));
      REQUIRE(holds_its_step(r, m));
    }
  }
}

TEST_CASE("large tensors are cut, and read across the cuts", "[saver]") {
  const std::uint64_t count = (saver<control>::largest_fragment + 12345) / 4 + 3;
  const std::vector<tensor_info> one{{"w", dtype::f32, {count}}};
  fake_disk disk;
  on_ranks(1, disk, [&](control&, saver<control>& s) {
    s.save(1, {}, one, {{0, 0, count}}, [](const fragment& f, std::span<std::byte> out) {
      for (std::size_t i = 0; i < out.size() / 4; ++i) {
        const auto v = static_cast<float>((f.offset + i) % 9973);
        std::memcpy(out.data() + 4 * i, &v, 4);
      }
    });
    if (!s.wait()->error.empty()) throw error("save");
  });
  fake_files files(disk);
  reader r(files, "/run/c/step_000000000001");
  const std::uint64_t first = saver<control>::largest_fragment / 4 - 10;
  std::vector<float> got(20);
  r.read("w", first, std::as_writable_bytes(std::span(got)));
  for (std::size_t i = 0; i < 20; ++i) REQUIRE(got[i] == static_cast<float>((first + i) % 9973));
}

TEST_CASE("the last k stay, and the same step can be saved again", "[saver]") {
  fake_disk disk;
  on_ranks(2, disk,
           [&](control& c, saver<control>& s) {
             for (const std::uint64_t step : {10, 20, 20, 30})
               if (!save_now(s, c, step).error.empty()) throw error("save");
           },
           {.directory = "/run/c", .keep = 2});
  fake_files files(disk);
  const auto names = files.list("/run/c");
  REQUIRE(names == std::vector<std::string>{"step_000000000020.1", "step_000000000030"});
  REQUIRE(good_latest(files, "/run/c") == 30);
}

TEST_CASE("training goes on while a slow disk is written, with one copy of the state", "[saver]") {
  fake_disk disk;
  std::mutex m;
  std::condition_variable changed;
  bool open = false; // writes wait for it
  std::atomic<int> polls{0};
  on_ranks(
      3, disk,
      [&](control& c, saver<control>& s) {
        begin_save(s, c, 20);
        const std::size_t memory = s.memory_bytes();
        for (int i = 0; i < 50; ++i) { // 50 steps, in which nothing is written
          if (s.poll()) throw error("it ended, but nothing was written");
          ++polls;
        }
        if (c.all_reduce_max(0) == 0) {
          const std::lock_guard guard(m);
          open = true;
        }
        changed.notify_all();
        const save_result r = s.wait().value();
        if (!r.error.empty() || s.poll() || s.wait()) throw error("wait");
        if (save_now(s, c, 30).error != "" || s.memory_bytes() != memory) throw error("memory");
      },
      {.directory = "/run/c"},
      [&](int) {
        return [&](const std::string& what, const fs::path&) {
          if (what != "write") return;
          std::unique_lock guard(m);
          changed.wait(guard, [&] { return open; });
        };
      });
  REQUIRE(polls == 150);
  fake_files files(disk);
  REQUIRE(good_latest(files, "/run/c") == 30);
}

TEST_CASE("killed at any point of a save, the last complete checkpoint loads", "[crash]") {
  // The machine stops before operation k of rank r; then, also, it loses power.
  constexpr int ranks = 3;
  fake_disk start;
  on_ranks(ranks, start, [&](control& c, saver<control>& s) {
    if (!save_now(s, c, 10).error.empty()) throw error("save");
  });
  std::size_t points = 0, old = 0, fresh = 0;
  for (int rank = 0; rank < ranks; ++rank)
    for (int k = 1;; ++k) {
      const std::shared_ptr<fake_disk> disk = start.copy();
      std::atomic<bool> reached{false};
      std::string where;
      on_ranks(
          ranks, *disk, [](control& c, saver<control>& s) { (void)save_now(s, c, 20); },
          {.directory = "/run/c", .keep = 1},
          [&](int r) -> before_operation {
            if (r != rank) return {};
            return
                [&, count = std::make_shared<int>(0)](const std::string& what, const fs::path& p) {
                  if (++*count != k) return;
                  const std::lock_guard guard(disk->mutex);
                  disk->frozen = true;
                  reached = true;
                  where = what + " " + p.string();
                };
          });
      if (!reached) break;
      ++points;
      INFO("rank " << rank << ", operation " << k << ": " << where);
      for (std::uint64_t power = 0; power < 20; ++power) { // 0: the files stay as they were seen
        const std::shared_ptr<fake_disk> after = disk->copy();
        if (power > 0) after->lose_power(power);
        fake_files files(*after);
        const std::uint64_t step = good_latest(files, "/run/c");
        REQUIRE((step == 10 || step == 20));
        ++(step == 10 ? old : fresh);
        if (power > 2) continue; // the next job tidies up and saves
        after->frozen = false;
        on_ranks(2, *after, [](control& c, saver<control>& s) {
          if (!save_now(s, c, 30).error.empty()) throw error("save");
        });
        REQUIRE(good_latest(files, "/run/c") == 30);
        for (const step_folder& f : list_steps(files, "/run/c")) REQUIRE(f.complete);
      }
    }
  REQUIRE(points > 25);
  REQUIRE(old > 0);
  REQUIRE(fresh > 0);
}

TEST_CASE("a rank whose disk fails is named; the old checkpoint and the job live", "[crash]") {
  constexpr int ranks = 3;
  for (int rank = 0; rank < ranks; ++rank)
    for (int k = 1; k <= (rank == 0 ? 11 : 7); ++k) {
      fake_disk disk;
      std::atomic<bool> full{false};
      std::vector<save_result> failed(ranks);
      on_ranks(
          ranks, disk,
          [&](control& c, saver<control>& s) {
            if (!save_now(s, c, 10).error.empty()) throw error("first save");
            (void)c.all_reduce_max(0);
            full = true;
            failed[static_cast<std::size_t>(c.rank())] = save_now(s, c, 20);
            (void)c.all_reduce_max(0);
            full = false;
            if (!save_now(s, c, 30).error.empty()) throw error("third save");
          },
          {.directory = "/run/c"},
          [&](int r) -> before_operation {
            if (r != rank) return {};
            return
                [&, count = std::make_shared<int>(0)](const std::string& what, const fs::path& p) {
                  if (full && what != "remove" && ++*count >= k)
                    fake_files::fail(p, "cannot write", ENOSPC);
                };
          });
      INFO("rank " << rank << ", operation " << k);
      for (const save_result& f : failed) {
        REQUIRE(f.error == failed[0].error);
        if (f.error.empty()) continue;
        REQUIRE_THAT(f.error, Catch::EndsWith("No space left on device"));
        REQUIRE(f.error.starts_with("rank ") == (rank != 0));
      }
      fake_files files(disk);
      REQUIRE(good_latest(files, "/run/c") == 30);
      for (const step_folder& f : list_steps(files, "/run/c"))
        REQUIRE((f.complete && (f.step != 20 || failed[0].error.empty())));
    }
}

#if !defined(__SANITIZE_THREAD__) // which cannot start threads in a forked child
TEST_CASE("SIGKILL at any operation leaves real files that load", "[crash]") {
  const fs::path dir =
      fs::temp_directory_path() / ("polyrank_crash_" + std::to_string(getpid())) / "c";
  posix_files real;
  // A file system that kills its process before operation k of rank r.
  struct deadly final : file_system {
    posix_files real;
    int left;
    explicit deadly(int k) : left(k) {}
    void step() {
      if (left > 0 && --left == 0) kill(getpid(), SIGKILL);
    }
    struct out final : output_file {
      std::unique_ptr<output_file> f;
      deadly* d;
      void write(std::span<const std::byte> b) override {
        d->step();
        f->write(b);
      }
      void sync() override {
        d->step();
        f->sync();
      }
    };
    std::unique_ptr<output_file> create(const fs::path& p) override {
      step();
      auto o = std::make_unique<out>();
      o->f = real.create(p);
      o->d = this;
      return o;
    }
    std::unique_ptr<file_view> open(const fs::path& p) override { return real.open(p); }
    void rename(const fs::path& a, const fs::path& b) override {
      step();
      real.rename(a, b);
    }
    void remove(const fs::path& p) override {
      step();
      real.remove(p);
    }
    bool make_directory(const fs::path& p) override {
      step();
      return real.make_directory(p);
    }
    void sync_directory(const fs::path& p) override {
      step();
      real.sync_directory(p);
    }
    std::vector<std::string> list(const fs::path& p) override { return real.list(p); }
    bool exists(const fs::path& p) override { return real.exists(p); }
    std::unique_ptr<file_lock> lock(const fs::path& p) override { return real.lock(p); }
  };
  const auto child = [&](int rank, int k, std::uint64_t step, int microseconds = 0) {
    const pid_t pid = fork();
    if (pid == 0) {
      try {
        host::loopback::run(2, [&](host::loopback::communicator& comm) {
          deadly files(comm.rank() == rank ? k : 0);
          saver<control> s(comm.control(), files, {.directory = dir, .keep = 1});
          for (std::uint64_t more = 0; more < (microseconds > 0 ? 1000u : 1u); ++more)
            (void)save_now(s, comm.control(), step + more);
        });
      } catch (...) {
        _exit(1);
      }
      _exit(0);
    }
    if (microseconds > 0) {
      usleep(static_cast<useconds_t>(microseconds));
      kill(pid, SIGKILL);
    }
    int status = 0;
    waitpid(pid, &status, 0);
    return status;
  };
  REQUIRE(child(-1, 0, 10) == 0);
  std::uint64_t step = 10;
  std::size_t killed = 0;
  for (int rank = 0; rank < 2; ++rank)
    for (int k = 1;; ++k, ++killed) {
      const int status = child(rank, k, step + 10);
      if (!WIFSIGNALED(status)) break;
      const std::uint64_t found = good_latest(real, dir);
      INFO("rank " << rank << ", operation " << k);
      REQUIRE((found == step || found == step + 10));
      step = found;
    }
  REQUIRE(killed > 12);
  const char* soak = std::getenv("POLYRANK_SOAK_KILLS");
  const int kills = soak != nullptr ? std::atoi(soak) : 5;
  for (int i = 0; i < kills; ++i) { // at any moment
    step = good_latest(real, dir) + 10;
    const auto delay = 500 + static_cast<int>(mix(static_cast<std::uint64_t>(i)) % 40000);
    REQUIRE(WIFSIGNALED(child(-1, 0, step, delay)));
    REQUIRE(good_latest(real, dir) + 10 >= step);
  }
  fs::remove_all(dir.parent_path());
}
#endif

TEST_CASE("a directory that is gone is not made anew; the job saves elsewhere", "[saver]") {
  // Gone before a save, and while one is under way.
  for (const bool during : {false, true}) {
    fake_disk disk;
    const auto lose = [&] {
      const std::lock_guard guard(disk.mutex);
      std::erase_if(disk.visible,
                    [](const auto& entry) { return entry.first.starts_with("/run/c"); });
    };
    std::atomic<bool> armed{false};
    std::vector<std::string> errors(2);
    std::atomic<int> good{0};
    on_ranks(
        2, disk,
        [&](control& c, saver<control>& s) {
          (void)save_now(s, c, 10);
          if (c.all_reduce_max(0) == 0 && c.rank() == 0) {
            armed = during;
            if (!during) lose();
          }
          (void)c.all_reduce_max(0);
          errors[static_cast<std::size_t>(c.rank())] = save_now(s, c, 20).error;
          fake_files files(disk);
          saver<control> other(c, files, {.directory = "/run/elsewhere"});
          if (save_now(other, c, 20).error.empty()) ++good;
        },
        {.directory = "/run/c"},
        [&](int) {
          return [&](const std::string& what, const fs::path&) {
            if (what == "create" && armed.exchange(false)) lose();
          };
        });
    REQUIRE(errors[0] == errors[1]);
    REQUIRE_THAT(errors[0],
                 Catch::Contains(during ? "no such folder" : "/run/c: this directory is gone"));
    REQUIRE(good == 2);
    fake_files files(disk);
    REQUIRE_FALSE(files.exists("/run/c"));
    REQUIRE(good_latest(files, "/run/elsewhere") == 20);
  }
}

TEST_CASE("a rank that waits for its disk is in a pause", "[saver]") {
  const fs::path at = fs::temp_directory_path() / ("polyrank_pause_" + std::to_string(getpid()));
  fs::create_directory(at);
  {
    hang::ring ring({.folder = at, .job = "j"});
    const hang::mapped_file file = hang::mapped_file::open(ring.path());
    const hang::ring_view seen(file.bytes());
    const auto paused = [&] { return seen.paused(hang::now_ns()); };
    fake_disk disk;
    bool while_waiting = false, after = true, while_training = true;
    std::atomic<bool> waits{false};
    on_ranks(
        1, disk,
        [&](control& c, saver<control>& s) {
          begin_save(s, c, 20);
          while_training = paused();
          waits = true;
          if (!s.wait()->error.empty()) throw error("save");
          after = paused();
        },
        {.directory = "/run/c", .ring = &ring},
        [&](int) {
          return [&](const std::string& what, const fs::path&) {
            if (what != "write") return;
            for (int i = 0; i < 2000 && !(waits && paused()); ++i) usleep(1000);
            while_waiting = paused();
          };
        });
    REQUIRE_FALSE(while_training);
    REQUIRE(while_waiting);
    REQUIRE_FALSE(after);
  }
  fs::remove_all(at);
}

TEST_CASE("two jobs do not save into one directory", "[saver]") {
  fake_disk disk;
  fake_files files(disk);
  make_durable_directory(files, "/run/c");
  const auto other = files.lock("/run/c/lock");
  const auto body = [](control&, saver<control>&) {};
  REQUIRE_THROWS_WITH(
      on_ranks(2, disk, body, {.directory = "/run/c", .lock_wait = std::chrono::milliseconds(60)}),
      Catch::Contains("/run/c: another job saves its checkpoints here"));
}

TEST_CASE("a broken checkpoint is named, and the one before it offered", "[reader]") {
  fake_disk disk;
  on_ranks(2, disk, [&](control& c, saver<control>& s) {
    for (const std::uint64_t step : {10, 20})
      if (!save_now(s, c, step).error.empty()) throw error("save");
  });
  fake_files files(disk);
  const fs::path second = "/run/c/step_000000000020";
  const std::string offer = "; the one before it, of step 10, is complete: move " +
                            second.string() + " away to resume from /run/c/step_000000000010";
  const auto fault = [&](const fs::path& where) {
    try {
      reader r(files, where);
      static_cast<void>(holds_its_step(r, 2));
    } catch (const data_error& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  const std::string shard = second / "shard_1.safetensors", page = second / "manifest.json";
  const auto node = disk.visible[shard];
  node->visible.back() ^= std::byte{1};
  REQUIRE(fault(second) == shard +
                               ": the data of 'bias@3' are damaged: their checksum "
                               "does not fit" +
                               offer);
  REQUIRE_THROWS_WITH(reader(files, "/run/c"), Catch::Contains("is no complete checkpoint"));
  node->visible.back() ^= std::byte{1};
  node->visible.pop_back();
  REQUIRE_THAT(fault(second), Catch::Contains("bytes, was written with") && Catch::EndsWith(offer));
  disk.visible.erase(shard);
  REQUIRE(fault(second) == shard + ": this shard of the checkpoint is missing" + offer);
  disk.visible[page]->visible[100] ^= std::byte{1};
  REQUIRE_THAT(fault(second), Catch::StartsWith(page + ": ") && Catch::EndsWith(offer));
  disk.visible["/run/c/step_000000000010/manifest.json"]->visible.resize(50);
  REQUIRE_THAT(fault("/run/c/step_000000000010"),
               Catch::EndsWith("; there is no complete checkpoint before it"));
}

TEST_CASE("a checkpoint of another model is refused with the list of differences", "[reader]") {
  fake_disk disk;
  on_ranks(1, disk, [&](control& c, saver<control>& s) { (void)save_now(s, c, 1); });
  fake_files files(disk);
  reader r(files, "/run/c/step_000000000001");
  auto other = tensors;
  other[0].shape = {7, 4};
  other[2].name = "bias2";
  REQUIRE_THROWS_WITH(r.expect(other),
                      Catch::Contains("is of another model:") &&
                          Catch::Contains("'embed' is f32 [7, 3] in the checkpoint, "
                                          "f32 [7, 4] in the model") &&
                          Catch::Contains("'bias2' bf16 [5] is in the model only"));
}

TEST_CASE("fragments that are not the whole state never become a checkpoint", "[saver]") {
  fake_disk disk;
  std::string error_text;
  on_ranks(2, disk, [&](control& c, saver<control>& s) {
    s.save(5, {}, tensors, even_fragments(tensors, 0, 2),
           filler(5)); // both ranks save the first half
    const save_result r = s.wait().value();
    if (c.rank() == 1) error_text = r.error;
  });
  REQUIRE_THAT(error_text, Catch::Contains("the fragments of all ranks are not the state"));
  fake_files files(disk);
  REQUIRE(list_steps(files, "/run/c").empty());
}

TEST_CASE("a checkpoint becomes one file", "[whole_file]") {
  fake_disk disk;
  on_ranks(3, disk, [&](control& c, saver<control>& s) { (void)save_now(s, c, 7); });
  fake_files files(disk);
  reader r(files, "/run/c/step_000000000007");
  export_safetensors(r, files, "/run/model.safetensors",
                     [](std::string_view name) { return !name.starts_with("adamw"); });
  const safetensors_file f(files, "/run/model.safetensors");
  REQUIRE(f.header().tensors.size() == 4);
  REQUIRE(f.header().notes.at("step") == "7");
  const tensor_entry* e = f.header().find("embed");
  REQUIRE((e != nullptr && e->shape == std::vector<std::uint64_t>{7, 3}));
  for (std::size_t i = 0; i < 84; ++i) REQUIRE(f.bytes(*e)[i] == value(0, 7, i));
}
