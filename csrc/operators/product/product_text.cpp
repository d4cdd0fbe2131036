// Products as text and back.
#include "autotune/problem_text.h"
#include "operators/fields.h"
#include "operators/product/product_operator.h"

namespace sparse_autotune {
namespace {

constexpr double kMaxBytes = 0x1p56;  // of an operand

const Fields<Problem>& fields() {
  constexpr auto layout = [](Layout l) { return l == Layout::kRowMajor ? "row" : "col"; };
  constexpr auto activation = [](Activation a) { return std::string_view(name_of(a)); };
  static const Fields<Problem>* const all = new Fields<Problem>{
      device_field<&Problem::device>(),
      dtype_field<&Problem::dtype>(),
      index_field<&Problem::index_type>(),
      number_field<&Problem::m, 1>("m"),
      number_field<&Problem::n, 1>("n"),
      number_field<&Problem::k, 1>("k"),
      number_field<&Problem::nnzb, 1>("nnzb"),
      number_field<&Problem::block_m, 1>("block_m"),
      number_field<&Problem::block_k, 1>("block_k"),
      number_field<&Problem::longest_row, -1>("longest_row"),
      number_field<&Problem::ldb, 1>("ldb"),
      number_field<&Problem::ldc, 1>("ldc"),
      number_field<&Problem::batch, 1>("batch"),
      number_field<&Problem::b_batch_stride, 0>("b_batch_stride"),
      number_field<&Problem::c_batch_stride, 0>("c_batch_stride"),
      name_field<&Problem::b_layout, layout, Layout::kRowMajor, Layout::kColMajor>("b_layout"),
      name_field<&Problem::c_layout, layout, Layout::kRowMajor, Layout::kColMajor>("c_layout"),
      name_field<&Problem::activation, activation, Activation::kNone, Activation::kRelu,
                 Activation::kGelu, Activation::kGeluTanh, Activation::kSilu>("activation"),
      flag_field<&Problem::has_bias>("bias"),
      flag_field<&Problem::transpose>("transpose"),
      flag_field<&Problem::frozen>("frozen"),
      flag_field<&Problem::allow_tf32>("tf32"),
      flag_field<&Problem::deterministic>("deterministic"),
      flag_field<&Problem::exact_nonfinite>("exact_nonfinite"),
      alignment_field<&Problem::values_alignment>("values_alignment"),
      alignment_field<&Problem::b_alignment>("b_alignment"),
      alignment_field<&Problem::c_alignment>("c_alignment"),
  };
  return *all;
}

// Bytes of a batch of strided matrices, as a number that cannot overflow.
double bytes_of(double rows, double leading, double batch, double batch_stride, DType dtype) {
  return (rows * leading + (batch - 1) * batch_stride) * static_cast<double>(size_of(dtype));
}

// Whether the matrices of a batch share no element of C: they lie one behind another, or the lines
// of each between those of the others. As numbers that cannot overflow.
bool results_are_apart(const Problem& p) {
  const bool rows = p.c_layout == Layout::kRowMajor;
  const auto length = static_cast<double>(rows ? p.n : p.m);
  const auto lines = static_cast<double>(rows ? p.m : p.n), leading = static_cast<double>(p.ldc);
  const auto step = static_cast<double>(p.c_batch_stride);
  return p.batch == 1 || step >= (lines - 1) * leading + length ||
         (step >= length && leading >= static_cast<double>(p.batch - 1) * step + length);
}

// Why no operands of such a problem exist; empty when they may.
std::string contradiction(const Problem& p) {
  if (p.m % p.block_m != 0 || p.k % p.block_k != 0) return "its blocks do not divide its matrix";
  const double rows = static_cast<double>(block_rows(p)), cols = static_cast<double>(block_cols(p));
  const auto nnzb = static_cast<double>(p.nnzb), longest = static_cast<double>(p.longest_row);
  const bool fits = p.longest_row < 0
                        ? nnzb <= rows * cols
                        : longest <= cols && longest <= nnzb && nnzb <= rows * longest;
  if (!fits) return "its block rows cannot hold that many blocks";
  const bool b_rows = p.b_layout == Layout::kRowMajor, c_rows = p.c_layout == Layout::kRowMajor;
  if (p.ldb < (b_rows ? p.n : p.k) || p.ldc < (c_rows ? p.n : p.m)) {
    return "a leading dimension is less than what it leads over";
  }
  const int64_t item = size_of(p.dtype);
  if (p.values_alignment < item || p.b_alignment < item || p.c_alignment < item) {
    return "an alignment is less than an element";
  }
  if (p.op == Op::kSampled &&
      (p.has_bias || p.transpose || p.frozen || p.activation != Activation::kNone)) {
    return "it asks of a sampled product what none has";
  }
  if (p.op == Op::kMatmul && !results_are_apart(p)) return "its results overlap each other";
  const auto batch = static_cast<double>(p.batch);
  const double bytes[] = {
      values_bytes(p),
      bytes_of(static_cast<double>(b_rows ? p.k : p.n), static_cast<double>(p.ldb), batch,
               static_cast<double>(p.b_batch_stride), p.dtype),
      bytes_of(static_cast<double>(c_rows ? p.m : p.n), static_cast<double>(p.ldc), batch,
               static_cast<double>(p.c_batch_stride), p.dtype),
      static_cast<double>(p.m) * static_cast<double>(p.k) * static_cast<double>(item),
      nnz_flops(p),
  };
  for (const double one : bytes) {
    if (one > kMaxBytes) return "its operands are larger than any memory";
  }
  return "";
}

}  // namespace

std::string ProductOperator::text(const Problem& p) const { return fields().text(p); }

std::optional<OwnedProblem> ProductOperator::parse(std::string_view text, std::string* why) const {
  std::optional<Problem> p = fields().parse(text, why);
  if (!p) return std::nullopt;
  p->op = this == &operator_of(Op::kSampled) ? Op::kSampled : Op::kMatmul;
  if (std::string reason = contradiction(*p); !reason.empty()) {
    *why = std::move(reason);
    return std::nullopt;
  }
  return OwnedProblem(*p);
}

std::optional<Problem> parse_product(std::string_view text, std::string* why) {
  const std::optional<OwnedProblem> problem = parse_problem(text, why);
  if (!problem) return std::nullopt;
  const AnyProblem view = problem->view();
  if (&view.op() == &operator_of(Op::kMatmul) || &view.op() == &operator_of(Op::kSampled)) {
    return view.as<Problem>();
  }
  *why = "it is one of " + std::string(view.op().name());
  return std::nullopt;
}

}  // namespace sparse_autotune
