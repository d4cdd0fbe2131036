// Neighbouring elements in as few loads as their alignment allows.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

namespace sparse_autotune {

// Neighbouring elements in one load, of 32 bytes in two, aligned to it; one by one if they are of
// another size.
template <typename T, int kCount>
__device__ __forceinline__ void load_run(const char* from, T (&to)[kCount]) {
  constexpr int kBytes = kCount * static_cast<int>(sizeof(T));
  if constexpr (kBytes == 32) {
    const uint4 low = __ldg(reinterpret_cast<const uint4*>(from));
    const uint4 high = __ldg(reinterpret_cast<const uint4*>(from) + 1);
    memcpy(to, &low, 16);
    memcpy(to + kCount / 2, &high, 16);
  } else if constexpr (kBytes == 16) {
    const uint4 found = __ldg(reinterpret_cast<const uint4*>(from));
    memcpy(to, &found, kBytes);
  } else if constexpr (kBytes == 8) {
    const uint2 found = __ldg(reinterpret_cast<const uint2*>(from));
    memcpy(to, &found, kBytes);
  } else if constexpr (kBytes == 4) {
    const unsigned found = __ldg(reinterpret_cast<const unsigned*>(from));
    memcpy(to, &found, kBytes);
  } else {
#pragma unroll
    for (int i = 0; i < kCount; ++i) to[i] = reinterpret_cast<const T*>(from)[i];
  }
}

// Neighbouring elements, aligned to the largest power of two that divides their bytes, up to 16.
template <typename T, int kCount>
__device__ __forceinline__ void load_words(const char* from, T (&to)[kCount]) {
  constexpr int kBytes = kCount * static_cast<int>(sizeof(T));
  constexpr int kWord = std::min(kBytes & -kBytes, 16) / static_cast<int>(sizeof(T));
#pragma unroll
  for (int i = 0; i < kCount; i += kWord) {
    T some[kWord];
    load_run(from + i * sizeof(T), some);
#pragma unroll
    for (int j = 0; j < kWord; ++j) to[i + j] = some[j];
  }
}

// One such load of shared memory.
template <typename T, int kCount>
__device__ __forceinline__ void take_word(const char* from, T (&to)[kCount]) {
  constexpr int kBytes = kCount * static_cast<int>(sizeof(T));
  static_assert(kBytes == 4 || kBytes == 8 || kBytes == 16, "sizes of one load");
  if constexpr (kBytes == 16) {
    const uint4 found = *reinterpret_cast<const uint4*>(from);
    memcpy(to, &found, kBytes);
  } else if constexpr (kBytes == 8) {
    const uint2 found = *reinterpret_cast<const uint2*>(from);
    memcpy(to, &found, kBytes);
  } else {
    const unsigned found = *reinterpret_cast<const unsigned*>(from);
    memcpy(to, &found, kBytes);
  }
}

// load_words() of shared memory.
template <typename T, int kCount>
__device__ __forceinline__ void take_words(const char* from, T (&to)[kCount]) {
  constexpr int kBytes = kCount * static_cast<int>(sizeof(T));
  constexpr int kWord = std::min(kBytes & -kBytes, 16) / static_cast<int>(sizeof(T));
#pragma unroll
  for (int i = 0; i < kCount; i += kWord) {
    T some[kWord];
    take_word(from + i * sizeof(T), some);
#pragma unroll
    for (int j = 0; j < kWord; ++j) to[i + j] = some[j];
  }
}

}  // namespace sparse_autotune
