// Ranges of sizes that share races, and numbers as signatures write them.
#pragma once

#include <cstdint>
#include <string>

namespace sparse_autotune {

// The upper end of the bucket that n falls into. Fine: 1, 2, 4, 8, 16, 32, then two an octave (48,
// 64, 96, 128, ...). Coarse, for operands that are not 16-byte aligned: powers of two, from 512 on
// every other (2048, 8192, ...). A caller that runs through every n from 1 to 8192 meets both on a
// GPU, at most 32 buckets in all.
int64_t n_bucket(int64_t n, bool fine);

// Three significant digits, the same in every locale.
std::string significant(double x);

}  // namespace sparse_autotune
