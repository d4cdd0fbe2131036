// 8 x 8 halves transposed between the registers of a warp.
#pragma once

#include <cstdint>

namespace sparse_autotune {

// Lane 4 * g + t gives columns 2t and 2t + 1 of row g and gets rows 2t and 2t + 1 of column g.
__device__ __forceinline__ uint32_t transpose_word(uint32_t word) {
  uint32_t turned;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;\n" : "=r"(turned) : "r"(word));
  return turned;
}

}  // namespace sparse_autotune
