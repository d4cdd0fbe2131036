// wgmma_sm90 for row-major operands that TMA refuses: rows of B or C that do not begin at multiples
// of 16 bytes, as those of an n that is no multiple of 8.
//
// B is first copied to the workspace, into rows that TMA takes; C leaves shared memory by every
// thread's own stores instead of TMA's. All else is wgmma_sm90's.
// Requires: fp16 or bf16, block_m a multiple of kM and block_k of 64, row-major B and C, values
// aligned to 16 bytes.
// Wins: large blocks where n is ragged. Bound by the copy when there is little to multiply.
#include <cuda_runtime.h>

#include "kernels/cuda/device/chunk.cuh"
#include "kernels/cuda/device/launch_overlap.cuh"
#include "kernels/cuda/host/cuda_status.h"
#include "kernels/cuda/product/large_blocks/wgmma_launch.cuh"
#include "operators/product/product.h"

namespace sparse_autotune {
namespace {

constexpr int kHalvesInUnit = 8;  // 16 bytes of a row of the copy

// A thread a unit; what lies behind a row's end becomes zero.
template <typename Chunk>
__global__ void __launch_bounds__(kConvertThreads)
    align_rows_kernel(const uint16_t* b, int64_t ldb, int64_t batch_stride, uint4* copy,
                      unsigned units, int64_t k, int n) {
  // The kernel that multiplies may get ready; it waits for this one's end before it reads.
  let_next_launch_begin();
  const unsigned unit = (blockIdx.x * kConvertThreads + threadIdx.x) % units;
  const int64_t row = (int64_t{blockIdx.x} * kConvertThreads + threadIdx.x) / units;
  if (row >= k) return;
  const int first = static_cast<int>(unit) * kHalvesInUnit;
  const uint16_t* from = b + blockIdx.y * batch_stride + row * ldb + first;
  constexpr int kHalves = sizeof(Chunk) / 2;
  alignas(16) uint16_t out[kHalvesInUnit];
#pragma unroll
  for (int i = 0; i < kHalvesInUnit; i += kHalves) {
    if (first + i + kHalves <= n) {
      *reinterpret_cast<Chunk*>(out + i) = __ldg(reinterpret_cast<const Chunk*>(from + i));
      continue;
    }
#pragma unroll
    for (int j = 0; j < kHalves; ++j) out[i + j] = first + i + j < n ? from[i + j] : uint16_t{0};
  }
  copy[(blockIdx.y * k + row) * units + unit] = *reinterpret_cast<const uint4*>(out);
}

class WgmmaRaggedSm90 final : public Variant {
 public:
  WgmmaRaggedSm90(std::string_view name, const WgmmaShape& shape)
      : Variant(DeviceType::kCuda, name), shape_(shape) {}

  Support supports(const Problem& p, const Device& d) const override {
    if (p.transpose) return Support::no("computes A @ B, not A^T @ B");
    if (p.b_layout != Layout::kRowMajor || p.c_layout != Layout::kRowMajor) {
      return Support::no("needs row-major B and C");
    }
    if (!copies(p) && p.c_alignment >= 16 && p.n % 8 == 0) {
      return Support::no("TMA takes B and C as they are: wgmma_sm90 serves them");
    }
    if (batches_of_b(p) > 65535) return Support::no("more than 65535 matrices B to copy");
    return wgmma_supports(shape_, aligned(p), d);
  }

  double estimate_us(const Problem& p, const Device& d) const override {
    constexpr double kLaunchUs = 1.5;
    const double product_us = wgmma_us(shape_, aligned(p), d, block_rows(p), p.longest_row);
    if (!copies(p)) return product_us;
    return product_us + kLaunchUs + 2 * b_bytes(p) / (d.memory_gbps * 1e3);
  }

  int64_t workspace_bytes(const Problem& p, const Device&) const override {
    return copies(p) ? batches_of_b(p) * p.k * aligned(p).ldb * size_of(p.dtype) : 0;
  }

  int row_order(const Problem&, const Device&) const override { return kWholeRows; }

  Status launch(const Problem& p, const Launch& l) const override {
    Launch copied = l;
    if (copies(p)) {
      const Status status = align_rows(p, l);
      if (!status) return status;
      copied.b = l.workspace;
    }
    WgmmaArguments a{};
    const Status status =
        wgmma_arguments(shape_, aligned(p), copied, l.row_orders[kWholeRows], block_rows(p), &a);
    if (!status) return status;
    return wgmma_launch(shape_, aligned(p), copied, a, name());
  }

 private:
  static bool copies(const Problem& p) { return p.b_alignment < 16; }
  static int64_t batches_of_b(const Problem& p) { return p.b_batch_stride != 0 ? p.batch : 1; }

  // The problem with B as the copy has it.
  static Problem aligned(const Problem& p) {
    if (!copies(p)) return p;
    Problem q = p;
    q.ldb = ceil_div(p.n, kHalvesInUnit) * kHalvesInUnit;
    q.b_batch_stride = p.b_batch_stride != 0 ? p.k * q.ldb : 0;
    q.b_alignment = 16;
    return q;
  }

  static Status align_rows(const Problem& p, const Launch& l) {
    const auto units = static_cast<unsigned>(ceil_div(p.n, kHalvesInUnit));
    const dim3 grid(static_cast<unsigned>(ceil_div(p.k * units, kConvertThreads)),
                    static_cast<unsigned>(batches_of_b(p)));
    with_chunk(p.b_alignment, [&]<typename Chunk>(Chunk) {
      align_rows_kernel<Chunk><<<grid, kConvertThreads, 0, static_cast<cudaStream_t>(l.stream)>>>(
          static_cast<const uint16_t*>(l.b), p.ldb, p.b_batch_stride,
          static_cast<uint4*>(l.workspace), units, p.k, static_cast<int>(p.n));
    });
    return to_status(cudaGetLastError(), "copying B into aligned rows");
  }

  WgmmaShape shape_;
  Registration registration_{*this};
};

const WgmmaRaggedSm90 kVariants[] = {
    {"wgmma_ragged_sm90/m128_n128", wgmma_row_major_shape<Direct<M128N128>>()},
    {"wgmma_ragged_sm90/m128_n64", wgmma_row_major_shape<Direct<M128N64>>()},
    {"wgmma_ragged_sm90/m64_n256", wgmma_row_major_shape<Direct<M64N256>>()},
    {"wgmma_ragged_sm90/m64_n128", wgmma_row_major_shape<Direct<M64N128>>()},
};

}  // namespace
}  // namespace sparse_autotune
