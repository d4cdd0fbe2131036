#include "calls/bound.h"

#include <utility>

#include "autotune/device.h"
#include "autotune/registry.h"
#include "autotune/settings.h"
#include "calls/write_without_blocks.h"
#include "plan/current_device.h"
#include "plan/plan_cache.h"
#include "plan/transpose.h"

namespace sparse_autotune {
namespace {

// Refuses a pattern that breaks a rule of BSR.
PatternFacts facts_of(const PatternKey& key, void* stream, const Parallel& parallel) {
  PatternFacts facts;
  if (key.ordinal < 0) {
    facts = check_pattern(key, parallel);
  } else {
    const Status status = check_pattern_cuda(key, stream, &facts);
    if (!status) refuse(status.message(), Fault::kLaunch);
  }
  if (facts.faults != 0) refuse(describe_faults(facts.faults), Fault::kPattern);
  return facts;
}

void add_device(Bound& bound) {
  Launch& l = bound.call.launch;
  bound.generation = settings_generation();
  if (bound.call.problem.device == DeviceType::kCuda) {
    const int ordinal = bound.call.pattern.ordinal;
    bound.device = &cuda_device(ordinal);
    l.stream = bound.caller->stream(ordinal);
    bound.is_capturing = capturing(l.stream);
  } else {
    l.parallel = bound.caller->parallel();
    bound.generation = decision_generation(bound.generation, l.parallel.threads);
    bound.device = &cpu_device(l.parallel.threads);
  }
  l.device = bound.device;
}

// The plan of A^T, made on first use; empty while capturing, where it cannot be made, and where it
// would outlast the pattern.
Plan::Transposed find_transposed(Bound& bound) {
  if (!bound.plan->knows_pattern()) return {};
  Plan::Transposed found = bound.plan->transposed();
  if (found.plan != nullptr || bound.is_capturing) return found;
  const PatternKey& key = bound.plan->key();
  const Launch& l = bound.call.launch;
  Status status = Status::ok();
  found.memory = make_pattern_memory(*bound.device, transposed_bytes(key), l.stream, &status);
  if (found.memory == nullptr) {
    refuse("no memory for a transposed pattern: " + status.message(), Fault::kMemory);
  }
  const TransposedPattern pattern = transposed_at(key, found.memory->data());
  const PatternKey transposed = key_of_transposed(key, pattern);
  PatternFacts facts;
  if (key.ordinal < 0) {
    transpose_pattern(key, pattern);
    facts = check_pattern(transposed, l.parallel);
  } else {
    void* const scratch = bound.caller->allocate(transposing_scratch_bytes(key));
    status = transpose_pattern_cuda(key, l.stream, pattern, scratch);
    if (status) status = check_pattern_cuda(transposed, l.stream, &facts);
    if (!status) {
      // What was enqueued before the failure may still write the memory.
      static_cast<void>(found.memory->filled_by(l.stream));
      refuse(status.message(), Fault::kLaunch);
    }
  }
  found.plan = std::make_shared<Plan>(transposed, facts, bound.plan->versions(), found.memory);
  bound.plan->remember_transposed(found);
  return found;
}

// Where no plan of A^T can be kept: a graph being captured cannot wait for one to be made, so that
// it transposes the pattern itself, each time it runs.
void transpose_each_time(Bound& bound) {
  const PatternKey& key = bound.call.pattern;
  const int64_t bytes = transposed_bytes(key);
  void* const memory = bound.caller->allocate(bytes + transposing_scratch_bytes(key));
  const TransposedPattern pattern = transposed_at(key, memory);
  const Status status = transpose_pattern_cuda(key, bound.call.launch.stream, pattern,
                                               static_cast<char*>(memory) + bytes);
  if (!status) refuse(status.message(), Fault::kLaunch);
  set_pattern(pattern, &bound.call.launch);
}

// From here on the plan is that of op(A)'s pattern, or of one not known.
void add_transposed(Bound& bound) {
  const Plan::Transposed found =
      bound.plan == nullptr ? Plan::Transposed{} : find_transposed(bound);
  if (bound.plan != nullptr && bound.plan->knows_pattern()) bound.plan = found.plan;
  bound.transposed = found.memory;
  if (found.plan == nullptr) return transpose_each_time(bound);
  set_pattern(transposed_at(bound.call.pattern, found.memory->data()), &bound.call.launch);
}

// Null while capturing a graph with a pattern never seen before: building a plan would synchronise.
std::shared_ptr<Plan> plan_of(const PatternKey& key, Caller& caller, void* stream,
                              const Parallel& parallel, bool is_capturing) {
  PlanCache& cache = PlanCache::instance();
  const bool lasting = cache.lasts(key);
  std::shared_ptr<Plan> plan = cache.find(key);
  constexpr std::array<int64_t, 2> kUnknown = {-1, -1};
  const auto versions = caller.versions(plan == nullptr ? kUnknown : plan->versions());
  if (plan != nullptr && plan->knows_pattern() == lasting && plan->describes(versions, parallel)) {
    return plan;
  }
  if (is_capturing) return nullptr;
  PatternFacts facts = facts_of(key, stream, parallel);
  PatternFingerprint fingerprint;
  if (key.ordinal < 0) fingerprint = PatternFingerprint(key, parallel);
  if (!lasting) facts = {.longest_row = -1};
  plan = std::make_shared<Plan>(key, facts, versions, caller.own_indices(), std::move(fingerprint));
  cache.insert(plan);
  return plan;
}

void add_plan(Bound& bound, std::shared_ptr<Plan> known) {
  const Launch& l = bound.call.launch;
  const PatternKey& key = bound.call.pattern;
  bound.plan = known != nullptr && known->key() == key
                   ? std::move(known)
                   : plan_of(key, *bound.caller, l.stream, l.parallel, bound.is_capturing);
  const Problem& p = bound.call.problem;
  if (p.transpose && p.nnzb > 0) add_transposed(bound);
  if (bound.plan != nullptr) add_facts(bound.plan->facts(), &bound.call.problem);
}

// A variant that is asked for must exist and be legal, though nothing is launched.
void check_selector(const Bound& bound, const std::optional<std::string>& variant) {
  if (!variant.has_value()) return;
  if (variant->empty()) refuse("variant must be a name");
  const auto meant = select_variants(*variant, bound.call.problem.device);
  for (const AnyVariant* v : meant) {
    if (legal(*v, bound.call.problem, *bound.device)) return;
  }
  refuse("variant '" + *variant + "' is not legal here", Fault::kVariant);
}

Bound unbound(NormalisedCall call, Caller& caller) {
  Bound bound{.call = std::move(call), .caller = &caller};
  add_device(bound);
  return bound;
}

}  // namespace

std::optional<Bound> bind_call(NormalisedCall call, const std::optional<std::string>& variant,
                               Caller& caller, std::shared_ptr<Plan> known) {
  Bound bound = unbound(std::move(call), caller);
  const bool empty = bound.call.is_empty();
  if (!empty) add_plan(bound, std::move(known));
  if (!empty && bound.call.problem.nnzb > 0) return bound;
  check_selector(bound, variant);
  const Status status = write_without_blocks(bound.call);  // also where k is 0
  if (!status) refuse(status.message(), Fault::kLaunch);
  return std::nullopt;
}

Bound bind_for_questions(NormalisedCall call, Caller& caller, std::shared_ptr<Plan> known) {
  Bound bound = unbound(std::move(call), caller);
  if (!bound.call.is_empty() && bound.call.problem.nnzb > 0) add_plan(bound, std::move(known));
  return bound;
}

Bound bind_problem(const Problem& p, const TensorView& crow, const TensorView& col,
                   Caller& caller) {
  const PatternCall pattern = p.transpose ? PatternCall{crow, col, p.k, p.m, p.block_k, p.block_m}
                                          : PatternCall{crow, col, p.m, p.k, p.block_m, p.block_k};
  if (const char* rule = broken_rule(pattern)) refuse(rule);
  const PatternKey key = key_of(pattern);
  if (key.nnzb != p.nnzb || key.index_type != p.index_type ||
      (key.ordinal < 0) != (p.device == DeviceType::kCpu)) {
    refuse("the pattern is not that of the problem");
  }
  Bound bound = unbound({.problem = p, .pattern = key}, caller);
  if (bound.is_capturing) refuse("a race cannot run while a CUDA graph is being captured");
  Launch& l = bound.call.launch;
  l.crow_indices = key.crow_indices;
  l.col_indices = key.col_indices;
  bound.plan = std::make_shared<Plan>(key, facts_of(key, l.stream, l.parallel),
                                      std::array<int64_t, 2>{-1, -1}, caller.own_indices());
  if (p.transpose) add_transposed(bound);
  // Where the recorded product could not know its rows, neither do its variants here.
  add_facts(p.longest_row < 0 ? PatternFacts{.longest_row = -1} : bound.plan->facts(),
            &bound.call.problem);
  return bound;
}

std::shared_ptr<Plan> find_plan(const PatternKey& key, Caller& caller) {
  void* const stream = key.ordinal < 0 ? nullptr : caller.stream(key.ordinal);
  const Parallel parallel = key.ordinal < 0 ? caller.parallel() : Parallel{};
  return plan_of(key, caller, stream, parallel, capturing(stream));
}

}  // namespace sparse_autotune
