// An operator that the tuner has never heard of: z = a x + y and the sum over z. It is linked with
// the tuner alone, so that all the tuner does for products it does for any operator.
#include <cmath>
#include <map>
#include <set>

#include "autotune/host.h"
#include "autotune/problem_text.h"
#include "autotune/registry.h"
#include "autotune/signature.h"
#include "autotune/tuner.h"
#include "checks.h"
#include "operator.h"
#include "operators/fields.h"
#include "plan/decisions.h"

namespace sparse_autotune::axpy {

struct Problem {
  int64_t n, step;  // of x
  int64_t scale;    // a: an eighth of it
  DeviceType device;
  DType dtype;  // of x, y and z
  bool deterministic, exact_nonfinite, frozen;
  uint8_t x_alignment, y_alignment, z_alignment;
};
const Operator& operator_of(const Problem&);

struct Launch : AnyLaunch {
  const float *x = nullptr, *y = nullptr;
  float* z = nullptr;
  double* sum = nullptr;
};

// The operator has two outputs of different types, and an operand that is made from the others.
class Axpy final : public OperatorOf<Problem, Launch> {
 public:
  constexpr Axpy() = default;
  std::string_view name() const override { return "axpy"; }
  Asked asked(const Problem& p) const override {
    return {p.device, p.deterministic, p.exact_nonfinite, p.frozen};
  }
  std::string describe(const Problem& p) const override {
    return "axpy of " + std::to_string(p.n) + " numbers";
  }
  std::string signature(const Problem& p, Buckets buckets) const override {
    return buckets == Buckets::kExact ? "_exactn" + std::to_string(p.n)
                                      : "_n" + std::to_string(p.n / 100);
  }
  Work work(const Problem& p, const Device& d) const override {
    return {2.0 * p.n, 3.0 * p.n, 12.0 * p.n, d.fp32_tflops};
  }
  std::string text(const Problem& p) const override { return fields().text(p); }
  std::optional<OwnedProblem> parse(std::string_view text, std::string* why) const override {
    const std::optional<Problem> p = fields().parse(text, why);
    if (!p) return std::nullopt;
    return OwnedProblem(*p);
  }

  std::vector<Operand> operands(const Problem& p, const Launch& user) const override {
    return {Operand::copied(user.x, 4),
            Operand::input(p.dtype, {p.n, 1, p.step, 1, 1, 0}, p.x_alignment),
            Operand::derived(p.dtype, vector(p.n), p.y_alignment),
            Operand::output(p.dtype, vector(p.n), p.z_alignment),
            Operand::output(DType::kFloat64, vector(1), 16)};
  }
  void bind(const Problem&, char* const* at, Launch* l) const override {
    l->x = reinterpret_cast<const float*>(at[1]);
    l->y = reinterpret_cast<const float*>(at[2]);
    l->z = reinterpret_cast<float*>(at[3]);
    l->sum = reinterpret_cast<double*>(at[4]);
  }
  Status derive(const Problem& p, const Launch& l) const override {
    for (int64_t i = 0; i < p.n; ++i) const_cast<float*>(l.y)[i] = 1 - l.x[i * p.step];
    return Status::ok();
  }
  Status choose_tiles(const Problem& p, const ReadBack& read, double,
                      std::vector<Tile>* tiles) const override {
    float first = 0;
    const Status status = read(0, &first);
    CHECK(status && first == 42);  // the user's
    for (int64_t i = 0; i < p.n; i += kTileCols) {
      const auto cols = static_cast<int16_t>(std::min<int64_t>(kTileCols, p.n - i));
      tiles->push_back({0, 1, cols, i, 0, 1, {i}});
    }
    tiles->push_back({1, 1, 1, 0, 0, 0, {-1}});
    return Status::ok();
  }
  Status expect(const Problem& p, const Launch& l, const Tile* tiles, int64_t count,
                Expected* expected) const override {
    for (int64_t t = 0; t < count; ++t) {
      Expected* to = expected + t * kTileElements;
      const int64_t from = tiles[t].origin[0];
      if (from < 0) *to = {0, 1e-5 * static_cast<double>(p.n)};
      for (int64_t i = 0; i < p.n; ++i) {
        const double z = p.scale / 8.0 * l.x[i * p.step] + l.y[i];
        if (from < 0) to->value += z;
        if (from >= 0 && i >= from && i < from + tiles[t].cols) to[i - from] = {z, 1e-6};
      }
    }
    return Status::ok();
  }

