#include "operators/product/product_operator.h"

#include <algorithm>
#include <cmath>

#include "autotune/buckets.h"

namespace sparse_autotune {
namespace {

// Average blocks per row in steps of 19%: within one, time changes with the work alone.
std::string row_bucket(const Problem& p) {
  if (p.nnzb <= 0 || block_rows(p) <= 0) return "0";
  const double mean = static_cast<double>(p.nnzb) / static_cast<double>(block_rows(p));
  return significant(std::exp2(static_cast<double>(std::lround(4 * std::log2(mean))) / 4));
}

// Longest row over average row, to the next power of two: how much balancing has to gain.
std::string skew_bucket(const Problem& p) {
  if (p.nnzb <= 0 || p.longest_row <= 0) return "0";
  const double mean = static_cast<double>(p.nnzb) / static_cast<double>(block_rows(p));
  const double skew = static_cast<double>(p.longest_row) / mean;
  return std::to_string(int64_t{1} << std::clamp<long>(std::lround(std::log2(skew)), 0, 62));
}

constinit const ProductOperator kMatmul("matmul"), kSampledMatmul("sampled_matmul");
const OperatorRegistration kRegisterMatmul{kMatmul}, kRegisterSampled{kSampledMatmul};

}  // namespace

const Operator& operator_of(Op op) {
  return op == Op::kSampled ? static_cast<const Operator&>(kSampledMatmul) : kMatmul;
}

const char* name_of(Activation activation) {
  switch (activation) {
    case Activation::kNone:
      return "none";
    case Activation::kRelu:
      return "relu";
    case Activation::kGelu:
      return "gelu";
    case Activation::kGeluTanh:
      return "gelu_tanh";
    case Activation::kSilu:
      return "silu";
  }
  return "";
}

Asked ProductOperator::asked(const Problem& p) const {
  return {p.device, p.deterministic, p.exact_nonfinite, p.frozen};
}

// A product without elements is never launched, and variants divide by sizes.
Support ProductOperator::supported_by(const AnyVariant& variant, const Problem& p,
                                      const Device& device) const {
  Problem asked = p;
  asked.m = std::max(asked.m, asked.block_m);
  asked.n = std::max<int64_t>(asked.n, 1);
  asked.k = std::max(asked.k, asked.block_k);
  asked.batch = std::max<int64_t>(asked.batch, 1);
  return variant.supports(asked, device);
}

Work ProductOperator::work(const Problem& p, const Device& device) const {
  const double dense = 2.0 * static_cast<double>(p.m) * static_cast<double>(p.k) *
                       static_cast<double>(p.n) * static_cast<double>(p.batch);
  return {nnz_flops(p), dense, compulsory_bytes(p), peak_tflops(p, device)};
}

std::string ProductOperator::signature(const Problem& p, Buckets buckets) const {
  const bool cuda = p.device == DeviceType::kCuda;
  // CPU variants load unaligned at full speed. On a GPU 16 bytes decide: below, copies to shared
  // memory fall apart into small ones, and how small matters less.
  const auto unaligned = [&](uint8_t alignment) { return cuda && alignment < 16; };
  const bool fine = !unaligned(p.b_alignment) && !unaligned(p.c_alignment);
  const auto layout = [&](const char* name, Layout l, uint8_t alignment) {
    return std::string(name) + (l == Layout::kRowMajor ? "R" : "C") +
           (unaligned(alignment) ? "u" : "");
  };
  std::string s = p.transpose ? "_transposed" : "";
  s += "_" + std::to_string(p.m) + "x" + std::to_string(p.k);
  s += "_bs" + std::to_string(p.block_m) + "x" + std::to_string(p.block_k);
  s += buckets == Buckets::kExact ? "_exactn" + std::to_string(p.n)
                                  : "_n" + std::to_string(n_bucket(p.n, fine));
  s += "_row" + row_bucket(p) + "_skew" + skew_bucket(p);
  s += std::string("_") + short_name(p.dtype);
  s += p.index_type == IndexType::kInt64 ? "_i64" : "_i32";
  if (unaligned(p.values_alignment)) s += "_au";
  s += layout("_b", p.b_layout, p.b_alignment) + layout("_c", p.c_layout, p.c_alignment);
  if (p.batch > 1) {
    s += "_batch" + std::to_string(n_bucket(p.batch, false));
    if (p.b_batch_stride == 0) s += "shared";  // one B: it stays in the cache
    if (p.op == Op::kSampled && p.c_batch_stride == 0) s += "_sharedc";
  }
  if (p.has_bias) s += "_bias";
  if (p.activation != Activation::kNone) s += std::string("_") + name_of(p.activation);
  if (p.frozen) s += "_frozen";
  if (p.allow_tf32 && p.dtype == DType::kFloat32) s += "_tf32";
  return s;
}

std::string ProductOperator::describe(const Problem& p) const {
  std::string s = p.op == Op::kSampled ? "sampled " : "";
  s += std::to_string(p.m) + "x" + std::to_string(p.k) + "x" + std::to_string(p.n);
  s += " bs" + std::to_string(p.block_m);
  if (p.block_k != p.block_m) s += "x" + std::to_string(p.block_k);
  const double blocks = static_cast<double>(block_rows(p)) * static_cast<double>(block_cols(p));
  s += " density " + significant(blocks > 0 ? static_cast<double>(p.nnzb) / blocks : 0.0);
  s += std::string(" ") + short_name(p.dtype);
  if (p.transpose) s += " transposed";
  if (p.batch > 1) s += " batch " + std::to_string(p.batch);
  if (p.has_bias) s += " bias";
  if (p.activation != Activation::kNone) s += std::string(" ") + name_of(p.activation);
  return s;
}

}  // namespace sparse_autotune
