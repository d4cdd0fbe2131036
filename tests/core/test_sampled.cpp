// Sampled products in the core: what is checked, what is disqualified, who may run them.
#include <cmath>
#include <set>

#include "autotune/operands.h"
#include "autotune/race.h"
#include "autotune/registry.h"
#include "autotune/signature.h"
#include "fakes.h"
#include "operators/product/product_operator.h"
#include "operators/product/product_tiles.h"

using namespace sparse_autotune;
using sparse_autotune::test::Example;
using sparse_autotune::test::Fault;

namespace {

// The example's gradient with respect to its values, over a batch of two.
struct SampledExample : Example {
  SampledExample() {
    problem.op = Op::kSampled;
    problem.batch = 2;
    problem.b_batch_stride = 9 * 75 + 2;
    problem.c_batch_stride = 12 * 73 + 1;
  }
};

class FakeSampled final : public Variant {
 public:
  explicit FakeSampled(const char* name, Fault fault = nullptr)
      : Variant(DeviceType::kCpu, name, Op::kSampled), fault_(fault) {}

  Support supports(const Problem&, const Device&) const override { return Support::yes(); }
  double estimate_us(const Problem&, const Device&) const override { return 1; }

  Status launch(const Problem& p, const Launch& l) const override {
    CHECK(l.values == nullptr && l.bias == nullptr);
    const auto* crow = static_cast<const int64_t*>(l.crow_indices);
    const auto* col = static_cast<const int64_t*>(l.col_indices);
    const auto* b = static_cast<const float*>(l.b);
    const auto* c = static_cast<const float*>(l.c);
    for (int64_t row = 0; row < block_rows(p); ++row) {
      for (int64_t s = crow[row]; s < crow[row + 1]; ++s) {
        for (int64_t e = 0; e < p.block_m * p.block_k; ++e) {
          const int64_t i = row * p.block_m + e / p.block_k;
          const int64_t k = col[s] * p.block_k + e % p.block_k;
          float sum = 0;
          for (int64_t t = 0; t < p.batch; ++t) {
            for (int64_t j = 0; j < p.n; ++j) {
              sum +=
                  c[t * p.c_batch_stride + i * p.ldc + j] * b[t * p.b_batch_stride + k * p.ldb + j];
            }
          }
          static_cast<float*>(l.sampled)[s * p.block_m * p.block_k + e] = sum;
        }
      }
    }
    return fault_ ? fault_(p, l) : Status::ok();
  }

