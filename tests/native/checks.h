// What the fuzzer counts and insists on, and structs in memory of their own size.
#pragma once

#include <cstdio>
#include <cstdlib>

#include "hostile.h"

namespace fuzz {

struct Counts {
  int64_t patterns = 0, products = 0, refused = 0, verified = 0, races = 0, untried = 0;

  void add(const Counts& other) {
    patterns += other.patterns;
    products += other.products;
    refused += other.refused;
    verified += other.verified;
    races += other.races;
    untried += other.untried;
  }
};

[[noreturn]] inline void fail(const char* what) {
  std::fprintf(stderr, "fuzz: %s; the last message was: %s\n", what,
               sparse_autotune_error_message());
  std::abort();
}

inline void expect(bool holds, const char* what) {
  if (!holds) fail(what);
}

// A struct in memory of its own size, or of as much as it says that it has.
template <typename Struct>
class Given {
 public:
  explicit Given(const Struct& s)
      : memory_(static_cast<int64_t>(std::clamp(s.struct_size > 4096 ? sizeof(s) : s.struct_size,
                                                sizeof(size_t), size_t{4096}))) {
    std::memcpy(memory_.data(), &s, std::min(memory_.size, sizeof(s)));
  }
  operator const Struct*() const { return reinterpret_cast<const Struct*>(memory_.data()); }

 private:
  Memory memory_;
};

}  // namespace fuzz
