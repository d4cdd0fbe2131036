// BSR to dense, where densify_lines.cu cannot: zeros by a memset, then one kernel that scatters the
// stored blocks. And back: the same kernel gathers them from a dense product, or adds them up.
//
// A thread block owns a share of one block row's values; a thread moves whole chunks of up to 16
// bytes, in the order in which a block stores them. Data path: global -> registers -> global.
#include <cuda_runtime.h>

#include <algorithm>

#include "kernels/cuda/convert/move_blocks.h"
#include "kernels/cuda/device/chunk.cuh"
#include "kernels/cuda/host/cuda_status.h"

namespace sparse_autotune {
namespace {

enum class Move : uint8_t { kScatter, kGather, kGatherAdded };

// `Count` is 32 bits wide where a block row's chunks can be counted so: division is what the kernel
// waits for.
template <typename Chunk, typename Index, typename Count>
struct MoveArguments {
  const Index* crow;  // of the first block row
  const Index* col;
  const Index* positions;  // null: blocks lie in order
  Chunk* values;
  Chunk* dense;                    // of the first block row
  Count row_chunks, block_chunks;  // of one row of a block as stored, of one block
  int64_t dense_chunks;            // of one row of the dense matrix
  int64_t row_step, col_step;      // chunks from one block row or column of op(A) to the next
};

template <Move kMove, typename Chunk, typename Index, typename Count>
__global__ void __launch_bounds__(kConvertThreads)
    move_blocks_kernel(const MoveArguments<Chunk, Index, Count> a) {
  const int64_t block_row = blockIdx.x;
  const int64_t begin = a.crow[block_row];
  const Count count = static_cast<Count>(a.crow[block_row + 1] - begin) * a.block_chunks;
  Chunk* const row_dense = a.dense + block_row * a.row_step;
  for (Count i = blockIdx.y * kConvertThreads + threadIdx.x; i < count;
       i += gridDim.y * kConvertThreads) {
    const int64_t at = begin + i / a.block_chunks;
    const Count within = i % a.block_chunks;
    const Count row = within / a.row_chunks, chunk = within % a.row_chunks;
    const int64_t position = a.positions == nullptr ? at : int64_t{a.positions[at]};
    Chunk& stored = a.values[position * a.block_chunks + within];
    Chunk& dense = row_dense[row * a.dense_chunks + a.col[at] * a.col_step + chunk];
    if constexpr (kMove == Move::kScatter) {
      dense = stored;
    } else if constexpr (kMove == Move::kGather) {
      stored = dense;
    } else {
      stored += dense;
    }
  }
}

// Of block rows [first, first + rows), which `dense` begins with.
template <Move kMove, typename Chunk>
void move_blocks(const Problem& p, const Launch& l, void* values, void* dense, int64_t first,
                 int64_t rows) {
  const int64_t block_lines = p.transpose ? p.block_k : p.block_m;  // as stored
  const int64_t row_chunks = (p.transpose ? p.block_m : p.block_k) * size_of(p.dtype) /
                             static_cast<int64_t>(sizeof(Chunk));
  const int64_t block_chunks = row_chunks * block_lines;
  const int64_t dense_chunks = row_chunks * (p.transpose ? block_rows(p) : block_cols(p));
  const dim3 grid(static_cast<unsigned>(rows),
                  convert_slices(p.nnzb * block_chunks / block_rows(p)));
  const auto start = [&]<typename Index, typename Count>(Index, Count) {
    MoveArguments<Chunk, Index, Count> a{};
    a.crow = static_cast<const Index*>(l.crow_indices) + first;
    a.col = static_cast<const Index*>(l.col_indices);
    a.positions = static_cast<const Index*>(l.positions);
    a.values = static_cast<Chunk*>(values);
    a.dense = static_cast<Chunk*>(dense);
    a.row_chunks = static_cast<Count>(row_chunks);
    a.block_chunks = static_cast<Count>(block_chunks);
    a.dense_chunks = dense_chunks;
    a.row_step = p.transpose ? row_chunks : block_lines * dense_chunks;
    a.col_step = p.transpose ? block_lines * dense_chunks : row_chunks;
    move_blocks_kernel<kMove><<<grid, kConvertThreads, 0, static_cast<cudaStream_t>(l.stream)>>>(a);
  };
  const auto start_with = [&](auto index) {
    // Half the range, so that stepping past the end cannot wrap round.
    if (block_chunks * block_cols(p) <= INT32_MAX) {
      start(index, uint32_t{});
    } else {
      start(index, uint64_t{});
    }
  };
  if (p.index_type == IndexType::kInt64) {
    start_with(int64_t{});
  } else {
    start_with(int32_t{});
  }
}

}  // namespace

Status densify_cuda(const Problem& p, const Launch& l, void* dst) {
  const int64_t row_bytes = (p.transpose ? p.block_m : p.block_k) * size_of(p.dtype);
  const int64_t bytes = p.m * p.k * size_of(p.dtype);
  if (bytes == 0) return Status::ok();
  if (p.nnzb != 0 && densifies_lines(p, *l.device, alignment_of(dst))) {
    return densify_lines_cuda(p, l, dst, alignment_of(dst));
  }
  const cudaError_t error =
      cudaMemsetAsync(dst, 0, static_cast<size_t>(bytes), static_cast<cudaStream_t>(l.stream));
  if (error != cudaSuccess || p.nnzb == 0) return to_status(error, "densify (memset)");
  const int64_t alignment = std::min<int64_t>(p.values_alignment, alignment_of(dst));
  with_chunk(chunk_bytes(row_bytes, alignment), [&]<typename Chunk>(Chunk) {
    move_blocks<Move::kScatter, Chunk>(p, l, const_cast<void*>(l.values), dst, 0, block_rows(p));
  });
  return to_status(cudaGetLastError(), "densify");
}

// Rates and starts are an H200's.
double densify_us(const Problem& p, const Device& d) {
  const double bytes = static_cast<double>(p.m * p.k * size_of(p.dtype));
  if (!densifies_lines(p, d, 16)) return roofline_us(0, 0, 2 * bytes, d.memory_gbps, 5);
  const double stored =
      values_bytes(p) + static_cast<double>(p.nnzb) * static_cast<double>(size_of(p.index_type));
  return roofline_us(0, 0, bytes + stored, 0.75 * d.memory_gbps, 3);
}

Status gather_blocks_cuda(const Problem& p, const Launch& l, const void* product, int64_t first,
                          int64_t rows, bool add) {
  void* const from = const_cast<void*>(product);
  if (!add) {
    const int64_t alignment = std::min<int64_t>(p.values_alignment, alignment_of(product));
    with_chunk(chunk_bytes(p.block_k * size_of(p.dtype), alignment), [&]<typename Chunk>(Chunk) {
      move_blocks<Move::kGather, Chunk>(p, l, l.sampled, from, first, rows);
    });
  } else if (p.dtype == DType::kFloat64) {
    move_blocks<Move::kGatherAdded, double>(p, l, l.sampled, from, first, rows);
  } else {
    move_blocks<Move::kGatherAdded, float>(p, l, l.sampled, from, first, rows);
  }
  return to_status(cudaGetLastError(), "gather_blocks");
}

}  // namespace sparse_autotune
