#include "ops/questions.h"

#include <algorithm>
#include <optional>
#include <sstream>
#include <utility>
#include <vector>

#include "autotune/problem_text.h"
#include "autotune/registry.h"
#include "autotune/settings.h"
#include "autotune/tuner.h"
#include "ops/bound.h"
#include "ops/pattern_pieces.h"

namespace sparse_autotune {
namespace {

std::vector<const Variant*> entrants_of(const Bound& bound, const std::string& list) {
  if (list.empty()) return legal_variants(bound.call.problem, *bound.device);
  std::vector<const Variant*> found;
  std::istringstream names(list);
  for (std::string name; std::getline(names, name, ',');) {
    const auto selected = select_variants(name, bound.call.problem.device);
    if (selected.empty()) refuse("variants: no variant or family is named '" + name + "'");
    for (const Variant* v : selected) {
      const Support support = legal(*v, bound.call.problem, *bound.device);
      // Of a family, those that are legal; who is named in full must be.
      if (!support && v->name() == name) refuse(name + " is not legal here: " + support.reason());
      if (support && std::find(found.begin(), found.end(), v) == found.end()) found.push_back(v);
    }
  }
  if (found.empty()) refuse("variants: none of " + list + " is legal here");
  return found;
}

RaceOptions options_by(const Settings& current) {
  RaceOptions options;
  options.budget_s = current.budget_s;
  options.timing = current.timing;
  options.buckets = current.buckets;
  options.min_speedup = current.min_speedup;
  options.tuning_bytes = current.tuning_bytes;
  return options;
}

// The race's last launches may still be running.
void used_by_race(const Bound& bound) {
  Status used = all_used_by(bound.call.launch.stream, {bound.transposed.get()});
  for (const auto& piece : bound.pieces) {
    Status status = all_used_by(bound.call.launch.stream, {piece.get()});
    if (used) used = std::move(status);
  }
  if (!used) refuse(used.message());
}

std::string race_bound(Bound& bound, const RaceArguments& race) {
  if (bound.is_capturing) refuse("a race cannot run while a CUDA graph is being captured");
  bound.call.launch.device = bound.device;
  RaceOptions options = options_by(settings());
  if (race.budget_s > 0) options.budget_s = race.budget_s;
  options.rounds = static_cast<int>(race.rounds);
  options.eliminate = race.eliminate;
  const auto entrants = entrants_of(bound, race.variants.value_or(""));
  add_pieces(bound, entrants);
  const Record record =
      race_now(bound.call.problem, *bound.device, bound.call.launch, entrants, options, race.save);
  used_by_race(bound);
  return to_text(record);
}

std::string legality_of(const Bound& bound) {
  const Problem& p = bound.call.problem;
  std::string text;
  for (const Variant* v : all_variants()) {
    if (v->device() != p.device || v->op() != p.op) continue;
    const Support support = legal(*v, p, *bound.device);
    text +=
        std::string(v->name()) + (support ? "\tok" : "\tunsupported\t" + support.reason()) + "\n";
  }
  return text;
}

template <typename Arguments, typename Call>
std::string answer(const Arguments& a, const Call& call, const Tensor& result,
                   const RaceArguments& race) {
  if (race.dry_run) return legality_of(bind_for_questions(a, call, result));
  if (a.col_indices.size(0) == 0) return "";  // bind_call() would write the result
  std::optional<Bound> bound = bind_call(a, call, result);
  return bound ? race_bound(*bound, race) : "";
}

}  // namespace

std::string race_text(const MatmulArguments& a, const RaceArguments& race) {
  const MatmulCall call = checked_call(a);
  // matmul_out() too turns to a contiguous result where no variant can write into `out`.
  bool direct = false;
  if (race.out.has_value()) {
    const TensorView written = view_of(*race.out);
    if (const char* rule = broken_rule_of_result(call, written)) refuse(rule);
    NormalisedCall unused;
    direct = !normalise(call, written, &unused).c;
  }
  const DeviceScope scope(a.values);
  return answer(a, call, direct ? *race.out : make_result(a, call), race);
}

std::string race_text(const SampledArguments& a, const RaceArguments& race) {
  const SampledCall call = checked_call(a);
  const DeviceScope scope(a.x);
  return answer(a, call, make_result(a, call), race);
}

std::string race_text(const std::string& text, const Tensor& crow, const Tensor& col,
                      const std::string& selector) {
  std::string why;
  const std::optional<Problem> problem = parse_problem(text, &why);
  if (!problem) refuse("not a problem: " + why);
  const DeviceScope scope(crow);
  Bound bound = bind_problem(*problem, crow, col);
  bound.call.launch.device = bound.device;
  const auto entrants = entrants_of(bound, selector);
  if (entrants.empty()) refuse("no variant can compute this problem on " + bound.device->name);
  RaceOptions options = options_by(settings());
  options.family = selector;
  add_pieces(bound, entrants);
  const auto record = race_if_unknown(bound.call.problem, *bound.device, bound.call.launch,
                                      entrants, std::move(options));
  used_by_race(bound);
  return record ? to_text(*record) : "";
}

}  // namespace sparse_autotune
