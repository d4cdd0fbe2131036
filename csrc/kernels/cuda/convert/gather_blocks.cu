// Dense to BSR values: the way of densify.cu back, without the zeros.
//
// A thread block owns a share of one block row's values; a thread moves whole chunks of up to 16
// bytes, in the order in which they are stored. Data path: global -> registers -> global.
#include <algorithm>

#include "kernels/cuda/convert/gather_blocks.h"

#include <cuda_runtime.h>

#include "kernels/cuda/device/chunk.cuh"
#include "kernels/cuda/host/cuda_status.h"

namespace sparse_autotune {
namespace {

// A chunk that replaces what is there, or one number that is added to it.
template <typename Chunk, bool kAdd>
__device__ void put(Chunk* to, const Chunk& chunk) {
  if constexpr (kAdd) {
    *to += chunk;
  } else {
    *to = chunk;
  }
}

// Chunk counts: of one row of a block, of one block, of one row of the dense matrix.
template <typename Chunk, typename Index, bool kAdd>
__global__ void __launch_bounds__(kConvertThreads)
    gather_kernel(const Index* crow, const Index* col, const Chunk* product, Chunk* values,
                  int64_t first, int64_t block_m, int64_t row_chunks, int64_t dense_chunks) {
  const int64_t begin = crow[first + blockIdx.x], end = crow[first + blockIdx.x + 1];
  const int64_t block_chunks = block_m * row_chunks;
  const Chunk* rows = product + blockIdx.x * block_m * dense_chunks;
  for (int64_t i = begin * block_chunks + blockIdx.y * kConvertThreads + threadIdx.x;
       i < end * block_chunks; i += int64_t{gridDim.y} * kConvertThreads) {
    const int64_t position = i / block_chunks, within = i % block_chunks;
    const int64_t row = within / row_chunks, chunk = within % row_chunks;
    put<Chunk, kAdd>(
        values + i,
        rows[row * dense_chunks + static_cast<int64_t>(col[position]) * row_chunks + chunk]);
  }
}

template <typename Chunk, bool kAdd>
void launch_gather(const Problem& p, const Launch& l, const void* product, int64_t first,
                   int64_t rows) {
  const auto chunk = static_cast<int64_t>(sizeof(Chunk));
  const int64_t row_chunks = p.block_k * size_of(p.dtype) / chunk;
  const int64_t dense_chunks = p.k * size_of(p.dtype) / chunk;
  const dim3 grid(static_cast<unsigned>(rows),
                  convert_slices(p.nnzb * p.block_m * row_chunks / block_rows(p)));
  const auto start = [&]<typename Index>(const Index* crow) {
    gather_kernel<Chunk, Index, kAdd>
        <<<grid, kConvertThreads, 0, static_cast<cudaStream_t>(l.stream)>>>(
            crow, static_cast<const Index*>(l.col_indices), static_cast<const Chunk*>(product),
            static_cast<Chunk*>(l.sampled), first, p.block_m, row_chunks, dense_chunks);
  };
  if (p.index_type == IndexType::kInt64) {
    start(static_cast<const int64_t*>(l.crow_indices));
  } else {
    start(static_cast<const int32_t*>(l.crow_indices));
  }
}

}  // namespace

Status gather_blocks_cuda(const Problem& p, const Launch& l, const void* product, int64_t first,
                          int64_t rows, bool add) {
  if (!add) {
    const int64_t alignment = std::min<int64_t>(p.values_alignment, alignment_of(product));
    with_chunk(chunk_bytes(p.block_k * size_of(p.dtype), alignment), [&]<typename Chunk>(Chunk) {
      launch_gather<Chunk, false>(p, l, product, first, rows);
    });
  } else if (p.dtype == DType::kFloat64) {
    launch_gather<double, true>(p, l, product, first, rows);
  } else {
    launch_gather<float, true>(p, l, product, first, rows);
  }
  return to_status(cudaGetLastError(), "gather_blocks");
}

}  // namespace sparse_autotune
