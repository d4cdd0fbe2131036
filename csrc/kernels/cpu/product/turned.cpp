// cpu_turned: C^T = B^T * A^T on a CPU, for B and C whose columns lie one after another, as those
// of `linear` and of products with the sparse operand on the right do.
//
// The sparse operand gives the vectors here: tiles of C^T are written as they lie and rows of B^T
// are broadcast, where cpu_tiled would have to turn all of C.
// Terms: a strip is two vectors of a block's own rows, for all of its k: vectors of one k behind
// those of another. Blocks of A^T (`transpose`) of one strip are stored so and read in place;
// others are copied into strips first, a copy that frozen values keep. A panel is as many rows of
// B^T as an L2 holds; a thread packs them (rows a power of two apart evict each other from L1) and
// walks the whole of A, or a part where there are few panels. A tile is up to 14 rows of a panel (6
// with AVX2) times a strip, held in registers while the walk over the block row's blocks goes on.
// One thread computes an element, in the order of its row's blocks.
#include <algorithm>
#include <atomic>
#include <string>

#include "kernels/cpu/microkernels/tiled_levels.h"
#include "kernels/cpu/shared/elements.h"
#include "kernels/cpu/shared/epilogue.h"
#include "kernels/cpu/shared/tiled_blocking.h"
#include "kernels/cpu/shared/tiled_partition.h"

namespace sparse_autotune::cpu_turned {
namespace {

using cpu_tiled::Indices;
using cpu_tiled::kAvx2;
using cpu_tiled::kAvx512;
using cpu_tiled::Level;
using cpu_tiled::Microkernels;
using cpu_tiled::Partition;
using cpu_tiled::round_up;

constexpr int64_t kPanelBytes = 512 << 10;  // half of an L2 of 1 MB
constexpr int64_t kCopiedBytes = 64 << 10;  // less to copy is not worth another thread
constexpr int64_t kPartsPerSlot = 2;        // at least
constexpr int64_t kLine = cpu_tiled::kLineBytes;

// Sizes of one launch: a pure function of problem and level, so that workspace_bytes() and launch()
// agree.
struct Blocking {
  int64_t slots;
  int64_t width;       // of a packed tile of B
  int64_t tile_bytes;  // an odd number of lines: neighbours map to other cache sets
  int64_t panel_rows, panels;
  int64_t cuts;  // parts of A that a panel is multiplied in
  int64_t panel_bytes;
};

Blocking make_blocking(const Problem& p, const Device& d, const Microkernels& kernels) {
  Blocking s{};
  s.slots = cpu_tiled::count_slots(p, d);
  s.width = cpu_tiled::turned_width(static_cast<int>(kernels.turned_rows),
                                    static_cast<int>(kernels.lanes));
  s.tile_bytes = round_up(p.k * s.width * size_of(p.dtype), 2 * kLine) + kLine;
  const int64_t fitting = std::max<int64_t>(kPanelBytes / s.tile_bytes, 1) * kernels.turned_rows;
  const int64_t n = std::max<int64_t>(p.n, 1);
  s.panels = ceil_div(n, fitting);
  const int64_t even = ceil_div(round_up(s.panels * p.batch, s.slots), p.batch);
  if (even * kernels.turned_rows <= n) s.panels = even;
  s.panel_rows = ceil_div(n, s.panels);
  s.panels = ceil_div(n, s.panel_rows);
  s.cuts = s.slots == 1 || s.panels * p.batch % s.slots == 0
               ? 1
               : ceil_div(kPartsPerSlot * s.slots, s.panels * p.batch);
  s.panel_bytes = round_up(ceil_div(s.panel_rows, kernels.turned_rows) * s.tile_bytes, 256) + 256;
  return s;
}

int64_t strip_width(const Microkernels& kernels) {
  return cpu_tiled::kTurnedVectors * kernels.lanes;
}

bool in_place(const Problem& p, const Microkernels& kernels) {
  return p.transpose && p.block_m <= strip_width(kernels);
}

template <typename T>
class Product {
 public:
  Product(const Problem& p, const Launch& l, const Microkernels& kernels)
      : p_(p),
        l_(l),
        kernels_(kernels),
        s_(make_blocking(p, *l.device, kernels)),
        crow_{l.crow_indices, p.index_type == IndexType::kInt64},
        columns_{l.col_indices, p.index_type == IndexType::kInt64},
        positions_{in_place(p, kernels) ? l.positions : nullptr, p.index_type == IndexType::kInt64},
        values_(static_cast<const T*>(in_place(p, kernels) ? l.values : l.prepared)) {}

