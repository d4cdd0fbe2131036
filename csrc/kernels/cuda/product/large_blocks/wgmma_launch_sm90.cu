#include <algorithm>
#include <string>

#include "kernels/cuda/host/arguments_of.h"
#include "kernels/cuda/host/requirements.h"
#include "kernels/cuda/host/tensor_map.h"
#include "kernels/cuda/host/tile_counters.h"
#include "kernels/cuda/product/large_blocks/wgmma_launch.cuh"
#include "tile_roofline.h"

namespace sparse_autotune {
namespace {

constexpr int kNarrowest = 64;
constexpr int64_t kLine = 128;  // bytes of k in a step
// Of B, as shares of L2: what stays there beside what streams by, and what is not worth dividing,
// as each panel reads all of A; less of it where lines lie apart or C streams, too. 32 MB are whole
// on an H200 (60 MB of L2), not on an H100 (50 MB).
constexpr double kPanelShare = 0.32, kWholeShare = 0.55, kStreamedShare = 0.4;
// L2 answers faster the less of B is in use, down to this much; narrower panels would read A too
// often. Tall tiles of many steps wait for the tensor cores instead. A last panel of fewer tiles
// for each multiprocessor, or for each mean row that the longest is long, ends with long rows that
// have nothing beside them; what is lost there weighs little in a launch of many rounds.
constexpr int64_t kNarrowBytes = 4 << 20, kNarrowColumns = 512;
constexpr int64_t kMany = 8;
constexpr double kRounds = 1.6, kRoundsOfLongest = 0.5, kFewSteps = 8;
constexpr double kRoundsOfMany = 0.9, kLongestOfMany = 0.25;
// What two tiles for each multiprocessor may have, for the longest to go with the shortest.
constexpr double kPairedShare = 1.25;
// Of a B that L2 does not hold, how often its tiles may be fetched if it is not divided.
constexpr double kAboutOnce = 1.5;
constexpr TileRates kRates{.start_us = 3.2, .compute = 0.71, .l2 = 0.6, .alone = 0.86};
constexpr TileRates kClusterRates{.start_us = 4.2, .compute = 0.71, .l2 = 0.56, .alone = 0.86};

int64_t step_k(const Problem& p) { return kLine / size_of(p.dtype); }

// In tiles.
int64_t panel_width(const WgmmaShape& shape, const Problem& p, const Device& d, int64_t entries) {
  const int64_t columns = shape.columns(p), rows = entries * shape.strips(p);
  const int64_t bytes = p.k * p.n * size_of(p.dtype), tile_bytes = p.k * shape.n * size_of(p.dtype);
  const int64_t at_once = shape.at_once(d);
  const auto share = [&](double of_l2) {
    return static_cast<int64_t>(of_l2 * static_cast<double>(d.l2_bytes));
  };
  // What is fetched about once need not stay, or twice if L2 may hold all: memory likes whole rows
  // of B and C better than parts.
  const bool fetched_once = static_cast<double>(p.nnzb) <= (bytes <= d.l2_bytes ? 2 : kAboutOnce) *
                                                               static_cast<double>(block_cols(p));
  const int64_t tiles = rows * columns * p.batch;
  const bool paired = tiles <= 2 * at_once && bytes <= share(kPairedShare);
  if (fetched_once || paired) return columns;

  const bool waits = shape.waits() && p.longest_row >= 0;  // for L2 more than other shapes
  const bool streams = c_bytes(p) > static_cast<double>(d.l2_bytes);  // C does, past B
  const bool scattered = p.b_layout == Layout::kColMajor && (waits || streams);
  const int64_t whole = share(kWholeShare);
  if (bytes <= (scattered          ? share(kPanelShare)
                : waits && streams ? share(kStreamedShare)
                                   : whole)) {
    return columns;
  }
  int64_t most = std::max<int64_t>(share(kPanelShare) / tile_bytes, 1), least = most;
  const double steps = static_cast<double>(p.nnzb) * static_cast<double>(p.block_k / step_k(p)) /
                       static_cast<double>(block_rows(p));
  if (waits || (p.longest_row >= 0 && steps <= kFewSteps)) {
    const double means = static_cast<double>(p.longest_row) * static_cast<double>(block_rows(p)) /
                         static_cast<double>(p.nnzb);
    const bool many = tiles >= kMany * at_once;
    const double wanted = std::max(many ? kRoundsOfMany : kRounds,
                                   (many ? kLongestOfMany : kRoundsOfLongest) * means) *
                          static_cast<double>(at_once);
    least = std::max({ceil_div(static_cast<int64_t>(wanted), rows),
                      ceil_div(kNarrowColumns, shape.n), kNarrowBytes / tile_bytes});
    if (least > most && bytes <= whole && !streams) return columns;
    least = std::min(least, most);
  }
  // A tile for nearly every multiprocessor, even if it takes more: they would be at two panels.
  const int64_t each = at_once / rows;
  if (each > most && each * rows * 16 >= at_once * 15 && each * tile_bytes <= whole) {
    least = most = each;
  }
  return ceil_div(columns, std::max(columns / least, ceil_div(columns, most)));
}

Support takes_type(const WgmmaShape& shape, const Problem& p, const Device& d) {
  if (p.dtype != DType::kFloat32) return half_types_on_hopper(p, d);
  if (d.compute_capability != 90) return Support::no("needs compute capability 9.0");
  if (!p.allow_tf32) {
    return Support::no("multiplies fp32 in TF32, which the caller's settings do not allow");
  }
  return shape.code_of(p) != nullptr
             ? Support::yes()
             : Support::no("in TF32 multiplies only A, not A^T, by a column-major B");
}

}  // namespace

Support wgmma_supports(const WgmmaShape& shape, const Problem& p, const Device& d) {
  if (Support s = takes_type(shape, p, d); !s) return s;
  if (shape.code_of(p) == nullptr) {
    return Support::no("computes A @ B, not A^T @ B, of a row-major B");
  }
  if (shape.pairs && (2 * p.block_m != shape.m || p.block_k % kStepK != 0)) {
    return Support::no("needs block_m " + std::to_string(shape.m / 2) +
                       " and block_k a multiple of 64, got " + block_text(p.block_m, p.block_k));
  }
  if (!shape.pairs && (p.block_m % shape.m != 0 || p.block_k % step_k(p) != 0)) {
    return Support::no("needs block_m a multiple of " + std::to_string(shape.m) +
                       " and block_k of " + std::to_string(step_k(p)) + ", got " +
                       std::to_string(p.block_m) + "x" + std::to_string(p.block_k));
  }
  if (Support s = n_fills_columns(p, shape.n); shape.n > kNarrowest && !s) return s;
  if (Support s = shape.direct ? copied_by_16(p) : all_by_16(p); !s) return s;
  if (Support s = c_comes_in_eights(p); !shape.stores_directly(p) && !s) return s;
  const int64_t lines = p.nnzb * std::max(p.block_m, p.block_k);
  if (Support s = tma_reaches(p, std::max(lines, shape.tiles(p, block_rows(p)))); !s) return s;
  return shape.code_of(p)->runs_on(d, shape.shared_bytes);
}

double wgmma_us(const WgmmaShape& shape, const Problem& p, const Device& d, int64_t entries,
                int64_t longest) {
  const int n = shape.n / shape.cluster;
  TileWork work = tiles_of_rows(p, shape.m, n, entries, longest);
  // A thread block of a cluster fetches its part of A.
  work.fetched *= static_cast<double>(shape.m / shape.cluster + n) / (shape.m + n);
  return wgmma_us(shape, p, d, entries, work);
}

double wgmma_us(const WgmmaShape& shape, const Problem& p, const Device& d, int64_t entries,
                TileWork work) {
  const int64_t width = panel_width(shape, p, d, entries);
  work.panels = static_cast<double>(ceil_div(shape.columns(p), width) * p.batch);
  return tiled_us(work, shape.cluster > 1 ? kClusterRates : kRates, peak_tflops(p, d), p, d);
}

Status wgmma_arguments(const WgmmaShape& shape, const Problem& p, const Launch& l,
                       const OrderedRow* order, int64_t entries, WgmmaArguments* a) {
  *a = arguments_of<WgmmaArguments>(p, l);
  const auto m = static_cast<uint32_t>(shape.pairs ? shape.m / 2 : shape.m / shape.cluster);
  const auto width = static_cast<uint32_t>(shape.width), line = static_cast<uint32_t>(step_k(p));
  const uint32_t b_lines = p.b_layout == Layout::kRowMajor ? kStepK : width;
  Status status = make_tensor_map(tensor_of_values(p, l.values, m), &a->a_map);
  if (status) status = make_tensor_map(tensor_of_b(p, l.b, line, b_lines), &a->b_map);
  if (status && !shape.stores_directly(p))
    status = make_tensor_map(tensor_of_c(p, l.c, 64, 64), &a->c_map);
  if (!status) return status;

  a->panels = panels_of(entries * shape.strips(p), shape.columns(p), p.batch,
                        panel_width(shape, p, *l.device, entries), order);
  a->direct = {l.c, p.ldc, p.c_batch_stride, static_cast<int>(p.n), p.c_alignment};
  a->strips = static_cast<int>(shape.strips(p));
  return Status::ok();
}

Status wgmma_launch(const WgmmaShape& shape, const Problem& p, const Launch& l,
                    const WgmmaArguments& arguments, std::string_view name) {
  WgmmaArguments a = arguments;
  const unsigned blocks = share_out(&a.panels, l, 1, static_cast<unsigned>(shape.cluster));
  return shape.code_of(p)->launch(a, blocks, kThreads, shape.shared_bytes, l.stream, name,
                                  static_cast<unsigned>(shape.cluster));
}

}  // namespace sparse_autotune
