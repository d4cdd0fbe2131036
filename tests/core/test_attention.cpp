// Attention in the core: planted faults are disqualified, texts are read back, signatures tell what
// can change the winner.
#include <cmath>
#include <cstdio>
#include <limits>

#include "autotune/problem_text.h"
#include "autotune/race.h"
#include "autotune/registry.h"
#include "checks.h"
#include "operators/attention/attention_operator.h"

using namespace sparse_autotune;
using attention::Launch;
using attention::Pass;
using attention::Problem;

namespace {

// Two batch entries, four heads on two, 20 rows and 22 columns in ragged blocks of 8, a pattern for
// each head; the second block row of each sees nothing.
struct Example {
  std::vector<int32_t> crow, col, ccol, rows;
  Problem problem{};
  Launch launch{};
  Device device{};

  explicit Example(Pass pass, bool causal = false) {
    const bool stored[4][3][3] = {{{1, 0, 1}, {0, 0, 0}, {1, 1, 0}},
                                  {{1, 1, 1}, {0, 0, 0}, {0, 1, 1}},
                                  {{1, 0, 0}, {0, 0, 0}, {1, 1, 1}},
                                  {{1, 1, 0}, {0, 0, 0}, {1, 0, 1}}};
    for (const auto& head : stored) {
      for (int r = 0; r < 3; ++r) {
        crow.push_back(static_cast<int32_t>(col.size()));
        for (int c = 0; c < 3; ++c) {
          if (head[r][c]) col.push_back(c);
        }
      }
      crow.push_back(static_cast<int32_t>(col.size()));
      for (int c = 0; c < 3; ++c) {
        ccol.push_back(static_cast<int32_t>(rows.size()));
        for (int r = 0; r < 3; ++r) {
          if (head[r][c]) rows.push_back(r);
        }
      }
      ccol.push_back(static_cast<int32_t>(rows.size()));
    }
    Problem& p = problem;
    p.pass = pass;
    p.batch = 2;
    p.heads = 4;
    p.kv_heads = 2;
    p.rows = 20;
    p.columns = 22;
    p.dim = 70;  // more than a tile's columns
    p.block_m = p.block_n = 8;
    p.patterns = 4;
    p.mask_head_stride = 1;
    p.nnzb = p.capacity = static_cast<int64_t>(col.size());
    p.row_capacity = static_cast<int64_t>(rows.size());
    p.q = p.dout = {20 * 4 * 72, 72, 4 * 72};  // transposed, with gaps
    p.k = p.v = {22 * 2 * 70, 70, 2 * 70};
    p.dtype = DType::kFloat32;
    p.is_causal = causal;
    p.has_dlse = pass == Pass::kBackward;
    p.q_alignment = p.k_alignment = p.v_alignment = p.dout_alignment = 4;
    launch.crow_indices = crow.data();
    launch.col_indices = col.data();
    launch.ccol_indices = ccol.data();
    launch.row_indices = rows.data();
    launch.scale = 0.3;
    launch.device = &device;
    device.name = "test CPU";
    device.fp32_tflops = 0.1;
    device.memory_gbps = 10;
    device.isa = CpuIsa::kAvx2;
  }
};

const AnyVariant& right_one(Pass pass) {
  const char* name =
      pass == Pass::kForward ? "cpu_attention_naive/fp64" : "cpu_attention_naive_backward/fp64";
  const auto found = select_variants(name, DeviceType::kCpu);
  CHECK(found.size() == 1);
  return *found.front();
}

// The readable kernel on arguments that are changed first, and with results that are afterwards.
using Before = std::function<void(Problem&, Launch&)>;
using After = std::function<void(const Launch&)>;
class Faulty final : public attention::Variant {
 public:
  Faulty(Pass pass, Before before, After after)
      : Variant(DeviceType::kCpu, "b/faulty", pass), before_(before), after_(after) {}

  Support supports(const Problem&, const Device&) const override { return Support::yes(); }
  double estimate_us(const Problem&, const Device&) const override { return 1; }
  Status launch(const Problem& given, const Launch& user) const override {
    Problem p = given;
    Launch l = user;
    if (before_) before_(p, l);
    const Status status = right_one(given.pass).launch(p, l);
    if (after_) after_(user);
    return status;
  }

