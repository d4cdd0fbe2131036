// BSR to Blocked-ELL in one pass that writes every byte, the padding included.
//
// A thread block owns a share of one block row's slots. A row of the padded matrix is contiguous,
// so that consecutive threads write consecutive chunks of up to 16 bytes.
// Data path: global -> registers -> global.
#include "kernels/cuda/convert/blocked_ell.h"

#include <cuda_runtime.h>

#include "kernels/cuda/device/chunk.cuh"
#include "kernels/cuda/host/cuda_status.h"

namespace sparse_autotune {
namespace {

// Chunk counts: of one row of a block, of one block, of one padded row.
template <typename Chunk, typename Index, typename Count>
__global__ void __launch_bounds__(kConvertThreads)
    blocked_ell_kernel(const Index* crow, const Index* col, const Chunk* values, Chunk* ell_values,
                       int32_t* ell_indices, Count row_chunks, Count block_chunks,
                       Count padded_chunks, int64_t block_m, int64_t slots) {
  const int64_t block_row = blockIdx.x;
  const int64_t begin = crow[block_row], length = crow[block_row + 1] - begin;
  const auto first = static_cast<Count>(blockIdx.y * kConvertThreads + threadIdx.x);
  const Count step = gridDim.y * kConvertThreads;
  for (int64_t slot = first; slot < slots; slot += step) {
    ell_indices[block_row * slots + slot] =
        slot < length ? static_cast<int32_t>(col[begin + slot]) : -1;
  }
  const Count count = static_cast<Count>(block_m) * padded_chunks;
  Chunk* dst = ell_values + block_row * static_cast<int64_t>(count);
  for (Count i = first; i < count; i += step) {
    const Count row = i / padded_chunks, rest = i % padded_chunks;
    const Count slot = rest / row_chunks, chunk = rest % row_chunks;
    Chunk value{};
    if (slot < length) {
      value =
          values[(begin + slot) * static_cast<int64_t>(block_chunks) + row * row_chunks + chunk];
    }
    dst[i] = value;
  }
}

template <typename Chunk, typename Index>
void launch_blocked_ell(const Problem& p, const Launch& l, void* dst) {
  const BlockedEll ell = blocked_ell(p);
  const int64_t row_chunks = p.block_k * size_of(p.dtype) / static_cast<int64_t>(sizeof(Chunk));
  const int64_t padded_chunks = row_chunks * ell.slots;
  const dim3 grid(static_cast<unsigned>(block_rows(p)), convert_slices(padded_chunks * p.block_m));
  const auto start = [&]<typename Count>(Count) {
    blocked_ell_kernel<Chunk, Index, Count>
        <<<grid, kConvertThreads, 0, static_cast<cudaStream_t>(l.stream)>>>(
            static_cast<const Index*>(l.crow_indices), static_cast<const Index*>(l.col_indices),
            static_cast<const Chunk*>(l.values), static_cast<Chunk*>(dst),
            reinterpret_cast<int32_t*>(static_cast<char*>(dst) + ell.indices_offset),
            static_cast<Count>(row_chunks), static_cast<Count>(row_chunks * p.block_m),
            static_cast<Count>(padded_chunks), p.block_m, ell.slots);
  };
  // Half the range, so that stepping past the end cannot wrap round.
  if (padded_chunks * p.block_m <= INT32_MAX) {
    start(uint32_t{});
  } else {
    start(uint64_t{});
  }
}

}  // namespace

BlockedEll blocked_ell(const Problem& p) {
  BlockedEll ell{};
  ell.slots = p.longest_row;
  ell.cols = ell.slots * p.block_k;
  ell.values_bytes = block_rows(p) * p.block_m * ell.cols * size_of(p.dtype);
  ell.indices_offset = ceil_div(ell.values_bytes, 256) * 256;
  ell.bytes =
      ell.indices_offset + block_rows(p) * ell.slots * static_cast<int64_t>(sizeof(int32_t));
  return ell;
}

Status convert_to_blocked_ell(const Problem& p, const Launch& l, void* dst) {
  if (p.longest_row == 0) return Status::ok();
  with_chunk(chunk_bytes(p.block_k * size_of(p.dtype), p.values_alignment),
             [&]<typename Chunk>(Chunk) {
               if (p.index_type == IndexType::kInt64) {
                 launch_blocked_ell<Chunk, int64_t>(p, l, dst);
               } else {
                 launch_blocked_ell<Chunk, int32_t>(p, l, dst);
               }
             });
  return to_status(cudaGetLastError(), "conversion to Blocked-ELL");
}

}  // namespace sparse_autotune
