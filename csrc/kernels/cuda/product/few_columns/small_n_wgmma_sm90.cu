// Products with at most 128 columns on Hopper, blocks of 64 and more: for what is too many columns
// for small_n_sm90 and too few tiles for wgmma_sm90.
//
// A thread block owns 64 rows of one block row by kWidth columns of C. Steps of 64 k walk the block
// row's stored blocks; its warpgroups take turns at them, each with a ring of tiles of its own,
// which its first warp fills, so that as much of a row is under way as shared memory holds.
// Data path: TMA -> rings in shared memory -> wgmma -> fp32 sums, one for each warpgroup, which
// hand each other parts of them through shared memory and add them up in a fixed order -> C.
// Requires: fp16 or bf16; block sides that are multiples of 64; values and B that TMA takes. Any C.
// Wins: 33 to 128 columns. Bound by the longest block row's way from L2 into one multiprocessor.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <string>

#include "kernels/cuda/device/launch_overlap.cuh"
#include "kernels/cuda/device/load_index.cuh"
#include "kernels/cuda/device/mbarrier.cuh"
#include "kernels/cuda/device/named_barrier.cuh"
#include "kernels/cuda/device/tma.cuh"
#include "kernels/cuda/device/wgmma.cuh"
#include "kernels/cuda/host/arguments_of.h"
#include "kernels/cuda/host/kernel_code.h"
#include "kernels/cuda/host/requirements.h"
#include "kernels/cuda/host/tensor_map.h"
#include "kernels/cuda/product/few_columns/few_columns.cuh"
#include "kernels/cuda/product/few_columns/group_sums.cuh"
#include "operators/product/product.h"

namespace sparse_autotune {
namespace {

constexpr int kStepK = kLineHalves, kTileRows = 64, kGroupThreads = 128;

// Columns; of a thread block the warpgroups, of each the stages; thread blocks a multiprocessor.
template <int kColumns, int kWarpgroups, int kDepth, int kBlocks>
struct Tile {
  static constexpr int kWidth = kColumns, kGroups = kWarpgroups, kStages = kDepth;
  static constexpr int kResident = kBlocks, kThreads = kGroups * kGroupThreads;
  static constexpr int kRows = kTileRows, kBytesA = kRows * kLineBytes,
                       kBytesB = kWidth * kLineBytes;
  static constexpr int kRingBytes = kStages * (kBytesA + kBytesB);
  // The exchanged sums stand behind the rings, or take their place where that is too much.
  using Share = ExchangedShare<kWidth / 2, kGroups>;
  static constexpr int kRings = kGroups * kRingBytes;
  static constexpr bool kSumsApart =
      kResident * (kSwizzleAlignment + kRings + Share::kBytes + 2048) <= 227 * 1024;
  static constexpr int kSums = kSumsApart ? kRings : 0;
  static constexpr int kBarriers = std::max(kRings, kSums + Share::kBytes);
  static constexpr int kSharedBytes = kSwizzleAlignment + kBarriers + kGroups * kStages * 8;
  static_assert(kSharedBytes <= 227 * 1024,
                "more shared memory than a thread block of Hopper may have");
};

struct Arguments : FewColumnsArguments {
  // Values as nnzb * block_m rows or, transposed, as nnzb * block_k rows with each 64 columns of a
  // block as third dimension; B with the batch as third dimension.
  CUtensorMap a_map, b_map;
  AheadLines ahead;
  int columns;                   // tiles along n
  bool b_batched, stores_pairs;  // 4 bytes of a row of C at a time
};

// A warpgroup's ring of steps, and its copies: by its first warp.
template <typename Tile, bool kTransposedA, bool kRowMajorB>
struct GroupRing {
  const Arguments& args;
  const uint32_t shared;
  const int group, lane, begin, slices, turns, m0, n0, batch;
  // Each lane has looked up one of 32 turns.
  int column = 0, position = 0, k = 0;

