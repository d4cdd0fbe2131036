// A dense matrix in its other layout, or with another pitch.
//
// A thread block owns 32 lines by 64 of their elements, reads them in runs of 32 neighbours and
// writes them in runs of 32 neighbours: turned by way of shared memory, one word a line of padding
// against bank conflicts. Data path: global -> registers (-> shared -> registers) -> global.
#include "kernels/cuda/convert/turn_dense.h"

#include <cuda_runtime.h>

#include <algorithm>

#include "kernels/cuda/host/cuda_status.h"

namespace sparse_autotune {
namespace {

constexpr int kLines = 32, kLength = 64, kThreadRows = 8;

template <typename Word, bool kTurned>
__global__ void __launch_bounds__(32 * kThreadRows)
    turn_dense_kernel(int64_t lines, int64_t length, int64_t padded, int64_t batch,
                      unsigned tiles_along, DenseLines from, DenseLines to) {
  __shared__ Word tile[kLength][kLines + 1];
  const int64_t line0 = int64_t{blockIdx.x / tiles_along} * kLines;
  const int64_t first = int64_t{blockIdx.x % tiles_along} * kLength;
  for (int64_t matrix = blockIdx.y; matrix < batch; matrix += gridDim.y) {
    const Word* in = static_cast<const Word*>(from.memory) + matrix * from.batch_stride;
    Word* out = static_cast<Word*>(to.memory) + matrix * to.batch_stride;
    Word held[kLines / kThreadRows][kLength / 32];
#pragma unroll
    for (int i = 0; i < kLines / kThreadRows; ++i) {
#pragma unroll
      for (int j = 0; j < kLength / 32; ++j) {
        const int64_t line = line0 + i * kThreadRows + threadIdx.y,
                      e = first + j * 32 + threadIdx.x;
        held[i][j] = line < lines && e < length ? in[line * from.pitch + e] : Word{};
      }
    }
    if constexpr (kTurned) {
#pragma unroll
      for (int i = 0; i < kLines / kThreadRows; ++i) {
#pragma unroll
        for (int j = 0; j < kLength / 32; ++j) {
          tile[j * 32 + threadIdx.x][i * kThreadRows + threadIdx.y] = held[i][j];
        }
      }
      __syncthreads();
#pragma unroll
      for (int i = 0; i < kLength / kThreadRows; ++i) {
        const int64_t e = first + i * kThreadRows + threadIdx.y, line = line0 + threadIdx.x;
        if (line < padded && e < length) {
          out[e * to.pitch + line] = tile[i * kThreadRows + threadIdx.y][threadIdx.x];
        }
      }
      __syncthreads();
    } else {
#pragma unroll
      for (int i = 0; i < kLines / kThreadRows; ++i) {
#pragma unroll
        for (int j = 0; j < kLength / 32; ++j) {
          const int64_t line = line0 + i * kThreadRows + threadIdx.y;
          const int64_t e = first + j * 32 + threadIdx.x;
          if (line < lines && e < padded) out[line * to.pitch + e] = held[i][j];
        }
      }
    }
  }
}

template <bool kTurned>
Status launch(int64_t lines, int64_t length, int64_t padded, int64_t batch, int64_t element_bytes,
              const DenseLines& from, const DenseLines& to, void* stream) {
  const int64_t along = ceil_div(kTurned ? length : padded, kLength);
  const dim3 blocks(static_cast<unsigned>(along * ceil_div(kTurned ? padded : lines, kLines)),
                    static_cast<unsigned>(std::min<int64_t>(batch, 65535)));
  const dim3 threads(32, kThreadRows);
  const auto go = [&]<typename Word>(Word) {
    turn_dense_kernel<Word, kTurned><<<blocks, threads, 0, static_cast<cudaStream_t>(stream)>>>(
        lines, length, padded, batch, static_cast<unsigned>(along), from, to);
  };
  switch (element_bytes) {
    case 8:
      go(uint64_t{});
      break;
    case 4:
      go(uint32_t{});
      break;
    default:
      go(uint16_t{});
  }
  return to_status(cudaGetLastError(), "another layout of a dense operand");
}

}  // namespace

Status lay_dense_cuda(bool turned, int64_t lines, int64_t length, int64_t padded, int64_t batch,
                      int64_t element_bytes, const DenseLines& from, const DenseLines& to,
                      void* stream) {
  return (turned ? launch<true> : launch<false>)(lines, length, padded, batch, element_bytes, from,
                                                 to, stream);
}

}  // namespace sparse_autotune
