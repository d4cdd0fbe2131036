// cpu_tiled: C = A * B on a CPU, a block row times a strip of B's columns at a time in registers.
//
// Terms: a strip is up to 3 vectors of B's columns (tiled.h); a panel is a few strips; a span is up
// to 64 rows of one block row; a chunk is as many of the row's blocks as keep their rows of one
// strip of B in L1. A span walks its blocks chunk by chunk; in a chunk, tiles of 8 rows broadcast
// values of A against rows of B, so that each row of B is fetched once a span from L2.
// B's rows are read in place (`inplace`), from a copy of each block's rows made when the walk meets
// it (`block`), or from panels packed before (`panel`): rows that lie a power of two apart evict
// each other from L1, so packing wins for all but short products, and the copy widens fp16 and bf16
// (or pairs bf16) and turns column-major B on the way.
// Absent blocks cost nothing. One thread computes an element, in the order of its row's blocks.
#include "half.h"
#include "kernels/activation.h"
#include "kernels/cpu/tiled_blocking.h"
#include "kernels/cpu/tiled_partition.h"

namespace sparse_autotune::cpu_tiled {
namespace {

struct Level {
  CpuIsa needed;
  const char* needed_name;
  const Microkernels* (*kernels)(DType);
  double share;  // of the device's peak that it reaches
};

template <typename T>
const char* at(const T* base, int64_t bytes) {
  return reinterpret_cast<const char*>(base) + bytes;
}

class Product {
 public:
  Product(const Problem& p, const Launch& l, const Microkernels& kernels, Source source,
          const Blocking& blocking)
      : p_(p),
        l_(l),
        kernels_(kernels),
        source_(source),
        s_(blocking),
        crow_{l.crow_indices, p.index_type == IndexType::kInt64},
        columns_{l.col_indices, p.index_type == IndexType::kInt64},
        element_(size_of(p.dtype)) {
    slots_ = static_cast<char*>(l.workspace);
    packed_ = slots_ + s_.slots * s_.slot_bytes;
    direct_ = element_ == s_.acc_bytes && p.c_layout == Layout::kRowMajor &&
              p.activation == Activation::kNone;
  }

  void run() {
    const int64_t total = s_.panels * p_.batch;
    const int64_t group = source_ == Source::kPanel ? s_.group : total;
    for (first_panel_ = 0; first_panel_ < total; first_panel_ += group) {
      const int64_t panels = std::min(group, total - first_panel_);
      if (source_ == Source::kPanel) pack_panels(panels);
      const Partition partition(crow_, p_.m / p_.block_m, s_.spans, panels, s_.slots);
      parallel_for(l_.parallel, 0, s_.slots, 1, [&](int64_t begin, int64_t end) {
        for (int64_t slot = begin; slot < end; ++slot) run_slot(partition, slot);
      });
    }
  }

 private:
  struct Slot {
    char* bias;
    char* tile;    // [strip][row][column] accumulators
    char* values;  // widened values of a chunk
    char* copy;    // B's rows of a chunk
  };
  struct Panel {
    int64_t batch, first_column, columns;  // columns of C that exist
    const char* packed;
  };
  // Rows [k0, k0 + depth) of each of the blocks [block, block + count).
  struct Chunk {
    int64_t block, count, k0, depth;
    bool first, last;
  };

  Panel panel_at(int64_t i) const {
    const int64_t global = first_panel_ + i;
    const int64_t first = global % s_.panels * s_.panel_columns;
    return {global / s_.panels, first, std::min(s_.panel_columns, p_.n - first),
            packed_ + i * s_.panel_bytes};
  }
  const char* b_at(const Panel& panel, int64_t row, int64_t column) const {
    const int64_t offset =
        panel.batch * p_.b_batch_stride +
        (p_.b_layout == Layout::kRowMajor ? row * p_.ldb + column : column * p_.ldb + row);
    return at(l_.b, offset * element_);
  }
  int64_t vectors(int64_t columns) const { return ceil_div(columns, kernels_.lanes); }

  void pack_panels(int64_t panels) {
    constexpr int64_t kRows = 64;
    const int64_t parts = ceil_div(p_.k, kRows);
    parallel_for(l_.parallel, 0, panels * parts, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const Panel panel = panel_at(i / parts);
        const int64_t row = i % parts * kRows;
        for (int64_t c = 0; c < panel.columns; c += s_.strip) {
          char* strip = const_cast<char*>(panel.packed) + c / s_.strip * s_.strip_bytes;
          pack(panel, row, std::min(kRows, p_.k - row), c,
               strip + row / kernels_.pair * s_.strip * s_.acc_bytes);
        }
      }
    });
  }

