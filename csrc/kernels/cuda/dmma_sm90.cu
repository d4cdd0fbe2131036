// fp64 on Hopper's tensor cores, with operands by TMA.
#include <cuda.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "kernels/cuda/alignment.h"
#include "kernels/cuda/device/dmma_tile.cuh"
#include "kernels/cuda/device/mbarrier.cuh"
#include "kernels/cuda/device/tma.cuh"
#include "kernels/cuda/device/warpgroup_registers.cuh"
#include "kernels/cuda/kernel_code.h"
#include "kernels/cuda/tensor_map.h"
#include "variant.h"

namespace sparse_autotune {
namespace {

struct TmaArguments {
  CUtensorMap values, b;
  DmmaArguments rest;
};

// 64 rows of C for each warpgroup that multiplies, rows that are present or absent together, steps.
template <int kWarpgroups, int kSide, int kDepth, bool kRowMajor>
struct DmmaTmaTile {
  static constexpr int kM = 64 * kWarpgroups, kWarpN = 32, kWarps = 4, kThreads = 128;
  static constexpr int kN = kWarpN * kWarps, kGranule = kSide;
  static constexpr int kGranules = 64 / kGranule;  // of a warpgroup
  static constexpr bool kTransposedA = false, kRowMajorB = kRowMajor;
  static constexpr int kUnits = 2, kStages = kDepth, kResident = kWarpgroups == 1 ? 2 : 1;
  static constexpr int kLaunched = kThreads * (kWarpgroups + 1);
  static constexpr int kRegisters = 216;
  static constexpr int kPitchA = 0, kGranuleBytes = kGranule * 64;
  static constexpr int kBytesA = kM * 64, kBytesB = kN * 64, kUnitBytes = kBytesA + kBytesB;
  static constexpr int kStageBytes = kUnits * kUnitBytes;
  static constexpr int kSharedBytes =
      kSwizzleAlignment + kStages * (kStageBytes + kUnits * 4 + 16);
  static constexpr int kTilesN = 8, kTilesM = kWarpN / 16, kSums = kTilesN * kTilesM * 4;
};

// Lane i of the warp that copies knows where granule i's block is.
template <typename Tile>
__device__ __forceinline__ void produce(const TmaArguments& args, const DmmaPart& part,
                                        uint32_t ring, uint32_t full, uint32_t empty, int steps) {
  const DmmaArguments& rest = args.rest;
  const int lane = threadIdx.x % 32;
  const bool grouped = rest.columns != nullptr;
  const uint32_t all = (1u << (part.rows / Tile::kGranule)) - 1, below = (1u << lane) - 1;
  const uint32_t masks = ring + Tile::kStages * Tile::kStageBytes;
  const int row = grouped ? 0 : part.m0 + lane * Tile::kGranule;
  int cursor = part.begin;
  if (grouped) {
    cursor = load_narrow_index(rest.crow_indices, min(part.block_row + lane, rest.block_rows),
                               rest.wide_indices);
  }
  const int end = part.begin + part.length;
  const auto fetch = [&](int i) {
    if (i >= end) return int2{};
    if (grouped) return __ldg(reinterpret_cast<const int2*>(rest.columns) + i);
    return make_int2(load_narrow_index(rest.col_indices, i, rest.wide_indices),
                     static_cast<int>(all));
  };
  int at = part.begin, slice = 0;
  int2 item = fetch(at), next = fetch(at + 1), later = fetch(at + 2);
  RingPlace<Tile::kStages> place;
#pragma unroll 1
  for (int step = 0; step < steps; ++step, place.advance()) {
    mbarrier_wait(empty + place.stage * 8, place.parity ^ 1);
    const uint32_t barrier = full + place.stage * 8;
#pragma unroll
    for (int unit = 0; unit < Tile::kUnits; ++unit) {
      const auto mask = at < end ? static_cast<uint32_t>(item.y) : 0;
      if (lane == 0) {
        asm volatile("st.shared.u32 [%0], %1;\n" ::"r"(
                         masks + (place.stage * Tile::kUnits + unit) * 4),
                     "r"(mask)
                     : "memory");
        const int bytes = Tile::kBytesB + __popc(mask) * Tile::kGranuleBytes;
        if (mask != 0) mbarrier_expect(barrier, bytes);
        if (unit + 1 == Tile::kUnits) mbarrier_arrive(barrier);
      }
      __syncwarp();
      if (mask == 0) continue;
      const uint32_t to = ring + place.stage * Tile::kStageBytes + unit * Tile::kUnitBytes;
      if ((mask >> lane & 1) != 0) {
        tma_load(to + __popc(mask & below) * Tile::kGranuleBytes, args.values, barrier, slice * 8,
                 cursor * rest.block_m + row);
      }
      if (lane == 31) {
        const int k = item.x * rest.block_k + slice * 8;
        const auto n = static_cast<int>(part.n0), batch = static_cast<int>(part.batch);
        if constexpr (Tile::kRowMajorB) {
          tma_load(to + Tile::kBytesA, args.b, barrier, 0, k, n / 16, batch);
        } else {
          tma_load(to + Tile::kBytesA, args.b, barrier, k, n, batch);
        }
      }
      if (++slice < rest.slices) continue;
      slice = 0;
      cursor += static_cast<int>(mask >> lane & 1);
      ++at;
      item = next;
      next = later;
      later = fetch(at + 2);
    }
  }
}

template <typename Tile>
__global__ void __launch_bounds__(Tile::kLaunched, Tile::kResident)
    dmma_tma_kernel(const __grid_constant__ TmaArguments args) {
  extern __shared__ char memory[];
  char* const shared =
      memory + (align_swizzled(static_cast<uint32_t>(__cvta_generic_to_shared(memory))) -
                static_cast<uint32_t>(__cvta_generic_to_shared(memory)));
  const auto ring = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  const uint32_t full = ring + Tile::kStages * (Tile::kStageBytes + Tile::kUnits * 4);
  const uint32_t empty = full + Tile::kStages * 8;
  constexpr int kConsumers = Tile::kLaunched / 128 - 1;
  if (threadIdx.x == 0) {
    for (int i = 0; i < Tile::kStages; ++i) {
      mbarrier_init(full + i * 8, 1);
      mbarrier_init(empty + i * 8, kConsumers * Tile::kWarps);
    }
    mbarrier_init_fence();
  }
  DmmaPart part = find_dmma_part<Tile>(args.rest);
  const int steps = (part.length * args.rest.slices + Tile::kUnits - 1) / Tile::kUnits;
  __syncthreads();
  const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 32, 0);
  if (warp >= kConsumers * Tile::kWarps) {
    give_up_registers<40>();
    if (warp == kConsumers * Tile::kWarps) {
      produce<Tile>(args, part, ring, full, empty, steps);
    }
  } else {
    take_registers<Tile::kRegisters>();
    const int lane = threadIdx.x % 32, warpgroup = warp / Tile::kWarps;
    const int column = warp % Tile::kWarps * Tile::kWarpN;
    // This lane's first two k, row-major of the chunk lane / 4 of each 16 columns.
    const int b_at = Tile::kBytesA + (Tile::kRowMajorB ? column * 64 + lane % 4 * 256 +
                                                             ((lane / 4 ^ lane % 4 * 2) << 4)
                                                       : column * 64 + lane * 16);
    const auto* const masks =
        reinterpret_cast<const uint32_t*>(shared + Tile::kStages * Tile::kStageBytes);
    double sum[Tile::kTilesN][Tile::kTilesM][4] = {};
    RingPlace<Tile::kStages> place;
#pragma unroll 1
    for (int step = 0; step < steps; ++step, place.advance()) {
      mbarrier_wait(full + place.stage * 8, place.parity);
#pragma unroll
      for (int unit = 0; unit < Tile::kUnits; ++unit) {
        const char* const slice =
            shared + place.stage * Tile::kStageBytes + unit * Tile::kUnitBytes;
        uint32_t mask = masks[place.stage * Tile::kUnits + unit], before = 0;
        if (kConsumers > 1) {
          before = warpgroup == 0 ? 0 : __popc(mask & ((1u << Tile::kGranules) - 1));
          mask >>= warpgroup * Tile::kGranules;
        }
        double b[Tile::kTilesM][4];
#pragma unroll
        for (int i = 0; i < Tile::kTilesM; ++i) {
          const char* from = slice + b_at + i * 1024;
          const char* other = Tile::kRowMajorB ? slice + (b_at ^ 16) + i * 1024 + 128 : from + 512;
          load_pairs<Tile::kRowMajorB>(from, other, b[i]);
        }
        multiply_granules<Tile>(sum, b, slice + lane * 16 + before * Tile::kGranuleBytes, mask);
      }
      __syncwarp();
      if (lane == 0) mbarrier_arrive(empty + place.stage * 8);
    }
    // Everyone is done with the ring.
    asm volatile("bar.sync 1, %0;\n" ::"n"(kConsumers * Tile::kThreads) : "memory");
    part.row0 += warpgroup * 64;
    part.rows = min(max(part.rows - warpgroup * 64, 0), 64);
    write_fp64_tile<Tile>(sum, shared + warpgroup * Tile::kSums * Tile::kThreads * 8, args.rest,
                          part);
  }
}

template <typename Tile>
constinit KernelCode<TmaArguments> tma_code{&dmma_tma_kernel<Tile>};

constexpr int kTmaSides[] = {64, 32, 16, 8};

struct TmaShape {
  int m, threads;
  struct Code {
    KernelCode<TmaArguments>* code;
    int shared_bytes;
  } of[4][2];
};

template <typename Tile>
constexpr TmaShape::Code tma_code_of() {
  static_assert(Tile::kSharedBytes <= 227 * 1024 / Tile::kResident - 1024 * (Tile::kResident - 1));
  static_assert((Tile::kLaunched / 128 - 1) * Tile::kSums * Tile::kThreads * 8 <=
                Tile::kStages * Tile::kStageBytes);
  return {&tma_code<Tile>, Tile::kSharedBytes};
}

template <int kWarpgroups, int kDepth, int... kIndices>
constexpr TmaShape tma_shape_of() {
  TmaShape s{64 * kWarpgroups, 128 * (kWarpgroups + 1), {}};
  ((s.of[kIndices][0] =
        tma_code_of<DmmaTmaTile<kWarpgroups, kTmaSides[kIndices], kDepth, true>>(),
    s.of[kIndices][1] =
        tma_code_of<DmmaTmaTile<kWarpgroups, kTmaSides[kIndices], kDepth, false>>()),
   ...);
  return s;
}

class DmmaSm90 final : public Variant {
 public:
  DmmaSm90(std::string_view name, const TmaShape& shape, bool grouped)
      : Variant(DeviceType::kCuda, name), shape_(shape), grouped_(grouped) {}

