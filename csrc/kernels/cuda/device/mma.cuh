// ldmatrix and mma.sync: a warp's fragments, in 16-byte chunks of shared memory.
//
// One mma multiplies 16 rows of A by 8 columns of B over a slice of 32 bytes of k: 16 halves or 8
// floats rounded to TF32. Lane = 4 * g + t. Its fragments are, in 32-bit words of a slice:
//   A: (row g, word t), (g + 8, t), (g, t + 4), (g + 8, t + 4)
//   B: (column g, word t), (g, t + 4)
//   C: (row g, columns 2t and 2t + 1), (row g + 8, the same)
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

namespace sparse_autotune {

// Four 8x8 matrices of halves (8 rows of one chunk each); lanes 8i to 8i + 7 give the addresses of
// matrix i's rows, word[i] is this lane's part: row g, word t.
__device__ __forceinline__ void ldmatrix(uint32_t (&word)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(word[0]), "=r"(word[1]), "=r"(word[2]), "=r"(word[3])
               : "r"(address));
}

// The same, each matrix transposed: rows 2t and 2t + 1 of column g.
__device__ __forceinline__ void ldmatrix_transposed(uint32_t (&word)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(word[0]), "=r"(word[1]), "=r"(word[2]), "=r"(word[3])
               : "r"(address));
}

// Rounds a float's bits to the nearest TF32 number; the tensor core would truncate.
__device__ __forceinline__ uint32_t round_to_tf32(uint32_t bits) {
  uint32_t rounded;
  asm("cvt.rna.tf32.f32 %0, %1;\n" : "=r"(rounded) : "f"(__uint_as_float(bits)));
  return rounded;
}

// c[0..3] += A * B over one slice. T is the type of A and B.
template <typename T>
__device__ __forceinline__ void mma(float* c, const uint32_t (&a)[4], const uint32_t* b) {
#define SPARSE_AUTOTUNE_MMA(KIND)                       \
  asm("mma.sync.aligned." KIND                          \
      " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, " \
      "{%0, %1, %2, %3};\n"                             \
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])  \
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]))
  if constexpr (std::is_same_v<T, float>) {
    SPARSE_AUTOTUNE_MMA("m16n8k8.row.col.f32.tf32.tf32.f32");
  } else if constexpr (std::is_same_v<T, __half>) {
    SPARSE_AUTOTUNE_MMA("m16n8k16.row.col.f32.f16.f16.f32");
  } else {
    SPARSE_AUTOTUNE_MMA("m16n8k16.row.col.f32.bf16.bf16.f32");
  }
#undef SPARSE_AUTOTUNE_MMA
}

}  // namespace sparse_autotune
