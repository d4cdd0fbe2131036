// Operands, check and stopwatch on the CPU.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "autotune/bench.h"
#include "autotune/operands.h"
#include "autotune/verify.h"
#include "half.h"
#include "kernels/cpu/shared/elements.h"

namespace sparse_autotune {
namespace {

struct Free {
  void operator()(char* memory) const { std::free(memory); }
};
using Memory = std::unique_ptr<char, Free>;

Memory allocate(int64_t bytes) {
  const int64_t rounded = ceil_div(std::max<int64_t>(bytes, 1), kOperandAlignment);
  return Memory(static_cast<char*>(
      std::aligned_alloc(kOperandAlignment, static_cast<size_t>(rounded * kOperandAlignment))));
}

// A step along k of the sums of a tile, and of those of the magnitudes. The reference of a large
// product is a good part of a race's time, so it is compiled for wider vectors, too.
#if defined(__x86_64__)
__attribute__((target_clones("avx512f", "avx2", "default")))
#endif
void add_products(const double* __restrict left, const double* __restrict right, int rows, int cols,
                  double* __restrict sum, double* __restrict magnitude) {
  for (int i = 0; i < rows; ++i) {
    for (int j = 0; j < cols; ++j) {
      const double product = left[i] * right[j];
      sum[i * kTileCols + j] += product;
      magnitude[i * kTileCols + j] += std::abs(product);
    }
  }
}

// Longer launches are their own warm-up.
constexpr double kLongUs = 2000;

class CpuBench final : public Bench {
 public:
  CpuBench(const Problem& problem, const Launch& user, const BenchOptions& options)
      : p_(problem), user_(user), layout_(lay_out_operands(problem)), options_(options) {}

  Status build() {
    const int64_t scratch = ceil_div(options_.scratch_bytes, kOperandAlignment) * kOperandAlignment;
    const int64_t bytes = layout_.bytes + scratch + options_.prepared_bytes;
    if (bytes > options_.tuning_bytes) {
      return Status::failed(StatusCode::kOutOfMemory,
                            "a race would take " + std::to_string(bytes) +
                                " bytes, more than settings.tuning_bytes (" +
                                std::to_string(options_.tuning_bytes) + ")");
    }
    operands_ = allocate(layout_.bytes);
    scratch_ = allocate(scratch);
    prepared_ = allocate(options_.prepared_bytes);
    if (!operands_ || !scratch_ || !prepared_) {
      return Status::failed(StatusCode::kOutOfMemory,
                            "no memory for operands of " + std::to_string(bytes) + " bytes");
    }
    fill();
    launch_ = launch_on(layout_, p_, user_, operands_.get());
    launch_.workspace = scratch_.get();
    launch_.prepared = prepared_.get();
    std::vector<int64_t> crow(static_cast<size_t>(block_rows(p_) + 1));
    for (size_t i = 0; i < crow.size(); ++i) {
      crow[i] = index(user_.crow_indices, static_cast<int64_t>(i));
    }
    tiles_ = choose_tiles(p_, crow, 1e8 * user_.parallel.threads);
    with_type(p_.dtype, [&](auto* type) { compute_expected(type); });
    return Status::ok();
  }

  Status check(const Variant& variant, double* error, double* us) override {
    std::memset(operands_.get() + layout_.output_begin, 0xFF,
                static_cast<size_t>(layout_.output_bytes));
    const Status status = run(variant, 1, true, us);
    if (!status) return status;
    prepared_for_ = nullptr;
    return with_type(p_.dtype, [&](auto* type) { return compare(type, error); });
  }

  // Short launches depend on whose data the caches of all cores hold: their own last launch's.
  Status time(const Variant& variant, int64_t launches, LaunchTime* taken) override {
    if (last_ != &variant) {
      const Status status = run(variant, 1, false, &taken->device_us);
      if (!status || taken->device_us > kLongUs) return status;
    }
    return run(variant, launches, false, &taken->device_us);
  }

  bool is_cold() const override { return false; }

 private:
  int64_t index(const void* indices, int64_t i) const {
    return load_index(indices, i, p_.index_type);
  }

  template <typename T>
  void fill_run(T* out, int64_t count, int64_t stride, uint64_t number) const {
    for (int64_t i = 0; i < count; ++i) out[i * stride] = narrowed<T>(operand_value(number + i));
  }

