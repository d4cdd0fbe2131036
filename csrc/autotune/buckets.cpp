#include "autotune/buckets.h"

#include <bit>
#include <charconv>

namespace sparse_autotune {

int64_t n_bucket(int64_t n, bool fine) {
  if (n <= 1) return 1;
  const auto power = static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(n)));
  const int64_t between = power / 4 * 3;
  if (fine) return n > 32 && n <= between ? between : power;
  const bool skipped = n > 512 && std::countr_zero(static_cast<uint64_t>(power)) % 2 == 0;
  return skipped ? 2 * power : power;
}

std::string significant(double x) {
  char text[32];
  const auto end = std::to_chars(text, text + sizeof(text), x, std::chars_format::general, 3).ptr;
  return std::string(text, end);
}

}  // namespace sparse_autotune
