// The concepts of the seam: what satisfies them, and what must not.
// SPDX-License-Identifier: Apache-2.0
#include "support/catch.hpp"

#include <polyrank/backend/archetypes.hpp>
#include <polyrank/backend/buffer.hpp>
#include <polyrank/data_parallel/grad_sync.hpp>
#include <polyrank/host/loopback.hpp>

#include <utility>

using namespace polyrank;

namespace {

struct event_without_query {
  void record(archetype::stream&);
  void synchronize();
};
struct stream_without_wait {
  void synchronize();
};
struct backend_without_memory : archetype::backend {
  static void memory() = delete;
};
struct backend_that_returns_a_pointer : archetype::backend {
  static std::pmr::memory_resource* memory();
};
struct channel_without_deadline : archetype::control_channel {
  void barrier();
};
struct no_all_to_all : archetype::communicator {
  template <element T>
  void all_to_all(std::span<const T>, std::span<T>, on<archetype::stream>) = delete;
};
struct no_stream_argument : archetype::communicator {
  template <element T>
  void broadcast(std::span<T>, int) {}
};
struct throwing_abort : archetype::communicator {
  void abort(std::string_view);
};
struct split_to_other_type : archetype::communicator {
  int split(int, int);
};
struct policy_without_scratch {
  static constexpr std::string_view name = "bad";
  std::size_t blocks_per_rank(int) const;
};

/// Counts what is allocated.
struct counting_resource : std::pmr::memory_resource {
  std::size_t live = 0, calls = 0, alignment_seen = 0;
  void* do_allocate(std::size_t bytes, std::size_t alignment) override {
    live += bytes;
    ++calls;
    alignment_seen = alignment;
    return std::pmr::new_delete_resource()->allocate(bytes, alignment);
  }
  void do_deallocate(void* p, std::size_t bytes, std::size_t alignment) override {
    live -= bytes;
    std::pmr::new_delete_resource()->deallocate(p, bytes, alignment);
  }
  bool do_is_equal(const memory_resource& other) const noexcept override { return this == &other; }
};

} // namespace

TEST_CASE("archetypes satisfy the concepts and nothing more", "[seam]") {
  STATIC_REQUIRE(backend<archetype::backend>);
  STATIC_REQUIRE(element_operations<archetype::backend, float>);
  STATIC_REQUIRE(control_channel<archetype::control_channel>);
  STATIC_REQUIRE(communicator<archetype::bare_communicator>);
  STATIC_REQUIRE_FALSE(collectives<archetype::bare_communicator, float>);
  STATIC_REQUIRE_FALSE(point_to_point<archetype::bare_communicator, float>);
  STATIC_REQUIRE_FALSE(abortable<archetype::bare_communicator>);
  STATIC_REQUIRE(collectives<archetype::communicator, float>);
  STATIC_REQUIRE(collectives<archetype::communicator, bf16>);
  STATIC_REQUIRE(point_to_point<archetype::communicator, std::byte>);
  STATIC_REQUIRE(splittable<archetype::communicator>);
  STATIC_REQUIRE(abortable<archetype::communicator>);
}

TEST_CASE("host and loopback are models of the whole seam", "[seam]") {
  using C = host::loopback::communicator;
  STATIC_REQUIRE(backend<host::backend>);
  STATIC_REQUIRE(element_operations<host::backend, float>);
  STATIC_REQUIRE(element_operations<host::backend, bf16>);
  STATIC_REQUIRE((collectives<C, float> && collectives<C, bf16> && collectives<C, std::int64_t>));
  STATIC_REQUIRE((point_to_point<C, float> && splittable<C> && abortable<C>));
  STATIC_REQUIRE(
      (reduce_policy<all_reduce_sum, C, float> && reduce_policy<deterministic, C, float>));
}

TEST_CASE("what lacks one requirement is refused", "[seam]") {
  STATIC_REQUIRE_FALSE(event_of<event_without_query, archetype::stream>);
  STATIC_REQUIRE_FALSE(stream_of<stream_without_wait, archetype::event>);
  STATIC_REQUIRE_FALSE(backend<backend_without_memory>);
  STATIC_REQUIRE_FALSE(backend<backend_that_returns_a_pointer>);
  STATIC_REQUIRE_FALSE(backend<int>);
  STATIC_REQUIRE_FALSE(control_channel<channel_without_deadline>);
  STATIC_REQUIRE_FALSE(collectives<no_all_to_all, float>);
  STATIC_REQUIRE_FALSE(collectives<no_stream_argument, float>);
  STATIC_REQUIRE_FALSE(abortable<throwing_abort>);
  STATIC_REQUIRE_FALSE(splittable<split_to_other_type>);
  STATIC_REQUIRE_FALSE(reduce_policy<policy_without_scratch, archetype::communicator, float>);
  STATIC_REQUIRE_FALSE(reduce_policy<deterministic, archetype::bare_communicator, float> &&
                       point_to_point<archetype::bare_communicator, float>);
  STATIC_REQUIRE_FALSE(element<const char*>);
}

TEST_CASE("a buffer takes its memory from the given resource and gives it back", "[buffer]") {
  counting_resource memory;
  {
    buffer<float> a(1000, memory);
    REQUIRE(memory.live == 4000);
    REQUIRE(memory.alignment_seen == buffer<float>::alignment);
    REQUIRE(a.span().size() == 1000);
    buffer<float> b(std::move(a));
    REQUIRE(a.data() == nullptr);
    REQUIRE(memory.live == 4000);
    b = buffer<float>(10, memory);
    REQUIRE(memory.live == 40);
  }
  REQUIRE(memory.live == 0);
  const buffer<float> none(0, memory);
  REQUIRE(none.data() == nullptr);
  REQUIRE(memory.calls == 2);
  REQUIRE_THROWS_AS(buffer<double>(~std::size_t{0} / 4, memory), usage_error);
}
