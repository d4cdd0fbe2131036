// The instruction sets that micro-kernels exist in: which a processor has, and who has what code.
#pragma once

#include <string>

#include "kernels/cpu/microkernels/tiled.h"
#include "variant.h"

namespace sparse_autotune::cpu_tiled {

struct Level {
  CpuIsa needed;
  const char* needed_name;
  const Microkernels* (*kernels)(DType);
  double share;  // of fma_tflops() that cpu_tiled reaches with the processor's widest vectors

  // What the level reaches with its own vectors, of that.
  double width(const Device& d) const {
    return needed == CpuIsa::kAvx2 && d.isa > CpuIsa::kAvx2 ? 0.45 : 1;
  }

  Support runs_on(const Device& d) const {
    if (d.isa >= needed) return Support::yes();
    if (needed == CpuIsa::kAmx && !d.amx_refused.empty()) return Support::no(d.amx_refused);
    return Support::no(std::string("this processor lacks ") + needed_name);
  }
};

inline constexpr Level kAvx2{CpuIsa::kAvx2, "AVX2", avx2_kernels, 0.7};
inline constexpr Level kAvx512{CpuIsa::kAvx512, "AVX-512", avx512_kernels, 0.7};
inline constexpr Level kAvx512Bf16{CpuIsa::kAvx512Bf16, "AVX512-BF16", avx512_bf16_kernels, 1.2};
inline constexpr Level kAmx{CpuIsa::kAmx, "AMX", amx_kernels, 4.0};

}  // namespace sparse_autotune::cpu_tiled
