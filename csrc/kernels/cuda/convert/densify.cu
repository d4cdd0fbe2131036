// BSR to dense, where densify_lines.cu cannot: zeros by a memset, then one kernel that scatters the
// stored blocks.
//
// A thread block owns a share of one block row's values; a thread moves whole chunks of up to 16
// bytes, in the order in which a block stores them. Data path: global -> registers -> global.
#include <algorithm>

#include "kernels/cuda/convert/densify.h"

#include <cuda_runtime.h>

#include "kernels/cuda/convert/densify_lines.h"
#include "kernels/cuda/device/chunk.cuh"
#include "kernels/cuda/host/cuda_status.h"

namespace sparse_autotune {
namespace {

// `Count` is 32 bits wide where a block row's chunks can be counted so: division is what the kernel
// waits for.
template <typename Chunk, typename Index, typename Count>
struct DensifyArguments {
  const Index* crow;
  const Index* col;
  const Index* positions;  // null: blocks lie in order
  const Chunk* values;
  Chunk* dst;
  Count row_chunks, block_chunks;  // of one row of a block as stored, of one block
  int64_t dense_chunks;            // of one row of the dense matrix
  int64_t row_step, col_step;      // chunks from one block row or column of op(A) to the next
};

template <typename Chunk, typename Index, typename Count>
__global__ void __launch_bounds__(kConvertThreads)
    densify_kernel(const DensifyArguments<Chunk, Index, Count> a) {
  const int64_t block_row = blockIdx.x;
  const int64_t begin = a.crow[block_row];
  const Count count = static_cast<Count>(a.crow[block_row + 1] - begin) * a.block_chunks;
  Chunk* to = a.dst + block_row * a.row_step;
  for (Count i = blockIdx.y * kConvertThreads + threadIdx.x; i < count;
       i += gridDim.y * kConvertThreads) {
    const int64_t at = begin + i / a.block_chunks;
    const Count within = i % a.block_chunks;
    const Count row = within / a.row_chunks, chunk = within % a.row_chunks;
    const int64_t position = a.positions == nullptr ? at : int64_t{a.positions[at]};
    to[row * a.dense_chunks + a.col[at] * a.col_step + chunk] =
        a.values[position * a.block_chunks + within];
  }
}

template <typename Chunk, typename Index>
void launch_densify(const Problem& p, const Launch& l, void* dst) {
  const int64_t rows = p.transpose ? p.block_k : p.block_m;  // of a block as stored
  const int64_t row_chunks = (p.transpose ? p.block_m : p.block_k) * size_of(p.dtype) /
                             static_cast<int64_t>(sizeof(Chunk));
  const int64_t block_chunks = row_chunks * rows;
  const int64_t dense_chunks = row_chunks * (p.transpose ? block_rows(p) : block_cols(p));
  const dim3 grid(static_cast<unsigned>(block_rows(p)),
                  convert_slices(p.nnzb * block_chunks / block_rows(p)));
  const auto start = [&]<typename Count>(Count) {
    DensifyArguments<Chunk, Index, Count> a{};
    a.crow = static_cast<const Index*>(l.crow_indices);
    a.col = static_cast<const Index*>(l.col_indices);
    a.positions = static_cast<const Index*>(l.positions);
    a.values = static_cast<const Chunk*>(l.values);
    a.dst = static_cast<Chunk*>(dst);
    a.row_chunks = static_cast<Count>(row_chunks);
    a.block_chunks = static_cast<Count>(block_chunks);
    a.dense_chunks = dense_chunks;
    a.row_step = p.transpose ? row_chunks : rows * dense_chunks;
    a.col_step = p.transpose ? rows * dense_chunks : row_chunks;
    densify_kernel<Chunk, Index, Count>
        <<<grid, kConvertThreads, 0, static_cast<cudaStream_t>(l.stream)>>>(a);
  };
  // Half the range, so that stepping past the end cannot wrap round.
  if (block_chunks * block_cols(p) <= INT32_MAX) {
    start(uint32_t{});
  } else {
    start(uint64_t{});
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
    if (p.index_type == IndexType::kInt64) {
      launch_densify<Chunk, int64_t>(p, l, dst);
    } else {
      launch_densify<Chunk, int32_t>(p, l, dst);
    }
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

}  // namespace sparse_autotune
