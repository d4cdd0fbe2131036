// What a race takes for right: the tolerance, and which elements of a product are looked at.
#include <cmath>
#include <random>
#include <set>
#include <tuple>

#include "autotune/verify.h"
#include "fakes.h"
#include "half.h"
#include "operators/product/product_tiles.h"
#include "operators/product/product_tolerance.h"

using namespace sparse_autotune;

namespace {

// The largest error of 64 dot products of random numbers, as a share of what is allowed. `round`
// is applied to each input, `add` adds a term to a sum, `finish` makes the result of the sum.
template <typename Round, typename Add, typename Finish>
double worst_share(const Problem& p, int length, Round round, Add add, Finish finish) {
  std::mt19937 random(7);
  std::uniform_real_distribution<float> uniform(-1, 1);
  double worst = 0;
  for (int i = 0; i < 64; ++i) {
    const float bias = p.has_bias ? uniform(random) : 0;
    double sum = 0, magnitude = std::abs(bias);
    float computed = 0;
    for (int k = 0; k < length; ++k) {
      const float a = uniform(random), b = uniform(random);
      sum += double{a} * b;
      magnitude += std::abs(double{a} * b);
      computed = add(computed, round(a) * round(b), k);
    }
    const Expected e = expected_element(sum, bias, magnitude, length, p);
    worst = std::max(worst, std::abs(finish(computed, bias) - e.value) / e.allowed);
  }
  return worst;
}

Problem of_type(DType dtype) {
  Problem p{};
  p.dtype = dtype;
  return p;
}

float same(float x) { return x; }
float plus(float sum, float term, int) { return sum + term; }
template <typename T>
float rounded(float x) {
  return widened(narrowed<T>(x));
}
template <typename T>
float result(float sum, float) {
  return rounded<T>(sum);
}

// TF32: ten bits of the mantissa, the rest cut off.
float cut(float x) { return std::bit_cast<float>(std::bit_cast<uint32_t>(x) & 0xffffe000u); }

void rounding_as_it_must_be_is_right() {
  for (const int length : {1, 16, 256, 4096, 32768}) {
    const double f32 = worst_share(of_type(DType::kFloat32), length, same, plus, result<float>);
    const double f16 = worst_share(of_type(DType::kFloat16), length, same, plus, result<Half>);
    const double bf16 =
        worst_share(of_type(DType::kBFloat16), length, same, plus, result<BFloat16>);
    std::printf("length %d: f32 %.2g f16 %.2g bf16 %.2g\n", length, f32, f16, bf16);
    CHECK(f32 <= 1 && f16 <= 1 && bf16 <= 1);
    // A tolerance that nothing comes near to finds nothing.
    CHECK(f32 > 0.001);
    CHECK(length > 256 || (f16 > 0.5 && bf16 > 0.5));
  }
}

void coarser_rounding_is_wrong() {
  const auto in_half = [](float sum, float term, int) { return rounded<Half>(sum + term); };
  const auto in_bfloat16 = [](float sum, float term, int) { return rounded<BFloat16>(sum + term); };
  CHECK(worst_share(of_type(DType::kFloat16), 4096, same, in_half, result<Half>) > 3);
  CHECK(worst_share(of_type(DType::kBFloat16), 4096, same, in_bfloat16, result<BFloat16>) > 3);
  CHECK(worst_share(of_type(DType::kFloat16), 64, same, plus, result<BFloat16>) > 3);
  CHECK(worst_share(of_type(DType::kFloat32), 64, same, plus, result<Half>) > 3);
  CHECK(worst_share(of_type(DType::kFloat64), 64, same, plus, result<float>) > 1e6);
}

void tf32_is_right_where_it_is_allowed() {
  Problem p = of_type(DType::kFloat32);
  CHECK(worst_share(p, 256, cut, plus, result<float>) > 3);
  p.allow_tf32 = true;
  CHECK(worst_share(p, 1, cut, plus, result<float>) <= 1);
  CHECK(worst_share(p, 256, cut, plus, result<float>) <= 1);
  p.dtype = DType::kFloat64;  // which has no TF32
  CHECK(worst_share(p, 256, cut, plus, result<float>) > 1e6);
}

void a_missing_term_is_wrong() {
  const auto without_one = [](float sum, float term, int k) { return k == 77 ? sum : sum + term; };
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    const auto finish = dtype == DType::kFloat32 ? result<float> : result<BFloat16>;
    CHECK(worst_share(of_type(dtype), 4096, same, without_one, finish) > 3);
  }
}

