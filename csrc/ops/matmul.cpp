#include "ops/matmul.h"

#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>

#include <algorithm>
#include <sstream>

#include "autotune/device.h"
#include "autotune/registry.h"
#include "autotune/settings.h"
#include "autotune/signature.h"
#include "autotune/tuner.h"
#include "plan/plan_cache.h"

namespace sparse_autotune {
namespace {

constexpr int64_t kAlignment = 256;  // of workspace and prepared copies

// The plan of a pattern. Null while capturing a graph with a pattern never seen before: building
// one would synchronise.
std::shared_ptr<Plan> find_plan(const PatternKey& key, const Tensor& crow, const Tensor& col,
                                void* stream, const Parallel& parallel, bool is_capturing) {
  PlanCache& cache = PlanCache::instance();
  const auto versions = versions_of(crow, col);
  std::shared_ptr<Plan> plan = cache.find(key);
  if (plan != nullptr && plan->versions() == versions) return plan;
  if (is_capturing) return nullptr;
  PatternFacts facts;
  if (key.ordinal < 0) {
    facts = check_pattern(key, parallel);
  } else {
    const Status status = check_pattern_cuda(key, stream, &facts);
    if (!status) refuse(status.message());
  }
  if (facts.faults != 0) refuse(describe_faults(facts.faults));
  auto owner = std::make_shared<std::pair<Tensor, Tensor>>(alias_of(crow), alias_of(col));
  plan = std::make_shared<Plan>(key, facts, versions, std::move(owner));
  cache.insert(plan);
  return plan;
}

// Everything that a launch of this product needs but the variant.
struct Bound {
  Product product;
  const Device* device = nullptr;
  std::shared_ptr<Plan> plan;
  bool is_capturing = false;
  uint64_t generation = 0;
};

bool is_empty(const Problem& p) { return p.m == 0 || p.n == 0 || p.batch == 0; }

void complete(Bound& bound) {
  Problem& p = bound.product.problem;
  Launch& l = bound.product.launch;
  const Tensor& crow = bound.product.kept_alive[1];
  const Tensor& col = bound.product.kept_alive[2];
  bound.generation = settings_generation();
  if (p.device == DeviceType::kCuda) {
    bound.device = &cuda_device(crow.get_device_index());
    l.stream = current_stream(crow.get_device_index());
    bound.is_capturing = capturing(l.stream);
  } else {
    l.parallel = torch_parallel();
    bound.generation = decision_generation(bound.generation, l.parallel.threads);
    bound.device = &cpu_device(l.parallel.threads);
  }
  bound.plan =
      find_plan(bound.product.pattern, crow, col, l.stream, l.parallel, bound.is_capturing);
  if (bound.plan != nullptr) p.longest_row = bound.plan->facts().longest_row;
}

std::string selector_of(const MatmulArguments& a) {
  if (!a.variant.has_value()) return forced_variant();
  if (a.variant->empty()) refuse("variant must be a name");
  return *a.variant;
}

// `forced` is the selector; empty leaves the choice to the tuner.
Decision decide(Bound& bound, const std::string& forced) {
  const Problem& p = bound.product.problem;
  bound.product.launch.device = bound.device;
  const Choice choice = choose(p, *bound.device, bound.product.launch, forced, bound.is_capturing);
  if (choice.variant == nullptr) refuse(choice.error);
  const Decision decision{choice.variant, choice.variant->workspace_bytes(p, *bound.device),
                          choice.variant->prepared_bytes(p, *bound.device)};
  if (choice.final && forced.empty() && bound.plan != nullptr) {
    bound.plan->remember(p, bound.generation, decision);
  }
  return decision;
}

// The frozen copy for this launch, made on first use; null where none may be kept.
std::shared_ptr<FrozenCopy> frozen_copy(Bound& bound, const Decision& d, Launch& l) {
  const Problem& p = bound.product.problem;
  if (!p.frozen || d.prepared_bytes == 0 || bound.plan == nullptr) return nullptr;
  if (auto copy = bound.plan->find_copy(l.values, d.variant, p)) return copy;
  if (bound.is_capturing || frozen_bytes() + d.prepared_bytes > settings().frozen_bytes) {
    return nullptr;
  }
  Status status = Status::ok();
  auto copy =
      make_frozen_copy(*bound.device, d.prepared_bytes, l.stream,
                       std::make_shared<Tensor>(alias_of(bound.product.kept_alive[0])), &status);
  if (copy == nullptr) return nullptr;  // no memory: converted with every launch instead
  l.prepared = copy->data();
  status = d.variant->prepare(p, l);
  if (status) status = wait_for_copy(*bound.device, l.stream);
  if (!status) refuse(std::string(d.variant->name()) + ": " + status.message());
  bound.plan->remember_copy(l.values, d.variant, p, copy);
  return copy;
}

void launch(Bound& bound, const Decision& d) {
  const Problem& p = bound.product.problem;
  Launch l = bound.product.launch;
  l.device = bound.device;
  const auto copy = frozen_copy(bound, d, l);
  const int64_t scratch = ceil_div(d.workspace_bytes, kAlignment) * kAlignment;
  const int64_t bytes = scratch + (copy == nullptr ? d.prepared_bytes : 0);
  std::optional<Tensor> workspace;
  if (bytes > 0) {
    workspace = empty_bytes(bound.product.kept_alive[0], bytes + kAlignment);
    const auto address = reinterpret_cast<uintptr_t>(workspace->data_ptr());
    l.workspace =
        reinterpret_cast<void*>(ceil_div(static_cast<int64_t>(address), kAlignment) * kAlignment);
  }
  Status status = Status::ok();
  if (copy != nullptr) {
    l.prepared = copy->data();
  } else if (d.prepared_bytes > 0) {
    l.prepared = static_cast<char*>(l.workspace) + scratch;
    status = d.variant->prepare(p, l);
  }
  // One launch for each combination of the leading dimensions that fold into nothing.
  std::vector<int64_t> at(bound.product.outer.size(), 0);
  const char* b = static_cast<const char*>(l.b);
  char* c = static_cast<char*>(l.c);
  for (bool more = true; more && status;) {
    int64_t b_offset = 0, c_offset = 0;
    for (size_t i = 0; i < at.size(); ++i) {
      b_offset += at[i] * bound.product.outer[i].b_stride;
      c_offset += at[i] * bound.product.outer[i].c_stride;
    }
    l.b = b + b_offset * size_of(p.dtype);
    l.c = c + c_offset * size_of(p.dtype);
    status = d.variant->launch(p, l);
    more = false;
    for (size_t i = 0; i < at.size() && !more; ++i) {
      more = ++at[i] < bound.product.outer[i].size;
      if (!more) at[i] = 0;
    }
  }
  if (copy != nullptr) copy->used_by(l.stream);
  if (!status) {
    refuse(std::string(d.variant->name()) + " failed on " + describe(p) + ": " + status.message());
  }
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

Tensor make_result(const MatmulArguments& a, const std::vector<int64_t>& sizes) {
  const std::vector<int64_t> strides = contiguous_strides(sizes);
  return empty_strided(a.values, sizes.data(), strides.data(), static_cast<int64_t>(sizes.size()));
}

// nullopt: nothing to launch, `result` is written already (or has no elements).
std::optional<Bound> bind(const MatmulArguments& a, const Tensor& result) {
  auto product = bind_product(a, result);
  if (!product) refuse("a result with neither contiguous rows nor contiguous columns");
  if (is_empty(product->problem)) return std::nullopt;
  Bound bound{.product = std::move(*product)};
  complete(bound);
  if (bound.product.problem.nnzb == 0) {  // also where k is 0
    write_without_blocks(a, result);
    return std::nullopt;
  }
  return bound;
}

void run(const MatmulArguments& a, const Tensor& result) {
  std::optional<Bound> bound = bind(a, result);
  if (!bound) return;
  const std::string forced = selector_of(a);
  std::optional<Decision> decision;
  if (forced.empty() && bound->plan != nullptr) {
    decision = bound->plan->find(bound->product.problem, bound->generation);
  }
  if (!decision) decision = decide(*bound, forced);
  launch(*bound, *decision);
}

// First and one-past-last byte that a tensor's elements touch.
std::pair<uintptr_t, uintptr_t> extent(const Tensor& t) {
  const auto begin = reinterpret_cast<uintptr_t>(t.data_ptr());
  if (t.numel() == 0) return {begin, begin};
  int64_t last = 0;
  for (int64_t d = 0; d < t.dim(); ++d) last += (t.size(d) - 1) * t.stride(d);
  return {begin, begin + static_cast<uintptr_t>(last + 1) * t.element_size()};
}

void check_out(const MatmulArguments& a, const Tensor& out, const std::vector<int64_t>& sizes) {
  bool same = out.dim() == static_cast<int64_t>(sizes.size());
  for (size_t d = 0; same && d < sizes.size(); ++d) {
    same = out.size(static_cast<int64_t>(d)) == sizes[d];
  }
  if (!same) refuse("out must have the shape of the product; it is never resized");
  int32_t wanted = 0, given = 0;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_dtype(a.values.get(), &wanted));
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_dtype(out.get(), &given));
  if (wanted != given) refuse("out must have the dtype of values");
  if (out.is_cpu() != a.values.is_cpu() ||
      (!out.is_cpu() && out.get_device_index() != a.values.get_device_index())) {
    refuse("out must be on the device of values");
  }
  // Elements of `out` must be apart: sorted by stride, each dimension steps over the one below.
  std::vector<std::pair<int64_t, int64_t>> steps;
  for (int64_t d = 0; d < out.dim(); ++d) {
    if (out.size(d) > 1) steps.emplace_back(out.stride(d), out.size(d));
  }
  std::sort(steps.begin(), steps.end());
  int64_t reach = 1;
  for (const auto& [stride, size] : steps) {
    if (stride < reach) refuse("out must not overlap itself");
    reach = stride * (size - 1) + reach;
  }
  const auto [begin, end] = extent(out);
  const auto apart = [&, begin = begin, end = end](const Tensor& input) {
    const auto [first, last] = extent(input);
    if (begin < last && first < end) refuse("out must not overlap an input");
  };
  apart(a.crow_indices);
  apart(a.col_indices);
  apart(a.values);
  apart(a.dense);
  if (a.bias.has_value()) apart(*a.bias);
}

std::vector<const Variant*> entrants_of(const Bound& bound, const std::string& list) {
  if (list.empty()) return legal_variants(bound.product.problem, *bound.device);
  std::vector<const Variant*> found;
  std::istringstream names(list);
  for (std::string name; std::getline(names, name, ',');) {
    const auto selected = select_variants(name, bound.product.problem.device);
    if (selected.empty()) refuse("variants: no variant or family is named '" + name + "'");
    for (const Variant* v : selected) {
      const Support support = legal(*v, bound.product.problem, *bound.device);
      // Of a family, those that are legal; who is named in full must be.
      if (!support && v->name() == name) refuse(name + " is not legal here: " + support.reason());
      if (support && std::find(found.begin(), found.end(), v) == found.end()) found.push_back(v);
    }
  }
  if (found.empty()) refuse("variants: none of " + list + " is legal here");
  return found;
}

}  // namespace

