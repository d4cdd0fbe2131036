// fp64 in small blocks on Hopper's tensor cores, many columns.
//
// A persistent thread block owns tiles of C: 256 rows by 64 columns. It walks all of B's rows in
// stages, whatever blocks there are, so that each line of B comes to shared memory once for 256
// rows. Each of its 16 warps owns two strips of 8 rows and multiplies the pieces, 8 x 8, that these
// have in a stage; the last to be done with a stage has it filled again.
// Data path: TMA of B into a ring of 5 stages of 64 rows, cp.async of pieces into places of each
// warp -> mma.sync (16x8x8) -> C.
// Requires: fp64, block sides that are multiples of 8, values and B aligned to 16 bytes.
// Wins: blocks of 8 from some 5% up, A^T of blocks of 8 to 32. Bound by L2, which hands out B and
// A, and by shared memory.
#include <algorithm>

#include "kernels/cuda/host/arguments_of.h"
#include "kernels/cuda/host/kernel_code.h"
#include "kernels/cuda/host/requirements.h"
#include "kernels/cuda/host/tensor_map.h"
#include "kernels/cuda/product/fp64/dmma_strips.cuh"
#include "kernels/cuda/product/fp64/dmma_strips_store.cuh"
#include "tile_roofline.h"
#include "variant.h"

namespace sparse_autotune {
namespace {

// Which stage of B comes next into the ring. Whoever fills a stage finds this in shared memory, and
// leaves it for the one who fills the next: to find it anew takes so long that it would be the
// slowest warp of the next stage, too.
struct NextStage {
  int n0, k, batch;
  unsigned tile;  // panels.tiles or more: there is none
};

// The ring, behind it the values of each warp, the next stage, the barriers of filled stages and of
// those that warps have left, and counters of these warps.
template <typename Tile>
struct StripsRing {
  char* memory;
  uint32_t address;

