// The readable gradients of attention: every block size, every dtype, heads of up to 256.
//
//   p[i, j] = exp(scale * q[i] . k[j] - lse[i])      delta[i] = dout[i] . out[i] - dlse[i]
//   ds[i, j] = p[i, j] * (dout[i] . v[j] - delta[i])
//   dv[j] = sum over i of p[i, j] dout[i]            dk[j] = scale * sum over i of ds[i, j] q[i]
//   dq[i] = scale * sum over j of ds[i, j] k[j]
//
// In one kernel a warp owns a row of dq and walks along the columns that it sees; in the other a
// warp owns a row of dk and of dv and walks along the rows that see it, in all heads that share it.
// Each lane computes p and ds of one of 32; then the lanes share out the head dimension. Nothing is
// kept between the two kernels: delta is computed again wherever it is needed.
#include <cmath>

#include "kernels/cuda/attention/attention_naive.cuh"
#include "kernels/cuda/host/cuda_status.h"
#include "kernels/cuda/host/element_types.h"
#include "operators/attention/attention.h"

namespace sparse_autotune {
namespace {

template <typename Acc>
struct Weights {
  Acc p = 0, ds = 0;
};

template <typename T, typename Acc>
__device__ __forceinline__ Weights<Acc> weights(const AttentionBackward& a, int64_t batch,
                                                int64_t head, int64_t kv_head, int64_t row,
                                                int64_t column) {
  const int dim = static_cast<int>(a.shape.dim);
  const T* dout = row_of<T>(a.dout, batch, head, row);
  const Acc score =
      dot<Acc>(row_of<T>(a.q, batch, head, row), row_of<T>(a.k, batch, kv_head, column), dim);
  const Acc lse = value_of<Acc>(a.lse, batch, head, row);
  Acc delta = dot<Acc>(dout, row_of<T>(a.out, batch, head, row), dim);
  if (a.dlse.data != nullptr) delta -= value_of<Acc>(a.dlse, batch, head, row);
  Weights<Acc> w;
  // Of a row whose scores are all -inf, lse is -inf too, and the difference would be NaN.
  w.p = lse == static_cast<Acc>(-INFINITY) ? 0 : exp(score * static_cast<Acc>(a.scale) - lse);
  w.ds = w.p * (dot<Acc>(dout, row_of<T>(a.v, batch, kv_head, column), dim) - delta);
  return w;
}

template <typename T>
__global__ void __launch_bounds__(kNaiveWarps * 32, 1)
    attention_naive_dq_kernel(const __grid_constant__ AttentionBackward a) {
  using Acc = typename Accumulator<T>::Type;
  const int lane = threadIdx.x % 32, dim = static_cast<int>(a.shape.dim);
  const int64_t row = static_cast<int64_t>(blockIdx.x) * kNaiveWarps + threadIdx.x / 32;
  const int64_t head = blockIdx.y, batch = blockIdx.z;
  const int64_t kv_head = head / (a.shape.heads / a.shape.kv_heads);
  if (row >= a.shape.rows) return;
  LaneRow<Acc> dq;
  for_columns(a.mask, a.shape, a.is_causal, batch, head, row, [&](int64_t first, int count) {
    Weights<Acc> w;
    if (lane < count) w = weights<T, Acc>(a, batch, head, kv_head, row, first + lane);
    for (int i = 0; i < count; ++i) {
      dq.add(__shfl_sync(~0u, w.ds, i), row_of<T>(a.k, batch, kv_head, first + i), dim);
    }
  });
  dq.scale(static_cast<Acc>(a.scale));
  dq.store(const_cast<T*>(row_of<T>(a.dq, batch, head, row)), dim);
}

template <typename T>
__global__ void __launch_bounds__(kNaiveWarps * 32, 1)
    attention_naive_dkv_kernel(const __grid_constant__ AttentionBackward a) {
  using Acc = typename Accumulator<T>::Type;
  const int lane = threadIdx.x % 32, dim = static_cast<int>(a.shape.dim);
  const int64_t column = static_cast<int64_t>(blockIdx.x) * kNaiveWarps + threadIdx.x / 32;
  const int64_t kv_head = blockIdx.y, batch = blockIdx.z;
  const int64_t group = a.shape.heads / a.shape.kv_heads;
  if (column >= a.shape.columns) return;
  LaneRow<Acc> dk, dv;
  for (int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
    for_rows(a.mask, a.by_column, a.shape, a.is_causal, batch, head, column,
             [&](int64_t first, int count) {
               Weights<Acc> w;
               if (lane < count) {
                 w = weights<T, Acc>(a, batch, head, kv_head, first + lane, column);
               }
               for (int i = 0; i < count; ++i) {
                 dk.add(__shfl_sync(~0u, w.ds, i), row_of<T>(a.q, batch, head, first + i), dim);
                 dv.add(__shfl_sync(~0u, w.p, i), row_of<T>(a.dout, batch, head, first + i), dim);
               }
             });
  }
  dk.scale(static_cast<Acc>(a.scale));
  dk.store(const_cast<T*>(row_of<T>(a.dk, batch, kv_head, column)), dim);
  dv.store(const_cast<T*>(row_of<T>(a.dv, batch, kv_head, column)), dim);
}

class AttentionBackwardNaive final : public attention::Variant {
 public:
  using Variant::Variant;

  Support supports(const attention::Problem& p, const Device&) const override {
    return naive_takes(p);
  }

  double estimate_us(const attention::Problem& p, const Device& d) const override {
    return nnz_flops(p) / (0.02 * fma_tflops(p, d) * 1e6) + 20;
  }

  Status launch(const attention::Problem& p, const attention::Launch& l) const override {
    const AttentionBackward a = attention::backward_arguments(p, l);
    return with_type(p.dtype, [&]<typename T>(T*) {
      const auto stream = static_cast<cudaStream_t>(l.stream);
      constexpr int kThreads = kNaiveWarps * 32;
      attention_naive_dq_kernel<T><<<naive_grid(p, p.rows, p.heads), kThreads, 0, stream>>>(a);
      if (auto launched = to_status(cudaGetLastError(), name()); !launched) return launched;
      attention_naive_dkv_kernel<T>
          <<<naive_grid(p, p.columns, p.kv_heads), kThreads, 0, stream>>>(a);
      return to_status(cudaGetLastError(), name());
    });
  }
};

const AttentionBackwardNaive kAttentionBackwardNaive{
    DeviceType::kCuda, "attention_backward_naive/rows", attention::Pass::kBackward};
const Registration kRegisterAttentionBackwardNaive{kAttentionBackwardNaive};

}  // namespace
}  // namespace sparse_autotune