  __device__ __forceinline__ uint32_t stage(int turn) const {
    return shared + group * Tile::kRingBytes +
           turn % Tile::kStages * (Tile::kBytesA + Tile::kBytesB);
  }
  __device__ __forceinline__ uint32_t barrier(int turn) const {
    return shared + Tile::kBarriers + (group * Tile::kStages + turn % Tile::kStages) * 8;
  }
  // Starts the copies of a turn.
  __device__ __forceinline__ void fetch(int turn) {
    if (turn % 32 == 0 && turn + lane < turns) {
      const int step = (turn + lane) * Tile::kGroups + group;
      const int block = begin + (slices == 1 ? step : step / slices);
      k = (step - (block - begin) * slices) * kStepK;
      column = load_narrow_index(args.col_indices, block, args.wide_indices);
      position = kTransposedA ? load_narrow_index(args.positions, block, args.wide_indices) : block;
    }
    const int k_a = __shfl_sync(~0u, k, turn % 32);
    const int k_b = __shfl_sync(~0u, column, turn % 32) * args.block_k + k_a;
    const int at = __shfl_sync(~0u, position, turn % 32);
    if (elect_one()) {
      const uint32_t full = barrier(turn), a = stage(turn), b = a + Tile::kBytesA;
      const int b_batch = args.b_batched ? batch : 0;
      // Boxes beyond the last column stay away: what they leave is never stored.
      const int boxes = min((args.n - n0 + 63) / 64, Tile::kWidth / 64);
      mbarrier_arrive_expect(
          full, Tile::kBytesA + (kRowMajorB ? boxes * kStepK * kLineBytes : Tile::kBytesB));
      if constexpr (kTransposedA) {
        tma_load(a, args.a_map, full, 0, at * args.block_k + k_a, m0 / kLineHalves);
      } else {
        tma_load(a, args.a_map, full, k_a, at * args.block_m + m0);
      }
      if constexpr (kRowMajorB) {
        for (int box = 0; box < boxes; ++box) {
          tma_load(b + box * kStepK * kLineBytes, args.b_map, full, n0 + box * 64, k_b, b_batch);
        }
      } else {
        tma_load(b, args.b_map, full, k_b, n0, b_batch);
      }
    }
    __syncwarp();
  }
};

template <typename T, typename Tile, bool kTransposedA, bool kRowMajorB>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kResident)
    small_n_wgmma_kernel(const __grid_constant__ Arguments args) {
  extern __shared__ char memory[];
  const auto unaligned = static_cast<uint32_t>(__cvta_generic_to_shared(memory));
  const uint32_t shared = align_swizzled(unaligned);
  const int lane = threadIdx.x % 32;
  const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 32 % 4, 0);  // of the group
  const int group = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / kGroupThreads, 0);
  const auto group_sync = [&]() { barrier_sync<kGroupThreads>(1 + group); };
  if (threadIdx.x == 0) {
    tma_prefetch_map(args.a_map);
    tma_prefetch_map(args.b_map);
    for (int i = 0; i < Tile::kGroups * Tile::kStages; ++i) {
      mbarrier_init(shared + Tile::kBarriers + i * 8, 1);
    }
    mbarrier_init_fence();
  }
  ask_ahead(args.ahead);
  follow_launch_before();
  __syncthreads();

  const int batch = static_cast<int>(blockIdx.z) / args.columns;
  const int n0 = static_cast<int>(blockIdx.z) % args.columns * Tile::kWidth;
  const int m0 = static_cast<int>(blockIdx.y) * kTileRows;
  const int begin = load_narrow_index(args.crow_indices, blockIdx.x, args.wide_indices);
  const int end = load_narrow_index(args.crow_indices, blockIdx.x + 1, args.wide_indices);
  const int slices = args.block_k / kStepK, steps = (end - begin) * slices;
  const int turns = (steps - group + Tile::kGroups - 1) / Tile::kGroups;

  GroupRing<Tile, kTransposedA, kRowMajorB> ring{args,   shared, group, lane, begin,
                                                 slices, turns,  m0,    n0,   batch};
  if (warp == 0) {
    for (int turn = 0; turn < min(turns, Tile::kStages); ++turn) ring.fetch(turn);
  }

  float sum[Tile::kWidth / 2];
  for (int turn = 0; turn < turns; ++turn) {
    mbarrier_wait(ring.barrier(turn), turn / Tile::kStages % 2);
    const uint32_t a_tile = ring.stage(turn), b_tile = a_tile + Tile::kBytesA;
    wgmma::fence();
    wgmma::multiply_lines<T, Tile::kWidth, kRowMajorB, kTransposedA>(sum, a_tile, b_tile, turn > 0);
    wgmma::commit();
    wgmma::wait<1>();
    if (turn > 0 && turn - 1 + Tile::kStages < turns) {
      group_sync();  // the warpgroup is done with the stage of the turn before
      if (warp == 0) ring.fetch(turn - 1 + Tile::kStages);
    }
  }
  wgmma::wait<0>();
  wgmma::pin(sum);
  // A group with a turn less has met once less, too: racecheck loses track of such groups.
  const int most_turns = (steps + Tile::kGroups - 1) / Tile::kGroups;
  if (turns < most_turns && most_turns > Tile::kStages) group_sync();
  if (turns <= 0) {
#pragma unroll
    for (int i = 0; i < Tile::kWidth / 2; ++i) sum[i] = 0;
  }
  if constexpr (!Tile::kSumsApart) __syncthreads();  // everyone is done with the rings
  float own[Tile::Share::kFloats];
  exchange_sums<Tile::kWidth / 2, Tile::kGroups>(
      sum, reinterpret_cast<float4*>(memory + (shared - unaligned) + Tile::kSums), group, own);
  finish_exchanged<T>(args, own, static_cast<int64_t>(blockIdx.x) * args.block_m + m0 + warp * 16,
                      n0 + group * (Tile::kWidth / Tile::kGroups), batch);
}

