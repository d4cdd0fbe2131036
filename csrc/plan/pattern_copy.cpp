#include "plan/pattern_copy.h"

#include <atomic>
#include <cstring>

namespace sparse_autotune {
namespace {

constexpr int64_t kBytesOfAThread = int64_t{256} << 10;

std::vector<char> copied(const void* indices, int64_t count, IndexType type) {
  const char* begin = static_cast<const char*>(indices);
  return {begin, begin + count * size_of(type)};
}

bool same(const std::vector<char>& copy, const void* indices, const Parallel& parallel) {
  std::atomic<bool> equal{true};
  parallel_for(parallel, 0, static_cast<int64_t>(copy.size()), kBytesOfAThread,
               [&](int64_t begin, int64_t end) {
                 const char* there = static_cast<const char*>(indices) + begin;
                 const auto bytes = static_cast<size_t>(end - begin);
                 if (std::memcmp(copy.data() + begin, there, bytes) != 0) equal = false;
               });
  return equal;
}

}  // namespace

PatternCopy::PatternCopy(const PatternKey& key)
    : crow_indices_(copied(key.crow_indices, key.block_rows + 1, key.index_type)),
      col_indices_(copied(key.col_indices, key.nnzb, key.index_type)) {}

bool PatternCopy::equals(const PatternKey& key, const Parallel& parallel) const {
  return same(crow_indices_, key.crow_indices, parallel) &&
         same(col_indices_, key.col_indices, parallel);
}

}  // namespace sparse_autotune
