#include "plan/pattern_fingerprint.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstring>

namespace sparse_autotune {
namespace {

// Parts short enough for a call of few columns; arrays shorter than some are not worth a team.
constexpr int64_t kPartBytes = int64_t{64} << 10;
constexpr int64_t kTeamBytes = int64_t{192} << 10;
// Longer arrays are known by the digests of their parts: a call of few columns takes little longer
// than reading A's indices once, and to read a copy of them as well would show.
constexpr int64_t kCopiedBytes = int64_t{64} << 10;

// Eight chains of steps that map words one to one: a part that differs in one word has another
// digest, any other part the same one once in 2^64.
uint64_t digest(const char* data, int64_t bytes) {
  constexpr int kChains = 8;
  constexpr uint64_t kFactor = 0x9e3779b97f4a7c15u;
  uint64_t h[kChains] = {1, 2, 3, 4, 5, 6, 7, 8};
  const auto step = [](uint64_t state, uint64_t word) {
    return std::rotl(state ^ word, 23) * kFactor;
  };
  const auto add = [&](const char* from) {
    for (int i = 0; i < kChains; ++i) {
      uint64_t word;
      std::memcpy(&word, from + i * 8, sizeof(word));
      h[i] = step(h[i], word);
    }
  };
  constexpr auto kBytes = static_cast<int64_t>(sizeof(h));
  int64_t at = 0;
  for (; at + kBytes <= bytes; at += kBytes) {
    constexpr int64_t kAhead = 1024;
    __builtin_prefetch(data + at + kAhead);
    add(data + at);
  }
  if (at < bytes) {
    char rest[sizeof(h)] = {};
    std::memcpy(rest, data + at, static_cast<size_t>(bytes - at));
    add(rest);
  }
  uint64_t all = 0;
  for (const uint64_t chain : h) all = step(all, chain);
  return all;
}

// Calls visit(its number, where it begins, its bytes) for each part of an array.
template <typename Visit>
void for_each_part(const void* indices, int64_t bytes, const Parallel& parallel, Visit&& visit) {
  const char* data = static_cast<const char*>(indices);
  const int64_t parts = ceil_div(bytes, kPartBytes);
  parallel_for(parallel, 0, parts, bytes < kTeamBytes ? parts : 1, [&](int64_t begin, int64_t end) {
    for (int64_t part = begin; part < end; ++part) {
      const int64_t first = part * kPartBytes;
      visit(part, data + first, std::min(kPartBytes, bytes - first));
    }
  });
}

std::vector<char> known(const void* indices, int64_t count, IndexType type,
                        const Parallel& parallel) {
  const int64_t bytes = count * size_of(type);
  if (bytes <= kCopiedBytes) {
    const char* begin = static_cast<const char*>(indices);
    return {begin, begin + bytes};
  }
  std::vector<char> digests(static_cast<size_t>(ceil_div(bytes, kPartBytes)) * 8);
  for_each_part(indices, bytes, parallel, [&](int64_t part, const char* data, int64_t size) {
    const uint64_t found = digest(data, size);
    std::memcpy(digests.data() + part * 8, &found, 8);
  });
  return digests;
}

bool same(const std::vector<char>& known, const void* indices, int64_t count, IndexType type,
          const Parallel& parallel) {
  const int64_t bytes = count * size_of(type);
  if (bytes <= kCopiedBytes) {
    return std::memcmp(known.data(), indices, static_cast<size_t>(bytes)) == 0;
  }
  std::atomic<bool> equal{true};
  for_each_part(indices, bytes, parallel, [&](int64_t part, const char* data, int64_t size) {
    const uint64_t found = digest(data, size);
    if (std::memcmp(known.data() + part * 8, &found, 8) != 0) equal = false;
  });
  return equal;
}

}  // namespace

PatternFingerprint::PatternFingerprint(const PatternKey& key, const Parallel& parallel)
    : crow_indices_(known(key.crow_indices, key.block_rows + 1, key.index_type, parallel)),
      col_indices_(known(key.col_indices, key.nnzb, key.index_type, parallel)) {}

bool PatternFingerprint::matches(const PatternKey& key, const Parallel& parallel) const {
  return same(crow_indices_, key.crow_indices, key.block_rows + 1, key.index_type, parallel) &&
         same(col_indices_, key.col_indices, key.nnzb, key.index_type, parallel);
}

}  // namespace sparse_autotune