  void fill() {
    char* base = operands_.get();
    const int64_t entry = size_of(p_.index_type);
    // What lies between the rows of an operand is NaN: a variant that lets it into a result is
    // found out.
    std::memset(base, 0xFF, static_cast<size_t>(layout_.bytes));
    std::memcpy(base + layout_.crow_indices, user_.crow_indices,
                static_cast<size_t>((block_rows(p_) + 1) * entry));
    std::memcpy(base + layout_.col_indices, user_.col_indices,
                static_cast<size_t>(p_.nnzb * entry));
    if (p_.transpose) {
      std::memcpy(base + layout_.positions, user_.positions, static_cast<size_t>(p_.nnzb * entry));
    }
    with_type(p_.dtype, [&]<typename T>(T*) {
      for (const Input& input : inputs_of(layout_, p_)) {
        const Strides& s = input.strides;
        T* first = reinterpret_cast<T*>(base + input.offset);
        // Matrices of a batch may share memory, which one thread then writes.
        const int64_t reach = (s.rows - 1) * s.row_stride + (s.cols - 1) * s.col_stride;
        const bool apart = s.batch == 1 || s.batch_stride > reach;
        const int64_t grain = apart ? ceil_div(1 << 12, s.cols) : s.batch * s.rows;
        parallel_for(user_.parallel, 0, s.batch * s.rows, grain, [&](int64_t begin, int64_t end) {
          for (int64_t line = begin; line < end; ++line) {
            fill_run(first + line / s.rows * s.batch_stride + line % s.rows * s.row_stride, s.cols,
                     s.col_stride, input.number + static_cast<uint64_t>(line * s.cols));
          }
        });
      }
    });
  }

  template <typename T>
  void compute_expected(T*) {
    expected_.resize(tiles_.size() * kTileElements);
    parallel_for(user_.parallel, 0, static_cast<int64_t>(tiles_.size()), 1,
                 [&](int64_t begin, int64_t end) {
                   for (int64_t t = begin; t < end; ++t) {
                     const Tile& tile = tiles_[static_cast<size_t>(t)];
                     Expected* expected = &expected_[static_cast<size_t>(t) * kTileElements];
                     if (p_.op == Op::kSampled) {
                       compute_sampled_tile<T>(tile, expected);
                     } else {
                       compute_tile<T>(tile, expected);
                     }
                   }
                 });
  }

  template <typename T>
  void compute_tile(const Tile& tile, Expected* expected) const {
    const Strides s = strides_of_b(p_);
    const T* values = static_cast<const T*>(launch_.values);
    const T* b = static_cast<const T*>(launch_.b) + tile.batch * s.batch_stride;
    const int64_t begin = index(launch_.crow_indices, tile.block_row);
    const int64_t end = index(launch_.crow_indices, tile.block_row + 1);
    const int rows = tile_rows(tile, p_), cols = tile_cols(tile, p_);
    double sum[kTileElements] = {}, magnitude[kTileElements] = {};
    for (int64_t block = begin; block < end; ++block) {
      const int64_t first = index(launch_.col_indices, block) * p_.block_k;
      const int64_t position = p_.transpose ? index(launch_.positions, block) : block;
      const T* a = values + position * p_.block_m * p_.block_k +
                   tile.row % p_.block_m * row_stride_in_block(p_);
      for (int64_t k = 0; k < p_.block_k; ++k) {
        const T* line = b + (first + k) * s.row_stride + tile.col * s.col_stride;
        double left[kTileRows], right[kTileCols];
        for (int64_t i = 0; i < rows; ++i) {
          left[i] = widened(a[i * row_stride_in_block(p_) + k * k_stride_in_block(p_)]);
        }
        for (int64_t j = 0; j < cols; ++j) right[j] = widened(line[j * s.col_stride]);
        add_products(left, right, rows, cols, sum, magnitude);
      }
    }
    for (int64_t i = 0; i < rows; ++i) {
      const double bias =
          p_.has_bias ? widened(static_cast<const T*>(launch_.bias)[tile.row + i]) : 0;
      for (int64_t j = 0; j < cols; ++j) {
        const int64_t at = i * kTileCols + j;
        expected[at] = expected_element(sum[at], bias, magnitude[at] + std::abs(bias),
                                        (end - begin) * p_.block_k + 1, p_);
      }
    }
  }

