// The forward of an MLP block with two block-sparse layers, y = W2 gelu(W1 x + b1) + b2: checked
// against fp64, and timed beside the same block with all blocks stored.
//
//     mlp [TOKENS [WIDTH [cuda]]]
//
// cuda is for programs that CMake found the CUDA toolkit for.
#include <sparse_autotune.h>
#ifdef MLP_WITH_CUDA
#include <cuda_runtime_api.h>
#endif

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

void must(sparse_autotune_status status) {
  if (status != SPARSE_AUTOTUNE_OK) throw std::runtime_error(sparse_autotune_error_message());
}

struct Free {
  void operator()(sparse_autotune_context* c) const { sparse_autotune_context_destroy(c); }
  void operator()(sparse_autotune_pattern* p) const { sparse_autotune_pattern_destroy(p); }
};

// Floats where products of that context read and write them: on the host, or on its CUDA device.
class Floats {
 public:
  Floats(bool cuda, size_t count) : cuda_(cuda), count_(count) {
    if (!cuda_) {
      data_ = new float[count];
      return;
    }
#ifdef MLP_WITH_CUDA
    void* made = nullptr;
    if (cudaMalloc(&made, count * sizeof(float)) != cudaSuccess) throw std::bad_alloc();
    data_ = static_cast<float*>(made);
#else
    throw std::runtime_error("this program was built without the CUDA toolkit");
#endif
  }
  Floats(bool cuda, const std::vector<float>& from) : Floats(cuda, from.size()) {
    copy(data_, from.data());
  }
  ~Floats() {
#ifdef MLP_WITH_CUDA
    if (cuda_) cudaFree(data_);
#endif
    if (!cuda_) delete[] data_;
  }
  Floats(const Floats&) = delete;
  Floats& operator=(const Floats&) = delete;

  float* data() const { return data_; }
  // Waits for the products that write them.
  std::vector<float> on_host() const {
    std::vector<float> copied(count_);
    copy(copied.data(), data_);
    return copied;
  }

 private:
  void copy(float* to, const float* from) const {
    if (!cuda_) std::copy(from, from + count_, to);
#ifdef MLP_WITH_CUDA
    if (cuda_ && cudaMemcpy(to, from, count_ * sizeof(float), cudaMemcpyDefault) != cudaSuccess) {
      throw std::runtime_error("cudaMemcpy failed");
    }
#endif
  }

  const bool cuda_;
  const size_t count_;
  float* data_ = nullptr;
};

// A linear layer whose weight (out x in) stores each block with that probability.
class Linear {
 public:
  Linear(sparse_autotune_context* context, bool cuda, int64_t in, int64_t out, double density,
         std::mt19937& random)
      : in_(in), out_(out) {
    std::uniform_real_distribution<double> share(0, 1);
    for (int64_t row = 0; row < out / kBlock; ++row) {
      for (int64_t col = 0; col < in / kBlock; ++col) {
        if (share(random) < density) col_.push_back(col);
      }
      crow_.push_back(static_cast<int64_t>(col_.size()));
    }
    std::normal_distribution<float> normal(0, 1 / std::sqrt(static_cast<float>(density) * in));
    values_.resize(col_.size() * kBlock * kBlock);
    for (float& x : values_) x = normal(random);
    bias_.resize(static_cast<size_t>(out));
    for (float& x : bias_) x = 0.1f * normal(random);
    device_values_ = std::make_unique<Floats>(cuda, values_);
    device_bias_ = std::make_unique<Floats>(cuda, bias_);

    auto d = SPARSE_AUTOTUNE_INIT(sparse_autotune_pattern_description);
    d.rows = out;
    d.cols = in;
    d.block_rows = d.block_cols = kBlock;
    d.nnzb = static_cast<int64_t>(col_.size());
    d.crow_indices = crow_.data();
    d.col_indices = col_.data();
    d.index_type = SPARSE_AUTOTUNE_INT64;
    sparse_autotune_pattern* made = nullptr;
    must(sparse_autotune_pattern_create(context, &d, &made));
    pattern_.reset(made);
  }

  // y = activation(x W^T + b) for x of so many rows.
  void forward(const Floats& x, const Floats& y, int64_t tokens,
               sparse_autotune_activation activation) const {
    auto p = SPARSE_AUTOTUNE_INIT(sparse_autotune_product);
    p.values = device_values_->data();
    p.dtype = SPARSE_AUTOTUNE_FLOAT32;
    p.activation = activation;
    p.dense.data = x.data();
    p.dense.rows = tokens;
    p.dense.cols = in_;
    p.result.data = y.data();
    p.result.rows = tokens;
    p.result.cols = out_;
    p.bias = device_bias_->data();
    p.sparse_right = 1;
    p.transpose = 1;
    must(sparse_autotune_matmul(pattern_.get(), &p));
  }