Tensor matmul(const MatmulArguments& a) {
  const std::vector<int64_t> sizes = result_sizes(a);
  const DeviceScope scope(a.values);
  const Tensor result = make_result(a, sizes);
  run(a, result);
  return result;
}

void matmul_out(const MatmulArguments& a, const Tensor& out) {
  const std::vector<int64_t> sizes = result_sizes(a);
  check_out(a, out, sizes);
  const DeviceScope scope(a.values);
  if (bind_product(a, out)) {
    run(a, out);
    return;
  }
  const Tensor contiguous = make_result(a, sizes);
  run(a, contiguous);
  Tensor target = out;
  torch::stable::copy_(target, contiguous);
}

std::string race_text(const MatmulArguments& a, const RaceArguments& race) {
  const std::vector<int64_t> sizes = result_sizes(a);
  if (race.out.has_value()) check_out(a, *race.out, sizes);
  const DeviceScope scope(a.values);
  if (a.values.size(0) == 0) return "";  // bind() would write the result
  // matmul_out() too turns to a contiguous result where no variant can write into `out`.
  const bool direct = race.out.has_value() && bind_product(a, *race.out).has_value();
  const Tensor result = direct ? *race.out : make_result(a, sizes);
  std::optional<Bound> bound = bind(a, result);
  if (!bound) return "";
  if (bound->is_capturing) refuse("a race cannot run while a CUDA graph is being captured");
  bound->product.launch.device = bound->device;
  RaceOptions options;
  const Settings current = settings();
  options.budget_s = race.budget_s > 0 ? race.budget_s : current.budget_s;
  options.rounds = static_cast<int>(race.rounds);
  options.eliminate = race.eliminate;
  options.timing = current.timing;
  options.tuning_bytes = current.tuning_bytes;
  const Record record =
      race_now(bound->product.problem, *bound->device, bound->product.launch,
               entrants_of(*bound, race.variants.value_or("")), options, race.save);
  return to_text(record);
}