template <typename T, typename Tile, bool kTransposedA, bool kRowMajorB>
constinit KernelCode<Arguments> code{&small_n_wgmma_kernel<T, Tile, kTransposedA, kRowMajorB>,
                                     true};

// A tile as the host sees it.
struct Shape {
  int width, groups, threads, resident, shared_bytes;
  KernelCode<Arguments>* codes[2][2][2];  // by DType, transposition and Layout of B
};

template <typename Tile>
constexpr Shape shape_of() {
  return {Tile::kWidth,
          Tile::kGroups,
          Tile::kThreads,
          Tile::kResident,
          Tile::kSharedBytes,
          {{{&code<__half, Tile, false, true>, &code<__half, Tile, false, false>},
            {&code<__half, Tile, true, true>, &code<__half, Tile, true, false>}},
           {{&code<__nv_bfloat16, Tile, false, true>, &code<__nv_bfloat16, Tile, false, false>},
            {&code<__nv_bfloat16, Tile, true, true>, &code<__nv_bfloat16, Tile, true, false>}}}};
}

class SmallNWgmmaSm90 final : public Variant {
 public:
  SmallNWgmmaSm90(std::string_view name, const Shape& shape)
      : Variant(DeviceType::kCuda, name), shape_(shape) {}

  Support supports(const Problem& p, const Device& d) const override {
    if (Support s = half_types_on_hopper(p, d); !s) return s;
    if (Support s = columns_are_within(p, 1, kMaxColumns); !s) return s;
    if (Support s = n_fills_columns(p, shape_.width); shape_.width > 64 && !s) return s;
    if (Support s = sides_are_multiples_of(64, p); !s) return s;
    if (Support s = copied_by_16(p); !s) return s;
    if (Support s = tma_reaches(p, p.nnzb * std::max(p.block_m, p.block_k)); !s) return s;
    if (std::max(p.block_m / kTileRows, columns(p) * p.batch) > kMaxGrid) {
      return Support::no("needs more thread blocks than a grid has");
    }
    return code_of(p).runs_on(d, shape_.shared_bytes);
  }

