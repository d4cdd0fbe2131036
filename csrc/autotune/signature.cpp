#include "autotune/signature.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <cmath>

namespace sparse_autotune {
namespace {

constexpr size_t kMaxSignature = 200;

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

std::string cpu_facts(const Device& device) {
  return std::string("_") + name_of(device.isa) + "_t" + std::to_string(device.threads);
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

std::string signature(AnyProblem p, const Device& device, Timing timing, std::string_view family,
                      Buckets buckets) {
  const Asked asked = p.op().asked(p);
  const bool cuda = asked.device == DeviceType::kCuda;
  std::string s = std::string(p.op().name()) + p.op().signature(p, buckets);
  if (asked.deterministic) s += "_det";
  if (asked.exact_nonfinite) s += "_exact";
  if (!cuda) s += cpu_facts(device);
  s += cuda && timing == Timing::kCold ? "_cold" : "_warm";
  if (!family.empty()) s += "_only-" + file_name_safe(family);
  return bounded(std::move(s));
}

std::string device_class(const Device& device) {
  std::string s = file_name_safe(device.name);
  if (device.type == DeviceType::kCpu) return bounded(s + cpu_facts(device));
  return bounded(s + "_sm" + std::to_string(device.compute_capability) + "_" +
                 std::to_string(device.multiprocessors));
}

}  // namespace sparse_autotune
