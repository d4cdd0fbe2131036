// The forward of an MLP block with two block-sparse layers, y = W2 gelu(W1 x + b1) + b2, on the
// CPU: checked against fp64, and timed beside the same block with dense weights.
//
//     mlp [TOKENS [WIDTH]]
#include <sparse_autotune.h>

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

// A linear layer whose weight (out x in) stores each block with that probability.
class Linear {
 public:
  Linear(sparse_autotune_context* context, int64_t in, int64_t out, double density,
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

  // activation(x W^T + b) for x of so many rows.
  std::vector<float> forward(const std::vector<float>& x, int64_t tokens,
                             sparse_autotune_activation activation) const {
    std::vector<float> y(static_cast<size_t>(tokens * out_));
    auto p = SPARSE_AUTOTUNE_INIT(sparse_autotune_product);
    p.values = values_.data();
    p.dtype = SPARSE_AUTOTUNE_FLOAT32;
    p.activation = activation;
    p.dense.data = const_cast<float*>(x.data());
    p.dense.rows = tokens;
    p.dense.cols = in_;
    p.result.data = y.data();
    p.result.rows = tokens;
    p.result.cols = out_;
    p.bias = bias_.data();
    p.sparse_right = 1;
    p.transpose = 1;
    must(sparse_autotune_matmul(pattern_.get(), &p));
    return y;
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
  std::unique_ptr<sparse_autotune_pattern, Free> pattern_;
};

struct Mlp {
  Linear up, down;
  Mlp(sparse_autotune_context* context, int64_t width, double density, std::mt19937& random)
      : up(context, width, 4 * width, density, random),
        down(context, 4 * width, width, density, random) {}

  std::vector<float> forward(const std::vector<float>& x, int64_t tokens) const {
    return down.forward(up.forward(x, tokens, SPARSE_AUTOTUNE_GELU), tokens, SPARSE_AUTOTUNE_NONE);
  }
  std::vector<double> reference(const double* x) const {
    std::vector<double> hidden = up.reference(x);
    for (double& h : hidden) h = h * 0.5 * (1 + std::erf(h / std::sqrt(2.0)));
    return down.reference(hidden.data());
  }
};

// The median of some forwards, in ms; the first one, which races, is not among them.
double time_of(const Mlp& mlp, const std::vector<float>& x, int64_t tokens) {
  mlp.forward(x, tokens);
  std::vector<double> times;
  for (int i = 0; i < 15; ++i) {
    const auto start = std::chrono::steady_clock::now();
    mlp.forward(x, tokens);
    const std::chrono::duration<double, std::milli> taken =
        std::chrono::steady_clock::now() - start;
    times.push_back(taken.count());
  }
  std::nth_element(times.begin(), times.begin() + 7, times.end());
  return times[7];
}

int run(int64_t tokens, int64_t width) {
  if (tokens < 1 || width < 32 || width % 32 != 0) {
    throw std::runtime_error("TOKENS must be positive, and WIDTH a multiple of 32");
  }
  sparse_autotune_context* made = nullptr;
  must(sparse_autotune_context_create(nullptr, &made));
  const std::unique_ptr<sparse_autotune_context, Free> context(made);
  std::mt19937 random(1);
  const Mlp sparse(made, width, 0.125, random), dense(made, width, 1, random);
  std::normal_distribution<float> normal;
  std::vector<float> x(static_cast<size_t>(tokens * width));
  for (float& one : x) one = normal(random);

  const std::vector<float> y = sparse.forward(x, tokens);
  double worst = 0;
  for (int64_t token = 0; token < std::min<int64_t>(tokens, 4); ++token) {
    const auto first = static_cast<size_t>(token * width);
    const std::vector<double> input(x.begin() + static_cast<std::ptrdiff_t>(first),
                                    x.begin() + static_cast<std::ptrdiff_t>(first) + width);
    const std::vector<double> expected = sparse.reference(input.data());
    for (size_t i = 0; i < expected.size(); ++i) {
      const double off = std::abs(y[first + i] - expected[i]) / (1 + std::abs(expected[i]));
      if (!(off <= worst)) worst = off;  // also where it is NaN
    }
  }
  const bool right = worst < 1e-4;
  std::printf("%lld tokens, width %lld: largest error %.2g: %s\n", static_cast<long long>(tokens),
              static_cast<long long>(width), worst, right ? "ok" : "WRONG");
  const double sparse_ms = time_of(sparse, x, tokens), dense_ms = time_of(dense, x, tokens);
  std::printf("one block in eight stored %.3f ms, all stored %.3f ms: %.2f times as fast\n",
              sparse_ms, dense_ms, dense_ms / sparse_ms);
  return right ? 0 : 1;
}

}  // namespace

int main(int count, char** words) {
  try {
    return run(count > 1 ? std::atoll(words[1]) : 64, count > 2 ? std::atoll(words[2]) : 512);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 2;
  }
}
