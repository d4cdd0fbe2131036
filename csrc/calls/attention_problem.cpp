#include "calls/attention_problem.h"

#include <array>
#include <utility>

#include "autotune/problem_text.h"
#include "autotune/settings.h"
#include "autotune/tuner.h"
#include "calls/attention_call.h"

namespace sparse_autotune {
namespace {

// A tensor that the problem describes, over memory that nobody reads: races have operands of their
// own.
class Described {
 public:
  Described(std::initializer_list<int64_t> sizes, std::initializer_list<int64_t> strides,
            ElementType type, int32_t device)
      : dims_(static_cast<int64_t>(sizes.size())), type_(type), device_(device) {
    std::copy(sizes.begin(), sizes.end(), sizes_.begin());
    std::copy(strides.begin(), strides.end(), strides_.begin());
  }
  TensorView view() const {
    alignas(16) static const char memory[16] = {};
    return {memory, sizes_.data(), strides_.data(), dims_, type_, device_};
  }

 private:
  std::array<int64_t, 4> sizes_{}, strides_{};
  int64_t dims_;
  ElementType type_;
  int32_t device_;
};

// The call that such a problem comes of.
struct DescribedCall {
  Described q, k, v, dout, out, lse;
  AttentionCall call;
  AttentionGradients gradients;

  DescribedCall(const attention::Problem& p, const AttentionPattern& pattern)
      : q(strided(p, p.q, p.heads, p.rows, pattern)),
        k(strided(p, p.k, p.kv_heads, p.columns, pattern)),
        v(strided(p, p.v, p.kv_heads, p.columns, pattern)),
        dout(strided(p, p.dout, p.heads, p.rows, pattern)),
        out(strided(p, attention::strides_of_out(p), p.heads, p.rows, pattern)),
        lse({p.batch, p.heads, p.rows}, {p.heads * p.rows, p.rows, 1},
            static_cast<ElementType>(attention::row_dtype(p)), pattern.crow_indices.device),
        call{.q = q.view(),
             .k = k.view(),
             .v = v.view(),
             .crow_indices = std::nullopt,
             .col_indices = std::nullopt,
             .block_m = p.block_m,
             .block_n = p.block_n,
             .is_causal = p.is_causal,
             .scale = std::nullopt,
             .nnzb = p.nnzb,
             .allow_tf32 = p.allow_tf32,
             .deterministic = p.deterministic},
        gradients{.dout = dout.view(),
                  .out = out.view(),
                  .lse = lse.view(),
                  .dlse = std::nullopt,
                  .ccol_indices = pattern.ccol_indices,
                  .row_indices = pattern.row_indices} {
    if (p.has_dlse) gradients.dlse = lse.view();
    if (!attention::has_mask(p)) return;
    call.crow_indices = pattern.crow_indices;
    call.col_indices = pattern.col_indices;
  }

 private:
  static Described strided(const attention::Problem& p, const attention::TensorStrides& s,
                           int64_t heads, int64_t rows, const AttentionPattern& pattern) {
    return {{p.batch, heads, rows, p.dim},
            {s.batch, s.head, s.row, 1},
            static_cast<ElementType>(p.dtype),
            pattern.crow_indices.device};
  }
};

attention::Problem parsed(const std::string& text) {
  std::string why;
  const std::optional<OwnedProblem> problem = parse_problem(text, &why);
  if (!problem) refuse("not a problem: " + why);
  const Operator& op = problem->view().op();
  if (&op != &attention::operator_of(attention::Pass::kForward) &&
      &op != &attention::operator_of(attention::Pass::kBackward)) {
    refuse("not a problem: it is one of " + std::string(op.name()));
  }
  return problem->view().as<attention::Problem>();
}

// What the tuner copies of the pattern, in either.
bool same_pattern(const attention::Problem& a, const attention::Problem& b) {
  return a.device == b.device && a.patterns == b.patterns &&
         a.mask_batch_stride == b.mask_batch_stride && a.mask_head_stride == b.mask_head_stride &&
         a.nnzb == b.nnzb && a.capacity == b.capacity && a.row_capacity == b.row_capacity;
}

}  // namespace

std::string race_attention_problem(const std::string& text, const AttentionPattern& pattern,
                                   const std::string& selector, void* stream,
                                   const Parallel& parallel) {
  const attention::Problem problem = parsed(text);
  const DescribedCall made(problem, pattern);
  const bool backward = problem.pass == attention::Pass::kBackward;
  const char* const rule =
      backward ? broken_rule(made.call, made.gradients) : broken_rule(made.call);
  if (rule != nullptr) refuse(rule);
  AttentionBound bound =
      bind_attention(made.call, backward ? &made.gradients : nullptr, stream, parallel);
  if (!same_pattern(bound.problem, problem)) refuse("the pattern is not that of the problem");
  if (bound.is_capturing) refuse("a race cannot run while a CUDA graph is being captured");
  bound.problem = problem;
  const auto entrants = entrants_of(problem, *bound.device, selector);
  if (entrants.empty()) {
    refuse("no variant can compute this problem on " + bound.device->name, Fault::kVariant);
  }
  const auto record = race_if_unknown(problem, *bound.device, bound.launch, entrants,
                                      options_of(settings(), selector));
  return record ? to_text(*record) : "";
}

}  // namespace sparse_autotune
