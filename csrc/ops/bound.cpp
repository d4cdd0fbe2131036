#include "ops/bound.h"

#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/ops.h>

#include <algorithm>
#include <string>

#include "autotune/device.h"
#include "autotune/registry.h"
#include "autotune/settings.h"
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
    if (!status) refuse(status.message());
  }
  if (facts.faults != 0) refuse(describe_faults(facts.faults));
  return facts;
}

// The plan of a pattern. Null while capturing a graph with a pattern never seen before: building
// one would synchronise.
std::shared_ptr<Plan> find_plan(const PatternKey& key, const Tensor& crow, const Tensor& col,
                                void* stream, const Parallel& parallel, bool is_capturing) {
  PlanCache& cache = PlanCache::instance();
  const bool lasting = cache.lasts(key);
  std::shared_ptr<Plan> plan = cache.find(key);
  constexpr std::array<int64_t, 2> kUnknown = {-1, -1};
  const auto versions = versions_of(crow, col, plan == nullptr ? kUnknown : plan->versions());
  if (plan != nullptr && plan->knows_pattern() == lasting && plan->describes(versions, parallel)) {
    return plan;
  }
  if (is_capturing) return nullptr;
  PatternFacts facts = facts_of(key, stream, parallel);
  PatternFingerprint fingerprint;
  if (key.ordinal < 0) fingerprint = PatternFingerprint(key, parallel);
  if (!lasting) facts = {.longest_row = -1};
  auto owner = std::make_shared<std::pair<Tensor, Tensor>>(alias_of(crow), alias_of(col));
  plan = std::make_shared<Plan>(key, facts, versions, std::move(owner), std::move(fingerprint));
  cache.insert(plan);
  return plan;
}

