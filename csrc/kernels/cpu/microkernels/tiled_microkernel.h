// The bodies of cpu_tiled's micro-kernels, written once over a vector type and compiled once per
// instruction-set level: a level's file includes its vectors_*.h and this; everything below is
// private to it. No std template is used inside.
//
// A vector type V is one of vectors_*.h with what is added here, kRows and kVectors (of the largest
// tiles), kSums (vectors in a tile, at most) and kTurnedRows (largest turned tile, of
// kTurnedVectors). A stored type S gives: Type, kDType, load, load_part, store, store_part.
#pragma once

#include "kernels/cpu/microkernels/tiled.h"
#include "kernels/cpu/microkernels/turned_microkernel.h"
#include "kernels/cpu/microkernels/vectors.h"

namespace sparse_autotune::cpu_tiled {
namespace {

// Acc: the accumulator; Element and Operand: what is multiplied, here accumulators and vectors of
// them, else pairs of bf16.
template <class Vector>
struct Lanes : Vector {
  using Acc = typename Vector::T;
  using Element = Acc;
  using Operand = typename Vector::Vec;
  static SPARSE_AUTOTUNE_INLINE Operand load_operand(const Acc* p) { return Vector::load(p); }
  static SPARSE_AUTOTUNE_INLINE void transpose(Operand (&x)[Vector::kLanes]) {
    swap_quarters<1>(x, std::make_integer_sequence<int, Vector::kLanes>());
  }
  static void release() { _mm_sfence(); }  // streamed stores before what other threads see