  __device__ __forceinline__ explicit StripsRing(char* shared) {
    const auto start = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
    address = align_swizzled(start);
    memory = shared + (address - start);
  }
  __device__ __forceinline__ uint32_t next() const { return address + Tile::kBarriersAt; }
  __device__ __forceinline__ uint32_t full(uint32_t stage) const { return next() + 16 + stage * 8; }
  __device__ __forceinline__ uint32_t left(uint32_t stage) const {
    return full(Tile::kStages + stage);
  }
  __device__ __forceinline__ uint32_t done(uint32_t stage) const {
    return full(2 * Tile::kStages) + stage * 4;
  }
};

__device__ __forceinline__ void store_next(uint32_t to, const NextStage& next) {
  store_shared_16(to, make_uint4(next.n0, next.k, next.batch, next.tile));
}
__device__ __forceinline__ NextStage load_next(uint32_t from) {
  const uint4 x = load_shared_16(from);
  return {static_cast<int>(x.x), static_cast<int>(x.y), static_cast<int>(x.z), x.w};
}

// Counts up to `last`, then from 0 again; what it was. Only who is the last comes of it: a fence
// would wait for values on their way, and the order of what is done comes of a barrier.
__device__ __forceinline__ uint32_t count_done(uint32_t counter, uint32_t last) {
  uint32_t was;
  asm volatile("atom.relaxed.cta.shared::cta.inc.u32 %0, [%1], %2;\n"
               : "=r"(was)
               : "r"(counter), "r"(last)
               : "memory");
  return was;
}

template <typename Tile>
__device__ __forceinline__ NextStage first_stage(const StripsArguments& args, unsigned tile) {
  if (tile >= args.panels.tiles) return {0, 0, 0, tile};
  const TilePlace place = locate(args.panels, tile);
  return {static_cast<int>(place.column) * Tile::kN, 0,
          args.batched ? static_cast<int>(place.batch) : 0, tile};
}

// Has the next stage of B, if there is one, copied into the ring. One thread calls it, which is the
// last to be done with what is there, so that calls come one after the other.
template <typename Tile>
__device__ __forceinline__ void fill_stage(const TmaStripsArguments& args,
                                           const StripsRing<Tile>& ring, uint32_t stage) {
  NextStage next = load_next(ring.next());
  if (next.tile >= args.rest.panels.tiles) return;
  const uint32_t full = ring.full(stage);
  mbarrier_arrive_expect(full, Tile::kStageBytes);
#pragma unroll
  for (int i = 0; i < Tile::kBoxes; ++i) {
    const uint32_t to = ring.address + stage * Tile::kStageBytes + i * Tile::kBoxBytes;
    if constexpr (Tile::kRowMajorB) {
      tma_load(to, args.b, full, next.n0 + i * 16, next.k, next.batch);
    } else {
      tma_load(to, args.b, full, next.k + i * 16, next.n0, next.batch);
    }
  }
  next.k += Tile::kStageK;
  if (next.k >= args.rest.stages * Tile::kStageK) {
    next = first_stage<Tile>(args.rest, next.tile + gridDim.x);
  }
  store_next(ring.next(), next);
}

template <typename Tile>
__device__ __forceinline__ void multiply_tiles(const TmaStripsArguments& args,
                                               const StripsRing<Tile>& ring, int warp) {
  const StripsArguments& rest = args.rest;
  const auto strip_of = [&](const TilePlace& place) {
    return (static_cast<int>(place.row) * Tile::kWarps + warp) * Tile::kOwn;
  };
  // Of a tile that may be behind the last.
  const auto locate_one = [&](unsigned tile) {
    return locate(rest.panels, min(tile, rest.panels.tiles - 1));
  };
  unsigned tile = blockIdx.x;
  StripPieces<Tile> pieces(rest, ring.memory + Tile::kSlotsAt + warp * Tile::kWarpBytes);
  pieces.begin(rest, strip_of(locate_one(tile)));
  int turn = 0;
#pragma unroll 1
  while (tile < rest.panels.tiles) {
    double sum[Tile::kOwn][Tile::kTilesM][4] = {};
#pragma unroll 1
    for (int i = 0; i < rest.stages; ++i, ++turn) {
      const uint32_t stage = static_cast<uint32_t>(turn) % Tile::kStages;
      const uint32_t parity = static_cast<uint32_t>(turn) / Tile::kStages % 2;
      mbarrier_wait(ring.full(stage), parity);
      multiply_strips<Tile>(rest, pieces, ring.memory + stage * Tile::kStageBytes, i * Tile::kSlabs,
                            sum);
      // Who is the last to be done with a stage has it filled again. By then all have arrived.
      __syncwarp();
      if (threadIdx.x % 32 == 0) {
        mbarrier_arrive(ring.left(stage));
        if (count_done(ring.done(stage), Tile::kWarps - 1) == Tile::kWarps - 1) {
          mbarrier_wait(ring.left(stage), parity);
          fill_stage<Tile>(args, ring, stage);
        }
      }
      __syncwarp();
    }
    const TilePlace place = locate_one(tile);
    tile += gridDim.x;
    // What the next tile begins with is on its way while this one's sums leave.
    pieces.begin(rest, strip_of(locate_one(tile)));
    store_strips<Tile>(sum, rest, place, strip_of(place));
  }
}

template <typename Tile>
__global__ void __launch_bounds__(Tile::kThreads, 1)
    dmma_strips_kernel(const __grid_constant__ TmaStripsArguments args) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ char memory[];
  const StripsRing<Tile> ring(memory);
  if (threadIdx.x == 0) {
    tma_prefetch_map(args.b);
    for (int i = 0; i < Tile::kStages; ++i) {
      mbarrier_init(ring.full(i), 1);
      mbarrier_init(ring.left(i), Tile::kWarps);
      store_shared_32(ring.done(i), 0);
    }
    mbarrier_init_fence();
    store_next(ring.next(), first_stage<Tile>(args.rest, blockIdx.x));
  }
  __syncthreads();
  if (threadIdx.x == 0) {
#pragma unroll 1
    for (int i = 0; i < Tile::kStages; ++i) fill_stage<Tile>(args, ring, i);
  }
  __syncwarp();
  multiply_tiles<Tile>(args, ring, __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 32, 0));
#else
  __trap();
#endif
}

template <typename Tile>
constinit KernelCode<TmaStripsArguments> strips_code{&dmma_strips_kernel<Tile>};

struct Code {
  KernelCode<TmaStripsArguments>* code;
  int shared_bytes;
};

template <bool kTransposed, bool kRowMajor>
constexpr Code code_by() {
  using Tile = StripsTile<kTransposed, kRowMajor>;
  return {&strips_code<Tile>, Tile::kSharedBytes};
}

class DmmaStrips final : public Variant {
 public:
  using Variant::Variant;

