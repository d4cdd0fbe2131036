// fp64 on Hopper's tensor cores for few columns: the stored blocks are shared out evenly.
//
// Each thread block computes a run of as many stored blocks as the others, 32 or 64 columns wide; a
// second kernel adds up the rows that borders cut, in order.
// Data path: TMA -> 16 k a step in a ring of 4 to 8 steps in shared memory -> registers -> mma.sync
// (16x8x16) -> C, or sums in L2.
// Requires: fp64, block_m a multiple of 8, block_k of 16, values and B aligned to 16 bytes.
// Wins: up to some 256 columns, where rows are few, long or uneven. Bound by reading A, for 128
// columns by the tensor cores.
#include <algorithm>
#include <string>

#include "kernels/cuda/device/dmma_lanes.cuh"
#include "kernels/cuda/device/launch_overlap.cuh"
#include "kernels/cuda/host/arguments_of.h"
#include "kernels/cuda/host/kernel_code.h"
#include "kernels/cuda/host/requirements.h"
#include "kernels/cuda/host/tensor_map.h"
#include "kernels/cuda/product/fp64/add_parts.cuh"
#include "kernels/cuda/product/fp64/dmma_flat.cuh"
#include "kernels/cuda/product/fp64/dmma_product.h"
#include "kernels/cuda/product/fp64/dmma_store.cuh"
#include "operators/product/product.h"

namespace sparse_autotune {
namespace {

template <typename Tile>
__device__ __forceinline__ void consume_share(const DmmaFlatArguments& args,
                                              const DmmaRing<Tile>& ring) {
  const int lane = threadIdx.x % 32;
  const unsigned tiles = gridDim.x / args.shares;
  const unsigned share = blockIdx.x / tiles, number = blockIdx.x % tiles;
  const FlatTilePlace tile = flat_tile(args, number);
  const DmmaLanes<Tile> lanes;
  double sum[Tile::kTilesN][Tile::kTilesM][4] = {};
  RingPlace<Tile::kStages> place;
#pragma unroll 1
  for (;;) {
    mbarrier_wait(ring.full(place.stage), place.parity);
    const DmmaStep note = load_dmma_step(ring.note(place.stage));
    if (note.what == kStepsEnd) break;
    if ((note.what & kStepMultiplies) != 0) {
      lanes.multiply(sum, ring.memory + place.stage * Tile::kStageBytes);
    }
    const bool last = (note.what & kStepIsLast) != 0;
    const bool cut = (note.what & (kStepFromBefore | kStepGoesOn)) != 0;
    const bool scratch = last && !cut && args.activation > Activation::kRelu;
    __syncwarp();
    if (!scratch && lane == 0) mbarrier_arrive(ring.empty(place.stage));
    if (last) {
      Fp64Place to;
      to.rows = min(args.strip_rows, args.block_m - tile.strip * args.strip_rows);
      if (cut) {
        const unsigned piece = 2 * share + ((note.what & kStepFromBefore) != 0 ? 0 : 1);
        to.c = args.sums + (uint64_t{piece} * tiles + number) * (Tile::kM * Tile::kN);
        to.bias = nullptr;
        to.ldc = args.c_rows ? Tile::kN : Tile::kM;
        to.columns = Tile::kN;
        to.activation = Activation::kNone;
        to.pairs = true;
      } else {
        const int row0 = note.row * args.block_m + tile.strip * args.strip_rows;
        const int64_t n0 = int64_t{tile.column} * Tile::kN;
        to.c = static_cast<double*>(args.c) + tile.batch * args.c_batch_stride +
               (args.c_rows ? row0 * args.ldc + n0 : row0 + n0 * args.ldc);
        to.bias = args.bias == nullptr ? nullptr : static_cast<const double*>(args.bias) + row0;
        to.ldc = args.ldc;
        to.columns = static_cast<int>(min(args.n - n0, int64_t{Tile::kN}));
        to.activation = args.activation;
        to.pairs = args.pairs;
      }
      to.c_rows = args.c_rows;
      finish_fp64_step<Tile>(sum, ring, place.stage, to, scratch);
    }
    place.advance();
  }
}

template <typename Tile>
__global__ void __launch_bounds__(Tile::kLaunched, Tile::kResident)
    dmma_flat_kernel(const __grid_constant__ DmmaFlatArguments args) {
  extern __shared__ char memory[];
  const DmmaRing<Tile> ring(memory);
  if (threadIdx.x == 0) {
    tma_prefetch_map(args.values_map);
    tma_prefetch_map(args.b_map);
    ring.init_barriers();
  }
  wait_for_launch_before();
  FlatPlace ends[2];
  find_ends<Tile>(args, blockIdx.x / (gridDim.x / args.shares), ends);
  __syncthreads();
  const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 32, 0);
  if (warp == Tile::kWarps) {
    produce_share<Tile>(args, ring, ends);
  } else {
    consume_share<Tile>(args, ring);
  }
}

template <typename Tile>
constinit KernelCode<DmmaFlatArguments> flat_code{&dmma_flat_kernel<Tile>, true};
constinit KernelCode<AddPartsArguments> add_code{&add_parts_kernel, true};

struct Code {
  KernelCode<DmmaFlatArguments>* code;
  int rows, threads, shared_bytes, resident;
};

template <int kRows, int kColumns>
Code flat_code_of(const Problem& p) {
  return with_forms(
      p, []<bool... kForms>() {
        using Tile = DmmaStepTile<kRows, kColumns, kForms...>;
        return Code{&flat_code<Tile>, Tile::kM, Tile::kLaunched, Tile::kSharedBytes,
                    Tile::kResident};
      });
}

class DmmaFlatSm90 final : public Variant {
 public:
  DmmaFlatSm90(std::string_view name, int columns)
      : Variant(DeviceType::kCuda, name), columns_(columns) {}