  template <typename T>
  void compute_sampled_tile(const Tile& tile, Expected* expected) const {
    const Strides s = strides_of_b(p_), t = strides_of_c(p_);
    const int64_t first_row = tile.block_row * p_.block_m + tile.row;
    const int64_t first_col = index(launch_.col_indices, tile.batch) * p_.block_k + tile.col;
    const T* b = static_cast<const T*>(launch_.b) + first_col * s.row_stride;
    const T* c = static_cast<const T*>(launch_.c) + first_row * t.row_stride;
    for (int i = 0; i < tile_rows(tile, p_); ++i) {
      for (int j = 0; j < tile_cols(tile, p_); ++j) {
        double sum = 0, magnitude = 0;
        for (int64_t matrix = 0; matrix < p_.batch; ++matrix) {
          const T* left = c + matrix * t.batch_stride + i * t.row_stride;
          const T* right = b + matrix * s.batch_stride + j * s.row_stride;
          for (int64_t q = 0; q < p_.n; ++q) {
            const double product =
                double{widened(left[q * t.col_stride])} * widened(right[q * s.col_stride]);
            sum += product;
            magnitude += std::abs(product);
          }
        }
        expected[i * kTileCols + j] = expected_element(sum, 0, magnitude, sampled_length(p_), p_);
      }
    }
  }

  template <typename T>
  Status compare(T*, double* error) const {
    const Strides s = strides_of_output(p_);
    const T* output = reinterpret_cast<const T*>(operands_.get() + layout_.output);
    uint64_t missing = 0, written = 0;
    for (int64_t line = 0; line < s.batch * s.rows; ++line) {
      const T* row = output + line / s.rows * s.batch_stride + line % s.rows * s.row_stride;
      for (int64_t j = 0; j < s.cols; ++j) {
        const double x = widened(row[j * s.col_stride]);
        missing += x != x;
      }
    }
    const char* guarded = operands_.get() + layout_.output_begin;
    char poison[sizeof(T)];
    std::memset(poison, 0xFF, sizeof(poison));
    for (int64_t at = (layout_.output - layout_.output_begin) % static_cast<int64_t>(sizeof(T));
         at + static_cast<int64_t>(sizeof(T)) <= layout_.output_bytes;
         at += static_cast<int64_t>(sizeof(T))) {
      written += std::memcmp(guarded + at, poison, sizeof(T)) != 0;
    }
    double worst = 0;
    for (size_t t = 0; t < tiles_.size(); ++t) {
      const Tile& tile = tiles_[t];
      const T* corner =
          output + tile.batch * s.batch_stride + tile.row * s.row_stride + tile.col * s.col_stride;
      for (int i = 0; i < tile_rows(tile, p_); ++i) {
        for (int j = 0; j < tile_cols(tile, p_); ++j) {
          const Expected& e = expected_[t * kTileElements + static_cast<size_t>(i * kTileCols + j)];
          const double off = widened(corner[i * s.row_stride + j * s.col_stride]) - e.value;
          worst = std::max(worst, std::abs(off) / e.allowed);
        }
      }
    }
    return judge(p_, missing, written, worst, error);
  }

  Status run(const Variant& variant, int64_t launches, bool prepare_anew, double* us) {
    const bool converts =
        options_.prepared_bytes > 0 && variant.prepared_bytes(p_, *user_.device) > 0;
    if (converts && p_.frozen && (prepare_anew || prepared_for_ != &variant)) {
      const Status status = variant.prepare(p_, launch_);
      if (!status) return status;
      prepared_for_ = &variant;
    }
    const auto start = std::chrono::steady_clock::now();
    for (int64_t i = 0; i < launches; ++i) {
      if (converts && !p_.frozen) {
        prepared_for_ = nullptr;
        const Status status = variant.prepare(p_, launch_);
        if (!status) return status;
      }
      const Status status = variant.launch(p_, launch_);
      if (!status) return status;
    }
    const std::chrono::duration<double, std::micro> taken =
        std::chrono::steady_clock::now() - start;
    *us = taken.count() / static_cast<double>(launches);
    last_ = &variant;
    return Status::ok();
  }

  const Problem p_;
  const Launch& user_;
  const OperandLayout layout_;
  const BenchOptions options_;
  Memory operands_, scratch_, prepared_;
  Launch launch_;
  std::vector<Tile> tiles_;
  std::vector<Expected> expected_;
  const Variant* prepared_for_ = nullptr;
  const Variant* last_ = nullptr;  // that ran
};

}  // namespace

std::unique_ptr<Bench> make_cpu_bench(const Problem& problem, const Device&, const Launch& user,
                                      const BenchOptions& options, Status* status) {
  try {
    auto bench = std::make_unique<CpuBench>(problem, user, options);
    *status = bench->build();
    if (*status) return bench;
  } catch (const std::bad_alloc&) {
    *status = Status::failed(StatusCode::kOutOfMemory, "no memory for a race");
  }
  return nullptr;
}

}  // namespace sparse_autotune
