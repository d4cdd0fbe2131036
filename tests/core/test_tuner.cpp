// How long a choice stands, and that nobody waits for somebody else's race.
#include "autotune/tuner.h"

#include <atomic>
#include <stdexcept>
#include <string>
#include <thread>

#include "autotune/registry.h"
#include "fakes.h"
#include "memory_host.h"
#include "plan/plan.h"

using namespace sparse_autotune;
using sparse_autotune::test::begin;
using sparse_autotune::test::Example;
using sparse_autotune::test::Fake;

namespace {

const Fake kGuessed("a/guessed", 1, 4000), kFast("b/fast", 5, 20);
const Registration kRegisterGuessed{kGuessed}, kRegisterFast{kFast};

// A product that has a signature of its own for each number of columns.
struct Product : Example {
  explicit Product(int64_t n) {
    problem.n = n;
    problem.ldb = problem.ldc = n;
  }
  Choice choice(bool capturing = false) const {
    return choose(problem, device, launch, "", capturing, [](const auto&) {});
  }
  Record race(bool save) const {
    RaceOptions options;
    options.budget_s = 0.05;
    const auto entrants = legal_variants(problem, device);
    CHECK(entrants.size() == 2);
    return race_now(problem, device, launch, entrants, options, save);
  }
};

void a_saved_race_ends_its_own_signature_alone() {
  begin();
  const Product one(16), other(512);
  const int64_t count = tuning_count();
  const Choice first = one.choice(), second = other.choice();
  CHECK(tuning_count() == count + 2);
  CHECK(first.final && first.validity.holds() && second.final && second.validity.holds());
  one.race(false);  // a report: nothing is replaced
  CHECK(first.validity.holds());
  const Record record = one.race(true);
  CHECK(!first.validity.holds() && second.validity.holds());
  const Choice renewed = one.choice();
  CHECK(renewed.validity.holds() && renewed.variant->name() == record.winner);
  CHECK(tuning_count() == count + 3);
  forget_records();
  CHECK(!renewed.validity.holds() && !second.validity.holds());
}

void a_kind_that_is_settled_asks_its_winners_alone() {
  begin();
  const Product product(16);
  product.choice();
  CHECK(product.choice().variant == &kFast);
  const int asked = kGuessed.asked;
  const Choice settled = product.choice();
  CHECK(settled.variant == &kFast && settled.validity.holds() && kGuessed.asked == asked);
  product.race(true);
  const int raced = kGuessed.asked;
  CHECK(!settled.validity.holds() && product.choice().validity.holds());
  CHECK(kGuessed.asked > raced);
}

void ever_new_numbers_of_columns_take_no_more_memory() {
  begin();
  constexpr int64_t kFirst = 4097, kMore = 1024;  // of one signature
  const Product first(kFirst);
  const auto is_settled = [&] {
    return settled(first.problem, first.device, "").variant != nullptr;
  };
  first.choice();
  first.choice();
  CHECK(is_settled());
  for (int64_t n = kFirst + 1; n <= kFirst + kMore; ++n) Product(n).choice();
  CHECK(!is_settled());
  first.choice();
  CHECK(is_settled());
}

void a_plan_forgets_what_no_longer_holds() {
  begin();
  const Product one(16), other(512);
  Plan plan(PatternKey{}, PatternFacts{}, {}, nullptr);
  for (const Product* product : {&one, &other}) {
    const Choice choice = product->choice();
    plan.remember(
        product->problem, 1, "",
        {.variant = &sparse_autotune::product(*choice.variant), .validity = choice.validity});
  }
  other.race(true);
  CHECK(plan.find(one.problem, 1, ""));
  CHECK(!plan.find(other.problem, 1, ""));
  plan.remember(other.problem, 1, "", {.validity = other.choice().validity});
  CHECK(plan.find(one.problem, 1, "") && plan.find(other.problem, 1, ""));
}

void a_guess_stands_until_there_is_a_race() {
  begin(Mode::kReadonly);
  const Product product(16);
  const Choice guess = product.choice();
  CHECK(guess.variant == &kGuessed && guess.final && guess.validity.holds());
  const Record record = product.race(true);
  CHECK(!guess.validity.holds());
  const Choice choice = product.choice();
  CHECK(choice.variant->name() == record.winner && choice.validity.holds());
}

void what_the_host_has_stands() {
  const auto host = begin();
  const Product product(16);
  const std::string winner(product.choice().variant->name());
  const auto saved = host->saved;
  CHECK(saved.size() == 1);
  const int64_t count = tuning_count();
  begin()->saved = saved;
  const Choice loaded = product.choice();
  CHECK(loaded.variant->name() == winner && loaded.final && loaded.validity.holds());
  CHECK(product.choice().validity.holds() && loaded.validity.holds());
  CHECK(tuning_count() == count);
}

// What a record says of both, as if Python held up the one that is fastest in a CUDA graph.
void a_capture_gets_its_own_winner() {
  const auto host = begin(Mode::kReadonly);
  const Product product(16);
  Record record = product.race(false);
  for (Entrant& e : record.entrants) e.outcome = Outcome::kOk;
  record.winner = "a/guessed";
  record.captured_winner = "b/fast";
  host->save(record.device_class, record.signature, to_text(record));
  const Choice eager = product.choice(), captured = product.choice(true);
  CHECK(eager.variant == &kGuessed && eager.captured == &kFast && eager.final);
  CHECK(captured.variant == &kFast && captured.captured == nullptr && !captured.final);
  CHECK(captured.validity.holds());

  record.captured_winner = "";
  record.winner = "b/fast";
  begin(Mode::kReadonly)->save(record.device_class, record.signature, to_text(record));
  CHECK(product.choice().captured == nullptr && product.choice().final);
  CHECK(product.choice(true).variant == &kFast && product.choice(true).final);

  for (Entrant& e : record.entrants) e.captures = e.name != "b/fast";
  begin(Mode::kReadonly)->save(record.device_class, record.signature, to_text(record));
  CHECK(product.choice().variant == &kFast && product.choice().captured == &kGuessed);
  CHECK(product.choice(true).variant == &kGuessed && !product.choice(true).final);
}

void a_winner_of_captures_that_fails_is_replaced_there() {
  const auto host = begin();
  const Product product(16);
  Record record = product.race(false);
  for (Entrant& e : record.entrants) e.outcome = Outcome::kOk;
  record.winner = "a/guessed";
  record.captured_winner = "b/fast";
  host->save(record.device_class, record.signature, to_text(record));
  CHECK(product.choice(true).variant == &kFast);
  const Status status = Status::failed(StatusCode::kLaunchFailed, "on purpose");
  CHECK(demote(product.problem, product.device, "", kFast, status));
  CHECK(product.choice().variant == &kGuessed && product.choice().captured == nullptr);
  const auto corrected = parse_record(*host->load(record.device_class, record.signature), nullptr);
  CHECK(corrected && corrected->winner == "a/guessed" && corrected->captured_winner == "a/guessed");
  CHECK(corrected->find("b/fast")->outcome == Outcome::kLaunchFailed);
}

// Were a lock held that choices need, this would never end.
void nobody_waits_for_a_race() {
  const auto host = begin();
  const Product product(16), other(512);
  int races = 0;
  host->on_start = [&] {
    ++races;
    for (const Product* p : {&product, &other}) {
      std::thread([p] {
        const Choice choice = p->choice();
        CHECK(choice.variant == &kGuessed && !choice.final);
      }).join();
    }
  };
  CHECK(product.choice().final);
  CHECK(races == 1);
  host->on_start = nullptr;
  CHECK(other.choice().final);
}

void what_prepares_a_race_may_refuse_it() {
  begin();
  const Product product(16);
  const int64_t count = tuning_count();
  const auto refuse = [](const auto&) { throw std::runtime_error("on purpose"); };
  bool refused = false;
  try {
    choose(product.problem, product.device, product.launch, "", false, refuse);
  } catch (const std::runtime_error&) {
    refused = true;
  }
  CHECK(refused && tuning_count() == count);
  CHECK(product.choice().final && tuning_count() == count + 1);  // nobody is racing it any more
}

void forgetting_leaves_settings_alone() {
  begin();
  std::atomic<bool> is_over{false};
  std::thread other([&] {
    while (!is_over) forget_records();
  });
  Settings wanted;
  for (wanted.plan_bytes = 0; wanted.plan_bytes < 20000; ++wanted.plan_bytes) {
    set_settings(wanted);
    CHECK(settings() == wanted);
  }
  is_over = true;
  other.join();
  const uint64_t before = settings_generation();
  forget_records();
  CHECK(settings_generation() > before);
}

}  // namespace

int main() {
  a_saved_race_ends_its_own_signature_alone();
  a_kind_that_is_settled_asks_its_winners_alone();
  ever_new_numbers_of_columns_take_no_more_memory();
  a_plan_forgets_what_no_longer_holds();
  a_guess_stands_until_there_is_a_race();
  what_the_host_has_stands();
  a_capture_gets_its_own_winner();
  a_winner_of_captures_that_fails_is_replaced_there();
  nobody_waits_for_a_race();
  what_prepares_a_race_may_refuse_it();
  forgetting_leaves_settings_alone();
  set_host(nullptr);
  std::printf("all passed\n");
}