 private:
  // Squares of twice kBy rows exchange the two quarters off their diagonals, then larger squares.
  template <int kBy, int... kLane>
  static SPARSE_AUTOTUNE_INLINE void swap_quarters(Operand (&x)[Vector::kLanes],
                                                   std::integer_sequence<int, kLane...> lanes) {
    using Index = decltype(x[0] < x[0]);
    const Index upper = {(kLane & kBy ? Vector::kLanes + kLane - kBy : kLane)...};
    const Index lower = {(kLane & kBy ? Vector::kLanes + kLane : kLane + kBy)...};
#pragma GCC unroll 16
    for (int i = 0; i < Vector::kLanes; ++i) {
      if (i & kBy) continue;
      const Operand a = x[i], b = x[i + kBy];
      x[i] = __builtin_shuffle(a, b, upper);
      x[i + kBy] = __builtin_shuffle(a, b, lower);
    }
    if constexpr (2 * kBy < Vector::kLanes) swap_quarters<2 * kBy>(x, lanes);
  }
};

// Stored as it is accumulated.
template <class Vector>
struct Same {
  using Type = typename Vector::T;
  using Vec = typename Vector::Vec;
  static constexpr DType kDType = sizeof(Type) == 8 ? DType::kFloat64 : DType::kFloat32;
  static SPARSE_AUTOTUNE_INLINE Vec load(const Type* p) { return Vector::load(p); }
  static SPARSE_AUTOTUNE_INLINE Vec load_part(const Type* p, int n) {
    return Vector::load_part(p, Vector::first_lanes(n));
  }
  static SPARSE_AUTOTUNE_INLINE void store(Type* p, Vec x) { Vector::store(p, x); }
  static SPARSE_AUTOTUNE_INLINE void store_part(Type* p, Vec x, int n) {
    Vector::store_part(p, x, Vector::first_lanes(n));
  }
};

// A half type in a level's vector of as many words as a vector of floats has lanes. Words: fp16 in
// such words, with load_part, store_part, widen and narrow; lift and drop move words to the upper
// halves of lanes and back.
template <DType kStored, class Words>
struct Half {
  using Type = uint16_t;
  using Packed = typename Words::Packed;
  static constexpr DType kDType = kStored;
  static SPARSE_AUTOTUNE_INLINE auto load(const Type* p) {
    Packed words;
    __builtin_memcpy(&words, p, sizeof(words));
    return Words::widen(words);
  }
  static SPARSE_AUTOTUNE_INLINE auto load_part(const Type* p, int n) {
    return Words::widen(Words::load_part(p, n));
  }
  template <class Vec>
  static SPARSE_AUTOTUNE_INLINE void store(Type* p, Vec x) {
    const Packed words = Words::narrow(x);
    __builtin_memcpy(p, &words, sizeof(words));
  }
  template <class Vec>
  static SPARSE_AUTOTUNE_INLINE void store_part(Type* p, Vec x, int n) {
    Words::store_part(p, Words::narrow(x), n);
  }
};

// bf16, the upper halves of floats, in words of fp16.
template <class Words>
struct UpperHalves : Words {
  static SPARSE_AUTOTUNE_INLINE auto widen(typename Words::Packed x) { return Words::lift(x); }
  // Round to nearest even; a NaN keeps its upper bits and becomes quiet.
  template <class Vec>
  static SPARSE_AUTOTUNE_INLINE auto narrow(Vec x) {
    using Bits = decltype(x == x);
    const Bits bits = reinterpret_cast<Bits>(x), rounded = bits + ((bits >> 16 & 1) + 0x7fff);
    return Words::drop(x == x ? rounded : bits | 0x400000);
  }
};
template <class Words>
using BFloat16 = Half<DType::kBFloat16, UpperHalves<Words>>;

// Fetches are dealt out over the walk, some every kStepsPerFetch steps along k: a burst of misses
// would stop the loads of A and B.
inline constexpr int64_t kDeepFmas = 768;  // that last as long as a read of memory

// A tile's rows of A, walked along k. Three rows share a pointer, for an address may hold a stride
// once or twice: more pointers than registers would be loaded anew in each step.
template <class V, int kRows>
struct TileRows {
  static constexpr int kPointers = (kRows + 2) / 3;
  const typename V::Element* at[kPointers];
};

// kSteps steps along k: written out, they leave the front end time for what is fetched.
template <int kSteps, class V, int kRows, int kVectors>
SPARSE_AUTOTUNE_INLINE void multiply_steps(typename V::Vec (&sum)[kRows][kVectors],
                                           TileRows<V, kRows>& a, int64_t row_stride,
                                           const typename V::Element* b, int64_t b_row_stride) {
#pragma GCC unroll 16
  for (int step = 0; step < kSteps; ++step, b += b_row_stride) {
    typename V::Operand row[kVectors];
#pragma GCC unroll 16
    for (int v = 0; v < kVectors; ++v) row[v] = V::load_operand(b + v * V::kLanes);
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      const typename V::Operand value = V::broadcast(a.at[r / 3] + r % 3 * row_stride + step);
#pragma GCC unroll 16
      for (int v = 0; v < kVectors; ++v) sum[r][v] = V::multiply_add(sum[r][v], value, row[v]);
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < a.kPointers; ++i) {
    a.at[i] += kSteps;
    asm("" : "+r"(a.at[i]));  // else the compiler makes a pointer a row of them again
  }
}

// Lines that a tile fills go past the caches. Of a line that two strips share each stores its half:
// half a line that went past the caches would be written to memory by itself. kFirst: the half that
// `out` begins with.
template <class V, int kFirst, int kRows, int kVectors>
SPARSE_AUTOTUNE_INLINE void stream_tile(typename V::Acc* out, int64_t stride,
                                        const typename V::Vec (&sum)[kRows][kVectors]) {
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r, out += stride) {
#pragma GCC unroll 16
    for (int v = 0; v < kVectors; ++v) {
      const bool fills = sizeof(typename V::Vec) == kLineBytes ||
                         ((v + kFirst) % 2 == 0 ? v + 1 < kVectors : v > 0);
      if (fills) {
        V::stream(out + v * V::kLanes, sum[r][v]);
      } else {
        V::store(out + v * V::kLanes, sum[r][v]);
      }
    }
  }
}

template <class V, int kRows, int kVectors>
SPARSE_AUTOTUNE_TARGET void multiply_tile(const MultiplyTask& t) {
  using Acc = typename V::Acc;
  using Element = typename V::Element;
  // Tiles one vector wide are bound by their loads, and so short of work that more cost than gain.
  constexpr bool kFetches = kVectors > 1;
  // Steps that use a line of values, or two: each time one is fetched.
  constexpr int kSteps = 4 * kRows * sizeof(Element) <= kLineBytes ? 4 : 2;
  typename V::Vec sum[kRows][kVectors];
  if (t.init != nullptr) {
    const Acc* init = static_cast<const Acc*>(t.init);
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 16
      for (int v = 0; v < kVectors; ++v) {
        sum[r][v] = V::load(init + r * t.init_stride + v * V::kLanes);
      }
    }
  } else {
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 16
      for (int v = 0; v < kVectors; ++v) sum[r][v] = V::splat(static_cast<const Acc*>(t.bias)[r]);
    }
  }
  const Indices columns = t.columns, fetched_columns = t.fetch.columns;
  const int64_t row_stride = t.row_stride, b_row_stride = t.b_row_stride, depth = t.depth;
  const Element* first = static_cast<const Element*>(t.values);
  // Blocks ahead that values are fetched: memory is slower than the walk over a shallow block.
  constexpr int64_t kDeep = kDeepFmas / (kRows * kVectors);
  const int64_t ahead = depth < kDeep && t.count > 4 ? 4 : 1;
  const Element* next_first = first + ahead * t.block_stride;
  Acc* out = static_cast<Acc*>(t.out);
  const Acc* unfetched = out;
  const Acc* const end = out + (t.output == Output::kResult ? kRows * t.out_stride : 0);
  const Element* fetched = static_cast<const Element*>(t.fetch.b);
  int64_t fetches = t.fetch.rows;  // that are left
  const bool fetching = kFetches && (fetches > 0 || t.output == Output::kResult);
  const int64_t stretch = fetching ? kStepsPerFetch : depth;  // steps without a look at fetches
  for (int64_t block = 0; block < t.count; ++block, first += t.block_stride) {
    const int64_t column = columns.data == nullptr ? block : columns[block];
    const Element* b = static_cast<const Element*>(t.b) + column * t.b_block_stride;
    // The tile's values in a later block: kRows x depth of them, without a gap.
    if (block + ahead == t.count) next_first = static_cast<const Element*>(t.next_values);
    const Element* next_a = next_first;
    next_first += t.block_stride;
    if (block < t.fetch.count) {
      fetched =
          static_cast<const Element*>(t.fetch.b) + fetched_columns[block] * t.fetch.block_stride;
      fetches = t.fetch.rows;
    }
    TileRows<V, kRows> a;
#pragma GCC unroll 16
    for (int i = 0; i < a.kPointers; ++i) a.at[i] = first + 3 * i * row_stride;
    const Element* const whole_end = first + depth / kSteps * kSteps;
    while (a.at[0] < whole_end) {
      const int64_t left = whole_end - a.at[0];
      const Element* const stop = a.at[0] + (left < stretch ? left : stretch);
      if (kFetches && unfetched < end) {
#pragma GCC unroll 16
        for (int v = 0; v < kVectors; ++v) __builtin_prefetch(unfetched + v * V::kLanes, 1);
        unfetched += t.out_stride;
      }
      if constexpr (kFetches) {
        for (int64_t i = 0; i < t.fetch.burst && fetches > 0; ++i, --fetches) {
#pragma GCC unroll 16
          for (int v = 0; v < kVectors; ++v) __builtin_prefetch(fetched + v * V::kLanes);
          fetched += t.fetch.row_stride;
        }
      }
      do {
        if constexpr (kFetches) __builtin_prefetch(next_a);
        multiply_steps<kSteps>(sum, a, row_stride, b, b_row_stride);
        next_a += kSteps * kRows;
        b += kSteps * b_row_stride;
      } while (a.at[0] < stop);
    }
    for (int64_t rest = depth % kSteps; rest > 0; --rest, b += b_row_stride) {
      multiply_steps<1>(sum, a, row_stride, b, b_row_stride);
    }
  }
  if (t.output == Output::kStreamed) {
    if (sizeof(typename V::Vec) == kLineBytes ||
        reinterpret_cast<uintptr_t>(out) % kLineBytes == 0) {
      stream_tile<V, 0>(out, t.out_stride, sum);
    } else {
      stream_tile<V, 1>(out, t.out_stride, sum);
    }
    return;
  }
  store_all<V>(out, t.out_stride, sum);
}