 private:
  static Strides vector(int64_t n) { return {n, 1, 1, 1, 1, 0}; }
  static const Fields<Problem>& fields() {
    static const Fields<Problem> all = {device_field<&Problem::device>(),
                                        dtype_field<&Problem::dtype>(),
                                        number_field<&Problem::n, 1>("n"),
                                        number_field<&Problem::step, 1>("step"),
                                        number_field<&Problem::scale, 0>("scale"),
                                        flag_field<&Problem::deterministic>("deterministic"),
                                        flag_field<&Problem::exact_nonfinite>("exact_nonfinite"),
                                        flag_field<&Problem::frozen>("frozen"),
                                        alignment_field<&Problem::x_alignment>("x_alignment"),
                                        alignment_field<&Problem::y_alignment>("y_alignment"),
                                        alignment_field<&Problem::z_alignment>("z_alignment")};
    return all;
  }
};
constinit const Axpy kAxpy;
const OperatorRegistration kRegisterAxpy{kAxpy};
const Operator& operator_of(const Problem&) { return kAxpy; }

enum class Fault { kNone, kElement, kSum, kBefore };

class Variant final : public VariantOf<Problem, Launch> {
 public:
  Variant(std::string_view name, double estimate, double busy_us, Fault fault = Fault::kNone)
      : VariantOf(kAxpy, DeviceType::kCpu, name),
        estimate_(estimate),
        busy_us_(busy_us),
        fault_(fault) {}
  Support supports(const Problem& p, const Device&) const override {
    return p.step == 1 || family() == "loop" ? Support::yes() : Support::no("x has a step");
  }
  double estimate_us(const Problem&, const Device&) const override { return estimate_; }
  Status launch(const Problem& p, const Launch& l) const override {
    if (fails) return Status::failed(StatusCode::kLaunchFailed, "planted");
    *l.sum = 0;
    for (int64_t i = 0; i < p.n; ++i) {
      l.z[i] = static_cast<float>(p.scale) / 8 * l.x[i * p.step] + l.y[i];
      *l.sum += l.z[i];
    }
    if (fault_ == Fault::kElement) l.z[p.n - 1] += 1e-3f;
    if (fault_ == Fault::kSum) *l.sum += 1;
    if (fault_ == Fault::kBefore) l.z[-1] = 0;
    CHECK(reinterpret_cast<uintptr_t>(l.y) % 16 == p.y_alignment);
    test::spin(busy_us_);
    return Status::ok();
  }
  bool deterministic() const override { return family() == "loop"; }

  mutable bool fails = false;

 private:
  double estimate_, busy_us_;
  Fault fault_;
};

const Variant kSlow("loop/slow", 1, 1000), kFast("unrolled/two", 9, 30);
const Variant kElement("unrolled/off", 5, 0, Fault::kElement);
const Variant kSum("unrolled/sum", 6, 0, Fault::kSum);
const Variant kBefore("unrolled/before", 7, 0, Fault::kBefore);
const Registration kRegister[] = {Registration{kSlow}, Registration{kFast}, Registration{kElement},
                                  Registration{kSum}, Registration{kBefore}};

// What a user calls with: the tuner writes none of it.
struct Call {
  Problem problem{1000, 1, 12, DeviceType::kCpu, DType::kFloat32, false, false, false, 4, 8, 4};
  std::vector<float> x{42};
  Launch launch;
  Device device;
  Call() {
    launch.x = x.data();
    launch.device = &device;
    device.name = "test CPU";
    device.fp32_tflops = 0.5;
  }
  Choice choice(std::string_view selector = "") const {
    return choose(problem, device, launch, selector, false, [](const auto&) {});
  }
};

}  // namespace sparse_autotune::axpy

