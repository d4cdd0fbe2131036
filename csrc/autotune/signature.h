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
// Only [A-Za-z0-9_.-], at most 200 characters: it serves as a file name. What the operator says of
// the problem stands between its name and what holds for all. `family` is not empty when only the
// configurations of one family race.
std::string signature(AnyProblem problem, const Device& device, Timing timing,
                      std::string_view family = {}, Buckets buckets = Buckets::kGeometric);

// The devices that share their races: name, compute capability and multiprocessors, never the
// ordinal; on a CPU the model, instruction set and threads. Same characters as a signature.
std::string device_class(const Device& device);

// As signatures and reports print it: avx2, avx512, avx512bf16, amx.
const char* name_of(CpuIsa isa);

}  // namespace sparse_autotune
