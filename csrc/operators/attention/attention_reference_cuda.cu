// Attention's reference on a GPU, and the forward pass that a race of backward passes begins with.
#include <cuda_runtime.h>

#include "kernels/cuda/host/cuda_status.h"
#include "kernels/cuda/host/element_types.h"
#include "operators/attention/attention_reference.h"

namespace sparse_autotune::attention {
namespace {

template <typename Number>
struct DeviceElement {
  using T = Number;
  static SPARSE_AUTOTUNE_HOST_DEVICE double load(Number x) { return static_cast<double>(x); }
};

// A thread a row of a tile.
template <typename T>
__global__ void __launch_bounds__(kTileRows)
    expected_kernel(const Reference<DeviceElement<T>> reference, const Tile* tiles,
                    Expected* expected) {
  const Tile tile = tiles[blockIdx.x];
  const int row = threadIdx.x;
  if (row >= tile.rows) return;
  reference.row_of_tile(tile, row,
                        expected + int64_t{blockIdx.x} * kTileElements + row * kTileCols);
}

constexpr int kWarp = 32, kWarps = 4, kMostDim = 256;

// A warp a row, its lanes along the numbers of a head; sums in `Sum`.
template <typename T, typename Sum>
__global__ void __launch_bounds__(kWarp* kWarps)
    forward_kernel(const Reference<DeviceElement<T>> reference) {
  const Problem& p = reference.p;
  const int64_t number = int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarp;
  if (number >= p.batch * p.heads * p.rows) return;
  const int lane = threadIdx.x % kWarp;
  const int64_t i = number % p.rows, head = number / p.rows % p.heads;
  const int64_t batch = number / p.rows / p.heads;
  constexpr int kEach = kMostDim / kWarp;
  Sum q[kEach], sums[kEach];
  const T* const from = reference.q(batch, head, i);
  for (int e = 0; e < kEach; ++e) {
    const int64_t d = e * kWarp + lane;
    q[e] = d < p.dim ? static_cast<Sum>(from[d]) * static_cast<Sum>(reference.l.scale) : Sum(0);
    sums[e] = 0;
  }
  Sum largest = -HUGE_VAL, total = 0;
  reference.for_each_column(batch, head, i, [&](int64_t j) {
    const T* const k = reference.k(batch, head, j);
    Sum score = 0;
    for (int e = 0; e < kEach; ++e) {
      const int64_t d = e * kWarp + lane;
      if (d < p.dim) score += q[e] * static_cast<Sum>(k[d]);
    }
    for (int step = kWarp / 2; step > 0; step /= 2) {
      score += __shfl_xor_sync(0xffffffffu, score, step);
    }
    const Sum most = score > largest ? score : largest;
    const Sum factor = exp(largest - most), probability = exp(score - most);
    largest = most;
    total = total * factor + probability;
    const T* const v = reference.v(batch, head, j);
    for (int e = 0; e < kEach; ++e) {
      const int64_t d = e * kWarp + lane;
      if (d < p.dim) sums[e] = sums[e] * factor + probability * static_cast<Sum>(v[d]);
    }
  });
  T* const out = const_cast<T*>(reference.out(batch, head, i));
  for (int e = 0; e < kEach; ++e) {
    const int64_t d = e * kWarp + lane;
    if (d < p.dim) out[d] = static_cast<T>(total > 0 ? sums[e] / total : Sum(0));
  }
  if (lane == 0) {
    static_cast<Sum*>(reference.l.lse)[number] =
        total > 0 ? largest + log(total) : static_cast<Sum>(-HUGE_VAL);
  }
}

}  // namespace

Status expect_tiles_cuda(const Problem& p, const Launch& l, const Tile* tiles, int64_t count,
                         Expected* expected) {
  if (count == 0) return Status::ok();
  with_type(p.dtype, [&]<typename T>(T*) {
    const Reference<DeviceElement<T>> reference(p, l);
    expected_kernel<T>
        <<<static_cast<unsigned>(count), kTileRows, 0, static_cast<cudaStream_t>(l.stream)>>>(
            reference, tiles, expected);
  });
  return to_status(cudaGetLastError(), "the reference of attention");
}

Status derive_forward_cuda(const Problem& p, const Launch& l) {
  const int64_t rows = p.batch * p.heads * p.rows;
  if (rows == 0) return Status::ok();
  with_type(p.dtype, [&]<typename T>(T*) {
    using Sum = std::conditional_t<std::is_same_v<T, double>, double, float>;
    const Reference<DeviceElement<T>> reference(p, l);
    forward_kernel<T, Sum><<<static_cast<unsigned>(ceil_div(rows, kWarps)), kWarp * kWarps, 0,
                             static_cast<cudaStream_t>(l.stream)>>>(reference);
  });
  return to_status(cudaGetLastError(), "the forward pass of attention's reference");
}

}  // namespace sparse_autotune::attention
