// Lines of few bytes from one stride to another: memcpy() of a size that the compiler does not know
// is a call for each.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace sparse_autotune {

// Calls f with a null pointer to a word as wide as an element that is only moved.
template <typename F>
void with_word(int64_t bytes, F&& f) {
  if (bytes == 2) return f(static_cast<uint16_t*>(nullptr));
  if (bytes == 4) return f(static_cast<uint32_t*>(nullptr));
  f(static_cast<uint64_t*>(nullptr));
}

// Of blocks along rows of a dense matrix: so many rows at a time, as those may lie a power of two
// apart, and an L1 holds eight lines or twelve of them.
inline constexpr int64_t kLinesTogether = 8;

// kBytes to 2 * kBytes of each line: from its begin and up to its end.
template <int64_t kBytes>
void copy_short_lines(char* to, int64_t to_stride, const char* from, int64_t from_stride,
                      int64_t lines, int64_t bytes) {
  const int64_t last = bytes - kBytes;
  for (int64_t i = 0; i < lines; ++i, to += to_stride, from += from_stride) {
    char first[kBytes], second[kBytes];
    std::memcpy(first, from, kBytes);
    std::memcpy(second, from + last, kBytes);
    std::memcpy(to, first, kBytes);
    std::memcpy(to + last, second, kBytes);
  }
}

// `bytes`: 2 at least.
inline void copy_lines(char* to, int64_t to_stride, const char* from, int64_t from_stride,
                       int64_t lines, int64_t bytes) {
  if (bytes <= 4) return copy_short_lines<2>(to, to_stride, from, from_stride, lines, bytes);
  if (bytes <= 8) return copy_short_lines<4>(to, to_stride, from, from_stride, lines, bytes);
  if (bytes <= 16) return copy_short_lines<8>(to, to_stride, from, from_stride, lines, bytes);
  if (bytes <= 32) return copy_short_lines<16>(to, to_stride, from, from_stride, lines, bytes);
  for (int64_t i = 0; i < lines; ++i) {
    std::memcpy(to + i * to_stride, from + i * from_stride, static_cast<size_t>(bytes));
  }
}

}  // namespace sparse_autotune
