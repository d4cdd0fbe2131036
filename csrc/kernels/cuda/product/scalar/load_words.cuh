// Addresses some steps on, in one instruction, indices found that way, and neighbouring elements in
// as few loads as their alignment allows.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>

namespace sparse_autotune {

// base + count * bytes: compilers take the product apart, to share pieces of it or to add its
// halves up by themselves.
__device__ __forceinline__ const char* at_step(const void* base, unsigned count, unsigned bytes) {
  uint64_t address;
  asm("mad.wide.u32 %0, %1, %2, %3;"
      : "=l"(address)
      : "r"(count), "r"(bytes), "l"(reinterpret_cast<uint64_t>(base)));
  return reinterpret_cast<const char*>(address);
}

// The low word of an index of `bytes` bytes.
__device__ __forceinline__ int index_at(const void* indices, int i, int bytes) {
  return __ldg(reinterpret_cast<const int*>(at_step(indices, i, bytes)));
}

struct GlobalMemory {  // that nobody writes meanwhile
  template <typename Word>
  static __device__ __forceinline__ Word load(const char* from) {
    return __ldg(reinterpret_cast<const Word*>(from));
  }
};
struct SharedMemory {
  template <typename Word>
  static __device__ __forceinline__ Word load(const char* from) {
    return *reinterpret_cast<const Word*>(from);
  }
};

// Neighbouring elements in one load, of 32 bytes in two, aligned to it; one by one if they are of
// another size.
template <typename Memory = GlobalMemory, typename T, int kCount>
__device__ __forceinline__ void load_run(const char* from, T (&to)[kCount]) {
  constexpr int kBytes = kCount * static_cast<int>(sizeof(T));
  if constexpr (kBytes == 32) {
    const uint4 low = Memory::template load<uint4>(from);
    const uint4 high = Memory::template load<uint4>(from + 16);
    memcpy(to, &low, 16);
    memcpy(to + kCount / 2, &high, 16);
  } else if constexpr (kBytes == 4 || kBytes == 8 || kBytes == 16) {
    using Word =
        std::conditional_t<kBytes == 16, uint4, std::conditional_t<kBytes == 8, uint2, unsigned>>;
    const Word found = Memory::template load<Word>(from);
    memcpy(to, &found, kBytes);
  } else {
#pragma unroll
    for (int i = 0; i < kCount; ++i) to[i] = reinterpret_cast<const T*>(from)[i];
  }
}

// Neighbouring elements, aligned to the largest power of two that divides their bytes, up to 16.
template <typename Memory = GlobalMemory, typename T, int kCount>
__device__ __forceinline__ void load_words(const char* from, T (&to)[kCount]) {
  constexpr int kBytes = kCount * static_cast<int>(sizeof(T));
  constexpr int kWord = std::min(kBytes & -kBytes, 16) / static_cast<int>(sizeof(T));
#pragma unroll
  for (int i = 0; i < kCount; i += kWord) {
    T some[kWord];
    load_run<Memory>(from + i * sizeof(T), some);
#pragma unroll
    for (int j = 0; j < kWord; ++j) to[i + j] = some[j];
  }
}

}  // namespace sparse_autotune