  Support supports(const Problem& p, const Device& d) const override {
    if (d.compute_capability != 90) return Support::no("needs compute capability 9.0");
    if (p.dtype != DType::kFloat64) return Support::no("multiplies fp64 only");
    if (p.block_m % 8 != 0 || p.block_k % 16 != 0) {
      return Support::no("needs blocks of multiples of 8 rows and 16 columns, got " +
                         block_text(p.block_m, p.block_k));
    }
    if (Support s = n_fills_columns(p, columns_); columns_ > 32 && !s) return s;
    if (Support s = copied_by_16(p); !s) return s;
    const int64_t lines = p.nnzb * std::max(p.block_m, p.block_k);
    if (Support s = tma_reaches(p, std::max({lines, units(p), p.n}) + 128); !s) return s;
    if (tiles(p) > d.multiprocessors) {
      return Support::no("has " + std::to_string(tiles(p)) +
                         " tiles for each stored block: too many to share out rows");
    }
    return code_of(p).code->runs_on(d, code_of(p).shared_bytes);
  }

  double estimate_us(const Problem& p, const Device& d) const override {
    // Measured on an H200: two launches; shares of the tensor cores' and the memory's rates; L2.
    constexpr double kStartUs = 8, kFlops = 0.6, kGbps = 500, kL2Gbps = 6500;
    const double columns = static_cast<double>(ceil_div(p.n, columns_) * p.batch);
    const double rows = static_cast<double>(strips(p) * code_of(p).rows);
    const double blocks = static_cast<double>(p.nnzb);
    const double block_k = static_cast<double>(p.block_k);
    const double flops = 2 * blocks * rows * block_k * columns * columns_;
    const double fetched =
        8 * blocks * block_k * columns *
        (static_cast<double>(p.block_m) + static_cast<double>(strips(p)) * columns_);
    return kStartUs +
           std::max({flops / (kFlops * d.fp64_tensor_tflops * 1e6), fetched / (kL2Gbps * 1e3),
                     compulsory_bytes(p) / (d.memory_gbps * kGbps)});
  }

