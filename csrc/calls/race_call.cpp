#include "calls/race_call.h"

#include <algorithm>
#include <optional>
#include <sstream>
#include <utility>
#include <vector>

#include "autotune/registry.h"
#include "autotune/settings.h"
#include "autotune/tuner.h"
#include "calls/pattern_pieces.h"
#include "operators/product/product_operator.h"

namespace sparse_autotune {
namespace {

// The race's last launches may still be running.
void used_by_race(const Bound& bound) {
  Status used = all_used_by(bound.call.launch.stream, {bound.transposed.get()});
  for (const auto& piece : bound.pieces) {
    Status status = all_used_by(bound.call.launch.stream, {piece.get()});
    if (used) used = std::move(status);
  }
  if (!used) refuse(used.message(), Fault::kLaunch);
}

}  // namespace

std::vector<const AnyVariant*> entrants_of(AnyProblem problem, const Device& device,
                                           const std::string& list) {
  if (list.empty()) return legal_variants(problem, device);
  std::vector<const AnyVariant*> found;
  std::istringstream names(list);
  for (std::string name; std::getline(names, name, ',');) {
    const auto selected = select_variants(name, device.type);
    if (selected.empty()) {
      refuse("variants: no variant or family is named '" + name + "'", Fault::kVariant);
    }
    for (const AnyVariant* v : selected) {
      const Support support = legal(*v, problem, device);
      // Of a family, those that are legal; who is named in full must be.
      if (!support && v->name() == name) {
        refuse(name + " is not legal here: " + support.reason(), Fault::kVariant);
      }
      if (support && std::find(found.begin(), found.end(), v) == found.end()) found.push_back(v);
    }
  }
  if (found.empty()) refuse("variants: none of " + list + " is legal here", Fault::kVariant);
  return found;
}

RaceOptions options_of(const RaceOrder& order) {
  RaceOptions options = options_of(settings(), "");
  if (order.budget_s > 0) options.budget_s = order.budget_s;
  options.rounds = static_cast<int>(order.rounds);
  options.eliminate = order.eliminate;
  return options;
}

std::string race_bound(Bound& bound, const RaceOrder& order) {
  if (bound.is_capturing) refuse("a race cannot run while a CUDA graph is being captured");
  RaceOptions options = options_of(order);
  const auto entrants = entrants_of(bound.call.problem, *bound.device, order.variants);
  add_pieces(bound, entrants);
  const Record record =
      race_now(bound.call.problem, *bound.device, bound.call.launch, entrants, options, order.save);
  used_by_race(bound);
  return to_text(record);
}

std::string race_problem(const std::string& text, const TensorView& crow_indices,
                         const TensorView& col_indices, const std::string& selector,
                         Caller& caller) {
  std::string why;
  const std::optional<Problem> problem = parse_product(text, &why);
  if (!problem) refuse("not a problem: " + why);
  Bound bound = bind_problem(*problem, crow_indices, col_indices, caller);
  const auto entrants = entrants_of(bound.call.problem, *bound.device, selector);
  if (entrants.empty()) {
    refuse("no variant can compute this problem on " + bound.device->name, Fault::kVariant);
  }
  RaceOptions options = options_of(settings(), selector);
  add_pieces(bound, entrants);
  const auto record = race_if_unknown(bound.call.problem, *bound.device, bound.call.launch,
                                      entrants, std::move(options));
  used_by_race(bound);
  return record ? to_text(*record) : "";
}

std::string legality_of(AnyProblem problem, const Device& device) {
  std::string text;
  for (const AnyVariant* v : all_variants()) {
    if (v->device() != device.type || &v->op() != &problem.op()) continue;
    const Support support = legal(*v, problem, device);
    text +=
        std::string(v->name()) + (support ? "\tok" : "\tunsupported\t" + support.reason()) + "\n";
  }
  return text;
}

}  // namespace sparse_autotune