  void run() const {
    const int64_t rows = p_.m / p_.block_m, parts = s_.panels * p_.batch * s_.cuts;
    const Partition partition(crow_, rows, 1, 1, s_.cuts);
    std::atomic<int64_t> next_part{0};
    parallel_each(l_.parallel, s_.slots, 1, [&](int64_t slot) {
      char* const memory = static_cast<char*>(l_.workspace) + slot * s_.panel_bytes;
      int64_t packed = -1;
      for (int64_t part = next_part++; part < parts; part = next_part++) {
        const Panel panel = panel_at(part / s_.cuts, memory);
        if (packed != part / s_.cuts) pack(panel);
        packed = part / s_.cuts;
        partition.for_each_unit(part % s_.cuts,
                                [&](int64_t, int64_t row, int64_t) { multiply_row(panel, row); });
      }
    });
  }

 private:
  struct Panel {
    int64_t batch, first, rows;
    char* packed;
  };

  Panel panel_at(int64_t i, char* packed) const {
    const int64_t first = i % s_.panels * s_.panel_rows;
    return {i / s_.panels, first, std::min(s_.panel_rows, p_.n - first), packed};
  }

  // Calls visit(tile, its first row, its rows): tiles of nearly equal height.
  template <typename Visit>
  void for_each_tile(const Panel& panel, Visit&& visit) const {
    const int64_t tiles = ceil_div(panel.rows, kernels_.turned_rows);
    for (int64_t i = 0; i < tiles; ++i) {
      const int64_t first = panel.rows * i / tiles;
      visit(i, first, panel.rows * (i + 1) / tiles - first);
    }
  }

  void pack(const Panel& panel) const {
    const T* from =
        static_cast<const T*>(l_.b) + panel.batch * p_.b_batch_stride + panel.first * p_.ldb;
    for_each_tile(panel, [&](int64_t i, int64_t first, int64_t rows) {
      kernels_.pack({.b = from + first * p_.ldb,
                     .ldb = p_.ldb,
                     .layout = Layout::kColMajor,
                     .depth = p_.k,
                     .columns = rows,
                     .width = s_.width,
                     .strip = panel.packed + i * s_.tile_bytes});
    });
  }

  const T* block_at(int64_t block) const {
    return values_ +
           (positions_.data != nullptr ? positions_[block] : block) * p_.block_m * p_.block_k;
  }

  void multiply_row(const Panel& panel, int64_t row) const {
    const int64_t first = crow_[row], last = crow_[row + 1];
    cpu_tiled::TurnedTask task{};
    task.columns = columns_.from(first);
    if (positions_.data != nullptr) task.positions = positions_.from(first);
    task.count = last - first;
    task.block_stride = p_.block_m * p_.block_k;
    task.depth = p_.block_k;
    task.out_stride = p_.ldc;
    const int64_t width = strip_width(kernels_);
    const T* const here = first < last ? block_at(first) : values_;
    const T* const following = last < p_.nnzb ? block_at(last) : here;
    for (int64_t r = 0; r < p_.block_m; r += width) {
      const int64_t columns = std::min(width, p_.block_m - r);
      task.vectors = static_cast<int>(columns / kernels_.lanes);
      const T* const strip = here + r * p_.block_k;
      task.values = positions_.data != nullptr ? values_ : strip;
      task.bias = p_.has_bias ? static_cast<const T*>(l_.bias) + row * p_.block_m + r : nullptr;
      T* const c = static_cast<T*>(l_.c) + panel.batch * p_.c_batch_stride + panel.first * p_.ldc +
                   row * p_.block_m + r;
      for_each_tile(panel, [&](int64_t i, int64_t first_row, int64_t rows) {
        task.rows = static_cast<int>(rows);
        task.b = panel.packed + i * s_.tile_bytes;
        task.next_values = first_row + rows < panel.rows ? strip
                           : r + width < p_.block_m      ? strip + width * p_.block_k
                                                         : following;
        task.out = c + first_row * p_.ldc;
        kernels_.turned(task);
        if (p_.activation != Activation::kNone) {
          activate_tile(static_cast<T*>(task.out), rows, columns);
        }
      });
    }
  }

