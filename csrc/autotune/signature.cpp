#include "autotune/signature.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <cmath>

namespace sparse_autotune {
namespace {

constexpr size_t kMaxSignature = 200;

std::string number(int64_t x) { return std::to_string(x); }

// Three significant digits, the same in every locale.
std::string number(double x) {
  char text[32];
  const auto end = std::to_chars(text, text + sizeof(text), x, std::chars_format::general, 3).ptr;
  return std::string(text, end);
}

// Runs of characters that do not belong into a file name become one '_'.
std::string file_name_safe(std::string_view text) {
  std::string safe;
  for (const char c : text) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                       (c == '.' && !safe.empty()) || c == '-';
    if (plain) {
      safe += c;
    } else if (!safe.empty() && safe.back() != '_') {
      safe += '_';
    }
  }
  while (!safe.empty() && safe.back() == '_') safe.pop_back();
  return safe;
}

// A text that is too long keeps its readable beginning and is told apart by a hash of the whole.
std::string bounded(std::string text) {
  if (text.size() <= kMaxSignature) return text;
  uint64_t hash = 0xcbf29ce484222325u;  // FNV-1a
  for (const char c : text) hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001b3u;
  char digits[16];
  const auto end = std::to_chars(digits, digits + sizeof(digits), hash, 16).ptr;
  text.resize(kMaxSignature - 17);
  return text + "_" + std::string(digits, end);
}

// Average blocks per row in steps of 19%: within one, time changes with the work alone.
std::string row_bucket(const Problem& p) {
  if (p.nnzb <= 0 || block_rows(p) <= 0) return "0";
  const double mean = static_cast<double>(p.nnzb) / static_cast<double>(block_rows(p));
  return number(std::exp2(static_cast<double>(std::lround(4 * std::log2(mean))) / 4));
}

// Longest row over average row, to the next power of two: how much balancing has to gain.
std::string skew_bucket(const Problem& p) {
  if (p.nnzb <= 0 || p.longest_row <= 0) return "0";
  const double mean = static_cast<double>(p.nnzb) / static_cast<double>(block_rows(p));
  const double skew = static_cast<double>(p.longest_row) / mean;
  return number(int64_t{1} << std::clamp<long>(std::lround(std::log2(skew)), 0, 62));
}

std::string cpu_facts(const Device& device) {
  return std::string("_") + name_of(device.isa) + "_t" + number(int64_t{device.threads});
}

}  // namespace

const char* name_of(CpuIsa isa) {
  switch (isa) {
    case CpuIsa::kBaseline:
      return "baseline";
    case CpuIsa::kAvx2:
      return "avx2";
    case CpuIsa::kAvx512:
      return "avx512";
    case CpuIsa::kAvx512Bf16:
      return "avx512bf16";
    case CpuIsa::kAmx:
      return "amx";
  }
  return "";
}

const char* short_name(DType dtype) {
  switch (dtype) {
    case DType::kFloat16:
      return "f16";
    case DType::kBFloat16:
      return "bf16";
    case DType::kFloat32:
      return "f32";
    case DType::kFloat64:
      return "f64";
  }
  return "";
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

const char* name_of(Op op) {
  switch (op) {
    case Op::kMatmul:
      return "matmul";
    case Op::kSampled:
      return "sampled_matmul";
  }
  return "";
}

int64_t n_bucket(int64_t n, bool fine) {
  if (n <= 1) return 1;
  const auto power = static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(n)));
  const int64_t between = power / 4 * 3;
  if (fine) return n > 32 && n <= between ? between : power;
  const bool skipped = n > 512 && std::countr_zero(static_cast<uint64_t>(power)) % 2 == 0;
  return skipped ? 2 * power : power;
}

std::string signature(const Problem& p, const Device& device, Timing timing,
                      std::string_view family, Buckets buckets) {
  const bool cuda = p.device == DeviceType::kCuda;
  // CPU variants load unaligned at full speed. On a GPU 16 bytes decide: below, copies to shared
  // memory fall apart into small ones, and how small matters less.
  const auto unaligned = [&](uint8_t alignment) { return cuda && alignment < 16; };
  const bool fine = !unaligned(p.b_alignment) && !unaligned(p.c_alignment);
  const auto layout = [&](const char* name, Layout l, uint8_t alignment) {
    return std::string(name) + (l == Layout::kRowMajor ? "R" : "C") +
           (unaligned(alignment) ? "u" : "");
  };
  std::string s = name_of(p.op);
  if (p.transpose) s += "_transposed";
  s += "_" + number(p.m) + "x" + number(p.k);
  s += "_bs" + number(p.block_m) + "x" + number(p.block_k);
  s += buckets == Buckets::kExact ? "_exactn" + number(p.n) : "_n" + number(n_bucket(p.n, fine));
  s += "_row" + row_bucket(p) + "_skew" + skew_bucket(p);
  s += std::string("_") + short_name(p.dtype);
  s += p.index_type == IndexType::kInt64 ? "_i64" : "_i32";
  if (unaligned(p.values_alignment)) s += "_au";
  s += layout("_b", p.b_layout, p.b_alignment) + layout("_c", p.c_layout, p.c_alignment);
  if (p.batch > 1) {
    s += "_batch" + number(n_bucket(p.batch, false));
    if (p.b_batch_stride == 0) s += "shared";  // one B: it stays in the cache
    if (p.op == Op::kSampled && p.c_batch_stride == 0) s += "_sharedc";
  }
  if (p.has_bias) s += "_bias";
  if (p.activation != Activation::kNone) s += std::string("_") + name_of(p.activation);
  if (p.frozen) s += "_frozen";
  if (p.allow_tf32 && p.dtype == DType::kFloat32) s += "_tf32";
  if (p.deterministic) s += "_det";
  if (p.exact_nonfinite) s += "_exact";
  if (!cuda) s += cpu_facts(device);
  s += cuda && timing == Timing::kCold ? "_cold" : "_warm";
  if (!family.empty()) s += "_only-" + file_name_safe(family);
  return bounded(std::move(s));
}

std::string device_class(const Device& device) {
  std::string s = file_name_safe(device.name);
  if (device.type == DeviceType::kCpu) return bounded(s + cpu_facts(device));
  return bounded(s + "_sm" + number(int64_t{device.compute_capability}) + "_" +
                 number(int64_t{device.multiprocessors}));
}

std::string describe(const Problem& p) {
  std::string s = p.op == Op::kSampled ? "sampled " : "";
  s += number(p.m) + "x" + number(p.k) + "x" + number(p.n);
  s += " bs" + number(p.block_m);
  if (p.block_k != p.block_m) s += "x" + number(p.block_k);
  const double blocks = static_cast<double>(block_rows(p)) * static_cast<double>(block_cols(p));
  s += " density " + number(blocks > 0 ? static_cast<double>(p.nnzb) / blocks : 0.0);
  s += std::string(" ") + short_name(p.dtype);
  if (p.transpose) s += " transposed";
  if (p.batch > 1) s += " batch " + number(p.batch);
  if (p.has_bias) s += " bias";
  if (p.activation != Activation::kNone) s += std::string(" ") + name_of(p.activation);
  return s;
}

}  // namespace sparse_autotune
