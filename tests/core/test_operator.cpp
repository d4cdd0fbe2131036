// An operator that the tuner has never heard of. It is linked with the tuner alone, so that all the
// tuner does for products it does for any operator.
#include "autotune/problem_text.h"
#include "autotune/registry.h"
#include "autotune/signature.h"
#include "autotune/tuner.h"
#include "axpy.h"
#include "memory_host.h"
#include "plan/decisions.h"

namespace sparse_autotune {
namespace {

using axpy::Call;
using test::begin;

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