template <class V, int kRows, int kVectors>
constexpr auto tile_of() -> void (*)(const MultiplyTask&) {
  if constexpr (kRows * kVectors <= V::kSums) return multiply_tile<V, kRows, kVectors>;
  return nullptr;
}

template <class V, int... kTiles>
void pick_tile(const MultiplyTask& t, std::integer_sequence<int, kTiles...>) {
  static constexpr void (*kBySize[])(const MultiplyTask&) = {
      tile_of<V, kTiles / V::kVectors + 1, kTiles % V::kVectors + 1>()...};
  kBySize[(t.rows - 1) * V::kVectors + t.vectors - 1](t);
}

template <class V>
void multiply(const MultiplyTask& t) {
  pick_tile<V>(t, std::make_integer_sequence<int, V::kRows * V::kVectors>());
}

template <class V, class S>
SPARSE_AUTOTUNE_TARGET void pack_rows(const PackTask& t) {
  const typename S::Type* from = static_cast<const typename S::Type*>(t.b);
  typename V::Acc* to = static_cast<typename V::Acc*>(t.strip);
  constexpr int64_t kRowsAhead = 4, kLine = 64 / static_cast<int64_t>(sizeof(*from));
  for (int64_t kk = 0; kk < t.depth; ++kk, from += t.ldb, to += t.width) {
    // Rows lie too far apart for the hardware to foresee the next; if by a power of two, L1 holds
    // only eight of them.
    for (int64_t i = 0; i < t.columns; i += kLine) {
      __builtin_prefetch(from + kRowsAhead * t.ldb + i);
    }
    int64_t c = 0;
    for (; c + V::kLanes <= t.columns; c += V::kLanes) V::store(to + c, S::load(from + c));
    if (c < t.columns) {
      V::store(to + c, S::load_part(from + c, static_cast<int>(t.columns - c)));
      c += V::kLanes;
    }
    for (; c < t.width; c += V::kLanes) V::store(to + c, V::zero());
  }
}

