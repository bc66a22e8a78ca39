// before.cpp on a GPU: a complete trainer for one device, raw pointers and kernels of its own. It
// learns to tell the three arms of a spiral apart. after.cu is the same program on N GPUs;
// `diff before.cu after.cu` is the whole price.
//
//     build/bin/retrofit_before_cuda [steps]
// SPDX-License-Identifier: Apache-2.0
#include <cstdio>
#include <cstdlib>
#include <vector>

namespace {

constexpr int points = 3000, batch = 256, inputs = 2, hidden = 64, classes = 3;
constexpr float learning_rate = 0.05f, momentum = 0.9f;

struct network {
  float *w1, *b1, *w2, *b2; // [inputs][hidden], [hidden], [hidden][classes], [classes]
};
constexpr int n_w1 = inputs * hidden, n_b1 = hidden, n_w2 = hidden * classes, n_b2 = classes;
constexpr int sizes[4] = {n_w1, n_b1, n_w2, n_b2};

// What forward leaves for backward, a row for each sample.
struct activations {
  float *x, *h, *dz, *loss; // [batch][inputs], [batch][hidden], [batch][classes], [batch]
};

// Random numbers from (seed, index): no state to lose.
__host__ __device__ float uniform(unsigned long long seed, unsigned long long index) {
  unsigned long long x = seed * 0x9e3779b97f4a7c15ULL + index * 0xbf58476d1ce4e5b9ULL + 1;
  x ^= x >> 31;
  x *= 0x94d049bb133111ebULL;
  x ^= x >> 29;
  return static_cast<float>(x >> 40) / static_cast<float>(1 << 24);
}

// Point `i` of the spiral: its place in the plane and its arm.
__device__ int spiral(int i, float* x) {
  const int arm = i % classes;
  const float t = static_cast<float>(i) / points,
              angle = 4 * t + 2.0944f * static_cast<float>(arm) +
                      0.2f * uniform(7, static_cast<unsigned long long>(i));
  x[0] = t * sinf(angle);
  x[1] = t * cosf(angle);
  return arm;
}

// Hidden values and scores of one point; returns the class with the best score.
__device__ int predict(const network& p, const float* x, float* h, float* z) {
  int best = 0;
  for (int j = 0; j < hidden; ++j) h[j] = tanhf(p.b1[j] + x[0] * p.w1[j] + x[1] * p.w1[hidden + j]);
  for (int c = 0; c < classes; ++c) {
    z[c] = p.b2[c];
    for (int j = 0; j < hidden; ++j) z[c] += h[j] * p.w2[j * classes + c];
    if (z[c] > z[best]) best = c;
  }
  return best;
}

// One sample of rows [first, first + rows) of the batch of step `step` a thread.
__global__ void forward(network p, activations a, int step, int first, int rows) {
  const int r = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (r >= rows) return;
  const int sample = static_cast<int>(uniform(11, static_cast<unsigned long long>(step) * batch +
                                                      static_cast<unsigned long long>(first + r)) *
                                      points);
  float z[classes];
  const int arm = spiral(sample, a.x + r * inputs);
  const float largest = z[predict(p, a.x + r * inputs, a.h + r * hidden, z)];
  float sum = 0;
  for (int c = 0; c < classes; ++c) sum += expf(z[c] - largest);
  a.loss[r] = logf(sum) + largest - z[arm];
  for (int c = 0; c < classes; ++c)
    a.dz[r * classes + c] =
        (expf(z[c] - largest) / sum - (c == arm ? 1.0f : 0.0f)) / static_cast<float>(rows);
}

// One parameter a thread: its gradient of the mean loss, summed over the rows in order.
__global__ void backward(network p, network g, activations a, int rows) {
  int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  float sum = 0;
  const auto hidden_gradient = [&](int r, int j) {
    float d = 0;
    for (int c = 0; c < classes; ++c) d += p.w2[j * classes + c] * a.dz[r * classes + c];
    return d * (1 - a.h[r * hidden + j] * a.h[r * hidden + j]);
  };
  if (i < n_w1) {
    const int j = i % hidden, k = i / hidden;
    for (int r = 0; r < rows; ++r) sum += a.x[r * inputs + k] * hidden_gradient(r, j);
    g.w1[i] = sum;
  } else if ((i -= n_w1) < n_b1) {
    for (int r = 0; r < rows; ++r) sum += hidden_gradient(r, i);
    g.b1[i] = sum;
  } else if ((i -= n_b1) < n_w2) {
    for (int r = 0; r < rows; ++r)
      sum += a.h[r * hidden + i / classes] * a.dz[r * classes + i % classes];
    g.w2[i] = sum;
  } else if ((i -= n_w2) < n_b2) {
    for (int r = 0; r < rows; ++r) sum += a.dz[r * classes + i];
    g.b2[i] = sum;
  }
}

__global__ void update(float* p, const float* g, float* m, int n) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i >= n) return;
  m[i] = momentum * m[i] + g[i];
  p[i] -= learning_rate * m[i];
}