  Support supports(const Problem& p, const Device& d) const override {
    if (d.compute_capability != 90) return Support::no("needs compute capability 9.0");
    if (p.dtype != DType::kFloat64) return Support::no("multiplies fp64 only");
    if (Support s = sides_are_multiples_of(8, p); !s) return s;
    if (p.nnzb == 0) return Support::no("there is no stored block");
    if (Support s = n_fills_columns(p, kN); !s) return s;
    if (Support s = aligned_to_16("values and B", std::min(p.values_alignment, p.b_alignment)); !s)
      return s;
    if (std::max({p.m, p.k, p.n, p.nnzb * wide(p), tiles(p)}) > INT32_MAX / 2 ||
        p.nnzb * p.block_m * p.block_k / 8 > UINT32_MAX ||
        p.block_m * p.block_k > UINT32_MAX / 64) {
      return Support::no("a size is beyond its 32-bit indices");
    }
    return code_of(p).code->runs_on(d, code_of(p).shared_bytes);
  }

  double estimate_us(const Problem& p, const Device& d) const override {
    // Whatever blocks there are, a tile fetches all rows of B.
    const double pieces =
        static_cast<double>(p.nnzb * wide(p) * tall(p)) / static_cast<double>(rows(p));
    const double mean = static_cast<double>(p.nnzb) / static_cast<double>(block_rows(p));
    const TileWork work{.tiles = static_cast<double>(tiles(p)),
                        .flops = 2 * pieces * 64 * kN,
                        .fetched = 8 * (static_cast<double>(p.k * kN) + pieces * 64),
                        .stored = 8.0 * kM * kN,
                        .longest = std::max(static_cast<double>(p.longest_row) / mean, 1.0)};
    return tiled_us(work, {.start_us = 7.7, .compute = 0.42, .l2 = 0.45, .alone = 0.68},
                    d.fp64_tensor_tflops, p, d);
  }

  Status launch(const Problem& p, const Launch& l) const override {
    const Code code = code_of(p);
    TmaStripsArguments args{{}, arguments_of<StripsArguments>(p, l)};
    StripsArguments& a = args.rest;
    // Columns of tiles one after the other: what is read of B at a time is little. An A that L2
    // does not keep is read less often by panels.
    const int64_t width = values_bytes(p) * 2 > static_cast<double>(l.device->l2_bytes) ? 8 : 1;
    a.panels = panels_of(rows(p), columns(p), p.batch, std::min(width, columns(p)), nullptr);
    a.stages = static_cast<int>(ceil_div(p.k, kStageK));
    a.strips = static_cast<int>(p.m / kStripRows);
    a.tall = static_cast<int>(tall(p));
    a.wide = static_cast<int>(wide(p));
    a.line_a = static_cast<uint32_t>((p.transpose ? p.block_m : p.block_k) * 8);
    a.block_units = static_cast<uint32_t>(p.block_m * p.block_k / 8);
    a.strip_units = static_cast<uint32_t>(kStripRows * row_stride_in_block(p) / 8);
    a.piece_units = static_cast<uint32_t>(k_stride_in_block(p));
    a.pairs = p.c_alignment >= 16;
    a.batched = p.b_batch_stride != 0;
    if (Status s = make_tensor_map(tensor_of_b(p, l.b, 16, 64), &args.b); !s) return s;
    const auto places = static_cast<unsigned>(l.device->multiprocessors);
    return code.code->launch(args, std::min(a.panels.tiles, places), kThreads, code.shared_bytes,
                             l.stream, name());
  }

 private:
  static constexpr int kM = 256, kN = 64, kStageK = 64, kThreads = 512, kStripRows = 8;

  static int64_t columns(const Problem& p) { return ceil_div(p.n, kN); }
  static int64_t rows(const Problem& p) { return ceil_div(p.m, kM); }
  static int64_t tiles(const Problem& p) { return rows(p) * columns(p) * p.batch; }
  // Of a block: strips one below the other, pieces of each side by side.
  static int64_t tall(const Problem& p) { return p.block_m / kStripRows; }
  static int64_t wide(const Problem& p) { return p.block_k / 8; }

  static Code code_of(const Problem& p) {
    const bool row_major = p.b_layout == Layout::kRowMajor;
    if (p.transpose) return row_major ? code_by<true, true>() : code_by<true, false>();
    return row_major ? code_by<false, true>() : code_by<false, false>();
  }

  Registration registration_{*this};
};

const DmmaStrips kStrips{DeviceType::kCuda, "dmma_strips_sm90/m256_n64"};

}  // namespace
}  // namespace sparse_autotune
