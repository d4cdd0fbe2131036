#include "calls/attention_call.h"

#include <pthread.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <mutex>
#include <utility>

#include "autotune/device.h"
#include "autotune/settings.h"
#include "autotune/tuner.h"
#include "calls/ready_launch.h"
#include "calls/scratch.h"
#include "calls/serve.h"
#include "plan/current_device.h"
#include "plan/decisions.h"

namespace sparse_autotune {
namespace {

// Returns the rule from the function that it stands in unless it holds.
#define SPARSE_AUTOTUNE_RULE(holds, rule) \
  if (!(holds)) return rule

bool same_sizes(const TensorView& a, const TensorView& b, int64_t dims) {
  return std::equal(a.sizes, a.sizes + dims, b.sizes);
}
bool in_rows(const TensorView& v) { return v.sizes[3] <= 1 || v.strides[3] == 1; }

const char* rule_of_tensor(const TensorView& t, const TensorView& q) {
  SPARSE_AUTOTUNE_RULE(t.dims == 4, "q, k, v and gradients must have 4 dimensions");
  SPARSE_AUTOTUNE_RULE(alike(t, q), "q, k, v and gradients must share one dtype and device");
  SPARSE_AUTOTUNE_RULE(in_rows(t) || elements_of(t) == 0, "the last dimension must be contiguous");
  SPARSE_AUTOTUNE_RULE(has_memory(t), "the memory of an operand is not allocated");
  return nullptr;
}

// Indices of one form: begins (up to two leading dimensions, lines + 1) and blocks (capacity,).
const char* rule_of_lists(const TensorView& begins, const TensorView& blocks, int64_t lines,
                          int64_t others, const TensorView& q) {
  SPARSE_AUTOTUNE_RULE(begins.dims >= 1 && begins.dims <= 3 && blocks.dims == 1,
                       "a mask must have (batch, heads, lines + 1) begins and a vector of blocks");
  SPARSE_AUTOTUNE_RULE(begins.type == ElementType::kInt32 && alike(begins, blocks),
                       "indices of a mask must be int32, on one device");
  SPARSE_AUTOTUNE_RULE(begins.device == q.device, "all tensors must be on one device");
  SPARSE_AUTOTUNE_RULE(is_contiguous(begins) && is_contiguous(blocks),
                       "indices of a mask must be contiguous");
  SPARSE_AUTOTUNE_RULE(has_memory(begins) && has_memory(blocks),
                       "the memory of a mask is not allocated");
  SPARSE_AUTOTUNE_RULE(begins.sizes[begins.dims - 1] == lines + 1,
                       "a mask must have one begin more than there are block rows or columns");
  for (int64_t d = 0; d + 1 < begins.dims; ++d) {
    const int64_t whole = q.sizes[begins.dims == 3 ? d : 1];
    SPARSE_AUTOTUNE_RULE(begins.sizes[d] == 1 || begins.sizes[d] == whole,
                         "a mask must be one for all, or one for each head or batch entry");
  }
  if (begins.device != kCpuDevice) return nullptr;
  const auto* const from = static_cast<const int32_t*>(begins.data);
  const auto* const block = static_cast<const int32_t*>(blocks.data);
  for (int64_t p = 0; p < elements_of(begins); p += lines + 1) {
    for (int64_t i = p; i < p + lines; ++i) {
      SPARSE_AUTOTUNE_RULE(from[i] >= 0 && from[i] <= from[i + 1] && from[i + 1] <= blocks.sizes[0],
                           "a mask's begins must ascend within its blocks");
      for (int64_t at = from[i]; at < from[i + 1]; ++at) {
        SPARSE_AUTOTUNE_RULE(block[at] >= 0 && block[at] < others,
                             "a mask's block is out of range");
      }
    }
  }
  return nullptr;
}

int64_t lines_of(int64_t length, int64_t block) { return ceil_div(length, block); }

attention::TensorStrides strides_of(const TensorView& t) {
  return {t.strides[0], t.strides[1], t.strides[2]};
}

// Of the address and of the strides of dimensions that are walked.
uint8_t alignment_of(const TensorView& t, DType dtype) {
  auto bits = static_cast<uint64_t>(reinterpret_cast<uintptr_t>(t.data)) | 16u;
  for (int64_t d = 0; d < 3; ++d) {
    if (t.sizes[d] > 1) bits |= static_cast<uint64_t>(t.strides[d] * size_of(dtype));
  }
  return static_cast<uint8_t>(bits & (~bits + 1));
}

void set_mask(const AttentionCall& a, attention::Problem* p, attention::Launch* l) {
  if (!a.crow_indices) return;
  const TensorView& crow = *a.crow_indices;
  p->block_m = a.block_m;
  p->block_n = a.block_n;
  const int64_t heads = crow.dims >= 2 ? crow.sizes[crow.dims - 2] : 1;
  const int64_t batch = crow.dims == 3 ? crow.sizes[0] : 1;
  p->patterns = heads * batch;
  p->mask_head_stride = heads > 1 ? 1 : 0;
  p->mask_batch_stride = batch > 1 ? heads : 0;
  p->capacity = a.col_indices->sizes[0];
  p->nnzb = a.nnzb;
  l->crow_indices = static_cast<const int32_t*>(crow.data);
  l->col_indices = static_cast<const int32_t*>(a.col_indices->data);
  if (crow.device != kCpuDevice) return;
  p->nnzb = 0;
  const int64_t lines = crow.sizes[crow.dims - 1];
  for (int64_t i = 0; i < p->patterns; ++i) {
    p->nnzb += l->crow_indices[(i + 1) * lines - 1] - l->crow_indices[i * lines];
  }
}

void set_gradients(const AttentionGradients& g, attention::Problem* p, attention::Launch* l) {
  p->pass = attention::Pass::kBackward;
  p->dout = strides_of(g.dout);
  // Kernels read `out` as they read its gradient.
  p->dout_alignment = std::min(alignment_of(g.dout, p->dtype), alignment_of(g.out, p->dtype));
  p->has_dlse = g.dlse.has_value();
  l->dout = g.dout.data;
  l->out = g.out.writable();
  l->lse = g.lse.writable();
  if (g.dlse) l->dlse = g.dlse->data;
  if (!g.ccol_indices) return;
  p->row_capacity = g.row_indices->sizes[0];
  l->ccol_indices = static_cast<const int32_t*>(g.ccol_indices->data);
  l->row_indices = static_cast<const int32_t*>(g.row_indices->data);
}

struct AttentionDecision {
  const attention::Variant* variant;
  int64_t workspace_bytes, prepared_bytes;
  Validity validity;
  bool not_in_graphs;
};

// What was decided for each device: another one may lack the variant, or need more scratch for it.
struct Known {
  std::mutex mutex;
  std::map<const Device*, Decisions<AttentionDecision>> decisions;
};
Known* known = new Known;  // used while the process winds down
// A forked child leaves it behind: threads that are gone may hold its locks.
[[maybe_unused]] const int registered = pthread_atfork(nullptr, nullptr, [] { known = new Known; });

Decisions<AttentionDecision>& decisions_for(const Device& device) {
  const std::lock_guard<std::mutex> lock(known->mutex);
  return known->decisions[&device];
}

AttentionDecision decide(const AttentionBound& b, const std::string& selector) {
  const Choice choice = choose(b.problem, *b.device, b.launch, selector, b.is_capturing,
                               [](const std::vector<const AnyVariant*>&) {});
  if (choice.variant == nullptr) refuse(choice.error, Fault::kVariant);
  const auto& variant = static_cast<const attention::Variant&>(*choice.variant);
  const AttentionDecision decision{&variant, variant.workspace_bytes(b.problem, *b.device),
                                   variant.prepared_bytes(b.problem, *b.device), choice.validity,
                                   choice.captured != nullptr};
  if (choice.final) {
    decisions_for(*b.device).remember(b.problem, b.generation, selector, decision);
  }
  return decision;
}

std::optional<AttentionDecision> remembered(const AttentionBound& b, const std::string& selector) {
  auto found = decisions_for(*b.device).find(b.problem, b.generation, selector);
  if (found && found->not_in_graphs && b.is_capturing) return std::nullopt;
  return found;
}

Status launch(const AttentionBound& b, const AttentionDecision& d, const Allocate& allocate) {
  attention::Launch l = b.launch;
  const ScratchLayout layout(d.workspace_bytes, d.prepared_bytes);
  if (layout.bytes() > 0) {
    void* memory = b.problem.device == DeviceType::kCpu ? cpu_scratch(layout.bytes()) : nullptr;
    if (memory == nullptr) memory = ScratchLayout::aligned(allocate(layout.bytes_anywhere()));
    if (memory == nullptr) return Status::failed(StatusCode::kOutOfMemory, "no workspace");
    layout.put(memory, &l);
  }
  Status status = Status::ok();
  if (d.prepared_bytes > 0) status = d.variant->prepare(b.problem, l);
  return status ? d.variant->launch(b.problem, l) : status;
}

}  // namespace

bool same_shape(const TensorView& a, const TensorView& b) {
  return a.dims == 4 && b.dims == 4 && same_sizes(a, b, 4);
}

bool lies_as_result_of(const TensorView& operand, const TensorView& result) {
  const int64_t* const sizes = operand.sizes;
  const auto wanted = attention::dense_like(strides_of(operand), sizes[1], sizes[2], sizes[3]);
  const int64_t strides[] = {wanted.batch, wanted.head, wanted.row, 1};
  if (elements_of(operand) == 0) return true;
  for (int64_t d = 0; d < 4; ++d) {
    if (sizes[d] > 1 && result.strides[d] != strides[d]) return false;
  }
  return true;
}

const char* broken_rule(const AttentionCall& a) {
  const TensorView &q = a.q, &k = a.k, &v = a.v;
  for (const TensorView* t : {&q, &k, &v}) {
    if (const char* rule = rule_of_tensor(*t, q)) return rule;
  }
  SPARSE_AUTOTUNE_RULE(value_type(q.type), "q must be float16, bfloat16, float32 or float64");
  SPARSE_AUTOTUNE_RULE(q.device != kOtherDevice, "tensors must be on the CPU or on a CUDA device");
  SPARSE_AUTOTUNE_RULE(q.sizes[3] > 0 && q.sizes[3] <= 256, "heads must have 1 to 256 numbers");
  SPARSE_AUTOTUNE_RULE(same_sizes(k, v, 4), "k and v must have one shape");
  SPARSE_AUTOTUNE_RULE(q.sizes[0] == k.sizes[0] && q.sizes[3] == k.sizes[3],
                       "q and k must agree on the batch and on the numbers of a head");
  SPARSE_AUTOTUNE_RULE(k.sizes[1] > 0 && q.sizes[1] % k.sizes[1] == 0,
                       "the heads of q must be a multiple of those of k");
  SPARSE_AUTOTUNE_RULE(std::isfinite(a.scale.value_or(1)), "scale must be finite");
  SPARSE_AUTOTUNE_RULE(a.crow_indices.has_value() == a.col_indices.has_value(),
                       "a mask has crow_indices and col_indices");
  if (!a.crow_indices) return nullptr;
  SPARSE_AUTOTUNE_RULE(
      a.block_m > 0 && a.block_n > 0 && a.block_m <= INT32_MAX && a.block_n <= INT32_MAX,
      "a block must have 1 to 2^31 - 1 rows and columns");
  return rule_of_lists(*a.crow_indices, *a.col_indices, lines_of(q.sizes[2], a.block_m),
                       lines_of(k.sizes[2], a.block_n), q);
}

const char* broken_rule(const AttentionCall& a, const AttentionGradients& g) {
  if (const char* rule = broken_rule(a)) return rule;
  for (const TensorView* t : {&g.dout, &g.out}) {
    if (const char* rule = rule_of_tensor(*t, a.q)) return rule;
    SPARSE_AUTOTUNE_RULE(same_shape(*t, a.q), "out and its gradient must have the shape of q");
  }
  SPARSE_AUTOTUNE_RULE(lies_as_result_of(a.q, g.out), "out must lie as attention returns it");
  for (const TensorView* t : {&g.lse, g.dlse ? &*g.dlse : &g.lse}) {
    SPARSE_AUTOTUNE_RULE(t->dims == 3 && same_sizes(*t, a.q, 3) && is_contiguous(*t),
                         "lse and its gradient must be contiguous, (batch, heads, rows)");
    SPARSE_AUTOTUNE_RULE(t->type == type_of_lse(a) && t->device == a.q.device && has_memory(*t),
                         "lse and its gradient must be float32, or float64 where q is");
  }
  SPARSE_AUTOTUNE_RULE(a.crow_indices.has_value() == g.ccol_indices.has_value() &&
                           g.ccol_indices.has_value() == g.row_indices.has_value(),
                       "the backward pass of a mask has ccol_indices and row_indices");
  if (!g.ccol_indices) return nullptr;
  SPARSE_AUTOTUNE_RULE(g.ccol_indices->dims == a.crow_indices->dims &&
                           same_sizes(*g.ccol_indices, *a.crow_indices, a.crow_indices->dims - 1),
                       "ccol_indices must have the patterns of crow_indices");
  return rule_of_lists(*g.ccol_indices, *g.row_indices, lines_of(a.k.sizes[2], a.block_n),
                       lines_of(a.q.sizes[2], a.block_m), a.q);
}

AttentionBound bind_attention(const AttentionCall& a, const AttentionGradients* gradients,
                              void* stream, const Parallel& parallel) {
  AttentionBound b;
  attention::Problem& p = b.problem;
  const bool on_cpu = a.q.device == kCpuDevice;
  p.batch = a.q.sizes[0];
  p.heads = a.q.sizes[1];
  p.kv_heads = a.k.sizes[1];
  p.rows = a.q.sizes[2];
  p.columns = a.k.sizes[2];
  p.dim = a.q.sizes[3];
  p.q = strides_of(a.q);
  p.k = strides_of(a.k);
  p.v = strides_of(a.v);
  p.device = on_cpu ? DeviceType::kCpu : DeviceType::kCuda;
  p.dtype = *value_type(a.q.type);
  p.is_causal = a.is_causal;
  p.allow_tf32 = a.allow_tf32 && p.dtype == DType::kFloat32;
  p.deterministic = a.deterministic;
  p.exact_nonfinite = exact_nonfinite();
  p.nonpositive_scale = a.scale.has_value() && *a.scale <= 0;
  p.q_alignment = alignment_of(a.q, p.dtype);
  p.k_alignment = alignment_of(a.k, p.dtype);
  p.v_alignment = alignment_of(a.v, p.dtype);
  p.dout_alignment = 16;
  b.launch.q = a.q.data;
  b.launch.k = a.k.data;
  b.launch.v = a.v.data;
  b.launch.scale = a.scale.value_or(1 / std::sqrt(static_cast<double>(p.dim)));
  set_mask(a, &p, &b.launch);
  if (gradients != nullptr) set_gradients(*gradients, &p, &b.launch);
  b.launch.stream = stream;
  b.launch.parallel = parallel;
  b.generation = settings_generation();
  b.device = on_cpu ? &cpu_device(parallel.threads) : &cuda_device(a.q.device);
  b.is_capturing = !on_cpu && capturing(stream);
  b.launch.device = b.device;
  return b;
}

void serve(AttentionBound& b, const std::optional<std::string>& variant, const Allocate& allocate) {
  if (variant.has_value() && variant->empty()) refuse("variant must be a name");
  const std::string selector = selector_of(variant.value_or(""), operator_of(b.problem));
  const auto found = remembered(b, selector);
  AttentionDecision decision = found ? *found : decide(b, selector);
  for (Status status = launch(b, decision, allocate); !status;
       status = launch(b, decision, allocate)) {
    demote_or_refuse(b.problem, b.launch, selector, b.is_capturing, *decision.variant, status);
    decision = decide(b, selector);
  }
}

bool serve_remembered(const AttentionBound& b, std::string_view variant, const Allocate& allocate) {
  const auto found = remembered(b, selector_of(variant, operator_of(b.problem)));
  return found && static_cast<bool>(launch(b, *found, allocate));
}

std::string race_attention(AttentionBound& b, const RaceOrder& order) {
  if (b.is_capturing) refuse("a race cannot run while a CUDA graph is being captured");
  RaceOptions options = options_of(order);
  const auto entrants = entrants_of(b.problem, *b.device, order.variants);
  return to_text(race_now(b.problem, *b.device, b.launch, entrants, options, order.save));
}

}  // namespace sparse_autotune