  Support supports(const Problem& p, const Device& d) const override {
    if (p.dtype != DType::kFloat64) return Support::no("multiplies fp64 only");
    if (d.compute_capability != 90) return Support::no("needs compute capability 9.0");
    if (p.transpose) return Support::no("computes A @ B, not A^T @ B");
    if (p.block_m % 8 != 0 || p.block_k % 8 != 0) {
      return Support::no("needs block sides that are multiples of 8, got " +
                         std::to_string(p.block_m) + "x" + std::to_string(p.block_k));
    }
    if (p.nnzb == 0) return Support::no("there is no stored block");
    if (code_of(p).code == nullptr) return Support::no("no kernel for such blocks");
    if (grouped_) {
      if (p.block_m != side(p) || 2 * p.block_m > shape_.m) {
        return Support::no("needs blocks of 8, 16, 32 or 64 rows, and two in a tile");
      }
      if (p.group_counts.columns[grouping(p)] <= 0) {
        return Support::no("nobody has looked which block columns its groups of " +
                           std::to_string(group(p)) + " block rows have");
      }
    } else if (p.block_m % shape_.m != 0) {
      return Support::no("needs blocks of whole tiles");
    }
    if (p.b_layout == Layout::kRowMajor && p.n % 16 != 0) {
      return Support::no("copies 16 columns at a time");
    }
    const Support aligned =
        aligned_to_16("values and B", std::min(p.values_alignment, p.b_alignment));
    if (!aligned) return aligned;
    if (std::max({p.m, p.n, p.k, p.nnzb * p.block_m, tiles(p)}) > INT32_MAX - 1024) {
      return Support::no("a size is beyond its 32-bit indices");
    }
    return code_of(p).code->runs_on(d, code_of(p).shared_bytes);
  }

