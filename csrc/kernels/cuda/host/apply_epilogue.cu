// C = activation(C + bias), in place.
//
// C is a set of contiguous lines (rows, or columns if it is column-major), `pitch` elements apart.
// A thread owns a chunk of 16 bytes of one line, or one element where addresses are not aligned.
// Data path: global -> registers -> global. Computes in fp32 (fp64 for fp64).
#include "kernels/cuda/host/apply_epilogue.h"

#include <cuda_runtime.h>

#include <algorithm>

#include "kernels/activation.h"
#include "kernels/cuda/device/accumulator.cuh"
#include "kernels/cuda/host/cuda_status.h"
#include "kernels/cuda/host/element_types.h"

namespace sparse_autotune {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kMaximumBlocks = 1 << 20;

template <typename T>
struct Arguments {
  T* c;
  const T* bias;  // null: none
  int64_t lines, length, pitch, batch, batch_stride;
  bool bias_along_line;  // a bias per element of the line, else one per line
  Activation activation;
};

template <typename T, int kElements>
struct alignas(sizeof(T) * kElements) Chunk {
  T element[kElements];
};

// Count is 32 bits wide where all chunks of a matrix can be counted so.
template <typename T, int kElements, typename Count>
__global__ void __launch_bounds__(kThreads) epilogue_kernel(const Arguments<T> a) {
  using Acc = typename Accumulator<T>::Type;
  const Count line_chunks = static_cast<Count>((a.length + kElements - 1) / kElements);
  const Count count = line_chunks * static_cast<Count>(a.lines);
  const Count step = static_cast<Count>(gridDim.x) * kThreads;
  for (int64_t batch = blockIdx.y; batch < a.batch; batch += gridDim.y) {
    T* c = a.c + batch * a.batch_stride;
    for (Count i = static_cast<Count>(blockIdx.x) * kThreads + threadIdx.x; i < count; i += step) {
      const Count line = i / line_chunks;
      const int64_t first = static_cast<int64_t>(i % line_chunks) * kElements;
      T* p = c + line * a.pitch + first;
      const auto finish = [&](T value, int e) {
        Acc x = static_cast<Acc>(value);
        if (a.bias != nullptr) {
          x += static_cast<Acc>(a.bias[a.bias_along_line ? first + e : static_cast<int64_t>(line)]);
        }
        return static_cast<T>(activate(x, a.activation));
      };
      if (first + kElements <= a.length) {
        auto chunk = *reinterpret_cast<Chunk<T, kElements>*>(p);
#pragma unroll
        for (int e = 0; e < kElements; ++e) chunk.element[e] = finish(chunk.element[e], e);
        *reinterpret_cast<Chunk<T, kElements>*>(p) = chunk;
      } else {
        for (int e = 0; first + e < a.length; ++e) p[e] = finish(p[e], e);
      }
    }
  }
}

template <typename T, int kElements>
void launch_epilogue(const Arguments<T>& a, cudaStream_t stream) {
  const int64_t count = ceil_div(a.length, kElements) * a.lines;
  const dim3 grid(
      static_cast<unsigned>(std::min<int64_t>(ceil_div(count, kThreads), kMaximumBlocks)),
      static_cast<unsigned>(std::min<int64_t>(a.batch, 65535)));
  // Half the range, so that stepping past the end cannot wrap round.
  if (count <= INT32_MAX) {
    epilogue_kernel<T, kElements, uint32_t><<<grid, kThreads, 0, stream>>>(a);
  } else {
    epilogue_kernel<T, kElements, uint64_t><<<grid, kThreads, 0, stream>>>(a);
  }
}

template <typename T>
Status apply(const Problem& p, const Launch& l) {
  const bool rows = p.c_layout == Layout::kRowMajor;
  Arguments<T> a{};
  a.c = static_cast<T*>(l.c);
  a.bias = p.has_bias ? static_cast<const T*>(l.bias) : nullptr;
  a.lines = rows ? p.m : p.n;
  a.length = rows ? p.n : p.m;
  a.pitch = p.ldc;
  a.batch = p.batch;
  a.batch_stride = p.c_batch_stride;
  a.bias_along_line = !rows;
  a.activation = p.activation;
  if (a.lines * a.length * a.batch == 0) return Status::ok();
  const auto stream = static_cast<cudaStream_t>(l.stream);
  if (p.c_alignment >= 16) {
    launch_epilogue<T, 16 / static_cast<int>(sizeof(T))>(a, stream);
  } else {
    launch_epilogue<T, 1>(a, stream);
  }
  return to_status(cudaGetLastError(), "epilogue");
}

}  // namespace

Status apply_epilogue(const Problem& p, const Launch& l) {
  if (!p.has_bias && p.activation == Activation::kNone) return Status::ok();
  return with_type(p.dtype, [&]<typename T>(T*) { return apply<T>(p, l); });
}

}  // namespace sparse_autotune
