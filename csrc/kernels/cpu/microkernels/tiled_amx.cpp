// cpu_tiled for AMX: bf16, up to 32 rows of a block row times a strip of 64 columns, in passes of
// 2 x 2 tiles of 16 x 16 floats (1 x 4 for up to 16 rows): what is loaded is multiplied twice.
// Tiles of A are loaded from the values as they are stored, tiles of B from strips of pairs that
// AVX512-BF16's code packs. A step along k is an equal part of a block's depth, at most 32 values:
// no block needs padding, and all steps of a product share one configuration of the tiles.
#include "kernels/cpu/microkernels/tiled.h"

#if defined(__x86_64__)

#include <cstdint>
#include <cstring>

namespace sparse_autotune::cpu_tiled {
namespace {

// The memory operand of ldtilecfg.
struct alignas(64) TileConfig {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
};
static_assert(sizeof(TileConfig) == 64, "what ldtilecfg reads");

// The tile registers, as they are used here: eight squares of up to 16 rows of 64 bytes. Not the
// compilers' intrinsics: those want literal register numbers, and GCC's tileloadd says nothing of
// the memory that it reads.
struct AmxTiles {
  // Also zeroes every tile.
  static void configure(const TileConfig& config) { asm volatile("ldtilecfg %0" ::"m"(config)); }

  // Rows `stride` bytes apart.
  template <int kTile>
  static void load(const void* rows, int64_t stride) {
    asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(rows), "r"(stride), "i"(kTile) : "memory");
  }
  template <int kTile>
  static void store(void* rows, int64_t stride) {
    asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(rows), "r"(stride), "i"(kTile) : "memory");
  }

  // kSum += kA * kB: floats += pairs of bf16 along a row of A * pairs of bf16 in a row of B.
  template <int kSum, int kA, int kB>
  static void multiply_add() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(kSum), "i"(kA), "i"(kB));
  }

  // Back to the initial state: idle tiles make every context switch of the thread dearer.
  static void release() { asm volatile("tilerelease" :::); }
};

constexpr int64_t kTileRows = 16, kTileColumns = 16, kTilePairs = 16;
constexpr int64_t kBytes = 4;  // of an accumulator and of a pair
// Tiles 0 ... 3 are sums (two upper, two lower ones or four in a row), the next one or two A's, the
// rest B's.
constexpr int kSums = 4;
constexpr int sum_tile(int i, int j) { return i * 2 + j; }

// What this thread's tiles are configured for; zeros: nothing yet.
struct State {
  int64_t rows;
  int64_t depth;  // pairs of a block, or of a part of it
  int64_t step;   // pairs
};
static_assert(sizeof(State) <= kStateBytes, "a task's state has no more room");

// Rows of the upper tiles; the lower ones have the rest.
int64_t upper_rows(int64_t rows) { return rows > kTileRows ? ceil_div(rows, 2) : rows; }

void configure(int64_t rows, int64_t depth, State* state) {
  int64_t steps = ceil_div(depth, kTilePairs);
  while (depth % steps != 0) ++steps;
  *state = {rows, depth, depth / steps};
  const int64_t upper = upper_rows(rows), lower = rows - upper;
  TileConfig config;
  const auto set = [&config](int tile, int64_t tile_rows, int64_t row_bytes) {
    config.rows[tile] = static_cast<uint8_t>(tile_rows);
    config.row_bytes[tile] = static_cast<uint16_t>(row_bytes);
  };
  for (int i = 0; i < kSums; ++i) {
    set(i, lower > 0 && i >= 2 ? lower : upper, kTileColumns * kBytes);
  }
  set(kSums, upper, state->step * kBytes);
  for (int i = kSums + 1; i < 8; ++i) set(i, state->step, kTileColumns * kBytes);
  if (lower > 0) set(kSums + 1, lower, state->step * kBytes);
  AmxTiles::configure(config);
}

// Calls f with each of the integers as its template argument.
template <typename F, int... kInts>
__attribute__((always_inline)) inline void unroll(std::integer_sequence<int, kInts...>, F&& f) {
  (f.template operator()<kInts>(), ...);
}
template <int kCount>
using Count = std::make_integer_sequence<int, kCount>;