  double estimate_us(const Problem& p, const Device& d) const override {
    // Fitted to times on an H200: setting up and the first latencies; a tile besides its steps; a
    // step where all multiprocessors are at work, and of the longest row alone.
    constexpr double kStartUs = 2.6, kTileUs = 1.2;
    const bool wide = shape_.width > 64;
    const double busy_us = wide ? 0.45 : 0.22;
    const double alone_us = (wide ? 0.2 : 0.12) * (shape_.groups == 1 ? 1.4 : 1);
    const double rows = static_cast<double>(std::max<int64_t>(block_rows(p), 1));
    const double tiles = static_cast<double>(p.m / kTileRows * columns(p) * p.batch);
    const double steps = static_cast<double>(p.nnzb) * p.block_k / (kStepK * rows);
    const double longest = static_cast<double>(p.longest_row) * p.block_k / kStepK;
    const double even_us =
        tiles / std::max(d.multiprocessors, 1) * (steps * busy_us + kTileUs / shape_.resident);
    return kStartUs + std::max({even_us, std::max(longest, steps) * alone_us, uncached_us(p, d)});
  }

  Status launch(const Problem& p, const Launch& l) const override {
    const uint32_t b_lines = p.b_layout == Layout::kRowMajor ? kStepK : shape_.width;
    auto a = arguments_of<Arguments>(p, l);
    Status status = make_tensor_map(tensor_of_values(p, l.values, kTileRows), &a.a_map);
    if (status) status = make_tensor_map(tensor_of_b(p, l.b, 64, b_lines), &a.b_map);
    if (!status) return status;
    a.ahead = lines_ahead(p, l);
    a.columns = static_cast<int>(columns(p));
    const bool c_rows = p.c_layout == Layout::kRowMajor;
    a.stores_quads = !c_rows && p.c_alignment >= 8;
    a.stores_pairs = c_rows && p.c_alignment >= 4;
    const dim3 grid(static_cast<unsigned>(block_rows(p)),
                    static_cast<unsigned>(p.block_m / kTileRows),
                    static_cast<unsigned>(columns(p) * p.batch));
    return code_of(p).launch(a, grid, shape_.threads, shape_.shared_bytes, l.stream, name());
  }

 private:
  static constexpr int64_t kMaxColumns = 128, kMaxGrid = 65535;

  int64_t columns(const Problem& p) const { return ceil_div(p.n, shape_.width); }
  KernelCode<Arguments>& code_of(const Problem& p) const {
    return *shape_.codes[p.dtype == DType::kFloat16 ? 0 : 1][p.transpose ? 1 : 0]
                        [static_cast<int>(p.b_layout)];
  }

  Shape shape_;
  Registration registration_{*this};
};

const SmallNWgmmaSm90 kN64G1{"small_n_wgmma_sm90/n64_g1", shape_of<Tile<64, 1, 6, 2>>()};
const SmallNWgmmaSm90 kN64G2{"small_n_wgmma_sm90/n64_g2", shape_of<Tile<64, 2, 6, 1>>()};
const SmallNWgmmaSm90 kN64G4{"small_n_wgmma_sm90/n64_g4", shape_of<Tile<64, 4, 3, 1>>()};
const SmallNWgmmaSm90 kN128G1{"small_n_wgmma_sm90/n128_g1", shape_of<Tile<128, 1, 4, 2>>()};
const SmallNWgmmaSm90 kN128G2{"small_n_wgmma_sm90/n128_g2", shape_of<Tile<128, 2, 4, 1>>()};

}  // namespace
}  // namespace sparse_autotune