  double estimate_us(const Problem&, const Device&) const override { return 1; }

  int row_order(const Problem&, const Device&) const override {
    return grouped_ ? kNoRowOrder : kWholeRows;
  }
  int grouping(const Problem& p, const Device&) const override { return grouping(p); }

  Status launch(const Problem& p, const Launch& l) const override {
    TmaArguments arguments{};
    DmmaArguments& a = arguments.rest;
    a.crow_indices = l.crow_indices;
    a.col_indices = l.col_indices;
    a.bias = l.bias;
    a.c = l.c;
    const OrderedRow* order = l.row_orders[kWholeRows];
    if (grouped_) {
      const RowGroups& groups_of = l.row_groups[grouping(p)];
      a.columns = groups_of.columns;
      order = groups_of.groups;
    }
    const int64_t l2 = l.device->l2_bytes;
    a.panels =
        panels_of(rows(p), ceil_div(p.n, kN), p.batch, panel_width(p, kN, l2 / 2, l2 / 4), order);
    a.n = p.n;
    a.ldc = p.ldc;
    a.c_batch_stride = p.c_batch_stride;
    a.m = static_cast<int>(p.m);
    a.block_m = static_cast<int>(p.block_m);
    a.block_k = static_cast<int>(p.block_k);
    a.block_rows = static_cast<int>(block_rows(p));
    a.group = static_cast<int>(group(p));
    a.strips = static_cast<int>(strips(p));
    a.slices = static_cast<int>(p.block_k / 8);
    a.activation = p.activation;
    a.wide_indices = p.index_type == IndexType::kInt64;
    a.c_rows = p.c_layout == Layout::kRowMajor;
    a.pairs = p.c_alignment >= 16;
    const auto side_rows = static_cast<uint32_t>(side(p));
    const BoxedTensor values{l.values,    p.dtype,        2, {p.block_k, p.nnzb * p.block_m},
                             {p.block_k}, {8, side_rows}, true};
    const int64_t batch = p.b_batch_stride != 0 ? p.batch : 1;
    const BoxedTensor rows_of_b{l.b,
                                p.dtype,
                                4,
                                {16, p.k, p.n / 16, batch},
                                {p.ldb, 16, p.b_batch_stride},
                                {16, 8, kN / 16, 1}};
    const BoxedTensor columns_of_b{
        l.b, p.dtype, 3, {p.k, p.n, batch}, {p.ldb, p.b_batch_stride}, {8, kN, 1}, true};
    Status status = make_tensor_map(values, &arguments.values);
    if (!status) return status;
    status = make_tensor_map(p.b_layout == Layout::kRowMajor ? rows_of_b : columns_of_b,
                             &arguments.b);
    if (!status) return status;
    const TmaShape::Code& code = code_of(p);
    return code.code->launch(arguments, static_cast<unsigned>(tiles(p)), shape_.threads,
                             code.shared_bytes, l.stream, name());
  }