std::string legality_text(const MatmulArguments& a) {
  const DeviceScope scope(a.values);
  const Tensor result = make_result(a, result_sizes(a));
  auto product = bind_product(a, result);
  if (!product) refuse("a result with neither contiguous rows nor contiguous columns");
  Bound bound{.product = std::move(*product)};
  if (!is_empty(bound.product.problem) && bound.product.problem.nnzb > 0) complete(bound);
  if (a.values.is_cpu()) {
    bound.device = &cpu_device(torch_parallel().threads);
  } else {
    bound.device = &cuda_device(a.values.get_device_index());
  }
  std::string text;
  for (const Variant* v : all_variants()) {
    if (v->device() != bound.product.problem.device) continue;
    const Support support = legal(*v, bound.product.problem, *bound.device);
    text +=
        std::string(v->name()) + (support ? "\tok" : "\tunsupported\t" + support.reason()) + "\n";
  }
  return text;
}

void prepare_pattern(const Tensor& crow, const Tensor& col, int64_t block_rows,
                     int64_t block_cols) {
  if (crow.dim() != 1 || col.dim() != 1 || !crow.is_contiguous() || !col.is_contiguous() ||
      crow.size(0) != block_rows + 1) {
    refuse("crow_indices must be a contiguous vector with block_rows + 1 entries");
  }
  int32_t crow_type = 0, col_type = 0;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_dtype(crow.get(), &crow_type));
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_dtype(col.get(), &col_type));
  if (crow_type != col_type || (crow_type != torch_dtype(IndexType::kInt32) &&
                                crow_type != torch_dtype(IndexType::kInt64))) {
    refuse("indices must share one dtype, int32 or int64");
  }
  if (crow.is_cpu() != col.is_cpu()) refuse("indices must be on one device");
  if (col.size(0) == 0 || block_rows == 0) return;
  const DeviceScope scope(crow);
  PatternKey key{};
  key.crow_indices = crow.data_ptr();
  key.col_indices = col.data_ptr();
  key.nnzb = col.size(0);
  key.block_rows = block_rows;
  key.block_cols = block_cols;
  key.ordinal = crow.is_cpu() ? -1 : crow.get_device_index();
  key.index_type =
      crow_type == torch_dtype(IndexType::kInt64) ? IndexType::kInt64 : IndexType::kInt32;
  void* stream = crow.is_cpu() ? nullptr : current_stream(key.ordinal);
  if (stream != nullptr && capturing(stream)) {
    refuse("a plan cannot be built while a CUDA graph is being captured");
  }
  find_plan(key, crow, col, stream, torch_parallel(), false);
}

}  // namespace sparse_autotune