// As libraries do it: the product is rounded before the bias is added.
void a_bias_may_come_late() {
  Problem p = of_type(DType::kBFloat16);
  const auto late = [](float sum, float bias) {
    return rounded<BFloat16>(rounded<BFloat16>(sum) + bias);
  };
  const auto none = [](float sum, float) { return rounded<BFloat16>(sum); };
  p.has_bias = true;
  CHECK(worst_share(p, 256, same, plus, late) <= 1);
  CHECK(worst_share(p, 256, same, plus, none) > 3);
}

// Below the smallest normal number a device may flush to zero; of fp16, round to it.
void tiny_results_may_be_zero() {
  const struct {
    DType dtype;
    double right, wrong;
  } cases[] = {{DType::kFloat16, 2e-8, 2e-7},
               {DType::kBFloat16, 1e-39, 2e-37},
               {DType::kFloat32, 1e-39, 2e-37},
               {DType::kFloat64, 1e-310, 1e-306}};
  for (const auto& c : cases) {
    const Expected right = expected_element(c.right, 0, c.right, 1, of_type(c.dtype));
    const Expected wrong = expected_element(c.wrong, 0, c.wrong, 1, of_type(c.dtype));
    CHECK(right.value == c.right && right.allowed >= right.value);
    CHECK(wrong.allowed < wrong.value);
  }
}

void an_output_is_right_or_wrong() {
  double error = 0;
  CHECK(judge(12, 0, 12, 0.99, &error) && error == 0.99);
  CHECK(!judge(12, 0, 12, 1.01, &error) && error == 1.01);
  CHECK(!judge(12, 1, 12, 0, &error) && std::isinf(error));
  CHECK(!judge(12, 0, 11, 0, &error) && std::isinf(error));
  CHECK(!judge(12, 0, 13, 0, &error) && std::isinf(error));
}

// Every element of a tile lies in C, and in the block row that the tile names.
void check_tiles(const Problem& p, const std::vector<int64_t>& crow, double limit) {
  std::set<std::tuple<int64_t, int64_t, int64_t>> elements;
  std::set<std::tuple<int64_t, int64_t, int64_t>> corners;  // matrix, block row, strip
  for (const ProductTile& t : choose_tiles(p, crow, limit)) {
    CHECK(t.batch >= 0 && t.batch < p.batch);
    CHECK(tile_rows(t, p) > 0 && t.row / p.block_m == t.block_row);
    CHECK((t.row + tile_rows(t, p) - 1) / p.block_m == t.block_row);
    CHECK(t.col >= 0 && tile_cols(t, p) > 0 && t.col + tile_cols(t, p) <= p.n);
    corners.insert({t.batch, t.block_row, t.col / kTileCols});
    for (int i = 0; i < tile_rows(t, p); ++i) {
      for (int j = 0; j < tile_cols(t, p); ++j) {
        CHECK(elements.insert({t.batch, t.row + i, t.col + j}).second);
      }
    }
  }
  if (limit > 0) {
    CHECK(static_cast<int64_t>(elements.size()) == p.batch * p.m * p.n);
    return;
  }
  CHECK(corners.size() > 32);
  const int64_t last_strip = (p.n - 1) / kTileCols, longest = 3;
  for (const int64_t row : {int64_t{0}, p.m / p.block_m - 1, longest}) {
    CHECK(corners.count({0, row, 0}) == 1);
    CHECK(corners.count({p.batch - 1, row, last_strip}) == 1);
    // Of a tall block its ends are among those taken.
    CHECK(elements.count({0, row * p.block_m, 0}) == 1);
    CHECK(elements.count({0, (row + 1) * p.block_m - 1, 0}) == 1);
  }
}

void tiles_of_a_product() {
  const std::vector<int64_t> crow = {0, 3, 3, 4, 44, 45, 50, 50, 52};
  for (const int64_t block_m : {1, 16, 17, 64, 300}) {
    Problem p{};
    p.block_m = block_m;
    p.block_k = 8;
    p.nnzb = crow.back();
    p.m = 8 * block_m;
    p.k = 60 * 8;
    p.n = 200;
    p.batch = 3;
    check_tiles(p, crow, 1e12);
    p.n = 100'000;  // so many strips that chance finds none of those that must be there
    check_tiles(p, crow, 0);
  }
}

}  // namespace

int main() {
  rounding_as_it_must_be_is_right();
  coarser_rounding_is_wrong();
  tf32_is_right_where_it_is_allowed();
  a_missing_term_is_wrong();
  a_bias_may_come_late();
  tiny_results_may_be_zero();
  an_output_is_right_or_wrong();
  tiles_of_a_product();
  std::puts("all passed");
}
