#include "harness/arguments.h"

#include <charconv>
#include <cmath>
#include <map>

#include "harness/device.h"
#include "harness/pattern.h"

namespace harness {
namespace {

const std::map<std::string, sparse_autotune_dtype, std::less<>> kDtypes = {
    {"fp16", SPARSE_AUTOTUNE_FLOAT16},
    {"bf16", SPARSE_AUTOTUNE_BFLOAT16},
    {"fp32", SPARSE_AUTOTUNE_FLOAT32},
    {"fp64", SPARSE_AUTOTUNE_FLOAT64},
};
constexpr int64_t kMostSize = int64_t{1} << 24;

std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> parts(1);
  for (const char c : text) {
    if (c == ',') {
      parts.emplace_back();
    } else {
      parts.back() += c;
    }
  }
  return parts;
}

template <typename Number>
std::string text_of(Number value) {
  char text[32];
  return std::string(text, std::to_chars(text, text + sizeof(text), value).ptr);
}

template <typename Number>
Number number(const std::string& flag, const std::string& text, Number least, Number most) {
  Number value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool whole = error == std::errc() && end == text.data() + text.size();
  if (!whole || !(value >= least) || !(value <= most)) {
    throw BadArgument(flag + " must be a number from " + text_of(least) + " to " + text_of(most) +
                      ", got '" + text + "'");
  }
  return value;
}

template <typename Number>
std::vector<Number> numbers(const std::string& flag, const std::string& text, Number least,
                            Number most) {
  std::vector<Number> values;
  for (const std::string& part : split(text)) values.push_back(number(flag, part, least, most));
  return values;
}

sparse_autotune_dtype dtype(const std::string& text) {
  const auto found = kDtypes.find(text);
  if (found == kDtypes.end()) {
    throw BadArgument("--dtype must be fp16, bf16, fp32 or fp64, got '" + text + "'");
  }
  return found->second;
}

// The values of each axis; a point takes one of each.
struct Axes {
  std::vector<int64_t> m, k, n, block;
  std::vector<double> sparsity;
  std::vector<sparse_autotune_dtype> dtype;
};

template <typename Value>
void require_one(bool grid, const char* flag, const std::vector<Value>& values) {
  if (!grid && values.size() > 1) {
    throw BadArgument(std::string(flag) + " takes several values only with --grid");
  }
}

std::vector<Point> points_of(Axes axes, bool grid) {
  const Point usual;
  const auto fill = [](auto& values, auto... fallback) {
    if (values.empty()) values = {fallback...};
  };
  if (grid) fill(axes.block, 16, 32, 64, 128);
  if (grid) fill(axes.sparsity, 0.5, 0.75, 0.875, 0.95);
  fill(axes.m, usual.m);
  fill(axes.k, usual.k);
  fill(axes.n, usual.n);
  fill(axes.block, usual.block);
  fill(axes.sparsity, usual.sparsity);
  fill(axes.dtype, usual.dtype);
  require_one(grid, "--m", axes.m);
  require_one(grid, "--k", axes.k);
  require_one(grid, "--n", axes.n);
  require_one(grid, "--block", axes.block);
  require_one(grid, "--sparsity", axes.sparsity);
  require_one(grid, "--dtype", axes.dtype);
  std::vector<Point> points;
  for (const int64_t m : axes.m)
    for (const int64_t k : axes.k)
      for (const int64_t n : axes.n)
        for (const int64_t block : axes.block)
          for (const double sparsity : axes.sparsity)
            for (const auto type : axes.dtype) points.push_back({m, k, n, block, sparsity, type});
  for (const Point& p : points) {
    for (const auto& [flag, size] : {std::pair{"--m", p.m}, std::pair{"--k", p.k}}) {
      if (size % p.block == 0) continue;
      throw BadArgument(std::string(flag) + " must be a multiple of --block " +
                        std::to_string(p.block) + ", got " + std::to_string(size));
    }
  }
  return points;
}

}  // namespace

