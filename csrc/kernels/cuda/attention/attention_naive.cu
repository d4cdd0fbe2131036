// The readable attention kernel: every block size, every dtype, heads of up to 256. Read this one
// first.
//
// A warp owns one row of q. It walks along the columns that the row sees, 32 at a time: each lane
// computes one score, the warp updates the row's maximum and sum, then the lanes share out the head
// dimension and add the 32 rows of v. Data path: global memory -> registers, the row of q in shared
// memory. Accumulates in fp32 (fp64 for fp64).
#include <cmath>

#include "kernels/cuda/attention/attention_naive.cuh"
#include "kernels/cuda/host/cuda_status.h"
#include "kernels/cuda/host/element_types.h"
#include "operators/attention/attention.h"

namespace sparse_autotune {
namespace {

template <typename Acc>
__device__ __forceinline__ Acc warp_max(Acc x) {
  for (int i = 16; i > 0; i /= 2) x = fmax(x, __shfl_xor_sync(~0u, x, i));
  return x;
}

template <typename Acc>
__device__ __forceinline__ Acc warp_total(Acc x) {
  for (int i = 16; i > 0; i /= 2) x += __shfl_xor_sync(~0u, x, i);
  return x;
}

template <typename T>
__global__ void __launch_bounds__(kNaiveWarps * 32, 1)
    attention_naive_kernel(const __grid_constant__ AttentionForward a) {
  using Acc = typename Accumulator<T>::Type;
  __shared__ Acc rows_of_q[kNaiveWarps][kNaiveMaxDim];
  const int lane = threadIdx.x % 32, dim = static_cast<int>(a.shape.dim);
  const int64_t row = static_cast<int64_t>(blockIdx.x) * kNaiveWarps + threadIdx.x / 32;
  const int64_t head = blockIdx.y, batch = blockIdx.z;
  const int64_t kv_head = head / (a.shape.heads / a.shape.kv_heads);
  if (row >= a.shape.rows) return;
  Acc* q = rows_of_q[threadIdx.x / 32];
  for (int d = lane; d < dim; d += 32) {
    q[d] = static_cast<Acc>(row_of<T>(a.q, batch, head, row)[d]) * static_cast<Acc>(a.scale);
  }
  __syncwarp();

  Acc top = -INFINITY, sum = 0;
  LaneRow<Acc> out;
  for_columns(a.mask, a.shape, a.is_causal, batch, head, row, [&](int64_t first, int count) {
    Acc score = -INFINITY;
    if (lane < count) score = dot<Acc>(q, row_of<T>(a.k, batch, kv_head, first + lane), dim);
    const Acc higher = fmax(top, warp_max(score));
    // A row whose scores are all -inf: -inf less -inf would be NaN.
    const Acc base = higher == static_cast<Acc>(-INFINITY) ? 0 : higher;
    const Acc p = lane < count ? exp(score - base) : 0;
    const Acc shrink = exp(top - base);
    sum = sum * shrink + warp_total(p);
    out.scale(shrink);
    for (int i = 0; i < count; ++i) {
      out.add(__shfl_sync(~0u, p, i), row_of<T>(a.v, batch, kv_head, first + i), dim);
    }
    top = higher;
  });
  out.scale(sum == 0 ? 0 : 1 / sum);
  out.store(const_cast<T*>(row_of<T>(a.out, batch, head, row)), dim);
  if (lane == 0 && a.lse.data != nullptr) {
    value_of<Acc>(a.lse, batch, head, row) = sum == 0 ? -INFINITY : top + log(sum);
  }
}

class AttentionNaive final : public attention::Variant {
 public:
  using Variant::Variant;

  Support supports(const attention::Problem& p, const Device&) const override {
    return naive_takes(p);
  }

  double estimate_us(const attention::Problem& p, const Device& d) const override {
    return nnz_flops(p) / (0.05 * fma_tflops(p, d) * 1e6) + 10;
  }

  Status launch(const attention::Problem& p, const attention::Launch& l) const override {
    const AttentionForward a = attention::forward_arguments(p, l);
    return with_type(p.dtype, [&]<typename T>(T*) {
      attention_naive_kernel<T><<<naive_grid(p, p.rows, p.heads), kNaiveWarps * 32, 0,
                                  static_cast<cudaStream_t>(l.stream)>>>(a);
      return to_status(cudaGetLastError(), name());
    });
  }
};

const AttentionNaive kAttentionNaive{DeviceType::kCuda, "attention_naive/rows"};
const Registration kRegisterAttentionNaive{kAttentionNaive};

}  // namespace
}  // namespace sparse_autotune
