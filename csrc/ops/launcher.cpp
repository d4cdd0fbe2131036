#include "ops/launcher.h"

#include <memory>
#include <stdexcept>
#include <string>
#include <utility>

#include "autotune/device.h"
#include "autotune/settings.h"
#include "ops/dense_layout.h"
#include "ops/scratch.h"
#include "ops/torch_runtime.h"
#include "plan/plan_cache.h"
#include "plan/transpose.h"

namespace sparse_autotune {

Launcher::Launcher(const PatternKey& pattern, int64_t rows, int64_t cols, int64_t block_m,
                   int64_t block_k, DType dtype)
    : pattern_(pattern) {
  problem_.op = Op::kMatmul;
  problem_.device = pattern.ordinal < 0 ? DeviceType::kCpu : DeviceType::kCuda;
  problem_.dtype = dtype;
  problem_.index_type = pattern.index_type;
  problem_.m = rows;
  problem_.k = cols;
  problem_.nnzb = pattern.nnzb;
  problem_.block_m = block_m;
  problem_.block_k = block_k;
  problem_.batch = 1;
  transposed_ = problem_;
  transposed_.transpose = true;
  std::swap(transposed_.m, transposed_.k);
  std::swap(transposed_.block_m, transposed_.block_k);
}

// What all launches of a call share: all but its operands.
struct Launcher::Surroundings {
  Launch launch;
  uint64_t generation = 0;
  std::shared_ptr<Plan> plan;
};

// A launch of which nothing is left to look up.
struct Launcher::Ready {
  Problem problem;
  Launch launch;
  Decision decision{};
  std::shared_ptr<KeptMemory> transposed, copy;

  bool find(Plan& plan, uint64_t generation, Scratch scratch) {
    const std::optional<Decision> found = plan.find(problem, generation);
    if (!found) return false;
    decision = *found;
    if (decision.prepared_bytes > 0 && problem.frozen) {
      copy = plan.find_copy(launch.values, decision.variant, problem);
      if (copy == nullptr) return false;
      launch.prepared = copy->data();
    }
    const ScratchLayout layout(decision.workspace_bytes, prepares() ? decision.prepared_bytes : 0);
    if (layout.bytes() == 0) return true;
    void* memory = nullptr;
    if (problem.device == DeviceType::kCpu) {
      memory = cpu_scratch(layout.bytes());
    } else if (scratch.allocate != nullptr) {
      memory = ScratchLayout::aligned(scratch.allocate(scratch.context, layout.bytes_anywhere()));
    }
    if (memory == nullptr) return false;
    layout.put(memory, &launch);
    return true;
  }

  void run() {
    decision.complete(&launch);
    const Variant& variant = *decision.variant;
    Status status = prepares() ? variant.prepare(problem, launch) : Status::ok();
    if (status) status = variant.launch(problem, launch);
    decision.used_by(launch.stream);
    if (copy != nullptr) copy->used_by(launch.stream);
    if (transposed != nullptr) transposed->used_by(launch.stream);
    if (!status) {
      throw std::runtime_error("sparse_autotune: " + std::string(variant.name()) +
                               " failed: " + status.message());
    }
  }

 private:
  bool prepares() const { return decision.prepared_bytes > 0 && copy == nullptr; }
};

bool Launcher::look(const Call& call, Surroundings* found) const {
  if (!forced_variant().empty() || problem_.nnzb == 0) return false;
  Launch& l = found->launch;
  found->generation = settings_generation();
  if (problem_.device == DeviceType::kCpu) {
    l.parallel = torch_parallel();
    l.device = &cpu_device(l.parallel.threads);
    found->generation = decision_generation(found->generation, l.parallel.threads);
  } else {
    if (!is_current_device(pattern_.ordinal)) return false;
    l.device = &cuda_device(pattern_.ordinal);
    l.stream = current_stream(pattern_.ordinal);
  }
  l.crow_indices = pattern_.crow_indices;
  l.col_indices = pattern_.col_indices;
  PlanCache& cache = PlanCache::instance();
  found->plan = cache.find(pattern_);
  return found->plan != nullptr && found->plan->knows_pattern() == cache.lasts(pattern_) &&
         found->plan->describes({call.crow_version, call.col_version}, l.parallel);
}

bool Launcher::prepare(const Call& call, const Surroundings& here, Scratch scratch,
                       Ready* ready) const {
  Problem& p = ready->problem = call.transpose ? transposed_ : problem_;
  p.n = call.n;
  const auto b = dense_layout(p.k, p.n, call.b_row_stride, call.b_col_stride);
  const auto c = dense_layout(p.m, p.n, call.c_row_stride, call.c_col_stride);
  if (!b || !c || p.m == 0 || p.n == 0) return false;
  set_layouts(&p, *b, *c);
  p.has_bias = call.bias != nullptr;
  p.activation = call.activation;
  p.frozen = call.frozen;
  p.allow_tf32 = call.allow_tf32;
  p.deterministic = call.deterministic;
  p.exact_nonfinite = exact_nonfinite();
  set_alignments(&p, call.values, call.b, call.c);

  Launch& l = ready->launch = here.launch;
  Plan* plan = here.plan.get();
  Plan::Transposed transposed;
  if (p.transpose) {
    transposed = plan->transposed();
    if (transposed.plan == nullptr) return false;
    plan = transposed.plan.get();
    set_pattern(transposed_at(pattern_, transposed.memory->data()), &l);
    ready->transposed = std::move(transposed.memory);
  }
  add_facts(plan->facts(), &p);
  l.values = call.values;
  l.b = call.b;
  l.bias = call.bias;
  l.c = call.c;
  return ready->find(*plan, here.generation, scratch);
}

bool Launcher::prepare(const Call& call, const Sample& sample, const Surroundings& here,
                       Scratch scratch, Ready* ready) const {
  Problem& p = ready->problem = problem_;
  p.op = Op::kSampled;
  p.n = call.n;
  const auto b = dense_layout(p.k, p.n, sample.y_col_stride, sample.y_row_stride);
  const auto c = dense_layout(p.m, p.n, sample.x_row_stride, sample.x_col_stride);
  if (!b || !c || p.m == 0 || p.n == 0) return false;
  set_layouts(&p, *b, *c);
  p.allow_tf32 = call.allow_tf32;
  p.deterministic = call.deterministic;
  p.exact_nonfinite = exact_nonfinite();
  set_alignments(&p, sample.blocks, sample.y, sample.x);
  add_facts(here.plan->facts(), &p);

  Launch& l = ready->launch = here.launch;
  l.b = sample.y;
  l.c = const_cast<void*>(sample.x);
  l.sampled = sample.blocks;
  return ready->find(*here.plan, here.generation, scratch);
}

bool Launcher::launch(const Call& call, Scratch scratch) const {
  Surroundings here;
  Ready product;
  if (!look(call, &here) || !prepare(call, here, scratch, &product)) return false;
  product.run();
  return true;
}

bool Launcher::launch_sample(const Call& call, const Sample& sample, Scratch scratch) const {
  Surroundings here;
  Ready blocks;
  if (!look(call, &here) || !prepare(call, sample, here, scratch, &blocks)) return false;
  blocks.run();
  return true;
}

bool Launcher::launch_both(const Call& call, const Sample& sample, Scratch scratch) const {
  Surroundings here;
  Ready product, blocks;
  if (!look(call, &here) || !prepare(call, here, scratch, &product) ||
      !prepare(call, sample, here, scratch, &blocks)) {
    return false;
  }
  product.run();
  blocks.run();
  return true;
}

}  // namespace sparse_autotune
