// Signatures: what shares a race, what does not, and that they serve as file names.
#include <set>
#include <utility>

#include "autotune/buckets.h"
#include "autotune/signature.h"
#include "fakes.h"

using namespace sparse_autotune;
using sparse_autotune::test::Example;

namespace {

void every_field_that_matters_changes_it() {
  const Example e;
  const auto of = [&](auto change) {
    Problem p = e.problem;
    change(p);
    return signature(p, e.device, Timing::kCold);
  };
  std::set<std::string> seen{of([](Problem&) {})};
  const auto differs = [&](const char* what, auto change) {
    if (!seen.insert(of(change)).second) std::fprintf(stderr, "%s does not count\n", what);
    CHECK(seen.count(of(change)) == 1);
    const size_t before = seen.size();
    CHECK(before > 1);
  };
  const size_t start = seen.size();
  differs("m", [](Problem& p) { p.m = 24; });
  differs("k", [](Problem& p) { p.k = 18; });
  differs("n", [](Problem& p) { p.n = 700; });
  differs("nnzb", [](Problem& p) { p.nnzb = 9; });
  differs("longest_row", [](Problem& p) {
    p.longest_row = 3;
    p.nnzb = 3;
  });
  differs("dtype", [](Problem& p) { p.dtype = DType::kBFloat16; });
  differs("index_type", [](Problem& p) { p.index_type = IndexType::kInt32; });
  differs("b_layout", [](Problem& p) { p.b_layout = Layout::kColMajor; });
  differs("c_layout", [](Problem& p) { p.c_layout = Layout::kColMajor; });
  differs("activation", [](Problem& p) { p.activation = Activation::kGelu; });
  differs("bias", [](Problem& p) { p.has_bias = true; });
  differs("transpose", [](Problem& p) { p.transpose = true; });
  differs("frozen", [](Problem& p) { p.frozen = true; });
  differs("allow_tf32", [](Problem& p) { p.allow_tf32 = true; });
  differs("deterministic", [](Problem& p) { p.deterministic = true; });
  differs("exact_nonfinite", [](Problem& p) { p.exact_nonfinite = true; });
  differs("batch", [](Problem& p) { p.batch = 16; });
  CHECK(seen.size() == start + 17);
  CHECK(signature(e.problem, e.device, Timing::kCold, "simt") !=
        signature(e.problem, e.device, Timing::kCold));
}

// Those of blocks, strides and batches, which need several fields.
void combinations_that_matter() {
  const Example e;
  Problem p = e.problem;
  const auto of = [&] { return signature(p, e.device, Timing::kCold); };
  const std::string before = of();
  p.block_m = 2;  // and twice the blocks, so that rows stay as long
  p.nnzb = 6;
  CHECK(of() != before);
  p = e.problem;
  p.block_k = 9;
  CHECK(of() != before);

  p = e.problem;
  p.dtype = DType::kBFloat16;  // which has no TF32
  const std::string bf16 = of();
  p.allow_tf32 = true;
  CHECK(of() == bf16);

  p = e.problem;
  p.batch = 16;
  p.b_batch_stride = p.c_batch_stride = 1000;
  const std::string own = of();
  p.b_batch_stride = 0;
  const std::string shared = of();
  CHECK(own != shared && own != before && shared != before);
  p.c_batch_stride = 0;  // of a product each result has its own place
  CHECK(of() == shared);
  p.op = Op::kSampled;
  const std::string both = of();
  p.c_batch_stride = 1000;
  CHECK(of() != both);
  p.batch = 9;  // of the same power of two
  CHECK(of() == signature(
                    [&] {
                      p.batch = 16;
                      return p;
                    }(),
                    e.device, Timing::kCold));
}

void a_device_has_its_own() {
  Example e;
  const auto of = [&](Timing timing = Timing::kCold) {
    return signature(e.problem, e.device, timing);
  };
  // On a CPU neither alignment nor the wish for cold caches count, its instructions and threads do.
  const std::string cpu = of(), cpu_class = device_class(e.device);
  CHECK(of(Timing::kWarm) == cpu);
  e.problem.values_alignment = e.problem.b_alignment = e.problem.c_alignment = 16;
  CHECK(of() == cpu);
  e.device.threads += 1;
  CHECK(of() != cpu && device_class(e.device) != cpu_class);
  e.device.threads -= 1;
  e.device.isa = CpuIsa::kAmx;
  CHECK(of() != cpu && device_class(e.device) != cpu_class);

  // On a GPU the other way round: who is less aligned than 16 bytes stands apart.
  e.device.type = e.problem.device = DeviceType::kCuda;
  const std::string gpu = of();
  CHECK(of(Timing::kWarm) != gpu);
  std::set<std::string> seen{gpu};
  for (uint8_t Problem::*alignment :
       {&Problem::values_alignment, &Problem::b_alignment, &Problem::c_alignment}) {
    e.problem.*alignment = 8;
    CHECK(seen.insert(of()).second);
    const std::string eight = of();
    e.problem.*alignment = 2;
    CHECK(of() == eight);
    e.problem.*alignment = 16;
  }
  const std::string gpu_class = device_class(e.device);
  e.device.threads += 1;
  CHECK(of() == gpu && device_class(e.device) == gpu_class);
  e.device.multiprocessors += 1;
  CHECK(of() == gpu && device_class(e.device) != gpu_class);
  e.device.multiprocessors -= 1;
  e.device.compute_capability += 1;
  CHECK(of() == gpu && device_class(e.device) != gpu_class);
}

void buckets() {
  const int64_t fine[][2] = {{0, 1},   {1, 1},   {2, 2},    {3, 4},     {4, 4},    {5, 8},
                             {24, 32}, {32, 32}, {33, 48},  {48, 48},   {49, 64},  {64, 64},
                             {65, 96}, {96, 96}, {97, 128}, {384, 384}, {385, 512}};
  for (const auto& [n, bucket] : fine) CHECK(n_bucket(n, true) == bucket);
  const int64_t coarse[][2] = {{1, 1},      {2, 2},       {3, 4},       {33, 64},
                               {48, 64},    {64, 64},     {65, 128},    {512, 512},
                               {513, 2048}, {2048, 2048}, {2049, 8192}, {8192, 8192}};
  for (const auto& [n, bucket] : coarse) {
    CHECK(n_bucket(n, false) == bucket);
  }
  // Rows: 19% a bucket. Their skew: a power of two.
  Example e;
  e.problem.m = 4000;  // 1000 block rows
  e.problem.k = 3000;
  const auto of = [&](int64_t nnzb, int64_t longest) {
    e.problem.nnzb = nnzb;
    e.problem.longest_row = longest;
    return signature(e.problem, e.device, Timing::kCold);
  };
  CHECK(of(16000, 16) == of(15000, 16) && of(16000, 16) == of(17000, 17));
  CHECK(of(16000, 16) != of(19000, 19) && of(16000, 16) != of(13000, 13));
  CHECK(of(16000, 64) == of(16000, 50) && of(16000, 64) == of(16000, 80));
  CHECK(of(16000, 64) != of(16000, 40) && of(16000, 64) != of(16000, 100));
}

void long_names_stay_apart() {
  const Example e;
  const std::string family(300, 'x');
  CHECK(signature(e.problem, e.device, Timing::kCold, family + "a") !=
        signature(e.problem, e.device, Timing::kCold, family + "b"));
}

void a_serving_loop_meets_few_of_them() {
  Example e;
  e.problem.device = DeviceType::kCuda;
  e.device.type = DeviceType::kCuda;
  for (const int64_t item : {2, 4, 8}) {
    std::set<std::string> seen, exact;
    for (int64_t n = 1; n <= 8192; ++n) {
      e.problem.n = n;
      e.problem.b_alignment = e.problem.c_alignment = n * item % 16 == 0 ? 16 : 2;
      seen.insert(signature(e.problem, e.device, Timing::kCold));
      exact.insert(signature(e.problem, e.device, Timing::kCold, "", Buckets::kExact));
    }
    CHECK(seen.size() <= 32);
    CHECK(exact.size() == 8192);
  }
}

void names_are_safe() {
  Example e;
  e.device.name = "../../etc: a\tname \xff" + std::string(500, 'x');
  const std::string names[] = {signature(e.problem, e.device, Timing::kWarm, "../x"),
                               device_class(e.device)};
  for (const std::string& name : names) {
    CHECK(!name.empty() && name.size() <= 200);
    for (const char c : name)
      CHECK(std::isalnum(static_cast<unsigned char>(c)) || std::strchr("_.-", c));
    CHECK(name.find("..") != 0);
  }
}

}  // namespace

int main() {
  every_field_that_matters_changes_it();
  combinations_that_matter();
  a_device_has_its_own();
  buckets();
  long_names_stay_apart();
  a_serving_loop_meets_few_of_them();
  names_are_safe();
  std::puts("all passed");
}