 private:
  static constexpr int kN = 128;

  static int index(const Problem& p) {
    int i = 0;
    while (p.block_m % kTmaSides[i] != 0) ++i;
    return i;
  }
  static int side(const Problem& p) { return kTmaSides[index(p)]; }
  int64_t group(const Problem& p) const { return grouped_ ? shape_.m / p.block_m : 1; }
  int grouping(const Problem& p) const {
    return grouped_ ? grouping_of(static_cast<int>(group(p))) : kNoGrouping;
  }
  int64_t strips(const Problem& p) const { return grouped_ ? 1 : ceil_div(p.block_m, shape_.m); }
  int64_t rows(const Problem& p) const { return ceil_div(block_rows(p), group(p)) * strips(p); }
  int64_t tiles(const Problem& p) const { return rows(p) * ceil_div(p.n, kN) * p.batch; }
  const TmaShape::Code& code_of(const Problem& p) const {
    return shape_.of[index(p)][static_cast<int>(p.b_layout)];
  }

  TmaShape shape_;
  bool grouped_;
  Registration registration_{*this};
};

const DmmaSm90 kTma1{"tma/m64", tma_shape_of<1, 4, 0>(), false};
const DmmaSm90 kTma1Groups{"tma/m64_groups", tma_shape_of<1, 4, 1, 2, 3>(), true};
const DmmaSm90 kTma2{"tma/m128", tma_shape_of<2, 6, 0>(), false};
const DmmaSm90 kTma2Groups{"tma/m128_groups", tma_shape_of<2, 6, 0, 1, 2, 3>(), true};

}  // namespace
}  // namespace sparse_autotune
