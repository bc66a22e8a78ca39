// A training step on two streams in which one `wait` can be left out:
//     forgotten_wait none|before|after SEED
// before: the reduction does not wait for the kernel that writes the gradient;
// after: the update does not wait for the reduction.
// SPDX-License-Identifier: Apache-2.0
#include <polyrank/core/hash.hpp>
#include <polyrank/host/loopback.hpp>

#include <chrono>
#include <cstdlib>
#include <string_view>
#include <thread>
#include <vector>

using namespace polyrank;

int main(int argc, char** argv) {
  const std::string_view forget = argc > 1 ? argv[1] : "none";
  const auto seed = static_cast<std::uint64_t>(argc > 2 ? std::atoi(argv[2]) : 0);
  host::loopback::run(2, [&](host::loopback::communicator& comm) {
    std::vector<float> gradient(1000), weight(1000);
    host::stream compute, communication;
    host::event written, reduced;
    std::uint64_t random = hash_combine(seed, static_cast<std::uint64_t>(comm.rank()));
    const auto linger = [&] {
      random = mix(random);
      std::this_thread::sleep_for(std::chrono::microseconds(random % 300));
    };
    for (int step = 0; step < 4; ++step) {
      compute.enqueue([&] {
        for (float& g : gradient) g = 1;
      });
      linger();
      written.record(compute);
      if (forget != "before") communication.wait(written);
      linger();
      comm.all_reduce<float>(gradient, gradient, reduce_op::sum, on(communication, "gradient"));
      linger();
      reduced.record(communication);
      if (forget != "after") compute.wait(reduced);
      compute.enqueue([&] {
        for (std::size_t i = 0; i < weight.size(); ++i) weight[i] -= gradient[i];
      });
      linger();
    }
    communication.synchronize();
    compute.synchronize();
  });
}
