#include "autotune/check_cuda.h"

#include <cuda_runtime.h>

#include <algorithm>

#include "kernels/cuda/device/load_index.cuh"
#include "kernels/cuda/host/element_types.h"

namespace sparse_autotune {
namespace {

constexpr int kThreads = 256;

unsigned grid_for(int64_t count) {
  return static_cast<unsigned>(std::clamp<int64_t>(ceil_div(count, kThreads), 1, 1 << 16));
}

template <typename F>
void with_index(IndexType type, F&& f) {
  if (type == IndexType::kInt64) {
    f(static_cast<const int64_t*>(nullptr));
  } else {
    f(static_cast<const int32_t*>(nullptr));
  }
}

// Element e of every set: `sets` sets, `set_bytes` apart.
template <typename T>
__global__ void fill_kernel(char* first, int64_t sets, int64_t set_bytes, Strides s,
                            uint64_t number) {
  const int64_t per_set = s.batch * s.rows * s.cols;
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < per_set * sets; i += step) {
    const int64_t set = i / per_set, e = i % per_set;
    const int64_t line = e / s.cols, col = e % s.cols;
    T* out = reinterpret_cast<T*>(first + set * set_bytes);
    out[line / s.rows * s.batch_stride + line % s.rows * s.row_stride + col * s.col_stride] =
        static_cast<T>(operand_value(number + static_cast<uint64_t>(i)));
  }
}

template <typename Index>
__global__ void replicate_kernel(char* first, int64_t sets, int64_t set_bytes, const Index* source,
                                 int64_t count) {
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count * sets; i += step) {
    reinterpret_cast<Index*>(first + i / count * set_bytes)[i % count] = source[i % count];
  }
}

struct TileArguments {
  Launch operands;
  const Tile* tiles;
  Expected* expected;
  Problem problem;
  Strides b_strides, c_strides;
  int64_t row_stride, k_stride;  // in a block of values
};

constexpr int kStripRows = kThreads / kTileCols;

// A thread an element, or a few of one column: `gridDim.y` thread blocks share a tile.
template <typename Element>
__device__ void for_each_element(const TileArguments& a, Element&& element) {
  const Tile tile = a.tiles[blockIdx.x];
  const int j = threadIdx.x % kTileCols;
  if (j >= tile_cols(tile, a.problem)) return;
  const int rows = tile_rows(tile, a.problem);
  const int first = blockIdx.y * kStripRows + threadIdx.x / kTileCols;
  for (int i = first; i < rows; i += gridDim.y * kStripRows) {
    element(tile, i, j, a.expected[int64_t{blockIdx.x} * kTileElements + i * kTileCols + j]);
  }
}

template <typename T>
__global__ void __launch_bounds__(kThreads, 2) expected_kernel(const TileArguments a) {
  const bool wide = a.problem.index_type == IndexType::kInt64;
  for_each_element(a, [&](const Tile& tile, int i, int j, Expected& expected) {
    const int64_t begin = load_index(a.operands.crow_indices, tile.block_row, wide);
    const int64_t end = load_index(a.operands.crow_indices, tile.block_row + 1, wide);
    const T* b = static_cast<const T*>(a.operands.b) + tile.batch * a.b_strides.batch_stride +
                 (tile.col + j) * a.b_strides.col_stride;
    double sum = 0, magnitude = 0;
    for (int64_t block = begin; block < end; ++block) {
      const void* positions = a.operands.positions;
      const int64_t position = positions == nullptr ? block : load_index(positions, block, wide);
      const T* left = static_cast<const T*>(a.operands.values) +
                      position * a.problem.block_m * a.problem.block_k +
                      (tile.row % a.problem.block_m + i) * a.row_stride;
      const T* right = b + load_index(a.operands.col_indices, block, wide) * a.problem.block_k *
                               a.b_strides.row_stride;
      for (int64_t k = 0; k < a.problem.block_k; ++k) {
        const double product = static_cast<double>(*left) * static_cast<double>(*right);
        sum += product;
        magnitude += fabs(product);
        left += a.k_stride;
        right += a.b_strides.row_stride;
      }
    }
    const double bias =
        a.operands.bias == nullptr
            ? 0
            : static_cast<double>(static_cast<const T*>(a.operands.bias)[tile.row + i]);
    expected = expected_element(sum, bias, magnitude + fabs(bias),
                                (end - begin) * a.problem.block_k + 1, a.problem);
  });
}

template <typename T>
__global__ void __launch_bounds__(kThreads, 2) expected_sampled_kernel(const TileArguments a) {
  const bool wide = a.problem.index_type == IndexType::kInt64;
  for_each_element(a, [&](const Tile& tile, int i, int j, Expected& expected) {
    const int64_t row = tile.block_row * a.problem.block_m + tile.row + i;
    const int64_t col =
        load_index(a.operands.col_indices, tile.batch, wide) * a.problem.block_k + tile.col + j;
    double sum = 0, magnitude = 0;
    for (int64_t matrix = 0; matrix < a.problem.batch; ++matrix) {
      const T* left = static_cast<const T*>(a.operands.c) + matrix * a.c_strides.batch_stride +
                      row * a.c_strides.row_stride;
      const T* right = static_cast<const T*>(a.operands.b) + matrix * a.b_strides.batch_stride +
                       col * a.b_strides.row_stride;
      for (int64_t q = 0; q < a.problem.n; ++q) {
        const double product = static_cast<double>(left[q * a.c_strides.col_stride]) *
                               static_cast<double>(right[q * a.b_strides.col_stride]);
        sum += product;
        magnitude += fabs(product);
      }
    }
    expected = expected_element(sum, 0, magnitude, sampled_length(a.problem), a.problem);
  });
}

