#include "autotune/check_cuda.h"

#include <cuda_runtime.h>

#include <algorithm>

#include "kernels/cuda/host/element_types.h"

namespace sparse_autotune {
namespace {

constexpr int kThreads = 256;

unsigned grid_for(int64_t count) {
  return static_cast<unsigned>(std::clamp<int64_t>(ceil_div(count, kThreads), 1, 1 << 16));
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

// Into every set.
template <typename Word>
__global__ void replicate_kernel(char* first, int64_t sets, int64_t set_bytes, const Word* source,
                                 int64_t count) {
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count * sets; i += step) {
    reinterpret_cast<Word*>(first + i / count * set_bytes)[i % count] = source[i % count];
  }
}

// In words of four bytes, as indices are, where memory and size allow it.
void replicate(char* first, int64_t sets, int64_t set_bytes, const Operand& operand,
               cudaStream_t stream) {
  const auto copy = [&]<typename Word>(const Word* source) {
    const int64_t count = operand.bytes / static_cast<int64_t>(sizeof(Word));
    replicate_kernel<Word>
        <<<grid_for(count * sets), kThreads, 0, stream>>>(first, sets, set_bytes, source, count);
  };
  const auto address = reinterpret_cast<uintptr_t>(operand.source);
  if (address % 4 == 0 && operand.bytes % 4 == 0) {
    copy(static_cast<const uint32_t*>(operand.source));
  } else {
    copy(static_cast<const char*>(operand.source));
  }
}

template <typename T>
__global__ void __launch_bounds__(kThreads)
    compare_kernel(const Tile* tiles, const Expected* expected, int32_t number, const T* output,
                   Findings* findings) {
  const Tile tile = tiles[blockIdx.x];
  if (tile.output != number) return;
  float worst = 0;
  for (int e = threadIdx.x; e < kTileElements; e += kThreads) {
    const int i = e / kTileCols, j = e % kTileCols;
    if (i >= tile.rows || j >= tile.cols) continue;
    const Expected right = expected[int64_t{blockIdx.x} * kTileElements + e];
    const double x =
        static_cast<double>(output[tile.offset + i * tile.row_stride + j * tile.col_stride]);
    // Infinities too are right where they are expected.
    const double off = x == right.value ? 0 : fabs(x - right.value) / right.allowed;
    worst = off <= 1e30 ? fmaxf(worst, static_cast<float>(off)) : 1e30f;  // NaN too
  }
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

}  // namespace

cudaError_t fill_operands(const std::vector<Operand>& operands, const OperandLayout& layout,
                          char* base, int64_t sets, cudaStream_t stream) {
  // What lies between the rows of an operand is NaN: a variant that lets it into a result is found
  // out.
  const cudaError_t error =
      cudaMemsetAsync(base, 0xFF, static_cast<size_t>(layout.bytes * sets), stream);
  if (error != cudaSuccess) return error;
  for (size_t i = 0; i < operands.size(); ++i) {
    const Operand& operand = operands[i];
    char* const first = base + layout.offsets[i];
    if (operand.bytes == 0) continue;
    if (operand.use == Operand::Use::kCopied) {
      replicate(first, sets, layout.bytes, operand, stream);
    } else if (operand.use == Operand::Use::kInput) {
      with_type(operand.dtype, [&]<typename T>(T*) {
        fill_kernel<T><<<grid_for(operand.strides.elements() * sets), kThreads, 0, stream>>>(
            first, sets, layout.bytes, operand.strides, first_number(i));
      });
    }
  }
  return cudaGetLastError();
}

cudaError_t compare_outputs(const std::vector<Operand>& operands, const OperandLayout& layout,
                            const char* base, const Tile* tiles, int64_t count,
                            const Expected* expected, Findings* findings, cudaStream_t stream) {
  const cudaError_t error = cudaMemsetAsync(findings, 0, sizeof(Findings), stream);
  if (error != cudaSuccess) return error;
  for (size_t number = 0; number < layout.outputs.size(); ++number) {
    const OperandLayout::Output& place = layout.outputs[number];
    const Operand& operand = operands[place.operand];
    const int64_t offset = layout.offsets[place.operand];
    with_type(operand.dtype, [&]<typename T>(T*) {
      const T* output = reinterpret_cast<const T*>(base + offset);
      const auto item = static_cast<int64_t>(sizeof(T));
      const int64_t skipped = (offset - place.begin) % item;
      const int64_t guarded = (place.bytes - skipped) / item;
      missing_kernel<T><<<grid_for(operand.strides.elements()), kThreads, 0, stream>>>(
          output, operand.strides, findings);
      written_kernel<T><<<grid_for(guarded), kThreads, 0, stream>>>(
          reinterpret_cast<const T*>(base + place.begin + skipped), guarded, findings);
      compare_kernel<T><<<static_cast<unsigned>(count), kThreads, 0, stream>>>(
          tiles, expected, static_cast<int32_t>(number), output, findings);
    });
  }
  return cudaGetLastError();
}

}  // namespace sparse_autotune
