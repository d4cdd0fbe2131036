// BSR to dense: zeros by a memset, then one kernel that scatters the stored blocks.
//
// A thread block owns a share of one block row's values; a thread moves whole chunks of up to 16
// bytes, in the order in which they are stored. Data path: global -> registers -> global.
#include "kernels/cuda/convert/densify.h"

#include <cuda_runtime.h>

#include "kernels/cuda/convert/chunk.cuh"
#include "kernels/cuda/cuda_status.h"

namespace sparse_autotune {
namespace {

// Chunk counts: of one row of a block, of one block, of one row of the dense matrix. `Count` is
// 32 bits wide where a block row's chunks can be counted so: division is what the kernel waits for.
template <typename Chunk, typename Index, typename Count>
__global__ void __launch_bounds__(kConvertThreads)
    densify_kernel(const Index* crow, const Index* col, const Chunk* values, Chunk* dst,
                   int64_t block_m, Count row_chunks, Count block_chunks, int64_t dense_chunks) {
  const int64_t block_row = blockIdx.x;
  const int64_t begin = crow[block_row];
  const Count count = static_cast<Count>(crow[block_row + 1] - begin) * block_chunks;
  const Chunk* src = values + begin * block_chunks;
  Chunk* rows = dst + block_row * block_m * dense_chunks;
  for (Count i = blockIdx.y * kConvertThreads + threadIdx.x; i < count;
       i += gridDim.y * kConvertThreads) {
    const Count position = i / block_chunks, within = i % block_chunks;
    const Count row = within / row_chunks, chunk = within % row_chunks;
    rows[row * dense_chunks + col[begin + position] * static_cast<int64_t>(row_chunks) + chunk] =
        src[i];
  }
}

template <typename Chunk, typename Index>
void launch_densify(const Problem& p, const Launch& l, void* dst) {
  const int64_t row_chunks = p.block_k * size_of(p.dtype) / static_cast<int64_t>(sizeof(Chunk));
  const int64_t block_chunks = row_chunks * p.block_m;
  const int64_t dense_chunks = row_chunks * block_cols(p);
  const dim3 grid(static_cast<unsigned>(block_rows(p)),
                  convert_slices(p.nnzb * block_chunks / block_rows(p)));
  const auto start = [&]<typename Count>(Count) {
    densify_kernel<Chunk, Index, Count>
        <<<grid, kConvertThreads, 0, static_cast<cudaStream_t>(l.stream)>>>(
            static_cast<const Index*>(l.crow_indices), static_cast<const Index*>(l.col_indices),
            static_cast<const Chunk*>(l.values), static_cast<Chunk*>(dst), p.block_m,
            static_cast<Count>(row_chunks), static_cast<Count>(block_chunks), dense_chunks);
  };
  // Half the range, so that stepping past the end cannot wrap round.
  if (dense_chunks * p.block_m <= INT32_MAX) {
    start(uint32_t{});
  } else {
    start(uint64_t{});
  }
}

}  // namespace

Status densify_cuda(const Problem& p, const Launch& l, void* dst) {
  const int64_t row_bytes = p.block_k * size_of(p.dtype);
  const int64_t bytes = block_rows(p) * p.block_m * block_cols(p) * row_bytes;
  if (bytes == 0) return Status::ok();
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

}  // namespace sparse_autotune