// A square of kLanes columns at a time, turned in registers.
template <class V, class S>
SPARSE_AUTOTUNE_TARGET void pack_columns(const PackTask& t) {
  const typename S::Type* from = static_cast<const typename S::Type*>(t.b);
  typename V::Acc* to = static_cast<typename V::Acc*>(t.strip);
  for (int64_t c = 0; c < t.width; c += V::kLanes) {
    for (int64_t kk = 0; kk < t.depth; kk += V::kLanes) {
      const int64_t left = t.depth - kk;
      const int64_t rows = left < V::kLanes ? left : V::kLanes;
      // The next square lies in as many lines, below this one or in columns too far apart for the
      // hardware to foresee.
      const bool below = kk + V::kLanes < t.depth;
      const int64_t next_c = below ? c : c + V::kLanes, next_kk = below ? kk + V::kLanes : 0;
      for (int64_t i = next_c; i < next_c + V::kLanes && i < t.columns; ++i) {
        __builtin_prefetch(from + i * t.ldb + next_kk);
      }
      typename V::Vec square[V::kLanes];
      for (int i = 0; i < V::kLanes; ++i) {
        if (c + i >= t.columns) {
          square[i] = V::zero();
        } else if (rows == V::kLanes) {
          square[i] = S::load(from + (c + i) * t.ldb + kk);
        } else {
          square[i] = S::load_part(from + (c + i) * t.ldb + kk, static_cast<int>(rows));
        }
      }
      V::transpose(square);
      for (int i = 0; i < rows; ++i) V::store(to + (kk + i) * t.width + c, square[i]);
    }
  }
}

template <class V, class S>
void pack(const PackTask& t) {
  (t.layout == Layout::kRowMajor ? pack_rows<V, S> : pack_columns<V, S>)(t);
}