  void activate_tile(T* tile, int64_t rows, int64_t columns) const {
    for (int64_t i = 0; i < rows; ++i, tile += p_.ldc) activate_all(tile, columns, p_.activation);
  }

  const Problem& p_;
  const Launch& l_;
  const Microkernels& kernels_;
  const Blocking s_;
  const Indices crow_, columns_, positions_;
  const T* const values_;
};

class Turned final : public Variant {
 public:
  Turned(std::string_view name, const Level& level)
      : Variant(DeviceType::kCpu, name), level_(level) {}

  Support supports(const Problem& p, const Device& d) const override {
    if (Support s = level_.runs_on(d); !s) return s;
    const Microkernels* kernels = level_.kernels(p.dtype);
    if (kernels == nullptr || kernels->turned == nullptr) {
      return Support::no("half types are widened: nothing to read in place");
    }
    if (p.b_layout != Layout::kColMajor) return Support::no("B is row-major");
    if (p.c_layout != Layout::kColMajor) return Support::no("C is row-major");
    if (p.block_m % kernels->lanes != 0) {
      return Support::no("block_m is not a multiple of " + std::to_string(kernels->lanes));
    }
    return Support::yes();
  }

  double estimate_us(const Problem& p, const Device& d) const override {
    const double copied = p.frozen ? 0 : 2.0 * static_cast<double>(prepared_bytes(p, d));
    return roofline_us(nnz_flops(p), 0.8 * peak_tflops(p, d) * level_.width(d),
                       compulsory_bytes(p) + copied, d.memory_gbps, 5.0);
  }

  int64_t prepared_bytes(const Problem& p, const Device&) const override {
    return in_place(p, *level_.kernels(p.dtype))
               ? 0
               : p.nnzb * p.block_m * p.block_k * size_of(p.dtype);
  }

  Status prepare(const Problem& p, const Launch& l) const override {
    const Microkernels& kernels = *level_.kernels(p.dtype);
    if (in_place(p, kernels)) return Status::ok();
    const int64_t element = size_of(p.dtype), width = strip_width(kernels);
    const int64_t bytes = p.block_m * p.block_k * element;
    parallel_each(l.parallel, p.nnzb, ceil_div(kCopiedBytes, bytes), [&](int64_t i) {
      const int64_t position = p.transpose ? load_index(l.positions, i, p.index_type) : i;
      const char* from = static_cast<const char*>(l.values) + position * bytes;
      char* to = static_cast<char*>(l.prepared) + i * bytes;
      for (int64_t r = 0; r < p.block_m; r += width) {
        const int64_t columns = std::min(width, p.block_m - r);
        kernels.pack({.b = from + r * row_stride_in_block(p) * element,
                      .ldb = k_stride_in_block(p) * row_stride_in_block(p),
                      .layout = p.transpose ? Layout::kRowMajor : Layout::kColMajor,
                      .depth = p.block_k,
                      .columns = columns,
                      .width = columns,
                      .strip = to + r * p.block_k * element});
      }
    });
    return Status::ok();
  }

  int64_t workspace_bytes(const Problem& p, const Device& d) const override {
    const Blocking s = make_blocking(p, d, *level_.kernels(p.dtype));
    return s.slots * s.panel_bytes;
  }

  Status launch(const Problem& p, const Launch& l) const override {
    const Microkernels& kernels = *level_.kernels(p.dtype);
    if (p.dtype == DType::kFloat64) {
      Product<double>(p, l, kernels).run();
    } else {
      Product<float>(p, l, kernels).run();
    }
    return Status::ok();
  }

 private:
  const Level& level_;
  Registration registration_{*this};
};

const Turned kVariants[] = {
    {"cpu_turned/avx2", kAvx2},
    {"cpu_turned/avx512", kAvx512},
};

}  // namespace
}  // namespace sparse_autotune::cpu_turned