  void pack(const Panel& panel, int64_t row, int64_t depth, int64_t c, void* to) const {
    PackTask task{};
    task.b = b_at(panel, row, panel.first_column + c);
    task.ldb = p_.ldb;
    task.layout = p_.b_layout;
    task.depth = depth;
    task.columns = std::min(s_.strip, panel.columns - c);
    task.width = s_.strip;
    task.strip = to;
    kernels_.pack(task);
  }

  void run_slot(const Partition& partition, int64_t slot) const {
    Slot memory{};
    memory.bias = slots_ + slot * s_.slot_bytes;
    memory.tile = memory.bias + 1024 * 8;
    memory.values = memory.tile + round_up(s_.tile_bytes, 64);
    memory.copy = memory.values + round_up(s_.values_bytes, 64);
    partition.for_each_unit(slot, [&](int64_t panel, int64_t row, int64_t span) {
      run_span(memory, panel_at(panel), row, span);
    });
  }

  void run_span(const Slot& memory, const Panel& panel, int64_t row, int64_t span) const {
    const int64_t r0 = span * s_.span_rows;
    const int64_t rows = std::min(s_.span_rows, p_.block_m - r0);
    load_bias(memory, row * p_.block_m + r0, rows);
    const int64_t first = crow_[row], last = crow_[row + 1];
    if (first == last) {
      run_chunk(memory, panel, row, r0, rows, {first, 0, 0, 0, true, true});
      return;
    }
    const int64_t step = std::max<int64_t>(s_.chunk_blocks, 1);
    for (int64_t block = first; block < last; block += step) {
      const int64_t count = std::min(step, last - block);
      const int64_t depth = s_.chunk_blocks > 0 ? p_.block_k : s_.depth;
      for (int64_t k0 = 0; k0 < p_.block_k; k0 += depth) {
        const int64_t part = std::min(depth, p_.block_k - k0);
        run_chunk(memory, panel, row, r0, rows,
                  {block, count, k0, part, block == first && k0 == 0,
                   block + count == last && k0 + part == p_.block_k});
      }
    }
  }

  void run_chunk(const Slot& memory, const Panel& panel, int64_t row, int64_t r0, int64_t rows,
                 const Chunk& chunk) const {
    MultiplyTask task{};
    const int64_t block_elements = p_.block_m * p_.block_k;
    const char* values =
        at(l_.values, (chunk.block * block_elements + r0 * p_.block_k + chunk.k0) * element_);
    task.block_stride = block_elements / kernels_.pair;
    task.row_stride = p_.block_k / kernels_.pair;
    if (kernels_.widen != nullptr) {
      widen_values(memory, values, rows, chunk);
      values = memory.values;
      task.block_stride = rows * chunk.depth;
      task.row_stride = chunk.depth;
    }
    task.columns = columns_.from(chunk.block);
    task.wide_columns = columns_.wide;
    task.count = chunk.count;
    task.depth = chunk.depth / kernels_.pair;
    task.b_row_stride = s_.strip;
    task.b_block_stride = p_.block_k / kernels_.pair * s_.strip;
    const int64_t strip_tile = s_.span_rows * s_.strip * s_.acc_bytes;
    for (int64_t c = 0; c < panel.columns; c += s_.strip) {
      const int64_t columns = std::min(s_.strip, panel.columns - c);
      const int64_t packed_k0 = chunk.k0 / kernels_.pair * s_.strip * s_.acc_bytes;
      if (source_ == Source::kPanel) {
        task.b = panel.packed + c / s_.strip * s_.strip_bytes + packed_k0;
      } else if (source_ == Source::kInPlace && columns % kernels_.lanes == 0) {
        task.b = b_at(panel, chunk.k0, panel.first_column + c);
        task.b_row_stride = p_.ldb;
        task.b_block_stride = p_.block_k * p_.ldb;
      } else {
        char* copy = memory.copy + c / s_.strip * (s_.copy_bytes / s_.strips);
        const int64_t bytes = chunk.depth / kernels_.pair * s_.strip * s_.acc_bytes;
        for (int64_t i = 0; i < chunk.count; ++i) {
          pack(panel, columns_[chunk.block + i] * p_.block_k + chunk.k0, chunk.depth, c,
               copy + i * bytes);
        }
        task.b = copy;
        task.columns = nullptr;
        task.b_row_stride = s_.strip;
        task.b_block_stride = task.depth * s_.strip;
      }
      task.vectors = static_cast<int>(vectors(columns));
      char* tile = memory.tile + c / s_.strip * strip_tile;
      char* c_at = static_cast<char*>(l_.c) +
                   (panel.batch * p_.c_batch_stride +
                    (row * p_.block_m + r0) * (p_.c_layout == Layout::kRowMajor ? p_.ldc : 1) +
                    (panel.first_column + c) * (p_.c_layout == Layout::kRowMajor ? 1 : p_.ldc)) *
                       element_;
      const bool direct = direct_ && chunk.last && columns % kernels_.lanes == 0;
      multiply_rows(task, values, rows, chunk.first, memory.bias, tile, direct ? c_at : tile,
                    direct ? p_.ldc : s_.strip);
      if (chunk.last && !direct) finish(tile, rows, columns, c_at);
    }
  }