const char* const kUsage =
    "usage: sparse_autotune [flags]\n"
    "Makes a block-sparse matrix A (m x k), verifies every kernel that can compute A @ B against\n"
    "fp64, races them and remembers the winner.\n"
    "  --m --k --n SIZE      of the product                        (1024)\n"
    "  --block SIZE          of A's square blocks                  (64)\n"
    "  --sparsity SHARE      of A's blocks that are not stored     (0.875)\n"
    "  --dtype NAME          fp16, bf16, fp32 or fp64              (fp32)\n"
    "  --device NAME         cpu, cuda or cuda:1                   (cuda if there is one, else "
    "cpu)\n"
    "  --threads COUNT       of the CPU                            (all)\n"
    "  --pattern NAME        uniform, banded, power_law, one_dense_row, half_empty,\n"
    "                        block_diagonal or causal              (uniform)\n"
    "  --variants LIST       names or families, comma-separated    (all that are legal)\n"
    "  --seed NUMBER         of pattern and values                 (0)\n"
    "  --budget SECONDS      of a race                             (1)\n"
    "  --grid                all combinations of comma-separated values of the sizes, --sparsity\n"
    "                        and --dtype; of --block and --sparsity it has some by itself\n"
    "  --no-dense            leaves out the dense product\n"
    "  --json                one JSON object a product, a line each\n"
    "  --cache DIRECTORY     of winners; '' keeps none             (~/.cache/sparse_autotune)\n"
    "  --torch-version TEXT  of the Python that shares the cache\n"
    "Exits with 0, with 1 where a result is wrong, and with 2 where it cannot do as asked.\n";

Arguments parse(int count, const char* const* words) {
  Arguments a;
  Axes axes;
  bool device_given = false;
  for (int i = 1; i < count; ++i) {
    std::string flag = words[i];
    if (flag == "--help" || flag == "-h") {
      a.help = true;
      return a;
    }
    if (flag == "--grid" || flag == "--json" || flag == "--no-dense") {
      (flag == "--grid" ? a.grid : flag == "--json" ? a.json : a.dense) = flag != "--no-dense";
      continue;
    }
    if (!flag.starts_with("--")) throw BadArgument("'" + flag + "' is no flag (see --help)");
    std::string value;
    if (const size_t equals = flag.find('='); equals != std::string::npos) {
      value = flag.substr(equals + 1);
      flag.resize(equals);
      if (flag == "--grid" || flag == "--json" || flag == "--no-dense") {
        throw BadArgument(flag + " takes no value, got '" + value + "'");
      }
    } else if (i + 1 < count) {
      value = words[++i];
    } else {
      throw BadArgument(flag + " needs a value (see --help)");
    }
    if (flag == "--m") {
      axes.m = numbers<int64_t>(flag, value, 1, kMostSize);
    } else if (flag == "--k") {
      axes.k = numbers<int64_t>(flag, value, 1, kMostSize);
    } else if (flag == "--n") {
      axes.n = numbers<int64_t>(flag, value, 1, kMostSize);
    } else if (flag == "--block") {
      axes.block = numbers<int64_t>(flag, value, 1, 4096);
    } else if (flag == "--sparsity") {
      axes.sparsity = numbers<double>(flag, value, 0, 1);
    } else if (flag == "--dtype") {
      axes.dtype.clear();
      for (const std::string& name : split(value)) axes.dtype.push_back(dtype(name));
    } else if (flag == "--device") {
      device_given = true;
      a.cuda = value.starts_with("cuda");
      if (a.cuda && value.size() > 4) {
        if (value[4] != ':')
          throw BadArgument("--device must be cpu, cuda or cuda:1, got '" + value + "'");
        a.ordinal = static_cast<int32_t>(number<int64_t>(flag, value.substr(5), 0, 1023));
      } else if (!a.cuda && value != "cpu") {
        throw BadArgument("--device must be cpu, cuda or cuda:1, got '" + value + "'");
      }
    } else if (flag == "--threads") {
      a.threads = static_cast<int32_t>(number<int64_t>(flag, value, 1, 1024));
    } else if (flag == "--pattern") {
      a.pattern = value;
    } else if (flag == "--variants") {
      a.variants = value;
    } else if (flag == "--seed") {
      a.seed = number<uint64_t>(flag, value, 0, UINT64_MAX);
    } else if (flag == "--budget") {
      a.budget_s = number<double>(flag, value, 1e-3, 1e4);
    } else if (flag == "--cache") {
      a.cache_directory = value.empty() ? "\n" : value;  // told from one that is not given
    } else if (flag == "--torch-version") {
      a.torch_version = value;
    } else {
      throw BadArgument("there is no flag " + flag + " (see --help)");
    }
  }
  require_pattern(a.pattern);
  a.points = points_of(axes, a.grid);
  if (!device_given) a.cuda = cuda_is_usable();
  return a;
}

const char* name_of(sparse_autotune_dtype dtype) {
  for (const auto& [name, value] : kDtypes) {
    if (value == dtype) return name.c_str();
  }
  return "";
}

}  // namespace harness