 private:
  Fault fault_;
};

void the_right_one_wins_and_faults_do_not() {
  const SampledExample e;
  const FakeSampled right("a/right");
  const auto element = [](const Launch& l, int64_t i) {
    return static_cast<float*>(l.sampled) + i;
  };
  const int64_t count = 3 * 4 * 3;
  const auto set = [&](int64_t i, float value) {
    return test::silent([=](const Problem&, const Launch& l) { *element(l, i) = value; });
  };
  const struct {
    const char* what;
    Fault fault;
  } faults[] = {
      {"one element off",
       test::silent([&](const Problem&, const Launch& l) { *element(l, count - 1) += 1e-3f; })},
      {"one matrix of the batch left out",
       [&](const Problem& p, const Launch& l) {
         Problem one = p;
         one.batch = 1;
         return FakeSampled("x/x").launch(one, l);
       }},
      {"an element not written", test::silent([&](const Problem&, const Launch& l) {
         std::memset(element(l, 17), 0xFF, 4);
       })},
      {"a NaN", set(0, NAN)},
      {"an infinity", set(5, INFINITY)},
      {"writes before the values", set(-1, 0)},
      {"writes behind the values", set(count, 0)},
  };
  for (const auto& planted : faults) {
    const FakeSampled faulty("b/faulty", planted.fault);
    const Record r = race(e.problem, e.device, e.launch, {&faulty, &right}, {});
    std::printf("%s: %s\n", planted.what, r.find("b/faulty")->reason.c_str());
    CHECK(r.winner == "a/right");
    CHECK(r.find("b/faulty")->outcome == Outcome::kWrongResult);
    CHECK(r.find("a/right")->error <= 1);
    CHECK(r.nnz_flops == 2.0 * count * 70 * 2);
    CHECK(r.signature.rfind("sampled_matmul_", 0) == 0);
    CHECK(r.description.rfind("sampled ", 0) == 0);
  }
}

void operands_have_the_users_layout() {
  SampledExample e;
  for (const int alignment : {2, 4, 8, 16}) {
    e.problem.values_alignment = static_cast<uint8_t>(alignment);
    e.problem.b_alignment = e.problem.c_alignment = 4;
    const Operator& op = operator_of(Op::kSampled);
    const std::vector<Operand> operands = op.operands(e.problem, e.launch);
    const OperandLayout l = lay_out(operands);
    char memory[1];
    const std::vector<char*> at = addresses_at(l, memory);
    Launch launch = e.launch;
    op.bind(e.problem, at.data(), &launch);
    const auto offset = [&](const void* pointer) {
      return static_cast<const char*>(pointer) - memory;
    };
    const int64_t b = offset(launch.b), c = offset(launch.c), output = offset(launch.sampled);
    CHECK(launch.values == nullptr);
    CHECK(output % 256 == (alignment < 16 ? alignment : 0));
    CHECK(b % 256 == 4 && c % 256 == 4);
    // The output with its guards is the last of the set, behind all that is read.
    CHECK(l.outputs.size() == 1 && l.offsets[l.outputs[0].operand] == output);
    CHECK(c + strides_of_c(e.problem).span() * 4 <= l.output_begin());
    CHECK(output >= l.output_begin() + kGuardBytes);
    CHECK(output + 3 * 4 * 3 * 4 + kGuardBytes <= l.output_begin() + l.output_bytes());
    CHECK(l.output_begin() + l.output_bytes() == l.bytes);
    std::set<int64_t> inputs;
    for (size_t i = 0; i < operands.size(); ++i) {
      const bool random = operands[i].use == Operand::Use::kInput && operands[i].bytes > 0;
      if (random) inputs.insert(l.offsets[i]);
    }
    CHECK((inputs == std::set<int64_t>{b, c}));
  }
}

// Every element of the chosen tiles lies in the block that the tile names.
void check_tiles(const Problem& p, const std::vector<int64_t>& crow, double limit, bool all) {
  std::set<std::pair<int64_t, int64_t>> seen;
  std::set<int64_t> blocks;
  for (const ProductTile& t : choose_tiles(p, crow, limit)) {
    CHECK(t.batch >= 0 && t.batch < p.nnzb);
    CHECK(crow[t.block_row] <= t.batch && t.batch < crow[t.block_row + 1]);
    CHECK(tile_rows(t, p) > 0 && t.row + tile_rows(t, p) <= p.block_m);
    CHECK(tile_cols(t, p) > 0 && t.col + tile_cols(t, p) <= p.block_k);
    blocks.insert(t.batch);
    for (int i = 0; i < tile_rows(t, p); ++i) {
      for (int j = 0; j < tile_cols(t, p); ++j) {
        CHECK(seen.insert({t.batch, (t.row + i) * p.block_k + t.col + j}).second);
      }
    }
  }
  CHECK(blocks.count(0) == 1 && blocks.count(p.nnzb - 1) == 1);
  if (all) {
    CHECK(static_cast<int64_t>(seen.size()) == p.nnzb * p.block_m * p.block_k);
  } else {
    CHECK(blocks.size() > 32);
  }
}

void tiles_cover_what_is_cheap_and_samples_of_the_rest() {
  Problem p{};
  p.op = Op::kSampled;
  p.n = 10;
  p.batch = 1;
  const std::vector<int64_t> crow = {0, 0, 40, 41, 41, 100, 100};  // some rows are empty
  p.nnzb = 100;
  const struct {
    int64_t block_m, block_k;
  } sizes[] = {{1, 1}, {16, 64}, {17, 65}, {40, 130}, {64, 64}};
  for (const auto& size : sizes) {
    p.block_m = size.block_m;
    p.block_k = size.block_k;
    p.m = 6 * p.block_m;
    p.k = 90 * p.block_k;
    check_tiles(p, crow, 1e12, true);
    check_tiles(p, crow, 0, false);
  }
}

void operations_do_not_mix() {
  const SampledExample sampled;
  const Example product;
  const FakeSampled samples("a/samples");
  const test::Fake multiplies("b/multiplies", 1, 0);
  CHECK(legal(samples, sampled.problem, sampled.device));
  CHECK(legal(multiplies, product.problem, product.device));
  CHECK(legal(samples, product.problem, product.device).reason() ==
        "computes sampled_matmul, not matmul");
  CHECK(legal(multiplies, sampled.problem, sampled.device).reason() ==
        "computes matmul, not sampled_matmul");
  Problem same = product.problem;
  same.op = Op::kSampled;
  CHECK(signature(same, product.device, Timing::kCold) !=
        signature(product.problem, product.device, Timing::kCold));
  CHECK(describe(same) != describe(product.problem));
}

const FakeSampled kRegistered("samples/one");
const Registration kRegister{kRegistered};

void a_selector_serves_the_operation_that_it_names() {
  for (const char* selector : {"samples", "samples/one"}) {
    CHECK(serves(selector, operator_of(Op::kSampled)));
    CHECK(!serves(selector, operator_of(Op::kMatmul)));
  }
  CHECK(serves("unknown", operator_of(Op::kMatmul)));
  CHECK(serves("unknown", operator_of(Op::kSampled)));
}

}  // namespace

// Divides by sizes, as kernels that share columns or blocks out do.
class Dividing final : public Variant {
 public:
  using Variant::Variant;
  Support supports(const Problem& p, const Device&) const override {
    CHECK(p.m >= p.block_m && p.n > 0 && p.k >= p.block_k && p.batch > 0);
    return Support::yes();
  }
  double estimate_us(const Problem&, const Device&) const override { return 1; }
  Status launch(const Problem&, const Launch&) const override { return Status::ok(); }
};

void variants_know_no_products_without_elements() {
  const Dividing variant(DeviceType::kCpu, "dividing/sizes");
  for (int64_t Problem::*size : {&Problem::m, &Problem::n, &Problem::k, &Problem::batch}) {
    Example e;
    e.problem.*size = 0;
    CHECK(legal(variant, e.problem, e.device));
  }
}

int main() {
  the_right_one_wins_and_faults_do_not();
  operands_have_the_users_layout();
  tiles_cover_what_is_cheap_and_samples_of_the_rest();
  operations_do_not_mix();
  a_selector_serves_the_operation_that_it_names();
  variants_know_no_products_without_elements();
  std::puts("all passed");
}