template <typename T>
__global__ void __launch_bounds__(kThreads)
    compare_kernel(const TileArguments a, const T* output, Strides s, Findings* findings) {
  float worst = 0;
  for_each_element(a, [&](const Tile& tile, int i, int j, const Expected& e) {
    const double x =
        static_cast<double>(output[tile.batch * s.batch_stride + (tile.row + i) * s.row_stride +
                                   (tile.col + j) * s.col_stride]);
    const double off = fabs(x - e.value) / e.allowed;
    worst = off <= 1e30 ? fmaxf(worst, static_cast<float>(off)) : 1e30f;  // NaN too
  });
  if (worst > 0) atomicMax(reinterpret_cast<int*>(&findings->worst), __float_as_int(worst));
}

template <typename T>
__device__ bool is_nan(T x) {
  const auto y = static_cast<double>(x);
  return y != y;
}

template <typename T>
__global__ void __launch_bounds__(kThreads)
    missing_kernel(const T* output, Strides s, Findings* findings) {
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  unsigned long long missing = 0;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < s.batch * s.rows * s.cols;
       i += step) {
    const int64_t line = i / s.cols;
    missing += is_nan(output[line / s.rows * s.batch_stride + line % s.rows * s.row_stride +
                             i % s.cols * s.col_stride]);
  }
  if (missing > 0) atomicAdd(&findings->missing, missing);
}

template <typename T>
__global__ void __launch_bounds__(kThreads)
    written_kernel(const T* guarded, int64_t count, Findings* findings) {
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  unsigned long long written = 0;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step) {
    const auto* bytes = reinterpret_cast<const unsigned short*>(guarded + i);
    bool poison = true;
    for (size_t b = 0; b < sizeof(T) / 2; ++b) poison = poison && bytes[b] == 0xFFFFu;
    written += !poison;
  }
  if (written > 0) atomicAdd(&findings->written, written);
}

TileArguments tile_arguments(const Problem& p, const Launch& operands, const Tile* tiles,
                             Expected* expected) {
  return {operands,
          tiles,
          expected,
          p,
          strides_of_b(p),
          strides_of_c(p),
          row_stride_in_block(p),
          k_stride_in_block(p)};
}

}  // namespace

cudaError_t fill_operands(const OperandLayout& layout, const Problem& p, const Launch& user,
                          char* base, int64_t sets, cudaStream_t stream) {
  // What lies between the rows of an operand is NaN: a variant that lets it into a result is found
  // out.
  const cudaError_t error =
      cudaMemsetAsync(base, 0xFF, static_cast<size_t>(layout.bytes * sets), stream);
  if (error != cudaSuccess) return error;
  with_index(p.index_type, [&]<typename Index>(const Index*) {
    const auto copy = [&](int64_t offset, const void* source, int64_t count) {
      replicate_kernel<Index><<<grid_for(count * sets), kThreads, 0, stream>>>(
          base + offset, sets, layout.bytes, static_cast<const Index*>(source), count);
    };
    copy(layout.crow_indices, user.crow_indices, block_rows(p) + 1);
    copy(layout.col_indices, user.col_indices, p.nnzb);
    if (p.transpose) copy(layout.positions, user.positions, p.nnzb);
  });
  with_type(p.dtype, [&]<typename T>(T*) {
    for (const Input& input : inputs_of(layout, p)) {
      const Strides& s = input.strides;
      fill_kernel<T><<<grid_for(s.batch * s.rows * s.cols * sets), kThreads, 0, stream>>>(
          base + input.offset, sets, layout.bytes, s, input.number);
    }
  });
  return cudaGetLastError();
}

cudaError_t compute_expected(const Problem& p, const Launch& operands, const Tile* tiles,
                             int64_t count, Expected* expected, cudaStream_t stream) {
  const TileArguments a = tile_arguments(p, operands, tiles, expected);
  with_type(p.dtype, [&]<typename T>(T*) {
    const dim3 blocks(static_cast<unsigned>(count), kTileRows / kStripRows);
    if (p.op == Op::kSampled) {
      expected_sampled_kernel<T><<<blocks, kThreads, 0, stream>>>(a);
    } else {
      expected_kernel<T><<<blocks, kThreads, 0, stream>>>(a);
    }
  });
  return cudaGetLastError();
}

cudaError_t compare_output(const OperandLayout& layout, const Problem& p, const Launch& user,
                           char* base, const Tile* tiles, int64_t count, Expected* expected,
                           Findings* findings, cudaStream_t stream) {
  const cudaError_t error = cudaMemsetAsync(findings, 0, sizeof(Findings), stream);
  if (error != cudaSuccess) return error;
  const TileArguments a = tile_arguments(p, launch_on(layout, p, user, base), tiles, expected);
  const Strides s = strides_of_output(p);
  with_type(p.dtype, [&]<typename T>(T*) {
    const T* output = reinterpret_cast<const T*>(base + layout.output);
    const auto item = static_cast<int64_t>(sizeof(T));
    const int64_t skipped = (layout.output - layout.output_begin) % item;
    const int64_t guarded = (layout.output_bytes - skipped) / item;
    missing_kernel<T>
        <<<grid_for(s.batch * s.rows * s.cols), kThreads, 0, stream>>>(output, s, findings);
    written_kernel<T><<<grid_for(guarded), kThreads, 0, stream>>>(
        reinterpret_cast<const T*>(base + layout.output_begin + skipped), guarded, findings);
    compare_kernel<T>
        <<<static_cast<unsigned>(count), kThreads, 0, stream>>>(a, output, s, findings);
  });
  return cudaGetLastError();
}

}  // namespace sparse_autotune
