// A complete trainer for one device, as people write them: raw pointers, a sampler, random numbers,
// a log, a checkpoint. It learns to tell the three arms of a spiral apart. after.cpp is the same
// program on N ranks; `diff before.cpp after.cpp` is the whole price.
//
//     build/bin/retrofit_before [steps]
// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace {

constexpr int points = 3000, batch = 256, inputs = 2, hidden = 64, classes = 3;
constexpr float learning_rate = 0.05f, momentum = 0.9f;

struct network {
  float *w1, *b1, *w2, *b2; // [inputs][hidden], [hidden], [hidden][classes], [classes]
};
constexpr int sizes[4] = {inputs * hidden, hidden, hidden* classes, classes};

// Random numbers from (seed, index): no state to lose.
float uniform(unsigned long long seed, unsigned long long index) {
  unsigned long long x = seed * 0x9e3779b97f4a7c15ULL + index * 0xbf58476d1ce4e5b9ULL + 1;
  x ^= x >> 31;
  x *= 0x94d049bb133111ebULL;
  x ^= x >> 29;
  return static_cast<float>(x >> 40) / static_cast<float>(1 << 24);
}

network allocate() {
  network n;
  float** const tensors[4] = {&n.w1, &n.b1, &n.w2, &n.b2};
  for (int i = 0; i < 4; ++i)
    *tensors[i] = static_cast<float*>(std::calloc(static_cast<size_t>(sizes[i]), sizeof(float)));
  return n;
}
float* tensor(const network& n, int i) {
  return i == 0 ? n.w1 : i == 1 ? n.b1 : i == 2 ? n.w2 : n.b2;
}

// Point `i` of the spiral: its place in the plane and its arm.
int spiral(int i, float* x) {
  const int arm = i % classes;
  const float t = static_cast<float>(i) / points,
              angle = 4 * t + 2.0944f * static_cast<float>(arm) +
                      0.2f * uniform(7, static_cast<unsigned long long>(i));
  x[0] = t * std::sin(angle);
  x[1] = t * std::cos(angle);
  return arm;
}

// One forward and backward over `rows` samples of step `step`, from row `first` of the batch.
// Writes the gradient of the mean loss of these rows; returns that loss.
float forward_backward(const network& p, const network& g, int step, int first, int rows) {
  for (int i = 0; i < 4; ++i)
    std::memset(tensor(g, i), 0, static_cast<size_t>(sizes[i]) * sizeof(float));
  float loss = 0;
  for (int r = first; r < first + rows; ++r) {
    float x[inputs], h[hidden], z[classes], dh[hidden];
    const int sample = static_cast<int>(uniform(11, static_cast<unsigned long long>(step) * batch +
                                                        static_cast<unsigned long long>(r)) *
                                        points);
    const int arm = spiral(sample, x);
    for (int j = 0; j < hidden; ++j) {
      h[j] = std::tanh(p.b1[j] + x[0] * p.w1[j] + x[1] * p.w1[hidden + j]);
      dh[j] = 0;
    }
    float largest = -1e30f, sum = 0;
    for (int c = 0; c < classes; ++c) {
      z[c] = p.b2[c];
      for (int j = 0; j < hidden; ++j) z[c] += h[j] * p.w2[j * classes + c];
      largest = std::fmax(largest, z[c]);
    }
    for (int c = 0; c < classes; ++c) sum += std::exp(z[c] - largest);
    loss += (std::log(sum) + largest - z[arm]) / static_cast<float>(rows);
    for (int c = 0; c < classes; ++c) {
      const float dz =
          (std::exp(z[c] - largest) / sum - (c == arm ? 1.0f : 0.0f)) / static_cast<float>(rows);
      g.b2[c] += dz;
      for (int j = 0; j < hidden; ++j) {
        g.w2[j * classes + c] += h[j] * dz;
        dh[j] += p.w2[j * classes + c] * dz;
      }
    }
    for (int j = 0; j < hidden; ++j) {
      const float d = dh[j] * (1 - h[j] * h[j]);
      g.b1[j] += d;
      g.w1[j] += x[0] * d;
      g.w1[hidden + j] += x[1] * d;
    }
  }
  return loss;
}

float accuracy(const network& p) {
  int right = 0;
  for (int i = 0; i < points; ++i) {
    float x[inputs], best = -1e30f;
    int guess = 0;
    const int arm = spiral(i, x);
    for (int c = 0; c < classes; ++c) {
      float z = p.b2[c];
      for (int j = 0; j < hidden; ++j)
        z += std::tanh(p.b1[j] + x[0] * p.w1[j] + x[1] * p.w1[hidden + j]) * p.w2[j * classes + c];
      if (z > best) best = z, guess = c;
    }
    right += guess == arm;
  }
  return static_cast<float>(right) / points;
}

void save(const network& p, const char* path) {
  std::FILE* f = std::fopen(path, "wb");
  for (int i = 0; i < 4; ++i)
    std::fwrite(tensor(p, i), sizeof(float), static_cast<size_t>(sizes[i]), f);
  std::fclose(f);
}

} // namespace

int main(int argc, char** argv) {
  const int steps = argc > 1 ? std::atoi(argv[1]) : 2000;
  network p = allocate(), g = allocate(), m = allocate();
  for (int i = 0; i < 4; i += 2)
    for (int k = 0; k < sizes[i]; ++k)
      tensor(p, i)[k] =
          (2 * uniform(static_cast<unsigned long long>(i), static_cast<unsigned long long>(k)) -
           1) *
          (i == 0 ? 2.0f : 0.2f);

  for (int step = 0; step < steps; ++step) {
    const float loss = forward_backward(p, g, step, 0, batch);
    for (int i = 0; i < 4; ++i)
      for (int k = 0; k < sizes[i]; ++k) {
        tensor(m, i)[k] = momentum * tensor(m, i)[k] + tensor(g, i)[k];
        tensor(p, i)[k] -= learning_rate * tensor(m, i)[k];
      }
    if (step % 500 == 0 || step + 1 == steps)
      std::printf("step %d loss %.4f\n", step, static_cast<double>(loss));
  }
  save(p, "spiral.bin");
  std::printf("accuracy %.4f\n", static_cast<double>(accuracy(p)));
  return 0;
}
