// What a plan remembers, and how much all plans do.
#include "plan/plan.h"

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "fakes.h"

using namespace sparse_autotune;

namespace {

constexpr uint64_t kGeneration = 1;

Problem with_columns(int64_t n) {
  Problem problem{};
  problem.n = n;
  return problem;
}

std::unique_ptr<Plan> make_plan() {
  return std::make_unique<Plan>(PatternKey{}, PatternFacts{}, std::array<int64_t, 2>{}, nullptr);
}

int64_t remembered(Plan* plan, int64_t widths) {
  int64_t count = 0;
  for (int64_t n = 0; n < widths; ++n) {
    const auto decision = plan->find(with_columns(n), kGeneration, "");
    if (!decision) continue;
    CHECK(decision->workspace_bytes == n);
    ++count;
  }
  return count;
}

void remember(Plan* plan, int64_t n) {
  Decision decision;
  decision.workspace_bytes = n;
  plan->remember(with_columns(n), kGeneration, "", decision);
  CHECK(plan->find(with_columns(n), kGeneration, ""));
}

void few_plans_remember_thousands() {
  const auto plan = make_plan();
  for (int64_t n = 0; n < 4000; ++n) remember(plan.get(), n);
  CHECK(remembered(plan.get(), 4000) == 4000);
  CHECK(!plan->find(with_columns(0), kGeneration + 1, ""));
}

// What was decided for calls that are limited to a variant or a family is told apart, and counted
// and forgotten together.
void each_selector_has_decisions_of_its_own() {
  const auto plan = make_plan();
  const std::array<std::string, 3> selectors = {"", "simt", "simt/rows4"};
  for (size_t i = 0; i < selectors.size(); ++i) {
    CHECK(!plan->find(with_columns(1), kGeneration, selectors[i]));
    Decision decision;
    decision.workspace_bytes = static_cast<int64_t>(i);
    plan->remember(with_columns(1), kGeneration, selectors[i], decision);
  }
  for (size_t i = 0; i < selectors.size(); ++i) {
    const auto found = plan->find(with_columns(1), kGeneration, selectors[i]);
    CHECK(found && found->workspace_bytes == static_cast<int64_t>(i));
  }
  CHECK(!plan->find(with_columns(2), kGeneration, "simt"));
  CHECK(!plan->find(with_columns(1), kGeneration, "simt/rows"));
  plan->remember(with_columns(1), kGeneration + 1, "simt", {});
  for (const auto& selector : selectors) {
    CHECK(!plan->find(with_columns(1), kGeneration, selector));
    CHECK(plan->find(with_columns(1), kGeneration + 1, selector).has_value() ==
          (selector == "simt"));
  }
}

void many_plans_remember_what_one_budget_holds() {
  constexpr int64_t kPlans = 400, kWidths = 1000, kBound = 300'000;
  std::vector<std::unique_ptr<Plan>> plans;
  for (int i = 0; i < kPlans; ++i) plans.push_back(make_plan());
  for (int64_t n = 0; n < kWidths; ++n) {
    for (const auto& plan : plans) remember(plan.get(), n);
  }
  int64_t count = 0;
  for (const auto& plan : plans) count += remembered(plan.get(), kWidths);
  CHECK(count < kBound);
  plans.clear();  // and with them what they counted
  few_plans_remember_thousands();
}

}  // namespace

int main() {
  few_plans_remember_thousands();
  many_plans_remember_what_one_budget_holds();
  each_selector_has_decisions_of_its_own();
  std::printf("all passed\n");
}