void add_device(Bound& bound) {
  Launch& l = bound.call.launch;
  bound.generation = settings_generation();
  if (bound.call.problem.device == DeviceType::kCuda) {
    const int ordinal = bound.call.pattern.ordinal;
    bound.device = &cuda_device(ordinal);
    l.stream = current_stream(ordinal);
    bound.is_capturing = capturing(l.stream);
  } else {
    l.parallel = torch_parallel();
    bound.generation = decision_generation(bound.generation, l.parallel.threads);
    bound.device = &cpu_device(l.parallel.threads);
  }
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
  if (found.memory == nullptr) refuse("no memory for a transposed pattern: " + status.message());
  const TransposedPattern pattern = transposed_at(key, found.memory->data());
  const PatternKey transposed = key_of_transposed(key, pattern);
  PatternFacts facts;
  if (key.ordinal < 0) {
    transpose_pattern(key, pattern);
    facts = check_pattern(transposed, l.parallel);
  } else {
    const Tensor scratch = empty_bytes(bound.operand, transposing_scratch_bytes(key));
    status = transpose_pattern_cuda(key, l.stream, pattern, scratch.data_ptr());
    if (status) status = check_pattern_cuda(transposed, l.stream, &facts);
    if (!status) {
      // What was enqueued before the failure may still write the memory.
      static_cast<void>(found.memory->filled_by(l.stream));
      refuse(status.message());
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
  const Tensor memory = empty_bytes(bound.operand, bytes + transposing_scratch_bytes(key));
  bound.kept_alive.push_back(memory);
  const TransposedPattern pattern = transposed_at(key, memory.data_ptr());
  const Status status = transpose_pattern_cuda(key, bound.call.launch.stream, pattern,
                                               static_cast<char*>(memory.data_ptr()) + bytes);
  if (!status) refuse(status.message());
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

void add_plan(Bound& bound, std::shared_ptr<Plan> known) {
  const Launch& l = bound.call.launch;
  const PatternKey& key = bound.call.pattern;
  bound.plan = known != nullptr && known->key() == key
                   ? std::move(known)
                   : find_plan(key, bound.crow_indices, bound.col_indices, l.stream, l.parallel,
                               bound.is_capturing);
  bound.plan_of_pattern = bound.plan;
  const Problem& p = bound.call.problem;
  if (p.transpose && p.nnzb > 0) add_transposed(bound);
  if (bound.plan != nullptr) add_facts(bound.plan->facts(), &bound.call.problem);
}

// A variant that is asked for must exist and be legal, though nothing is launched.
void check_selector(const Bound& bound, const std::optional<std::string>& variant) {
  if (!variant.has_value()) return;
  if (variant->empty()) refuse("variant must be a name");
  const auto meant = select_variants(*variant, bound.call.problem.device);
  for (const Variant* v : meant) {
    if (legal(*v, bound.call.problem, *bound.device)) return;
  }
  refuse("variant '" + *variant + "' is not legal here");
}

// What an operation over no stored block gives, by torch alone: no values, or activation(bias).
void write_without_blocks(const SampledArguments&, Tensor out) { torch::stable::zero_(out); }
void write_without_blocks(const MatmulArguments& a, Tensor out) {
  if (a.bias.has_value()) {
    const bool column = !a.sparse_right && a.dense.dim() > 1;
    torch::stable::copy_(out, column ? torch::stable::unsqueeze(*a.bias, -1) : *a.bias);
  } else {
    torch::stable::zero_(out);
  }
  switch (static_cast<Activation>(a.activation)) {
    case Activation::kNone:
      break;
    case Activation::kRelu:
      call_torch<Tensor>("aten::relu_", "", out);
      break;
    case Activation::kSilu:
      call_torch<Tensor>("aten::silu_", "", out);
      break;
    case Activation::kGelu:
      call_torch<Tensor>("aten::gelu_", "", out, std::string("none"));
      break;
    case Activation::kGeluTanh:
      call_torch<Tensor>("aten::gelu_", "", out, std::string("tanh"));
  }
}

std::vector<Tensor> others_of(const SampledArguments& a) { return {a.y}; }
std::vector<Tensor> others_of(const MatmulArguments& a) {
  return a.bias.has_value() ? std::vector<Tensor>{a.dense, *a.bias} : std::vector<Tensor>{a.dense};
}

template <typename Arguments, typename Call>
Bound unbound(Arguments a, const Call& call, const Tensor& result) {
  const TensorView written = view_of(result);
  Bound bound;
  if (const Copies copies = normalise(call, written, &bound.call); copies.any()) {
    // Neither rows nor columns contiguous: torch's own matmul copies such operands too.
    a = contiguous(std::move(a), copies);
    bound.call = {};
    if (normalise(checked_call(a), written, &bound.call).any()) {
      refuse("a result with neither contiguous rows nor contiguous columns");
    }
  }
  bound.crow_indices = a.crow_indices;
  bound.col_indices = a.col_indices;
  bound.operand = a.operand();
  bound.kept_alive = others_of(a);
  bound.kept_alive.push_back(result);
  add_device(bound);
  return bound;
}

}  // namespace

template <typename Arguments, typename Call>
std::optional<Bound> bind_call(const Arguments& a, const Call& call, const Tensor& result,
                               std::shared_ptr<Plan> known) {
  Bound bound = unbound(a, call, result);
  if (!bound.call.is_empty()) {
    add_plan(bound, std::move(known));
    if (bound.call.problem.nnzb > 0) return bound;
  }
  check_selector(bound, a.variant);
  write_without_blocks(a, result);  // also where k is 0
  return std::nullopt;
}

template <typename Arguments, typename Call>
Bound bind_for_questions(const Arguments& a, const Call& call, const Tensor& result) {
  Bound bound = unbound(a, call, result);
  if (!bound.call.is_empty() && bound.call.problem.nnzb > 0) add_plan(bound, nullptr);
  return bound;
}

#define SPARSE_AUTOTUNE_BIND(Arguments, Call)                                           \
  template std::optional<Bound> bind_call(const Arguments&, const Call&, const Tensor&, \
                                          std::shared_ptr<Plan>);                       \
  template Bound bind_for_questions(const Arguments&, const Call&, const Tensor&);
SPARSE_AUTOTUNE_BIND(MatmulArguments, MatmulCall)
SPARSE_AUTOTUNE_BIND(SampledArguments, SampledCall)
#undef SPARSE_AUTOTUNE_BIND

Bound bind_problem(const Problem& p, const Tensor& crow, const Tensor& col) {
  const PatternCall pattern =
      p.transpose ? PatternCall{view_of(crow), view_of(col), p.k, p.m, p.block_k, p.block_m}
                  : PatternCall{view_of(crow), view_of(col), p.m, p.k, p.block_m, p.block_k};
  if (const char* rule = broken_rule(pattern)) refuse(rule);
  if (!crow.is_contiguous() || !col.is_contiguous()) refuse("indices must be contiguous");
  const PatternKey key = key_of(pattern);
  if (key.nnzb != p.nnzb || key.index_type != p.index_type ||
      (key.ordinal < 0) != (p.device == DeviceType::kCpu)) {
    refuse("the pattern is not that of the problem");
  }
  Bound bound{.call = {.problem = p, .pattern = key},
              .crow_indices = crow,
              .col_indices = col,
              .operand = crow};
  bound.call.launch.crow_indices = key.crow_indices;
  bound.call.launch.col_indices = key.col_indices;
  add_device(bound);
  if (bound.is_capturing) refuse("a race cannot run while a CUDA graph is being captured");
  const Launch& l = bound.call.launch;
  auto owner = std::make_shared<std::pair<Tensor, Tensor>>(alias_of(crow), alias_of(col));
  bound.plan = std::make_shared<Plan>(key, facts_of(key, l.stream, l.parallel),
                                      std::array<int64_t, 2>{-1, -1}, std::move(owner));
  if (p.transpose) add_transposed(bound);
  // Where the recorded product could not know its rows, neither do its variants here.
  add_facts(p.longest_row < 0 ? PatternFacts{.longest_row = -1} : bound.plan->facts(),
            &bound.call.problem);
  return bound;
}

void prepare_pattern(const Tensor& crow, const Tensor& col, int64_t rows, int64_t cols,
                     int64_t block_m, int64_t block_k) {
  const PatternCall pattern{view_of(crow), view_of(col), rows, cols, block_m, block_k};
  if (const char* rule = broken_rule(pattern)) refuse(rule);
  if (!crow.is_contiguous() || !col.is_contiguous()) refuse("indices must be contiguous");
  if (col.size(0) == 0) return;
  const DeviceScope scope(crow);
  const PatternKey key = key_of(pattern);
  void* stream = crow.is_cpu() ? nullptr : current_stream(key.ordinal);
  if (stream != nullptr && capturing(stream)) {
    refuse("a plan cannot be built while a CUDA graph is being captured");
  }
  find_plan(key, crow, col, stream, torch_parallel(), false);
}

}  // namespace sparse_autotune
