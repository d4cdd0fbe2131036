// The tile registers of a core with AMX, as cpu_tiled uses them: eight squares of up to 16 rows of
// 64 bytes. Not the compilers' intrinsics: those want literal register numbers, and GCC's tileloadd
// says nothing of the memory that it reads.
#pragma once

#include <cstdint>

namespace sparse_autotune::cpu_tiled {

// The memory operand of ldtilecfg.
struct alignas(64) TileConfig {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
};
static_assert(sizeof(TileConfig) == 64, "what ldtilecfg reads");

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

}  // namespace sparse_autotune::cpu_tiled