namespace sparse_autotune {
namespace {

using axpy::Call;

// Keeps records in memory, and what it was told.
class TestHost final : public Host {
 public:
  std::optional<std::string> load(const std::string& device, const std::string& name) override {
    const auto it = saved.find({device, name});
    return it == saved.end() ? std::nullopt : std::optional(it->second);
  }
  void save(const std::string& device, const std::string& name, const std::string& text) override {
    saved[{device, name}] = text;
  }
  bool report(const Event& event) override {
    if (event.kind != Event::Kind::kProgress) events.push_back(event);
    return true;
  }
  void reclaim(int) override {}

  std::map<std::pair<std::string, std::string>, std::string> saved;
  std::vector<Event> events;
};

std::shared_ptr<TestHost> begin(Mode mode, std::shared_ptr<TestHost> host = nullptr) {
  if (host == nullptr) host = std::make_shared<TestHost>();
  set_host(host);
  forget_records();
  Settings settings;
  settings.mode = mode;
  settings.budget_s = 0.2;
  set_settings(settings);
  return host;
}

void it_races_and_the_wrong_do_not_win() {
  const auto host = begin(Mode::kOn);
  const Call call;
  const Choice choice = call.choice();
  CHECK(choice.error.empty() && choice.final);
  CHECK(choice.variant == &axpy::kFast);
  CHECK(call.launch.x[0] == 42 && call.launch.z == nullptr);
  CHECK(host->saved.size() == 1 && host->events.size() == 2);
  CHECK(host->events[0].description == "axpy of 1000 numbers");
  const auto record = parse_record(host->saved.begin()->second, nullptr);
  CHECK(record && record->signature.rfind("axpy_n10_", 0) == 0);
  CHECK(record->description == "axpy of 1000 numbers" && record->winner == "unrolled/two");
  CHECK(record->nnz_flops == 2000 && record->dense_flops == 3000 && record->bytes == 12000);
  CHECK(record->peak_tflops == 0.5);
  for (const char* name : {"unrolled/off", "unrolled/sum", "unrolled/before"}) {
    std::printf("%s: %s\n", name, record->find(name)->reason.c_str());
    CHECK(record->find(name)->outcome == Outcome::kWrongResult);
  }
  CHECK(record->find("unrolled/two")->error <= 1 && record->find("loop/slow")->timed());
  CHECK(record->find("unrolled/off")->error > 1);
  // The next call of the signature does not race.
  const int64_t races = tuning_count();
  CHECK(call.choice().variant == &axpy::kFast && tuning_count() == races);
}

void what_was_saved_decides_in_another_process() {
  auto host = begin(Mode::kOn);
  const Call call;
  call.choice();
  const int64_t races = tuning_count();
  for (const Mode mode : {Mode::kOn, Mode::kReadonly, Mode::kRecord}) {
    begin(mode, host);
    CHECK(call.choice().variant == &axpy::kFast);
  }
  CHECK(tuning_count() == races && missed_signatures().empty());
  CHECK(find_record(call.problem, call.device)->winner == "unrolled/two");
}

void modes_that_do_not_race_ask_the_cost_model() {
  for (const Mode mode : {Mode::kOff, Mode::kReadonly, Mode::kRecord}) {
    const auto host = begin(mode);
    const Call call;
    const int64_t races = tuning_count();
    CHECK(call.choice().variant == &axpy::kSlow && tuning_count() == races);
    CHECK(host->saved.empty() && missed_signatures().size() == (mode == Mode::kOff ? 0u : 1u));
    CHECK(host->events.size() == (mode == Mode::kRecord ? 1u : 0u));
    if (mode != Mode::kRecord) continue;
    // What it writes is enough to race later.
    const std::string text = host->events[0].problem;
    CHECK(text ==
          "op=axpy device=cpu dtype=f32 n=1000 step=1 scale=12 deterministic=0 "
          "exact_nonfinite=0 frozen=0 x_alignment=4 y_alignment=8 z_alignment=4");
    std::string why;
    const auto parsed = parse_problem(text, &why);
    CHECK(parsed && problem_text(parsed->view()) == text);
    begin(Mode::kOn, host);
    const auto entrants = legal_variants(parsed->view(), call.device);
    CHECK(entrants.size() == 5);
    const auto record = race_if_unknown(parsed->view(), call.device, call.launch, entrants,
                                        options_of(settings(), ""));
    CHECK(record && record->winner == "unrolled/two");
    CHECK(host->saved.count({device_class(call.device), record->signature}) == 1);
    CHECK(call.choice().variant == &axpy::kFast);
  }
}

void texts_of_no_problem_are_refused() {
  std::string why;
  for (const char* text :
       {"", "n=4", "op=matmul n=4", "op=axpy", "op=axpy n=0", "op=axpy n=4 n=4"}) {
    CHECK(!parse_problem(text, &why) && !why.empty());
    std::printf("%s: %s\n", text, why.c_str());
  }
}

void a_selector_and_a_flag_limit_it() {
  begin(Mode::kOn);
  Call call;
  CHECK(call.choice("loop/slow").variant == &axpy::kSlow);
  CHECK(call.choice("unrolled").variant == &axpy::kFast);  // raced among its configurations
  CHECK(call.choice("unknown").error.find("'unknown'") != std::string::npos);
  CHECK(serves("unrolled", axpy::kAxpy) && find_operator("axpy") == &axpy::kAxpy);
  CHECK(find_operator("matmul") == nullptr);
  call.problem.deterministic = true;
  CHECK(call.choice().variant == &axpy::kSlow);
  call.problem.deterministic = false;
  call.problem.step = 3;
  CHECK(call.choice("unrolled").error.find("x has a step") != std::string::npos);
  CHECK(call.choice().variant == &axpy::kSlow);
}

void who_fails_to_launch_is_replaced() {
  const auto host = begin(Mode::kOn);
  const Call call;
  const Choice choice = call.choice();
  CHECK(choice.variant == &axpy::kFast);
  const Status status = Status::failed(StatusCode::kLaunchFailed, "planted");
  CHECK(demote(call.problem, call.device, "", *choice.variant, status));
  CHECK(!choice.validity.holds() && call.choice().variant == &axpy::kSlow);
}

void decisions_are_of_exactly_that_call() {
  struct Decision {
    const AnyVariant* variant;
    Validity validity{};
  };
  Decisions<Decision> decisions;
  Call call;
  CHECK(!decisions.find(call.problem, 1, ""));
  decisions.remember(call.problem, 1, "", {&axpy::kFast});
  CHECK(decisions.find(call.problem, 1, "")->variant == &axpy::kFast);
  CHECK(!decisions.find(call.problem, 2, "") && !decisions.find(call.problem, 1, "loop"));
  call.problem.step = 2;
  CHECK(!decisions.find(call.problem, 1, ""));
}

}  // namespace
}  // namespace sparse_autotune

int main() {
  using namespace sparse_autotune;
  it_races_and_the_wrong_do_not_win();
  what_was_saved_decides_in_another_process();
  modes_that_do_not_race_ask_the_cost_model();
  texts_of_no_problem_are_refused();
  a_selector_and_a_flag_limit_it();
  who_fails_to_launch_is_replaced();
  decisions_are_of_exactly_that_call();
  std::puts("all passed");
}
