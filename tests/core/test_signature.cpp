// Signatures: what shares a race, what does not, and that they serve as file names.
#include <set>

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

void a_serving_loop_meets_few_of_them() {
  Example e;
  e.problem.device = DeviceType::kCuda;
  e.device.type = DeviceType::kCuda;
  std::set<std::string> seen;
  for (int64_t n = 1; n <= 8192; ++n) {
    e.problem.n = n;
    e.problem.b_alignment = e.problem.c_alignment = n % 8 == 0 ? 16 : 2;
    seen.insert(signature(e.problem, e.device, Timing::kCold));
  }
  CHECK(seen.size() <= 34);
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
  a_serving_loop_meets_few_of_them();
  names_are_safe();
  std::puts("all passed");
}
