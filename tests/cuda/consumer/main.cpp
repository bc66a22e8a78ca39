// Starts everywhere, also without a driver; trains nothing, but links all that a trainer needs.
// SPDX-License-Identifier: Apache-2.0
#include <polyrank/cuda/cuda.hpp>
#include <polyrank/optim/adamw.hpp>
#include <polyrank/launch/run.hpp>
#include <polyrank/polyrank.hpp>

#include <cstdio>

int main(int argc, char** argv) {
  using namespace polyrank;
  return launch::run(argc, argv, [](launch::world& world) {
    if (const std::string why = cuda::unusable(); !why.empty()) {
      std::printf("consumer: host backend, because %s\n", why.c_str());
      return 0;
    }
    cuda::communicator comm = cuda::join(world);
    cuda::stream s = comm.make_stream();
    buffer<float> p(1000, cuda::device_memory()), g(1000, cuda::device_memory()),
        m(1000, cuda::device_memory()), v(1000, cuda::device_memory());
    for (buffer<float>* x : {&p, &g, &m, &v}) cuda::backend::fill(x->span(), 0.0f, s);
    grad_sync sync(comm, std::vector<parameter<float>>{{"p", p.size(), p.data(), g.data()}});
    sync.begin(0, 1);
    sync.ready(0, s);
    sync.finish(s);
    cuda::optimizer<adamw>({{p.data(), g.data(), {m.data(), v.data()}, nullptr, p.size()}})
        .step(adamw::at({}, 1), {}, s);
    s.synchronize();
    std::printf("consumer: cuda backend\n");
    return 0;
  });
}