  // The same of one token in fp64, before the activation.
  std::vector<double> reference(const double* x) const {
    std::vector<double> y(bias_.begin(), bias_.end());
    for (size_t row = 0; row + 1 < crow_.size(); ++row) {
      for (int64_t at = crow_[row]; at < crow_[row + 1]; ++at) {
        for (int64_t i = 0; i < kBlock; ++i) {
          for (int64_t j = 0; j < kBlock; ++j) {
            y[row * kBlock + static_cast<size_t>(i)] +=
                double{values_[static_cast<size_t>((at * kBlock + i) * kBlock + j)]} *
                x[col_[static_cast<size_t>(at)] * kBlock + j];
          }
        }
      }
    }
    return y;
  }

 private:
  static constexpr int64_t kBlock = 32;
  int64_t in_, out_;
  std::vector<int64_t> crow_{0}, col_;
  std::vector<float> values_, bias_;
  std::unique_ptr<Floats> device_values_, device_bias_;
  std::unique_ptr<sparse_autotune_pattern, Free> pattern_;
};

struct Mlp {
  Linear up, down;
  Floats hidden;
  Mlp(sparse_autotune_context* context, bool cuda, int64_t tokens, int64_t width, double density,
      std::mt19937& random)
      : up(context, cuda, width, 4 * width, density, random),
        down(context, cuda, 4 * width, width, density, random),
        hidden(cuda, static_cast<size_t>(tokens * 4 * width)) {}

  void forward(const Floats& x, const Floats& y, int64_t tokens) const {
    up.forward(x, hidden, tokens, SPARSE_AUTOTUNE_GELU);
    down.forward(hidden, y, tokens, SPARSE_AUTOTUNE_NONE);
  }
  std::vector<double> reference(const double* x) const {
    std::vector<double> hidden_of_one = up.reference(x);
    for (double& h : hidden_of_one) h = h * 0.5 * (1 + std::erf(h / std::sqrt(2.0)));
    return down.reference(hidden_of_one.data());
  }
};

// Of a forward in ms, the median of some rounds; the first forward, which races, is not among them.
double time_of(const Mlp& mlp, const Floats& x, const Floats& y, int64_t tokens) {
  constexpr int kRounds = 15, kForwards = 10;
  mlp.forward(x, y, tokens);
  std::vector<double> times;
  for (int round = 0; round < kRounds; ++round) {
    y.on_host();  // waits
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < kForwards; ++i) mlp.forward(x, y, tokens);
    y.on_host();
    const std::chrono::duration<double, std::milli> taken =
        std::chrono::steady_clock::now() - start;
    times.push_back(taken.count() / kForwards);
  }
  std::nth_element(times.begin(), times.begin() + kRounds / 2, times.end());
  return times[kRounds / 2];
}

int run(int64_t tokens, int64_t width, bool cuda) {
  if (tokens < 1 || width < 32 || width % 32 != 0) {
    throw std::runtime_error("TOKENS must be positive, and WIDTH a multiple of 32");
  }
  auto options = SPARSE_AUTOTUNE_INIT(sparse_autotune_context_options);
  options.device_type = cuda ? SPARSE_AUTOTUNE_CUDA : SPARSE_AUTOTUNE_CPU;
  sparse_autotune_context* made = nullptr;
  must(sparse_autotune_context_create(&options, &made));
  const std::unique_ptr<sparse_autotune_context, Free> context(made);
  std::mt19937 random(1);
  const Mlp sparse(made, cuda, tokens, width, 0.125, random);
  const Mlp full(made, cuda, tokens, width, 1, random);
  std::normal_distribution<float> normal;
  std::vector<float> input(static_cast<size_t>(tokens * width));
  for (float& one : input) one = normal(random);
  const Floats x(cuda, input), result(cuda, input.size());

  sparse.forward(x, result, tokens);
  const std::vector<float> y = result.on_host();
  double worst = 0;
  for (int64_t token = 0; token < std::min<int64_t>(tokens, 4); ++token) {
    const auto first = static_cast<size_t>(token * width);
    const std::vector<double> one(input.begin() + static_cast<std::ptrdiff_t>(first),
                                  input.begin() + static_cast<std::ptrdiff_t>(first) + width);
    const std::vector<double> expected = sparse.reference(one.data());
    for (size_t i = 0; i < expected.size(); ++i) {
      const double off = std::abs(y[first + i] - expected[i]) / (1 + std::abs(expected[i]));
      if (!(off <= worst)) worst = off;  // also where it is NaN
    }
  }
  const bool right = worst < 1e-4;
  std::printf("%lld tokens, width %lld: largest error %.2g: %s\n", static_cast<long long>(tokens),
              static_cast<long long>(width), worst, right ? "ok" : "WRONG");
  const double sparse_ms = time_of(sparse, x, result, tokens);
  const double full_ms = time_of(full, x, result, tokens);
  std::printf("one block in eight stored %.3f ms, all stored %.3f ms: %.2f times as fast\n",
              sparse_ms, full_ms, full_ms / sparse_ms);
  return right ? 0 : 1;
}

}  // namespace

int main(int count, char** words) {
  try {
    return run(count > 1 ? std::atoll(words[1]) : 64, count > 2 ? std::atoll(words[2]) : 512,
               count > 3 && std::string(words[3]) == "cuda");
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 2;
  }
}
