// fp64 on tensor cores: mma.sync, and how a warp's fragments lie in shared memory.
//
// Kernels compute C^T: an mma's 16 rows are columns of C, its 8 columns are rows of a block, so
// that blocks of 8 rows use all of it. k comes in slices of 8 (64 bytes). Which k of a slice a
// thread takes is free as long as A and B agree: it takes neighbours, so that operands with k
// contiguous are read 16 bytes at a time.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace sparse_autotune {

// c += a * b for 16 x 8 x 8: the thread's a are of rows lane / 4 and 8 more, of its first k and of
// its second; b of column lane / 4.
__device__ __forceinline__ void multiply_fp64(double (&c)[4], const double (&a)[4],
                                              const double (&b)[2]) {
#if __CUDA_ARCH__ >= 900
  asm("mma.sync.aligned.m16n8k8.row.col.f64.f64.f64.f64 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};\n"
      : "+d"(c[0]), "+d"(c[1]), "+d"(c[2]), "+d"(c[3])
      : "d"(a[0]), "d"(a[1]), "d"(a[2]), "d"(a[3]), "d"(b[0]), "d"(b[1]));
#else
#pragma unroll
  for (int k = 0; k < 2; ++k) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      asm("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0,%1}, {%2}, {%3}, {%0,%1};\n"
          : "+d"(c[2 * half]), "+d"(c[2 * half + 1])
          : "d"(a[2 * k + half]), "d"(b[k]));
    }
  }
#endif
}

// The same for 16 k. Hopper's own.
__device__ __forceinline__ void multiply_fp64(double (&c)[4], const double (&a)[8],
                                              const double (&b)[4]) {
#if __CUDA_ARCH__ >= 900
  asm("mma.sync.aligned.m16n8k16.row.col.f64.f64.f64.f64 {%0,%1,%2,%3}, "
      "{%4,%5,%6,%7,%8,%9,%10,%11}, {%12,%13,%14,%15}, {%0,%1,%2,%3};\n"
      : "+d"(c[0]), "+d"(c[1]), "+d"(c[2]), "+d"(c[3])
      : "d"(a[0]), "d"(a[1]), "d"(a[2]), "d"(a[3]), "d"(a[4]), "d"(a[5]), "d"(a[6]), "d"(a[7]),
        "d"(b[0]), "d"(b[1]), "d"(b[2]), "d"(b[3]));
#endif
}

// A thread's b of two k and of two columns: of either column both k lie side by side, or,
// row-major, of either k both columns.
template <bool kRowMajor>
__device__ __forceinline__ void load_pairs(const char* first, const char* second, double* b) {
  const auto x = *reinterpret_cast<const double2*>(first);
  const auto y = *reinterpret_cast<const double2*>(second);
  b[0] = x.x;
  b[1] = kRowMajor ? x.y : y.x;
  b[2] = kRowMajor ? y.x : x.y;
  b[3] = y.y;
}

// Of 8 lines of 128 bytes that TMA swizzled, the one that lanes 4 * `group` to 4 * group + 3 read:
// neighbouring groups read different banks.
__device__ __forceinline__ int line_of(int group) { return group / 2 + group % 2 * 4; }

}  // namespace sparse_autotune