__global__ void count_right(network p, int* right) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  float x[inputs], h[hidden], z[classes];
  if (i < points && spiral(i, x) == predict(p, x, h, z)) atomicAdd(right, 1);
}

float* zeros(int n) {
  float* p = nullptr;
  if (cudaMalloc(&p, static_cast<size_t>(n) * sizeof(float)) != cudaSuccess ||
      cudaMemset(p, 0, static_cast<size_t>(n) * sizeof(float)) != cudaSuccess) {
    std::fputs("no GPU, or no memory left\n", stderr);
    std::exit(1);
  }
  return p;
}
network allocate() { return {zeros(sizes[0]), zeros(sizes[1]), zeros(sizes[2]), zeros(sizes[3])}; }
float* tensor(const network& n, int i) {
  return i == 0 ? n.w1 : i == 1 ? n.b1 : i == 2 ? n.w2 : n.b2;
}

template <class T>
std::vector<T> download(const T* from, int n) {
  std::vector<T> to(static_cast<size_t>(n));
  cudaMemcpy(to.data(), from, to.size() * sizeof(T), cudaMemcpyDeviceToHost);
  return to;
}

float mean_loss(const activations& a, int rows) {
  float sum = 0;
  for (const float loss : download(a.loss, rows)) sum += loss / static_cast<float>(rows);
  return sum;
}

float accuracy(const network& p) {
  int* right = reinterpret_cast<int*>(zeros(1));
  count_right<<<(points + 127) / 128, 128>>>(p, right);
  return static_cast<float>(download(right, 1)[0]) / points;
}

void save(const network& p, const char* path) {
  std::FILE* f = std::fopen(path, "wb");
  for (int i = 0; i < 4; ++i)
    std::fwrite(download(tensor(p, i), sizes[i]).data(), sizeof(float),
                static_cast<size_t>(sizes[i]), f);
  std::fclose(f);
}

} // namespace

int main(int argc, char** argv) {
  const int steps = argc > 1 ? std::atoi(argv[1]) : 2000;
  network p = allocate(), g = allocate(), m = allocate();
  const activations a{zeros(batch * inputs), zeros(batch * hidden), zeros(batch * classes),
                      zeros(batch)};
  for (int i = 0; i < 4; i += 2) {
    std::vector<float> w;
    for (int k = 0; k < sizes[i]; ++k)
      w.push_back(
          (2 * uniform(static_cast<unsigned long long>(i), static_cast<unsigned long long>(k)) -
           1) *
          (i == 0 ? 2.0f : 0.2f));
    cudaMemcpy(tensor(p, i), w.data(), w.size() * sizeof(float), cudaMemcpyHostToDevice);
  }

  for (int step = 0; step < steps; ++step) {
    forward<<<(batch + 31) / 32, 32>>>(p, a, step, 0, batch);
    backward<<<4, 128>>>(p, g, a, batch);
    for (int i = 0; i < 4; ++i)
      update<<<2, 128>>>(tensor(p, i), tensor(g, i), tensor(m, i), sizes[i]);
    if (step % 500 == 0 || step + 1 == steps)
      std::printf("step %d loss %.4f\n", step, static_cast<double>(mean_loss(a, batch)));
  }
  save(p, "spiral.bin");
  std::printf("accuracy %.4f\n", static_cast<double>(accuracy(p)));
  return 0;
}
