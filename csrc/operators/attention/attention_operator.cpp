#include "operators/attention/attention_operator.h"

#include <algorithm>
#include <cmath>

#include "autotune/buckets.h"

namespace sparse_autotune::attention {
namespace {

constinit const AttentionOperator kForward("attention"), kBackward("attention_backward");
const OperatorRegistration kRegisterForward{kForward}, kRegisterBackward{kBackward};

// Stored blocks in steps of 19%: within one, time changes with the work alone. Of a mask that
// nobody has counted there is one step for all.
std::string density_bucket(const Problem& p) {
  if (p.nnzb < 0) return "any";
  const double part = density(p);
  if (part <= 0) return "0";
  return significant(std::exp2(static_cast<double>(std::lround(4 * std::log2(part))) / 4));
}

// Ragged lengths are told from those of whole blocks.
std::string length_bucket(int64_t length, int64_t block, Buckets buckets) {
  const bool ragged = block > 0 && length % block != 0;
  const int64_t bucket = buckets == Buckets::kExact ? length : n_bucket(length, true);
  return std::to_string(bucket) + (ragged ? "r" : "");
}

}  // namespace

const Operator& operator_of(Pass pass) { return pass == Pass::kForward ? kForward : kBackward; }

Asked AttentionOperator::asked(const Problem& p) const {
  return {p.device, p.deterministic, p.exact_nonfinite, false};
}

std::string AttentionOperator::describe(const Problem& p) const {
  std::string s = p.pass == Pass::kForward ? "attention " : "attention backward ";
  s += std::to_string(p.batch) + "x" + std::to_string(p.heads);
  if (p.kv_heads != p.heads) s += "(" + std::to_string(p.kv_heads) + ")";
  s += "x" + std::to_string(p.rows) + "x" + std::to_string(p.columns);
  s += " d" + std::to_string(p.dim) + " " + short_name(p.dtype);
  if (has_mask(p)) {
    s += " bs" + std::to_string(p.block_m);
    if (p.block_n != p.block_m) s += "x" + std::to_string(p.block_n);
    s += p.nnzb < 0 ? " density unknown" : " density " + significant(density(p));
  }
  if (p.is_causal) s += " causal";
  return s;
}

std::string AttentionOperator::signature(const Problem& p, Buckets buckets) const {
  const bool cuda = p.device == DeviceType::kCuda;
  std::string s = "_b" + std::to_string(p.batch) + "_h" + std::to_string(p.heads) + "x" +
                  std::to_string(p.kv_heads);
  s += "_" + length_bucket(p.rows, p.block_m, buckets) + "x" +
       length_bucket(p.columns, p.block_n, buckets);
  s += "_d" + std::to_string(p.dim) + "_" + short_name(p.dtype);
  if (has_mask(p)) {
    s += "_bs" + std::to_string(p.block_m) + "x" + std::to_string(p.block_n);
    s += "_density" + density_bucket(p);
    if (p.patterns > 1) s += "_each";
  }
  if (p.is_causal) s += "_causal";
  if (p.has_dlse) s += "_dlse";
  if (p.nonpositive_scale) s += "_nonpositive";
  if (p.allow_tf32 && p.dtype == DType::kFloat32) s += "_tf32";
  // CPU variants load unaligned at full speed.
  const auto unaligned = [&](const char* name, uint8_t alignment) {
    return cuda && alignment < 16 ? std::string("_") + name + "u" : std::string();
  };
  s +=
      unaligned("q", p.q_alignment) + unaligned("k", p.k_alignment) + unaligned("v", p.v_alignment);
  if (p.pass == Pass::kBackward) s += unaligned("dout", p.dout_alignment);
  return s;
}

Work AttentionOperator::work(const Problem& p, const Device& device) const {
  return {nnz_flops(p), dense_flops(p), compulsory_bytes(p),
          peak_tflops(p.dtype, p.allow_tf32, device)};
}

}  // namespace sparse_autotune::attention
