// What the fuzzer knows for itself: which indices are a pattern, and what a product of small whole
// numbers is, which every kernel adds up without rounding.
#pragma once

#include <sparse_autotune.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "half.h"

namespace fuzz {

constexpr int64_t kItem[] = {2, 2, 4, 8};

inline double read(const void* memory, int64_t at, int32_t dtype) {
  return sparse_autotune::with_type(
      static_cast<sparse_autotune::DType>(dtype), [&]<typename T>(T*) -> double {
        T x;
        std::memcpy(&x, static_cast<const char*>(memory) + at * int64_t{sizeof(T)}, sizeof(T));
        return sparse_autotune::widened(x);
      });
}

inline void fill_with_numbers(void* memory, size_t bytes, int32_t dtype, uint64_t seed) {
  sparse_autotune::with_type(static_cast<sparse_autotune::DType>(dtype), [&]<typename T>(T*) {
    for (size_t i = 0; i < bytes / sizeof(T); ++i) {
      seed = seed * 6364136223846793005u + 1442695040888963407u;
      const T x = sparse_autotune::narrowed<T>(static_cast<double>((seed >> 33) % 5) - 2);
      std::memcpy(static_cast<char*>(memory) + i * sizeof(T), &x, sizeof(T));
    }
  });
}

struct Pattern {
  int64_t rows, cols, block_rows, block_cols;
  std::vector<int64_t> crow, col;

  // Of arrays that are as long as a description with legal sizes says.
  bool is_bsr() const {
    if (rows == 0) return true;  // nobody looks at them
    const int64_t most = cols / block_cols;
    if (crow.front() != 0 || crow.back() != static_cast<int64_t>(col.size())) return false;
    for (size_t row = 0; row + 1 < crow.size(); ++row) {
      const int64_t begin = crow[row], end = crow[row + 1];
      if (begin < 0 || end < begin || end > static_cast<int64_t>(col.size())) return false;
      for (int64_t at = begin; at < end; ++at) {
        const int64_t here = col[static_cast<size_t>(at)];
        if (here < 0 || here >= most) return false;
        if (at > begin && here <= col[static_cast<size_t>(at - 1)]) return false;
      }
    }
    return true;
  }

  // visit(row, column, where in the values) of each stored element.
  template <typename Visit>
  void each_element(Visit&& visit) const {
    for (size_t row = 0; row + 1 < crow.size(); ++row) {
      for (int64_t at = crow[row]; at < crow[row + 1]; ++at) {
        for (int64_t i = 0; i < block_rows; ++i) {
          for (int64_t j = 0; j < block_cols; ++j) {
            visit(static_cast<int64_t>(row) * block_rows + i,
                  col[static_cast<size_t>(at)] * block_cols + j,
                  (at * block_rows + i) * block_cols + j);
          }
        }
      }
    }
  }
};

inline int64_t at(const sparse_autotune_dense& d, int64_t matrix, int64_t row, int64_t col) {
  const bool packed = d.row_stride == 0 && d.col_stride == 0;
  return matrix * d.batch_stride + row * (packed ? d.cols : d.row_stride) +
         col * (packed ? 1 : d.col_stride);
}

inline double activated(double x, int32_t activation) {
  switch (activation) {
    case SPARSE_AUTOTUNE_RELU:
      return x > 0 ? x : 0;
    case SPARSE_AUTOTUNE_GELU:
      return x / 2 * std::erfc(-x / std::sqrt(2.0));
    case SPARSE_AUTOTUNE_GELU_TANH:
      return x / (1 + std::exp(-2 * 0.79788456080286536 * (x + 0.044715 * x * x * x)));
    case SPARSE_AUTOTUNE_SILU:
      return x / (1 + std::exp(-x));
    default:
      return x;
  }
}

// Sums are exact; what is left is the activation, in fp32, and one rounding to the type.
inline bool is_close(double found, double expected, int32_t dtype, int32_t activation) {
  constexpr double kUnit[] = {0x1p-11, 0x1p-8, 0x1p-24, 0x1p-53};
  const double of_activation =
      activation <= SPARSE_AUTOTUNE_RELU ? 0 : 4e-6 * (1 + std::abs(expected));
  return std::abs(found - expected) <= std::abs(expected) * kUnit[dtype] + of_activation;
}

// Whether `p.result` is the product, and what lies between its elements is as it was: 0xFF.
inline bool is_right(const Pattern& a, const sparse_autotune_product& p, size_t result_bytes) {
  const int64_t m = p.result.rows, n = p.result.cols, batch = std::max<int64_t>(p.result.batch, 1);
  std::vector<double> sum(static_cast<size_t>(batch * m * n));
  for (int64_t b = 0; b < batch; ++b) {
    for (int64_t i = 0; i < m && p.bias != nullptr; ++i) {
      for (int64_t j = 0; j < n; ++j) {
        sum[static_cast<size_t>((b * m + i) * n + j)] =
            read(p.bias, p.sparse_right ? j : i, p.dtype);
      }
    }
    a.each_element([&](int64_t row, int64_t col, int64_t where) {
      const double value = read(p.values, where, p.dtype);
      const int64_t outer = p.transpose ? col : row, inner = p.transpose ? row : col;
      if (p.sparse_right) {
        for (int64_t i = 0; i < m; ++i) {
          sum[static_cast<size_t>((b * m + i) * n + inner)] +=
              read(p.dense.data, at(p.dense, b, i, outer), p.dtype) * value;
        }
      } else {
        for (int64_t j = 0; j < n; ++j) {
          sum[static_cast<size_t>((b * m + outer) * n + j)] +=
              value * read(p.dense.data, at(p.dense, b, inner, j), p.dtype);
        }
      }
    });
  }
  std::vector<bool> written(result_bytes);
  for (int64_t b = 0; b < batch; ++b) {
    for (int64_t i = 0; i < m; ++i) {
      for (int64_t j = 0; j < n; ++j) {
        const int64_t place = at(p.result, b, i, j);
        const double expected =
            activated(sum[static_cast<size_t>((b * m + i) * n + j)], p.activation);
        if (!is_close(read(p.result.data, place, p.dtype), expected, p.dtype, p.activation)) {
          return false;
        }
        const auto first = written.begin() + place * kItem[p.dtype];
        std::fill(first, first + kItem[p.dtype], true);
      }
    }
  }
  const auto* bytes = static_cast<const unsigned char*>(p.result.data);
  for (size_t i = 0; i < result_bytes; ++i) {
    if (!written[i] && bytes[i] != 0xFF) return false;
  }
  return true;
}

inline bool is_right(const Pattern& a, const sparse_autotune_sampled_product& p) {
  bool right = true;
  a.each_element([&](int64_t row, int64_t col, int64_t where) {
    double sum = 0;
    for (int64_t b = 0; b < std::max<int64_t>(p.x.batch, 1); ++b) {
      for (int64_t i = 0; i < p.x.cols; ++i) {
        sum += read(p.x.data, at(p.x, b, row, i), p.dtype) *
               read(p.y.data, at(p.y, b, i, col), p.dtype);
      }
    }
    right = right && is_close(read(p.values, where, p.dtype), sum, p.dtype, SPARSE_AUTOTUNE_NONE);
  });
  return right;
}

}  // namespace fuzz