// kDown x kAcross tiles of sums, from the strip's column `c` on.
template <int kDown, int kAcross>
void multiply_pass(const MultiplyTask& t, const void* init, int64_t init_stride, int64_t c,
                   int64_t step) {
  static_assert(kDown * kAcross <= kSums, "sums have so many tiles");
  constexpr int kFirstB = kSums + kDown, kTilesOfB = 8 - kFirstB;
  static_assert(kDown == 1 || kAcross <= kTilesOfB, "the lower row would find B overwritten");
  const int64_t lower = upper_rows(t.rows);  // first row of the lower tiles
  unroll(Count<kDown * kAcross>(), [&]<int kIndex>() {
    constexpr int i = kIndex / kAcross, j = kIndex % kAcross;
    AmxTiles::load<sum_tile(i, j)>(
        static_cast<const float*>(init) + i * lower * init_stride + c + j * kTileColumns,
        init_stride * kBytes);
  });
  const Indices columns = t.columns;
  const int64_t a_stride = t.row_stride * kBytes, b_stride = t.b_row_stride * kBytes;
  const int64_t a_block = t.block_stride * kBytes, b_block = t.b_block_stride * kBytes;
  const int64_t a_lower = lower * a_stride, depth = t.depth, count = t.count;
  const char* a = static_cast<const char*>(t.values);
  for (int64_t block = 0; block < count; ++block, a += a_block) {
    const int64_t column = columns.data == nullptr ? block : columns[block];
    const char* b = static_cast<const char*>(t.b) + column * b_block + c * kBytes;
    for (int64_t kk = 0; kk < depth; kk += step, b += step * b_stride) {
      unroll(
          Count<kDown>(), [&]<int i>() __attribute__((always_inline)) {
            AmxTiles::load<kSums + i>(a + i * a_lower + kk * kBytes, a_stride);
            unroll(
                Count<kAcross>(), [&]<int j>() __attribute__((always_inline)) {
                  constexpr int kB = kFirstB + j % kTilesOfB;
                  if constexpr (i == 0) AmxTiles::load<kB>(b + j * kTileColumns * kBytes, b_stride);
                  AmxTiles::multiply_add<sum_tile(i, j), kSums + i, kB>();
                });
          });
    }
  }
  unroll(Count<kDown * kAcross>(), [&]<int kIndex>() {
    constexpr int i = kIndex / kAcross, j = kIndex % kAcross;
    AmxTiles::store<sum_tile(i, j)>(
        static_cast<float*>(t.out) + i * lower * t.out_stride + c + j * kTileColumns,
        t.out_stride * kBytes);
  });
}

// Every row of `out` = its row of `init` or, without one, its bias.
__attribute__((target("avx512f"))) void write_init(const MultiplyTask& t) {
  const int64_t columns = t.vectors * kTileColumns;
  const float* init = static_cast<const float*>(t.init);
  float* out = static_cast<float*>(t.out);
  for (int64_t r = 0; r < t.rows; ++r, out += t.out_stride) {
    if (t.init != nullptr) {
      std::memmove(out, init + r * t.init_stride, static_cast<size_t>(columns * kBytes));
      continue;
    }
    const float bias = static_cast<const float*>(t.bias)[r];
    for (int64_t c = 0; c < columns; ++c) out[c] = bias;
  }
}

void multiply(const MultiplyTask& t) {
  const void* init = t.init;
  int64_t init_stride = t.init_stride;
  if (t.count == 0) return write_init(t);  // `depth` may be 0 then, too
  if (init == nullptr) {
    write_init(t);
    init = t.out;
    init_stride = t.out_stride;
  }
  State* state = static_cast<State*>(t.state);
  if (state->rows != t.rows || state->depth != t.depth) configure(t.rows, t.depth, state);
  const int64_t step = state->step;
  if (t.rows > kTileRows) {
    int v = 0;
    for (; v + 2 <= t.vectors; v += 2) {
      multiply_pass<2, 2>(t, init, init_stride, v * kTileColumns, step);
    }
    if (v < t.vectors) multiply_pass<2, 1>(t, init, init_stride, v * kTileColumns, step);
    return;
  }
  unroll(Count<4>(), [&]<int i>() {
    if (t.vectors == i + 1) multiply_pass<1, i + 1>(t, init, init_stride, 0, step);
  });
}

}  // namespace

const Microkernels* amx_kernels(DType dtype) {
  static const Microkernels tiles = [] {
    Microkernels k = *avx512_bf16_kernels(DType::kBFloat16);  // pack() and store()
    k.rows = 2 * kTileRows;
    k.vectors = 4;
    k.sums = k.rows * k.vectors;
    k.multiply = multiply;
    k.release = AmxTiles::release;
    return k;
  }();
  return dtype == DType::kBFloat16 ? &tiles : nullptr;
}

}  // namespace sparse_autotune::cpu_tiled

#endif
