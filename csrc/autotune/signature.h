// The key under which a race is remembered, and its readable forms.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "autotune/settings.h"
#include "variant.h"

namespace sparse_autotune {

// Everything of a problem that can change which variant wins, for example
//   matmul_4096x4096_bs64x64_n4096_row8_skew2_bf16_i32_bR_cR_cold
// Only [A-Za-z0-9_.-], at most 200 characters: it serves as a file name. m, k and the block are
// exact, the rest comes in buckets (see n_bucket). `family` is not empty when only the
// configurations of one family race.
std::string signature(const Problem& problem, const Device& device, Timing timing,
                      std::string_view family = {}, Buckets buckets = Buckets::kGeometric);

// The devices that share their races: name, compute capability and multiprocessors, never the
// ordinal; on a CPU the model, instruction set and threads. Same characters as a signature.
std::string device_class(const Device& device);

// For people: "4096x4096x4096 bs64 density 0.125 bf16" (m x k x n); a sampled product says so.
std::string describe(const Problem& problem);

// The upper end of the bucket that n falls into. Fine: 1, 2, 4, 8, 16, 32, then two an octave (48,
// 64, 96, 128, ...). Coarse, for operands that are not 16-byte aligned: powers of two, from 512 on
// every other (2048, 8192, ...). A caller that runs through every n from 1 to 8192 meets both on a
// GPU, at most 32 buckets in all.
int64_t n_bucket(int64_t n, bool fine);

// As signatures and reports print them: avx2, avx512, avx512bf16, amx; f16, bf16, f32, f64.
const char* name_of(CpuIsa isa);
const char* short_name(DType dtype);
const char* name_of(Activation activation);
// The public function that computes it: matmul, sampled_matmul.
const char* name_of(Op op);

}  // namespace sparse_autotune