  // The span's rows in tiles of nearly equal height: 17 rows are 6 + 6 + 5, not 8 + 8 + 1.
  void multiply_rows(MultiplyTask& task, const char* values, int64_t rows, bool first,
                     const char* bias, const char* tile, char* out, int64_t out_stride) const {
    const int64_t tiles = ceil_div(rows, kernels_.rows);
    task.init_stride = s_.strip;
    task.out_stride = out_stride;
    const int64_t a_row =
        task.row_stride * kernels_.pair * (kernels_.widen ? s_.acc_bytes : element_);
    for (int64_t i = 0; i < tiles; ++i) {
      const int64_t r = rows * i / tiles;
      task.rows = static_cast<int>(rows * (i + 1) / tiles - r);
      task.values = values + r * a_row;
      task.bias = bias + r * s_.acc_bytes;
      task.init = first ? nullptr : tile + r * s_.strip * s_.acc_bytes;
      task.out = out + r * out_stride * s_.acc_bytes;
      kernels_.multiply(task);
    }
  }

  void widen_values(const Slot& memory, const char* values, int64_t rows,
                    const Chunk& chunk) const {
    for (int64_t i = 0; i < chunk.count; ++i) {
      const char* from = values + i * p_.block_m * p_.block_k * element_;
      char* to = memory.values + i * rows * chunk.depth * s_.acc_bytes;
      if (chunk.depth == p_.block_k) {
        kernels_.widen(from, rows * chunk.depth, to);
        continue;
      }
      for (int64_t r = 0; r < rows; ++r) {
        kernels_.widen(from + r * p_.block_k * element_, chunk.depth,
                       to + r * chunk.depth * s_.acc_bytes);
      }
    }
  }

  void load_bias(const Slot& memory, int64_t row, int64_t rows) const {
    for (int64_t r = 0; r < rows; ++r) {
      const int64_t i = row + r;
      switch (p_.dtype) {
        case DType::kFloat16:
          reinterpret_cast<float*>(memory.bias)[r] =
              p_.has_bias ? to_float(static_cast<const Half*>(l_.bias)[i]) : 0;
          break;
        case DType::kBFloat16:
          reinterpret_cast<float*>(memory.bias)[r] =
              p_.has_bias ? to_float(static_cast<const BFloat16*>(l_.bias)[i]) : 0;
          break;
        case DType::kFloat32:
          reinterpret_cast<float*>(memory.bias)[r] =
              p_.has_bias ? static_cast<const float*>(l_.bias)[i] : 0;
          break;
        case DType::kFloat64:
          reinterpret_cast<double*>(memory.bias)[r] =
              p_.has_bias ? static_cast<const double*>(l_.bias)[i] : 0;
          break;
      }
    }
  }

  template <typename T>
  void activate_tile(char* tile, int64_t rows, int64_t columns) const {
    for (int64_t r = 0; r < rows; ++r) {
      T* row = reinterpret_cast<T*>(tile) + r * s_.strip;
      for (int64_t c = 0; c < columns; ++c) row[c] = activate(row[c], p_.activation);
    }
  }

  void finish(char* tile, int64_t rows, int64_t columns, char* c) const {
    if (p_.activation != Activation::kNone) {
      if (p_.dtype == DType::kFloat64) {
        activate_tile<double>(tile, rows, columns);
      } else {
        activate_tile<float>(tile, rows, columns);
      }
    }
    StoreTask task{};
    task.tile = tile;
    task.tile_stride = s_.strip;
    task.rows = rows;
    task.columns = columns;
    task.c = c;
    task.ldc = p_.ldc;
    task.layout = p_.c_layout;
    kernels_.store(task);
  }