 private:
  Before before_;
  After after_;
};

struct Planted {
  const char* what;
  Before before;
  After after;
};

After add(void* Launch::*tensor, int64_t element, float difference) {
  return [=](const Launch& l) { static_cast<float*>(l.*tensor)[element] += difference; };
}
After overwrite(void* Launch::*tensor, int64_t element) {
  return [=](const Launch& l) { static_cast<float*>(l.*tensor)[element] = 1; };
}
After poison(void* Launch::*tensor, int64_t element) {
  return [=](const Launch& l) {
    std::memset(static_cast<float*>(l.*tensor) + element, 0xFF, sizeof(float));
  };
}

void faults_do_not_win(const Example& e, const std::vector<Planted>& faults) {
  const Pass pass = e.problem.pass;
  const AnyVariant& right = right_one(pass);
  for (const Planted& planted : faults) {
    const Faulty faulty(pass, planted.before, planted.after);
    const Record r = race(e.problem, e.device, e.launch, {&faulty, &right}, {});
    std::printf("%s: %s\n", planted.what, r.find("b/faulty")->reason.c_str());
    CHECK(r.winner == right.name());
    CHECK(r.find("b/faulty")->outcome == Outcome::kWrongResult);
    CHECK(r.find(right.name())->error <= 1);
  }
}

const Before kNoLastBlock = [](Problem&, Launch& l) {
  static std::vector<int32_t> shorter;
  shorter.assign(l.crow_indices, l.crow_indices + 16);
  --shorter[3];  // the last block of the first pattern
  l.crow_indices = shorter.data();
};

void forward_faults() {
  const int64_t out = 2 * 4 * 20 * 70, lse = 2 * 4 * 20;
  const Example e(Pass::kForward);
  faults_do_not_win(
      e, {{"an element of out off", nullptr, add(&Launch::out, out - 1, 1e-4f)},
          {"an element of lse off", nullptr, add(&Launch::lse, lse - 1, 1e-4f)},
          {"an element of out not written", nullptr, poison(&Launch::out, 77)},
          {"an element of lse not written", nullptr, poison(&Launch::lse, 5)},
          {"a row that sees nothing is not zero", nullptr, add(&Launch::out, 9 * 4 * 70, 1e-20f)},
          {"it writes behind out", nullptr, overwrite(&Launch::out, out)},
          {"a block left out", kNoLastBlock, nullptr},
          {"another scale", [](Problem&, Launch& l) { l.scale *= 1.001; }, nullptr},
          {"another head of k", [](Problem& p, Launch&) { p.k.head = 0; }, nullptr},
          {"a row short", [](Problem& p, Launch&) { p.columns -= 1; }, nullptr}});
  faults_do_not_win(Example(Pass::kForward, true),
                    {{"not causal", [](Problem& p, Launch&) { p.is_causal = false; }, nullptr}});
}

void backward_faults() {
  const int64_t dq = 2 * 4 * 20 * 70, dk = 2 * 2 * 22 * 70;
  const Example e(Pass::kBackward);
  faults_do_not_win(e, {{"an element of dq off", nullptr, add(&Launch::dq, dq - 1, 1e-4f)},
                        {"an element of dk off", nullptr, add(&Launch::dk, dk - 1, 1e-4f)},
                        {"an element of dv off", nullptr, add(&Launch::dv, dk - 1, 1e-4f)},
                        {"an element of dk not written", nullptr, poison(&Launch::dk, 3)},
                        {"it writes before dv", nullptr, overwrite(&Launch::dv, -1)},
                        {"without the gradient of lse",
                         [](Problem& p, Launch& l) {
                           p.has_dlse = false;
                           l.dlse = nullptr;
                         },
                         nullptr},
                        {"a block left out of dq", kNoLastBlock, nullptr},
                        {"a block left out of dk and dv",
                         [](Problem&, Launch& l) {
                           static std::vector<int32_t> shorter;
                           shorter.assign(l.ccol_indices, l.ccol_indices + 16);
                           --shorter[3];
                           l.ccol_indices = shorter.data();
                         },
                         nullptr}});
  faults_do_not_win(Example(Pass::kBackward, true),
                    {{"not causal", [](Problem& p, Launch&) { p.is_causal = false; }, nullptr}});
}

// Under the caller's own scale here whatever has the right signs would be within the tolerance.
void scales_of_callers_verify_nothing() {
  Example e(Pass::kForward);
  e.launch.scale = 1e30;
  const Faulty faulty(Pass::kForward, nullptr, add(&Launch::out, 0, 0.1f));
  const AnyVariant& right = right_one(Pass::kForward);
  const Record r = race(e.problem, e.device, e.launch, {&faulty, &right}, {});
  CHECK(r.find("b/faulty")->error > 1 && r.find(right.name())->error <= 1);
}

// A call may take results over, a race must not: it checks what lies where it said. Its clock does
// not ask for that.
void what_is_checked_is_written() {
  Example e(Pass::kForward);
  e.launch.handed_over = reinterpret_cast<attention::HandedOver*>(&e);
  bool handed = false, timed = false;
  const Faulty faulty(Pass::kForward, nullptr, [&](const Launch& l) {
    handed = handed || l.handed_over != nullptr;
    timed = timed || l.only_timed;
    if (l.only_timed) *static_cast<float*>(l.out) = 1;
  });
  const AnyVariant& right = right_one(Pass::kForward);
  const Record r = race(e.problem, e.device, e.launch, {&faulty, &right}, {});
  CHECK(r.find("b/faulty")->timed() && r.find("b/faulty")->error <= 1);
  CHECK(timed && !handed);
}

void all_variants_are_right() {
  for (const Pass pass : {Pass::kForward, Pass::kBackward}) {
    for (const bool causal : {false, true}) {
      Example e(pass, causal);
      e.problem.has_dlse = false;
      // All results in one order, and `out` and dv in the other.
      if (causal) {
        e.problem.q = {20 * 4 * 72, 20 * 72, 72};
        e.problem.v = {22 * 2 * 70, 22 * 70, 70};
      }
      std::vector<const AnyVariant*> entrants;
      for (const AnyVariant* v : all_variants()) {
        if (&v->op() == &operator_of(pass) && v->supports(e.problem, e.device)) {
          entrants.push_back(v);
        }
      }
      CHECK(entrants.size() >= 2);
      const Record r = race(e.problem, e.device, e.launch, entrants, {});
      for (const AnyVariant* v : entrants) {
        CHECK(r.find(v->name())->error <= 1);
      }
    }
  }
}

void texts_and_signatures() {
  for (const Pass pass : {Pass::kForward, Pass::kBackward}) {
    const Example e(pass);
    std::string why;
    const std::string text = problem_text(e.problem);
    const auto parsed = parse_problem(text, &why);
    CHECK(parsed && parsed->view() == AnyProblem(e.problem));
    const std::string wrong[] = {text + " x=1", text.substr(0, text.rfind(' ')), text + " dim=8"};
    for (const std::string& one : wrong) CHECK(!parse_problem(one, &why));

    const Operator& op = operator_of(pass);
    const std::string own = op.signature(e.problem, Buckets::kGeometric);
    const auto differs = [&](auto change) {
      Problem p = e.problem;
      change(p);
      return op.signature(p, Buckets::kGeometric) != own;
    };
    CHECK(differs([](Problem& p) { p.is_causal = true; }));
    CHECK(differs([](Problem& p) { p.nonpositive_scale = true; }));
    CHECK(differs([](Problem& p) { p.dim = 64; }));
    CHECK(differs([](Problem& p) { p.dtype = DType::kBFloat16; }));
    CHECK(differs([](Problem& p) { p.nnzb = 2; }));
    CHECK(differs([](Problem& p) { p.nnzb = -1; }));
    CHECK(differs([](Problem& p) { p.block_n = 16; }));
    CHECK(differs([](Problem& p) { p.kv_heads = 4; }));
    CHECK(differs([](Problem& p) { p.rows = 2000; }));
    CHECK(!differs([](Problem& p) { p.q.row += 1; }));
  }
}

}  // namespace

int main() {
  forward_faults();
  backward_faults();
  what_is_checked_is_written();
  scales_of_callers_verify_nothing();
  all_variants_are_right();
  texts_and_signatures();
  std::printf("all passed\n");
}
