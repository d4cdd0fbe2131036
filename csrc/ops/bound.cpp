#include "ops/bound.h"

#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>

#include <algorithm>
#include <string>

#include "autotune/device.h"
#include "autotune/settings.h"
#include "ops/tensor_rules.h"
#include "plan/plan_cache.h"
#include "plan/transpose.h"

namespace sparse_autotune {
namespace {

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
  PatternFacts facts;
  PatternFingerprint fingerprint;
  if (key.ordinal < 0) {
    facts = check_pattern(key, parallel);
    fingerprint = PatternFingerprint(key, parallel);
  } else {
    const Status status = check_pattern_cuda(key, stream, &facts);
    if (!status) refuse(status.message());
  }
  if (facts.faults != 0) refuse(describe_faults(facts.faults));
  if (!lasting) facts = {.longest_row = -1};
  auto owner = std::make_shared<std::pair<Tensor, Tensor>>(alias_of(crow), alias_of(col));
  plan = std::make_shared<Plan>(key, facts, versions, std::move(owner), std::move(fingerprint));
  cache.insert(plan);
  return plan;
}

bool is_empty(const Problem& p) { return p.m == 0 || p.n == 0; }

void add_device(Bound& bound) {
  Launch& l = bound.product.launch;
  bound.generation = settings_generation();
  if (bound.product.problem.device == DeviceType::kCuda) {
    const int ordinal = bound.product.pattern.ordinal;
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
  const Launch& l = bound.product.launch;
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
    const Tensor scratch = empty_bytes(bound.product.kept_alive[0], transposing_scratch_bytes(key));
    status = transpose_pattern_cuda(key, l.stream, pattern, scratch.data_ptr());
    if (status) status = check_pattern_cuda(transposed, l.stream, &facts);
    if (!status) refuse(status.message());
  }
  found.plan = std::make_shared<Plan>(transposed, facts, bound.plan->versions(), found.memory);
  bound.plan->remember_transposed(found);
  return found;
}

// Where no plan of A^T can be kept: a graph being captured cannot wait for one to be made, so that
// it transposes the pattern itself, each time it runs.
void transpose_each_time(Bound& bound) {
  const PatternKey& key = bound.product.pattern;
  const int64_t bytes = transposed_bytes(key);
  const Tensor memory =
      empty_bytes(bound.product.kept_alive[0], bytes + transposing_scratch_bytes(key));
  bound.product.kept_alive.push_back(memory);
  const TransposedPattern pattern = transposed_at(key, memory.data_ptr());
  const Status status = transpose_pattern_cuda(key, bound.product.launch.stream, pattern,
                                               static_cast<char*>(memory.data_ptr()) + bytes);
  if (!status) refuse(status.message());
  set_pattern(pattern, &bound.product.launch);
}

// From here on the plan is that of op(A)'s pattern, or of one not known.
void add_transposed(Bound& bound) {
  const Plan::Transposed found =
      bound.plan == nullptr ? Plan::Transposed{} : find_transposed(bound);
  if (bound.plan != nullptr && bound.plan->knows_pattern()) bound.plan = found.plan;
  bound.transposed = found.memory;
  if (found.plan == nullptr) return transpose_each_time(bound);
  set_pattern(transposed_at(bound.product.pattern, found.memory->data()), &bound.product.launch);
}

void add_plan(Bound& bound, std::shared_ptr<Plan> known) {
  const Launch& l = bound.product.launch;
  const PatternKey& key = bound.product.pattern;
  bound.plan = known != nullptr && known->key() == key
                   ? std::move(known)
                   : find_plan(key, bound.product.kept_alive[1], bound.product.kept_alive[2],
                               l.stream, l.parallel, bound.is_capturing);
  bound.plan_of_pattern = bound.plan;
  const Problem& p = bound.product.problem;
  if (p.transpose && p.nnzb > 0) add_transposed(bound);
  if (bound.plan != nullptr) add_facts(bound.plan->facts(), &bound.product.problem);
}

void call_in_place(const char* op, const Tensor& self) {
  StableIValue stack[1] = {torch::stable::detail::from(self)};
  TORCH_ERROR_CODE_CHECK(torch_call_dispatcher(op, "", stack, TORCH_ABI_VERSION));
  static_cast<void>(torch::stable::detail::to<Tensor>(stack[0]));
}

// A product over no stored block: activation(bias), by torch alone.
void write_without_blocks(const MatmulArguments& a, const Tensor& result) {
  Tensor out = result;
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
      call_in_place("aten::relu_", out);
      break;
    case Activation::kSilu:
      call_in_place("aten::silu_", out);
      break;
    case Activation::kGelu:
    case Activation::kGeluTanh: {
      const bool tanh_form = a.activation == static_cast<int64_t>(Activation::kGeluTanh);
      StableIValue stack[2] = {
          torch::stable::detail::from(out),
          torch::stable::detail::from(std::string(tanh_form ? "tanh" : "none"))};
      TORCH_ERROR_CODE_CHECK(torch_call_dispatcher("aten::gelu_", "", stack, TORCH_ABI_VERSION));
      static_cast<void>(torch::stable::detail::to<Tensor>(stack[0]));
    }
  }
}

