// Attention problems as text and back.
#include "operators/attention/attention_operator.h"
#include "operators/fields.h"

namespace sparse_autotune::attention {
namespace {

constexpr double kMaxBytes = 0x1p56;  // of an operand

template <TensorStrides Problem::*tensor, int64_t TensorStrides::*stride>
Field<Problem> stride_field(const char* key) {
  return {key, [](const Problem& p) { return std::to_string(p.*tensor.*stride); },
          [](std::string_view text, Problem* p) {
            int64_t number = 0;
            if (!detail::parse_number(text, &number)) return false;
            p->*tensor.*stride = number;
            return number >= 0 && number <= kMaxSize;
          }};
}

const Fields<Problem>& fields() {
  static const Fields<Problem>* const all = new Fields<Problem>{
      device_field<&Problem::device>(),
      dtype_field<&Problem::dtype>(),
      number_field<&Problem::batch, 1>("batch"),
      number_field<&Problem::heads, 1>("heads"),
      number_field<&Problem::kv_heads, 1>("kv_heads"),
      number_field<&Problem::rows, 1>("rows"),
      number_field<&Problem::columns, 1>("columns"),
      number_field<&Problem::dim, 1>("dim"),
      number_field<&Problem::block_m, 0>("block_m"),
      number_field<&Problem::block_n, 0>("block_n"),
      number_field<&Problem::patterns, 0>("patterns"),
      number_field<&Problem::mask_batch_stride, 0>("mask_batch_stride"),
      number_field<&Problem::mask_head_stride, 0>("mask_head_stride"),
      number_field<&Problem::nnzb, -1>("nnzb"),
      number_field<&Problem::capacity, 0>("capacity"),
      number_field<&Problem::row_capacity, 0>("row_capacity"),
      stride_field<&Problem::q, &TensorStrides::batch>("q_batch_stride"),
      stride_field<&Problem::q, &TensorStrides::head>("q_head_stride"),
      stride_field<&Problem::q, &TensorStrides::row>("q_row_stride"),
      stride_field<&Problem::k, &TensorStrides::batch>("k_batch_stride"),
      stride_field<&Problem::k, &TensorStrides::head>("k_head_stride"),
      stride_field<&Problem::k, &TensorStrides::row>("k_row_stride"),
      stride_field<&Problem::v, &TensorStrides::batch>("v_batch_stride"),
      stride_field<&Problem::v, &TensorStrides::head>("v_head_stride"),
      stride_field<&Problem::v, &TensorStrides::row>("v_row_stride"),
      stride_field<&Problem::dout, &TensorStrides::batch>("dout_batch_stride"),
      stride_field<&Problem::dout, &TensorStrides::head>("dout_head_stride"),
      stride_field<&Problem::dout, &TensorStrides::row>("dout_row_stride"),
      flag_field<&Problem::is_causal>("causal"),
      flag_field<&Problem::has_dlse>("dlse"),
      flag_field<&Problem::allow_tf32>("tf32"),
      flag_field<&Problem::deterministic>("deterministic"),
      flag_field<&Problem::exact_nonfinite>("exact_nonfinite"),
      flag_field<&Problem::nonpositive_scale>("nonpositive_scale"),
      alignment_field<&Problem::q_alignment>("q_alignment"),
      alignment_field<&Problem::k_alignment>("k_alignment"),
      alignment_field<&Problem::v_alignment>("v_alignment"),
      alignment_field<&Problem::dout_alignment>("dout_alignment"),
  };
  return *all;
}

double span(const TensorStrides& s, int64_t batch, int64_t heads, int64_t rows) {
  return static_cast<double>(batch) * s.batch + static_cast<double>(heads) * s.head +
         static_cast<double>(rows) * s.row;
}

// Why no operands of such a problem exist; empty when they may.
std::string contradiction(const Problem& p) {
  if (p.heads % p.kv_heads != 0) return "heads is not a multiple of kv_heads";
  if ((p.block_m > 0) != (p.block_n > 0) || (p.block_m > 0) != (p.patterns > 0)) {
    return "a mask has patterns of blocks, and no mask has neither";
  }
  const double last = static_cast<double>(p.mask_batch_stride) * (p.batch - 1) +
                      static_cast<double>(p.mask_head_stride) * (p.heads - 1);
  if (last >= static_cast<double>(std::max<int64_t>(p.patterns, 1))) {
    return "a head has no pattern";
  }
  if (p.nnzb > p.capacity) return "col_indices has no room for that many blocks";
  const int64_t item = size_of(p.dtype);
  if (p.q_alignment < item || p.k_alignment < item || p.v_alignment < item) {
    return "an alignment is less than an element";
  }
  const double bytes[] = {span(p.q, p.batch, p.heads, p.rows),
                          span(p.k, p.batch, p.kv_heads, p.columns),
                          span(p.v, p.batch, p.kv_heads, p.columns),
                          span(p.dout, p.batch, p.heads, p.rows),
                          static_cast<double>(p.batch) * p.heads * p.rows * p.dim,
                          static_cast<double>(p.patterns) * static_cast<double>(block_rows(p)),
                          all_pairs(p)};
  for (const double one : bytes) {
    if (one * 8 > kMaxBytes) return "its operands are larger than any memory";
  }
  return "";
}

}  // namespace

std::string AttentionOperator::text(const Problem& p) const { return fields().text(p); }

std::optional<OwnedProblem> AttentionOperator::parse(std::string_view text,
                                                     std::string* why) const {
  std::optional<Problem> p = fields().parse(text, why);
  if (!p) return std::nullopt;
  p->pass = this == &operator_of(Pass::kBackward) ? Pass::kBackward : Pass::kForward;
  if (std::string reason = contradiction(*p); !reason.empty()) {
    *why = std::move(reason);
    return std::nullopt;
  }
  return OwnedProblem(*p);
}

}  // namespace sparse_autotune::attention
