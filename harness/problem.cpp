#include "harness/problem.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <random>
#include <set>
#include <thread>

#include "half.h"

namespace harness {
namespace {

using sparse_autotune::DType;
using sparse_autotune::narrowed;
using sparse_autotune::widened;
using sparse_autotune::with_type;

// Of the fp64 reference: where all of it costs more, or has more elements, some block rows are
// checked.
constexpr double kMostFlops = 8e9;
constexpr int64_t kMostElements = int64_t{1} << 25;
constexpr size_t kRandomRows = 24;

DType type_of(const Point& p) { return static_cast<DType>(p.dtype); }
size_t item(const Point& p) { return static_cast<size_t>(sparse_autotune::size_of(type_of(p))); }

// Uniform in [-1, 1), rounded to the type; what the device holds of them.
std::vector<double> random_numbers(const Point& p, size_t count, std::mt19937_64& random) {
  std::vector<double> numbers(count);
  std::uniform_real_distribution<double> uniform(-1, 1);
  with_type(type_of(p), [&]<typename T>(T*) {
    for (double& x : numbers) x = widened(narrowed<T>(uniform(random)));
  });
  return numbers;
}

std::unique_ptr<Buffer> put(const Device& device, const Point& p, const std::vector<double>& from) {
  auto buffer = device.allocate(from.size() * item(p));
  with_type(type_of(p), [&]<typename T>(T*) {
    std::vector<T> typed(from.size());
    for (size_t i = 0; i < from.size(); ++i) typed[i] = narrowed<T>(from[i]);
    buffer->write(typed.data());
  });
  return buffer;
}

// Calls work(i) for each i below `count`, on all processors.
template <typename Work>
void each_in_parallel(size_t count, Work&& work) {
  std::atomic<size_t> next{0};
  const auto some = [&] {
    for (size_t i = next++; i < count; i = next++) work(i);
  };
  std::vector<std::thread> threads;
  for (unsigned i = 1; i < std::max(1u, std::thread::hardware_concurrency()); ++i) {
    threads.emplace_back(some);
  }
  some();
  for (std::thread& thread : threads) thread.join();
}

// Half the distance from 1 to the next number.
double unit(sparse_autotune_dtype dtype) {
  switch (dtype) {
    case SPARSE_AUTOTUNE_FLOAT16:
      return 0x1p-11;
    case SPARSE_AUTOTUNE_BFLOAT16:
      return 0x1p-8;
    case SPARSE_AUTOTUNE_FLOAT32:
      return 0x1p-24;
    default:
      return 0x1p-53;
  }
}

}  // namespace

Problem::Problem(const Device& device, const Point& point, Pattern pattern, uint64_t seed)
    : point_(point), pattern_(std::move(pattern)) {
  std::mt19937_64 random(seed);
  values_ = random_numbers(
      point_, static_cast<size_t>(pattern_.nnzb() * point_.block * point_.block), random);
  b_ = random_numbers(point_, static_cast<size_t>(point_.k * point_.n), random);
  device_values_ = put(device, point_, values_);
  device_b_ = put(device, point_, b_);
  device_c_ = device.allocate(static_cast<size_t>(point_.m * point_.n) * item(point_));
  auto d = SPARSE_AUTOTUNE_INIT(sparse_autotune_pattern_description);
  d.rows = point_.m;
  d.cols = point_.k;
  d.block_rows = d.block_cols = point_.block;
  d.nnzb = pattern_.nnzb();
  d.crow_indices = pattern_.crow_indices.data();
  d.col_indices = pattern_.col_indices.data();
  d.index_type = SPARSE_AUTOTUNE_INT64;
  sparse_autotune_pattern* made = nullptr;
  must(sparse_autotune_pattern_create(device.context(), &d, &made), "the pattern");
  handle_.reset(made);
}

sparse_autotune_product Problem::product() const {
  auto p = SPARSE_AUTOTUNE_INIT(sparse_autotune_product);
  p.values = device_values_->data();
  p.dtype = point_.dtype;
  p.dense.data = device_b_->data();
  p.dense.rows = point_.k;
  p.dense.cols = point_.n;
  p.result.data = device_c_->data();
  p.result.rows = point_.m;
  p.result.cols = point_.n;
  return p;
}

void Problem::poison() { device_c_->fill(0xFF); }

// All, or the first, the last, the longest and some others.
std::vector<int64_t> Problem::checked_rows() const {
  const double flops = 2.0 * static_cast<double>(values_.size()) * static_cast<double>(point_.n);
  std::set<int64_t> rows;
  if (flops <= kMostFlops && point_.m * point_.n <= kMostElements) {
    for (int64_t row = 0; row < pattern_.block_rows; ++row) rows.insert(row);
  } else {
    const auto& crow = pattern_.crow_indices;
    int64_t longest = 0;
    const auto length = [&](int64_t row) {
      return crow[static_cast<size_t>(row) + 1] - crow[static_cast<size_t>(row)];
    };
    for (int64_t row = 1; row < pattern_.block_rows; ++row) {
      if (length(row) > length(longest)) longest = row;
    }
    rows = {0, pattern_.block_rows - 1, longest};
    std::mt19937_64 random(1);
    std::uniform_int_distribution<int64_t> any(0, pattern_.block_rows - 1);
    for (size_t i = 0; i < kRandomRows; ++i) rows.insert(any(random));
  }
  return {rows.begin(), rows.end()};
}

// The error of a sum of `length` rounded products grows with sqrt(length); half types are summed
// up in fp32 and rounded once.
Problem::Expected Problem::expected_of(int64_t block_row) const {
  const auto block = point_.block, n = point_.n;
  const int64_t begin = pattern_.crow_indices[static_cast<size_t>(block_row)];
  const int64_t end = pattern_.crow_indices[static_cast<size_t>(block_row) + 1];
  const double accumulator = point_.dtype == SPARSE_AUTOTUNE_FLOAT64 ? 0x1p-53 : 0x1p-24;
  const double growth =
      accumulator * (8 + 4 * std::sqrt(static_cast<double>((end - begin) * block)));
  const double smallest = point_.dtype == SPARSE_AUTOTUNE_FLOAT16   ? 0x1p-24
                          : point_.dtype == SPARSE_AUTOTUNE_FLOAT64 ? 0x1p-1022
                                                                    : 0x1p-126;
  const auto count = static_cast<size_t>(block * n);
  Expected e{block_row * block * n, std::vector<double>(count), std::vector<double>(count)};
  for (int64_t i = 0; i < block; ++i) {
    double* const sum = &e.sum[static_cast<size_t>(i * n)];
    double* const magnitude = &e.allowed[static_cast<size_t>(i * n)];
    for (int64_t at = begin; at < end; ++at) {
      const double* a = &values_[static_cast<size_t>((at * block + i) * block)];
      const int64_t first = pattern_.col_indices[static_cast<size_t>(at)] * block;
      for (int64_t k = 0; k < block; ++k) {
        const double* b = &b_[static_cast<size_t>((first + k) * n)];
        for (int64_t j = 0; j < n; ++j) {
          const double product = a[k] * b[j];
          sum[j] += product;
          magnitude[j] += std::abs(product);
        }
      }
    }
  }
  for (size_t i = 0; i < count; ++i) {
    e.allowed[i] = std::abs(e.sum[i]) * unit(point_.dtype) + e.allowed[i] * growth + smallest;
  }
  return e;
}

double Problem::error() {
  if (expected_.empty()) {
    const std::vector<int64_t> rows = checked_rows();
    expected_.resize(rows.size());
    each_in_parallel(rows.size(), [&](size_t i) { expected_[i] = expected_of(rows[i]); });
  }
  std::vector<double> worst(expected_.size());
  bool has_nan = false;
  with_type(type_of(point_), [&]<typename T>(T*) {
    std::vector<T> c(static_cast<size_t>(point_.m * point_.n));
    device_c_->read(c.data());
    has_nan = std::any_of(c.begin(), c.end(), [](T x) { return std::isnan(widened(x)); });
    each_in_parallel(expected_.size(), [&](size_t at) {
      const Expected& e = expected_[at];
      for (size_t i = 0; i < e.sum.size(); ++i) {
        const double found = widened(c[static_cast<size_t>(e.first) + i]);
        worst[at] = std::max(worst[at], std::abs(found - e.sum[i]) / e.allowed[i]);
      }
    });
  });
  return has_nan ? INFINITY : *std::max_element(worst.begin(), worst.end());
}

}  // namespace harness
