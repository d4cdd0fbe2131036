#include "harness/report.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <map>

namespace harness {
namespace {

double tflops(double flops, double us) { return us > 0 ? flops / us * 1e-6 : 0; }

// The fastest of each family comes first, then families of which none was timed.
std::vector<Row> best_of_families(const Report& report) {
  std::map<std::string, Row> best;
  for (const Row& row : report.rows) {
    const auto [at, is_new] = best.try_emplace(row.family(), row);
    Row& known = at->second;
    const auto rank = [&](const Row& r) {
      return std::tuple(r.name != report.winner, r.median_us == 0, !r.legal, r.median_us);
    };
    if (!is_new && rank(row) < rank(known)) known = row;
  }
  std::vector<Row> rows;
  for (const auto& [family, row] : best) rows.push_back(row);
  std::stable_sort(rows.begin(), rows.end(), [](const Row& a, const Row& b) {
    return std::tuple(a.median_us == 0, a.median_us) < std::tuple(b.median_us == 0, b.median_us);
  });
  return rows;
}

std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    if (static_cast<unsigned char>(c) >= 0x20) {
      out += c;
    } else {
      char code[8];
      std::snprintf(code, sizeof(code), "\\u%04x", c);
      out += code;
    }
  }
  return out + '"';
}

// JSON has no infinities and no NaN.
std::string number(double x) {
  if (!std::isfinite(x)) return "null";
  char text[64];
  return std::string(text, std::to_chars(text, text + sizeof(text), x).ptr);
}

}  // namespace

bool Report::is_right() const {
  return std::all_of(rows.begin(), rows.end(),
                     [](const Row& row) { return !row.legal || row.error <= 1; });
}

double Report::winner_us() const {
  for (const Row& row : rows) {
    if (row.name == winner) return row.median_us;
  }
  return 0;
}

void print_table(const Report& r) {
  const std::vector<Row> rows = best_of_families(r);
  const std::string dense = "dense: " + r.dense_by;
  size_t width = r.dense_us > 0 ? dense.size() : 0;
  for (const Row& row : rows) width = std::max(width, row.name.size());
  const auto name_width = static_cast<int>(width);
  std::printf("%lldx%lldx%lld block %lld density %.4g %s %s on %s\n",
              static_cast<long long>(r.point.m), static_cast<long long>(r.point.k),
              static_cast<long long>(r.point.n), static_cast<long long>(r.point.block), r.density,
              name_of(r.point.dtype), r.pattern.c_str(), r.device.c_str());
  // A CPU's limit is estimated.
  std::printf("  %-*s %12s %12s %7s\n", name_width, "", "us", "nnz TFLOP/s",
              r.is_cuda ? "limit" : "~limit");
  for (const Row& row : rows) {
    if (!row.legal || row.median_us == 0) {
      std::printf("  %-*s %s\n", name_width, (row.legal ? row.name : row.family()).c_str(),
                  row.reason.empty() ? "right, not raced" : row.reason.c_str());
      continue;
    }
    const double share = r.limit_us > 0 ? 100 * r.limit_us / row.median_us : 0;
    std::printf("  %-*s %12.2f %12.4g %6.1f%%%s%s\n", name_width, row.name.c_str(), row.median_us,
                tflops(r.nnz_flops, row.median_us), share, row.name == r.winner ? " ✓" : "",
                row.reason.empty() ? "" : ("  " + row.reason).c_str());
  }
  if (r.dense_us > 0) {
    std::printf("  %-*s %12.2f %12.4g dense TFLOP/s\n", name_width, dense.c_str(), r.dense_us,
                tflops(r.dense_flops, r.dense_us));
  }
  for (const Row& row : r.rows) {
    if (row.legal && !(row.error <= 1)) {
      std::printf("  WRONG: %s is off by %.3g times what is allowed\n", row.name.c_str(),
                  row.error);
    }
  }
  const auto checked =
      std::count_if(r.rows.begin(), r.rows.end(), [](const Row& row) { return row.legal; });
  if (r.call_us > 0) {
    std::printf("  %s %.2f us\n",
                r.is_cuda ? "the host's time for one more product:" : "one more product takes",
                r.call_us);
  }
  std::printf("  %lld variants checked against fp64; %s\n", static_cast<long long>(checked),
              r.cached ? "the winner comes from the cache" : "the winner was raced now");
}

void print_heading() {
  std::printf("%6s %6s %6s %5s %8s %-5s %-36s %12s %12s %12s\n", "m", "k", "n", "block", "density",
              "dtype", "winner", "us", "nnz TFLOP/s", "times dense");
}

void print_line(const Report& r) {
  const double us = r.winner_us();
  std::printf("%6lld %6lld %6lld %5lld %8.4g %-5s %-36s %12.2f %12.4g",
              static_cast<long long>(r.point.m), static_cast<long long>(r.point.k),
              static_cast<long long>(r.point.n), static_cast<long long>(r.point.block), r.density,
              name_of(r.point.dtype), r.winner.c_str(), us, tflops(r.nnz_flops, us));
  if (r.dense_us > 0 && us > 0) std::printf(" %12.2f", r.dense_us / us);
  std::printf("%s\n", r.is_right() ? "" : "  WRONG");
}

void print_json(const Report& r) {
  const auto text = [](const char* key, const std::string& value) {
    return quoted(key) + ": " + quoted(value);
  };
  const auto value = [](const char* key, double x) { return quoted(key) + ": " + number(x); };
  const auto truth = [](const char* key, bool x) {
    return quoted(key) + (x ? ": true" : ": false");
  };
  std::string s = "{" + value("m", static_cast<double>(r.point.m)) + ", " +
                  value("k", static_cast<double>(r.point.k)) + ", " +
                  value("n", static_cast<double>(r.point.n)) + ", " +
                  value("block", static_cast<double>(r.point.block)) + ", " +
                  text("dtype", name_of(r.point.dtype)) + ", " + text("pattern", r.pattern) + ", " +
                  value("nnzb", static_cast<double>(r.nnzb)) + ", " + value("density", r.density) +
                  ", " + text("device", r.device) + ", " + text("winner", r.winner) + ", " +
                  truth("cached", r.cached) + ", " + truth("right", r.is_right()) + ", " +
                  value("nnz_flops", r.nnz_flops) + ", " + value("dense_flops", r.dense_flops) +
                  ", " + value("limit_us", r.limit_us) + ", " + value("dense_us", r.dense_us) +
                  ", " + text("dense_by", r.dense_by) + ", " + value("call_us", r.call_us) +
                  ", \"variants\": [";
  bool first = true;
  for (const Row& row : r.rows) {
    s += (first ? "{" : ", {") + text("name", row.name) + ", " + truth("legal", row.legal) + ", " +
         value("median_us", row.median_us) + ", " + value("error", row.error) + ", " +
         text("reason", row.reason) + "}";
    first = false;
  }
  std::printf("%s]}\n", s.c_str());
}

}  // namespace harness
