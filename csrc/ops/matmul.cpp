#include "ops/matmul.h"

#include <torch/csrc/stable/ops.h>

#include "autotune/registry.h"
#include "autotune/settings.h"
#include "autotune/signature.h"
#include "autotune/tuner.h"
#include "ops/pattern_pieces.h"
#include "ops/scratch.h"

namespace sparse_autotune {
namespace {

std::string selector_of(const std::optional<std::string>& variant, Op op) {
  if (variant.has_value()) {
    if (variant->empty()) refuse("variant must be a name");
    return *variant;
  }
  // A setting that forces a variant is about the operation that it computes.
  const std::string forced = forced_variant();
  return forced.empty() || serves(forced, op) ? forced : "";
}

// `forced` is the selector; empty leaves the choice to the tuner.
Decision decide(Bound& bound, const std::string& forced) {
  bound.product.launch.device = bound.device;
  const Choice choice =
      choose(bound.product.problem, *bound.device, bound.product.launch, forced, bound.is_capturing,
             [&](const std::vector<const Variant*>& entrants) { add_pieces(bound, entrants); });
  if (choice.variant == nullptr) refuse(choice.error);
  add_pieces(bound, {choice.variant});
  const Decision decision = decision_for(bound, *choice.variant);
  // Behind a capture what could not be built in it will be.
  const bool final = choice.final && (decision.is_complete() || !bound.is_capturing);
  if (final && forced.empty() && bound.plan != nullptr) {
    bound.plan->remember(bound.product.problem, bound.generation, decision);
  }
  return decision;
}

// The frozen copy for this launch, made on first use; null where none may be kept.
std::shared_ptr<KeptMemory> frozen_copy(Bound& bound, const Decision& d, Launch& l) {
  const Problem& p = bound.product.problem;
  if (!p.frozen || d.prepared_bytes == 0 || bound.plan == nullptr) return nullptr;
  if (!bound.plan->knows_pattern()) return nullptr;
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
  if (status) status = wait_until_filled(*bound.device, l.stream);
  if (!status) refuse(std::string(d.variant->name()) + ": " + status.message());
  bound.plan->remember_copy(l.values, d.variant, p, copy);
  return copy;
}

// One launch for each combination of the leading dimensions that fold into nothing.
Status launch_each(const Variant& variant, const Product& product, Launch l) {
  const int64_t item = size_of(product.problem.dtype);
  std::vector<int64_t> at(product.outer.size(), 0);
  const char* b = static_cast<const char*>(l.b);
  char* c = static_cast<char*>(l.c);
  for (bool more = true; more;) {
    int64_t b_offset = 0, c_offset = 0;
    for (size_t i = 0; i < at.size(); ++i) {
      b_offset += at[i] * product.outer[i].b_stride;
      c_offset += at[i] * product.outer[i].c_stride;
    }
    l.b = b + b_offset * item;
    l.c = c + c_offset * item;
    if (Status status = variant.launch(product.problem, l); !status) return status;
    more = false;
    for (size_t i = 0; i < at.size() && !more; ++i) {
      more = ++at[i] < product.outer[i].size;
      if (!more) at[i] = 0;
    }
  }
  return Status::ok();
}

void launch(Bound& bound, const Decision& d) {
  const Problem& p = bound.product.problem;
  Launch l = bound.product.launch;
  l.device = bound.device;
  d.complete(&l);
  const auto copy = frozen_copy(bound, d, l);
  const ScratchLayout layout(d.workspace_bytes, copy == nullptr ? d.prepared_bytes : 0);
  std::optional<Tensor> allocated;
  if (layout.bytes() > 0) {
    void* memory = p.device == DeviceType::kCpu ? cpu_scratch(layout.bytes()) : nullptr;
    if (memory == nullptr) {
      allocated = empty_bytes(bound.product.kept_alive[0], layout.bytes_anywhere());
      memory = ScratchLayout::aligned(allocated->data_ptr());
    }
    layout.put(memory, &l);
  }
  Status status = Status::ok();
  if (copy != nullptr) {
    l.prepared = copy->data();
  } else if (d.prepared_bytes > 0) {
    status = d.variant->prepare(p, l);
  }
  if (status) status = launch_each(*d.variant, bound.product, l);
  if (copy != nullptr) copy->used_by(l.stream);
  d.used_by(l.stream);
  if (bound.transposed != nullptr) bound.transposed->used_by(l.stream);
  if (!status) {
    refuse(std::string(d.variant->name()) + " failed on " + describe(p) + ": " + status.message());
  }
}

void run(const MatmulArguments& a, const Tensor& result) {
  if (std::optional<Bound> bound = bind(a, result)) serve(*bound, a.variant);
}

}  // namespace

void serve(Bound& bound, const std::optional<std::string>& variant) {
  const std::string forced = selector_of(variant, bound.product.problem.op);
  std::optional<Decision> decision;
  if (forced.empty() && bound.plan != nullptr) {
    decision = bound.plan->find(bound.product.problem, bound.generation);
  }
  if (!decision) decision = decide(bound, forced);
  launch(bound, *decision);
}

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

}  // namespace sparse_autotune