  int64_t workspace_bytes(const Problem& p, const Device& d) const override {
    const int64_t parts = shares(p, d);
    if (parts < 2) return cut_bytes(parts);
    return cut_bytes(parts) + 2 * parts * tiles(p) * code_of(p).rows * columns_ * 8;
  }

  Status launch(const Problem& p, const Launch& l) const override {
    const Code code = code_of(p);
    AddPartsArguments all{arguments_of<DmmaFlatArguments>(p, l), code.rows, columns_};
    DmmaFlatArguments& a = all.rest;
    const int64_t parts = shares(p, *l.device);
    a.cuts = static_cast<FlatCut*>(l.workspace);
    a.sums = reinterpret_cast<double*>(static_cast<char*>(l.workspace) + cut_bytes(parts));
    a.units = static_cast<unsigned>(units(p));
    a.shares = static_cast<unsigned>(parts);
    a.rows = static_cast<int>(block_rows(p));
    a.columns = static_cast<int>(ceil_div(p.n, columns_));
    a.strips = static_cast<int>(strips(p));
    a.strip_rows = static_cast<int>(strip_rows(p));
    a.slices = static_cast<int>(p.block_k / 16);
    a.pairs = p.c_alignment >= 16;
    // Stored blocks are lines of a matrix.
    const int64_t line = p.transpose ? p.block_m : p.block_k;
    const int64_t lines = p.nnzb * (p.transpose ? p.block_k : p.block_m);
    const uint32_t across = p.transpose ? 16 : static_cast<uint32_t>(a.strip_rows);
    Status status =
        make_tensor_map({l.values, p.dtype, 2, {line, lines}, {line}, {16, across}}, &a.values_map);
    if (!status) return status;
    const bool row_major = p.b_layout == Layout::kRowMajor;
    status = make_tensor_map(
        tensor_of_b(p, l.b, 16, row_major ? 16 : static_cast<uint32_t>(columns_)), &a.b_map);
    if (!status) return status;
    const auto blocks = static_cast<unsigned>(parts * tiles(p));
    status = code.code->launch(a, blocks, code.threads, code.shared_bytes, l.stream, name());
    if (!status || parts < 2) return status;
    return add_code.launch(all, static_cast<unsigned>((parts - 1) * tiles(p)), kAddThreads, 0,
                           l.stream, name());
  }

 private:
  static constexpr int kM = 64;

  // A block row's tiles from top to bottom, and the rows of each but the last.
  static int64_t strips(const Problem& p) { return ceil_div(p.block_m, kM); }
  static int64_t strip_rows(const Problem& p) {
    return ceil_div(ceil_div(p.block_m, strips(p)), 8) * 8;
  }
  static int64_t units(const Problem& p) { return p.nnzb * (p.block_k / 16) + block_rows(p); }
  // For each stored block.
  int64_t tiles(const Problem& p) const {
    return std::max<int64_t>(ceil_div(p.n, columns_), 1) * strips(p) * p.batch;
  }
  static int64_t cut_bytes(int64_t parts) { return ceil_div(parts * 16, 256) * 256; }
  int64_t shares(const Problem& p, const Device& d) const {
    const int64_t most = int64_t{code_of(p).resident} * d.multiprocessors / tiles(p);
    return std::clamp<int64_t>(units(p), 1, std::max<int64_t>(most, 1));
  }

  Code code_of(const Problem& p) const {
    const auto of = [&]<int kColumns>() {
      if (strip_rows(p) > 32) return flat_code_of<64, kColumns>(p);
      return strip_rows(p) > 16 ? flat_code_of<32, kColumns>(p) : flat_code_of<16, kColumns>(p);
    };
    return columns_ == 32 ? of.template operator()<32>() : of.template operator()<64>();
  }

  int columns_;
  Registration registration_{*this};
};

const DmmaFlatSm90 kN32{"dmma_flat_sm90/n32", 32};
const DmmaFlatSm90 kN64{"dmma_flat_sm90/n64", 64};

}  // namespace
}  // namespace sparse_autotune