std::vector<int64_t> contiguous_strides(const std::vector<int64_t>& sizes) {
  std::vector<int64_t> strides(sizes.size());
  int64_t stride = 1;
  for (size_t d = sizes.size(); d-- > 0;) {
    strides[d] = stride;
    stride *= std::max<int64_t>(sizes[d], 1);
  }
  return strides;
}

Product must_bind(const MatmulArguments& a, const Tensor& result) {
  auto product = bind_product(a, result);
  if (!product) refuse("a result with neither contiguous rows nor contiguous columns");
  return std::move(*product);
}

}  // namespace

Tensor make_result(const MatmulArguments& a, const std::vector<int64_t>& sizes) {
  const std::vector<int64_t> strides = contiguous_strides(sizes);
  return empty_strided(a.values, sizes.data(), strides.data(), static_cast<int64_t>(sizes.size()));
}

Bound bind_to_plan(Product product, bool wants_plan, std::shared_ptr<Plan> known) {
  Bound bound{.product = std::move(product)};
  add_device(bound);
  if (wants_plan) add_plan(bound, std::move(known));
  return bound;
}

std::optional<Bound> bind(const MatmulArguments& a, const Tensor& result) {
  Product product = must_bind(a, result);
  if (is_empty(product.problem)) return std::nullopt;
  Bound bound = bind_to_plan(std::move(product), true);
  if (bound.product.problem.nnzb == 0) {  // also where k is 0
    write_without_blocks(a, result);
    return std::nullopt;
  }
  return bound;
}

Bound bind_for_questions(const MatmulArguments& a, const Tensor& result) {
  Product product = must_bind(a, result);
  const bool launches = !is_empty(product.problem) && product.problem.nnzb > 0;
  return bind_to_plan(std::move(product), launches);
}

void prepare_pattern(const Tensor& crow, const Tensor& col, int64_t block_rows,
                     int64_t block_cols) {
  if (crow.dim() != 1 || col.dim() != 1 || !crow.is_contiguous() || !col.is_contiguous() ||
      crow.size(0) != block_rows + 1) {
    refuse("crow_indices must be a contiguous vector with block_rows + 1 entries");
  }
  expect(index_type(crow) == index_type(col), "indices must share one dtype");
  if (crow.is_cpu() != col.is_cpu()) refuse("indices must be on one device");
  if (col.size(0) == 0) return;
  expect(block_rows > 0, "a matrix without elements has no block");
  const DeviceScope scope(crow);
  const PatternKey key = pattern_key(crow, col, block_rows, block_cols);
  void* stream = crow.is_cpu() ? nullptr : current_stream(key.ordinal);
  if (stream != nullptr && capturing(stream)) {
    refuse("a plan cannot be built while a CUDA graph is being captured");
  }
  find_plan(key, crow, col, stream, torch_parallel(), false);
}

}  // namespace sparse_autotune