template <class V, class S>
SPARSE_AUTOTUNE_TARGET void widen(const void* from, int64_t count, void* to) {
  const typename S::Type* source = static_cast<const typename S::Type*>(from);
  typename V::Acc* target = static_cast<typename V::Acc*>(to);
  int64_t i = 0;
  for (; i + V::kLanes <= count; i += V::kLanes) V::store(target + i, S::load(source + i));
  if (i < count) {
    const int rest = static_cast<int>(count - i);
    Same<V>::store_part(target + i, S::load_part(source + i, rest), rest);
  }
}

template <class V, class S>
SPARSE_AUTOTUNE_TARGET void store_rows(const StoreTask& t) {
  const typename V::Acc* from = static_cast<const typename V::Acc*>(t.tile);
  typename S::Type* to = static_cast<typename S::Type*>(t.c);
  constexpr int64_t kRowsAhead = 8, kLine = 64 / static_cast<int64_t>(sizeof(*to));
  for (int64_t r = 0; r < t.rows; ++r, from += t.tile_stride, to += t.ldc) {
    if (r + kRowsAhead < t.rows) {
      for (int64_t i = 0; i < t.columns; i += kLine) {
        __builtin_prefetch(to + kRowsAhead * t.ldc + i, 1);
      }
    }
    int64_t c = 0;
    for (; c + V::kLanes <= t.columns; c += V::kLanes) S::store(to + c, V::load(from + c));
    if (c < t.columns) {
      S::store_part(to + c, V::load(from + c), static_cast<int>(t.columns - c));
    }
  }
}

template <class V, class S>
SPARSE_AUTOTUNE_TARGET void store_columns(const StoreTask& t) {
  const typename V::Acc* from = static_cast<const typename V::Acc*>(t.tile);
  typename S::Type* to = static_cast<typename S::Type*>(t.c);
  for (int64_t r = 0; r < t.rows; r += V::kLanes) {
    const int64_t left = t.rows - r;
    const int64_t rows = left < V::kLanes ? left : V::kLanes;
    for (int64_t c = 0; c < t.columns; c += V::kLanes) {
      typename V::Vec square[V::kLanes];
      for (int i = 0; i < V::kLanes; ++i) {
        square[i] = i < rows ? V::load(from + (r + i) * t.tile_stride + c) : V::zero();
      }
      V::transpose(square);
      for (int i = 0; i < V::kLanes && c + i < t.columns; ++i) {
        if (rows == V::kLanes) {
          S::store(to + (c + i) * t.ldc + r, square[i]);
        } else {
          S::store_part(to + (c + i) * t.ldc + r, square[i], static_cast<int>(rows));
        }
      }
    }
  }
}

// The tile's rows must be readable up to the next multiple of kLanes columns.
template <class V, class S>
void store(const StoreTask& t) {
  (t.layout == Layout::kRowMajor ? store_rows<V, S> : store_columns<V, S>)(t);
}

// Types stored as they are accumulated are multiplied in place; others are widened first.
template <class V, class S>
constexpr Microkernels kernels_for() {
  Microkernels k{};
  k.lanes = V::kLanes;
  k.rows = V::kRows;
  k.vectors = V::kVectors;
  k.sums = V::kSums;
  k.pair = 1;
  k.multiply = multiply<V>;
  k.pack = pack<V, S>;
  k.widen =
      size_of(S::kDType) == static_cast<int64_t>(sizeof(typename V::Acc)) ? nullptr : widen<V, S>;
  k.store = store<V, S>;
  k.release = V::release;
  if constexpr (size_of(S::kDType) == static_cast<int64_t>(sizeof(typename V::Acc))) {
    k.turned = multiply_turned<V>;
    k.turned_rows = V::kTurnedRows;
  }
  return k;
}

// A level that has code for every dtype.
template <class Floats, class Doubles, class Words>
const Microkernels* kernels_of(DType dtype) {
  static constexpr Microkernels kByDType[] = {
      // in its order
      kernels_for<Floats, Half<DType::kFloat16, Words>>(), kernels_for<Floats, BFloat16<Words>>(),
      kernels_for<Floats, Same<Floats>>(), kernels_for<Doubles, Same<Doubles>>()};
  return &kByDType[static_cast<int>(dtype)];
}

}  // namespace
}  // namespace sparse_autotune::cpu_tiled
