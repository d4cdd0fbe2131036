#include "autotune/problem_text.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <utility>
#include <vector>

#include "autotune/signature.h"

namespace sparse_autotune {
namespace {

constexpr int64_t kMaxSize = int64_t{1} << 40;
constexpr double kMaxBytes = 0x1p56;  // of an operand

constexpr std::array kOps = {Op::kMatmul, Op::kSampled};
constexpr std::array kDTypes = {DType::kFloat16, DType::kBFloat16, DType::kFloat32,
                                DType::kFloat64};
constexpr std::array kActivations = {Activation::kNone, Activation::kRelu, Activation::kGelu,
                                     Activation::kGeluTanh, Activation::kSilu};

const char* name_of_device(DeviceType device) {
  return device == DeviceType::kCpu ? "cpu" : "cuda";
}
const char* name_of_index(IndexType type) { return type == IndexType::kInt32 ? "i32" : "i64"; }
const char* name_of_layout(Layout layout) { return layout == Layout::kRowMajor ? "row" : "col"; }

struct Number {
  const char* key;
  int64_t Problem::*field;
  int64_t least;
};
constexpr Number kNumbers[] = {
    {"m", &Problem::m, 1},
    {"n", &Problem::n, 1},
    {"k", &Problem::k, 1},
    {"nnzb", &Problem::nnzb, 1},
    {"block_m", &Problem::block_m, 1},
    {"block_k", &Problem::block_k, 1},
    {"longest_row", &Problem::longest_row, -1},
    {"ldb", &Problem::ldb, 1},
    {"ldc", &Problem::ldc, 1},
    {"batch", &Problem::batch, 1},
    {"b_batch_stride", &Problem::b_batch_stride, 0},
    {"c_batch_stride", &Problem::c_batch_stride, 0},
};
constexpr std::pair<const char*, bool Problem::*> kFlags[] = {
    {"bias", &Problem::has_bias},
    {"transpose", &Problem::transpose},
    {"frozen", &Problem::frozen},
    {"tf32", &Problem::allow_tf32},
    {"deterministic", &Problem::deterministic},
    {"exact_nonfinite", &Problem::exact_nonfinite},
};
constexpr std::pair<const char*, uint8_t Problem::*> kAlignments[] = {
    {"values_alignment", &Problem::values_alignment},
    {"b_alignment", &Problem::b_alignment},
    {"c_alignment", &Problem::c_alignment},
};

bool parse_number(std::string_view text, int64_t* number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *number);
  return error == std::errc() && end == text.data() + text.size();
}

template <typename Enumerations, typename Enumeration, typename Name>
bool parse_name(std::string_view text, const Enumerations& all, Name name, Enumeration* value) {
  const auto found =
      std::find_if(all.begin(), all.end(), [&](Enumeration one) { return text == name(one); });
  if (found == all.end()) return false;
  *value = *found;
  return true;
}

bool parse_word(std::string_view key, std::string_view value, Problem* p) {
  constexpr std::array kDevices = {DeviceType::kCpu, DeviceType::kCuda};
  constexpr std::array kIndexTypes = {IndexType::kInt32, IndexType::kInt64};
  constexpr std::array kLayouts = {Layout::kRowMajor, Layout::kColMajor};
  if (key == "op") {
    return parse_name(
        value, kOps, [](Op op) { return std::string_view(name_of(op)); }, &p->op);
  }
  if (key == "device") return parse_name(value, kDevices, name_of_device, &p->device);
  if (key == "dtype") return parse_name(value, kDTypes, short_name, &p->dtype);
  if (key == "index") return parse_name(value, kIndexTypes, name_of_index, &p->index_type);
  if (key == "b_layout") return parse_name(value, kLayouts, name_of_layout, &p->b_layout);
  if (key == "c_layout") return parse_name(value, kLayouts, name_of_layout, &p->c_layout);
  if (key == "activation") {
    return parse_name(
        value, kActivations, [](Activation a) { return std::string_view(name_of(a)); },
        &p->activation);
  }
  int64_t number = 0;
  if (!parse_number(value, &number)) return false;
  for (const Number& n : kNumbers) {
    if (key == n.key) {
      p->*n.field = number;
      return number >= n.least && number <= kMaxSize;
    }
  }
  for (const auto& [name, flag] : kFlags) {
    if (key == name) {
      p->*flag = number == 1;
      return number == 0 || number == 1;
    }
  }
  for (const auto& [name, alignment] : kAlignments) {
    if (key == name) {
      p->*alignment = static_cast<uint8_t>(number);
      return number == 1 || number == 2 || number == 4 || number == 8 || number == 16;
    }
  }
  return false;
}

// Bytes of a batch of strided matrices, as a number that cannot overflow.
double bytes_of(double rows, double leading, double batch, double batch_stride, DType dtype) {
  return (rows * leading + (batch - 1) * batch_stride) * static_cast<double>(size_of(dtype));
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

std::string problem_text(const Problem& p) {
  std::string s;
  const auto put = [&](const char* key, const std::string& value) {
    s += (s.empty() ? "" : " ") + std::string(key) + "=" + value;
  };
  put("op", name_of(p.op));
  put("device", name_of_device(p.device));
  put("dtype", short_name(p.dtype));
  put("index", name_of_index(p.index_type));
  for (const Number& n : kNumbers) put(n.key, std::to_string(p.*n.field));
  put("b_layout", name_of_layout(p.b_layout));
  put("c_layout", name_of_layout(p.c_layout));
  put("activation", name_of(p.activation));
  for (const auto& [name, flag] : kFlags) put(name, p.*flag ? "1" : "0");
  for (const auto& [name, alignment] : kAlignments) put(name, std::to_string(p.*alignment));
  return s;
}

std::optional<Problem> parse_problem(std::string_view text, std::string* why) {
  const auto refuse = [&](std::string reason) -> std::optional<Problem> {
    if (why != nullptr) *why = std::move(reason);
    return std::nullopt;
  };
  constexpr size_t kMaxText = 4096;
  if (text.size() > kMaxText) return refuse("it is longer than a problem's text");
  Problem p{};
  std::vector<std::string_view> keys;
  while (!text.empty()) {
    const std::string_view word = text.substr(0, text.find(' '));
    text.remove_prefix(std::min(word.size() + 1, text.size()));
    const size_t at = word.find('=');
    const std::string_view key = word.substr(0, at);
    const bool known = at != std::string_view::npos && parse_word(key, word.substr(at + 1), &p);
    if (!known || std::find(keys.begin(), keys.end(), key) != keys.end()) {
      std::string shown(word.substr(0, 60));
      std::replace_if(
          shown.begin(), shown.end(), [](char c) { return c < ' ' || c > '~'; }, '?');
      return refuse("'" + shown + "' says nothing of a problem");
    }
    keys.push_back(key);
  }
  constexpr size_t kNames = 7;
  if (keys.size() != kNames + std::size(kNumbers) + std::size(kFlags) + std::size(kAlignments)) {
    return refuse("some of a problem's fields are missing");
  }
  if (std::string reason = contradiction(p); !reason.empty()) return refuse(std::move(reason));
  return p;
}

}  // namespace sparse_autotune