  const Problem& p_;
  const Launch& l_;
  const Microkernels& kernels_;
  Source source_;
  const Blocking& s_;
  Indices crow_, columns_;
  int64_t element_;
  char* slots_;
  char* packed_;
  bool direct_;
  int64_t first_panel_ = 0;
};

class Tiled final : public Variant {
 public:
  Tiled(std::string_view name, const Level& level, Source source, int64_t panel_columns)
      : Variant(DeviceType::kCpu, name),
        level_(level),
        source_(source),
        panel_columns_(panel_columns) {}

  Support supports(const Problem& p, const Device& d) const override {
    if (p.transpose) return Support::no("cpu_tiled computes A @ B, not A^T @ B");
    if (d.isa < level_.needed) {
      return Support::no(std::string("this processor lacks ") + level_.needed_name);
    }
    const Microkernels* kernels = level_.kernels(p.dtype);
    if (kernels == nullptr) return Support::no("the level has no code for this dtype");
    if (p.block_k % kernels->pair != 0) return Support::no("pairs of bf16 need an even block_k");
    if (source_ == Source::kInPlace) {
      if (is_half(p.dtype)) return Support::no("half types are widened: nothing to read in place");
      if (p.b_layout != Layout::kRowMajor) return Support::no("B is column-major");
      if (p.n < kernels->lanes) return Support::no("n is below one vector");
    }
    return Support::yes();
  }

  double estimate_us(const Problem& p, const Device& d) const override {
    const double peak = p.dtype == DType::kFloat64 ? d.fp64_tflops : d.fp32_tflops;
    return roofline_us(nnz_flops(p), peak * level_.share, compulsory_bytes(p), d.memory_gbps, 5.0);
  }

  int64_t workspace_bytes(const Problem& p, const Device& d) const override {
    const Blocking s = make_blocking(p, d, *level_.kernels(p.dtype), source_, panel_columns_);
    return s.slots * s.slot_bytes + (source_ == Source::kPanel ? s.group * s.panel_bytes : 0);
  }

  Status launch(const Problem& p, const Launch& l) const override {
    const Microkernels& kernels = *level_.kernels(p.dtype);
    const Blocking blocking = make_blocking(p, *l.device, kernels, source_, panel_columns_);
    Product(p, l, kernels, source_, blocking).run();
    return Status::ok();
  }

 private:
  const Level& level_;
  Source source_;
  int64_t panel_columns_;
};

constexpr Level kAvx2{CpuIsa::kAvx2, "AVX2", avx2_kernels, 0.7};
constexpr Level kAvx512{CpuIsa::kAvx512, "AVX-512", avx512_kernels, 0.7};
constexpr Level kAvx512Bf16{CpuIsa::kAvx512Bf16, "AVX512-BF16", avx512_bf16_kernels, 1.2};

constexpr int64_t kPanelColumns = 192;
const Tiled kAvx2Panel{"cpu_tiled/avx2_panel", kAvx2, Source::kPanel, kPanelColumns};
const Tiled kAvx2Block{"cpu_tiled/avx2_block", kAvx2, Source::kBlock, kPanelColumns};
const Tiled kAvx2InPlace{"cpu_tiled/avx2_inplace", kAvx2, Source::kInPlace, kPanelColumns};
const Tiled kAvx512Panel{"cpu_tiled/avx512_panel", kAvx512, Source::kPanel, kPanelColumns};
const Tiled kAvx512Block{"cpu_tiled/avx512_block", kAvx512, Source::kBlock, kPanelColumns};
const Tiled kAvx512InPlace{"cpu_tiled/avx512_inplace", kAvx512, Source::kInPlace, kPanelColumns};
const Tiled kBf16Panel{"cpu_tiled/avx512_bf16_panel", kAvx512Bf16, Source::kPanel, kPanelColumns};
const Tiled kBf16Block{"cpu_tiled/avx512_bf16_block", kAvx512Bf16, Source::kBlock, kPanelColumns};
const Registration kRegistered[] = {
    Registration{kAvx2Panel},   Registration{kAvx2Block},   Registration{kAvx2InPlace},
    Registration{kAvx512Panel}, Registration{kAvx512Block}, Registration{kAvx512InPlace},
    Registration{kBf16Panel},   Registration{kBf16Block},
};

}  // namespace
}  // namespace sparse_autotune::cpu_tiled
