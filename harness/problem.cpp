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

// Of the fp64 reference: where all of it costs more, some block rows are checked.
constexpr double kMostFlops = 8e9;
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
  if (flops <= kMostFlops) {
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
double Problem::worst_of_row(int64_t block_row, const std::vector<double>& c) const {
  const auto block = point_.block, n = point_.n;
  const int64_t begin = pattern_.crow_indices[static_cast<size_t>(block_row)];
  const int64_t end = pattern_.crow_indices[static_cast<size_t>(block_row) + 1];
  const double accumulator = point_.dtype == SPARSE_AUTOTUNE_FLOAT64 ? 0x1p-53 : 0x1p-24;
  const double growth =
      accumulator * (8 + 4 * std::sqrt(static_cast<double>((end - begin) * block)));
  const double smallest = point_.dtype == SPARSE_AUTOTUNE_FLOAT16   ? 0x1p-24
                          : point_.dtype == SPARSE_AUTOTUNE_FLOAT64 ? 0x1p-1022
                                                                    : 0x1p-126;
  std::vector<double> sum(static_cast<size_t>(n)), magnitude(static_cast<size_t>(n));
  double worst = 0;
  for (int64_t i = 0; i < block; ++i) {
    std::fill(sum.begin(), sum.end(), 0);
    std::fill(magnitude.begin(), magnitude.end(), 0);
    for (int64_t at = begin; at < end; ++at) {
      const double* a = &values_[static_cast<size_t>((at * block + i) * block)];
      const int64_t first = pattern_.col_indices[static_cast<size_t>(at)] * block;
      for (int64_t k = 0; k < block; ++k) {
        const double* b = &b_[static_cast<size_t>((first + k) * n)];
        for (size_t j = 0; j < sum.size(); ++j) {
          const double product = a[k] * b[j];
          sum[j] += product;
          magnitude[j] += std::abs(product);
        }
      }
    }
    const double* row = &c[static_cast<size_t>((block_row * block + i) * n)];
    for (size_t j = 0; j < sum.size(); ++j) {
      const double allowed =
          std::abs(sum[j]) * unit(point_.dtype) + magnitude[j] * growth + smallest;
      const double share = std::abs(row[j] - sum[j]) / allowed;
      if (!(share <= worst)) worst = std::isnan(share) ? INFINITY : share;
    }
  }
  return worst;
}

double Problem::error() const {
  std::vector<double> c(static_cast<size_t>(point_.m * point_.n));
  with_type(type_of(point_), [&]<typename T>(T*) {
    std::vector<T> typed(c.size());
    device_c_->read(typed.data());
    for (size_t i = 0; i < c.size(); ++i) c[i] = widened(typed[i]);
  });
  if (std::any_of(c.begin(), c.end(), [](double x) { return std::isnan(x); })) return INFINITY;
  const std::vector<int64_t> rows = checked_rows();
  std::vector<double> worst(rows.size());
  std::atomic<size_t> next{0};
  const auto work = [&] {
    for (size_t i = next++; i < rows.size(); i = next++) worst[i] = worst_of_row(rows[i], c);
  };
  std::vector<std::thread> threads;
  for (unsigned i = 1; i < std::max(1u, std::thread::hardware_concurrency()); ++i) {
    threads.emplace_back(work);
  }
  work();
  for (std::thread& thread : threads) thread.join();
  return *std::max_element(worst.begin(), worst.end());
}

}  // namespace harness
