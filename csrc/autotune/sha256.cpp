#include "autotune/sha256.h"

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>

namespace sparse_autotune {
namespace {

using Words = std::array<uint32_t, 8>;

// The first 32 bits of the fractional parts of the cube roots of the first 64 primes, and of the
// square roots of the first 8.
struct Constants {
  std::array<uint32_t, 64> rounds;
  Words start;
};
Constants constants() {
  Constants c{};
  size_t count = 0;
  for (uint32_t n = 2; count < c.rounds.size(); ++n) {
    bool prime = true;
    for (uint32_t d = 2; d * d <= n; ++d) prime = prime && n % d != 0;
    if (!prime) continue;
    const auto fraction = [](long double x) {
      return static_cast<uint32_t>((x - std::floor(x)) * 4294967296.0L);
    };
    if (count < c.start.size()) c.start[count] = fraction(std::sqrt(static_cast<long double>(n)));
    c.rounds[count++] = fraction(std::cbrt(static_cast<long double>(n)));
  }
  return c;
}

void add_block(const unsigned char* block, const Constants& c, Words* state) {
  std::array<uint32_t, 64> w{};
  for (size_t i = 0; i < 16; ++i) {
    w[i] = uint32_t{block[4 * i]} << 24 | uint32_t{block[4 * i + 1]} << 16 |
           uint32_t{block[4 * i + 2]} << 8 | block[4 * i + 3];
  }
  for (size_t i = 16; i < w.size(); ++i) {
    const uint32_t a = w[i - 15], b = w[i - 2];
    w[i] = w[i - 16] + (std::rotr(a, 7) ^ std::rotr(a, 18) ^ (a >> 3)) + w[i - 7] +
           (std::rotr(b, 17) ^ std::rotr(b, 19) ^ (b >> 10));
  }
  auto [a, b, d, e, f, g, h, k] = *state;
  for (size_t i = 0; i < w.size(); ++i) {
    const uint32_t first = k + (std::rotr(f, 6) ^ std::rotr(f, 11) ^ std::rotr(f, 25)) +
                           ((f & g) ^ (~f & h)) + c.rounds[i] + w[i];
    const uint32_t second =
        (std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22)) + ((a & b) ^ (a & d) ^ (b & d));
    k = h;
    h = g;
    g = f;
    f = e + first;
    e = d;
    d = b;
    b = a;
    a = first + second;
  }
  const Words added = {a, b, d, e, f, g, h, k};
  for (size_t i = 0; i < state->size(); ++i) (*state)[i] += added[i];
}

}  // namespace

std::string sha256(std::string_view bytes) {
  static const Constants c = constants();
  std::string padded(bytes);
  padded += '\x80';
  while (padded.size() % 64 != 56) padded += '\0';
  const uint64_t bits = uint64_t{bytes.size()} * 8;
  for (int shift = 56; shift >= 0; shift -= 8) padded += static_cast<char>(bits >> shift & 0xFF);
  Words state = c.start;
  for (size_t at = 0; at < padded.size(); at += 64) {
    add_block(reinterpret_cast<const unsigned char*>(padded.data()) + at, c, &state);
  }
  std::string digits;
  for (const uint32_t word : state) {
    for (int shift = 28; shift >= 0; shift -= 4) digits += "0123456789abcdef"[word >> shift & 0xF];
  }
  return digits;
}

}  // namespace sparse_autotune
