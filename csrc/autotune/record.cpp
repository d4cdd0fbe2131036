#include "autotune/record.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <utility>

namespace sparse_autotune {
namespace {

constexpr std::string_view kHeader = "sparse_autotune_race ";
constexpr std::string_view kEnd = "end ";
constexpr size_t kEntrantFields = 11;
constexpr std::array kOutcomes = {
    Outcome::kOk,          Outcome::kUnsupported,  Outcome::kSkipped,     Outcome::kEliminated,
    Outcome::kOutOfMemory, Outcome::kLaunchFailed, Outcome::kWrongResult,
};

bool printable(char c) { return c >= ' ' && c <= '~'; }

// What to_text() may write between two separators.
std::string field(std::string_view text) {
  std::string out(text.substr(0, kMaxFieldBytes));
  std::replace_if(
      out.begin(), out.end(), [](char c) { return c == '\n' || c == '\t'; }, ' ');
  std::replace_if(
      out.begin(), out.end(), [](char c) { return !printable(c); }, '?');
  return out;
}

// The shortest text that reads back as the same number, the same in every locale. What is not
// finite (a wrong result's error) becomes the largest number: a record holds plain numbers only.
std::string number(double x) {
  if (std::isnan(x) || x > 1e300) x = 1e300;
  if (x < -1e300) x = -1e300;
  char text[64];
  return std::string(text, std::to_chars(text, text + sizeof(text), x).ptr);
}

template <typename T>
bool parse_number(std::string_view text, T* value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *value);
  if (error != std::errc() || end != text.data() + text.size()) return false;
  if constexpr (std::is_floating_point_v<T>) return std::isfinite(*value) && *value >= 0;
  return *value >= 0;
}

// Takes the text before `separator` off the front; nullopt when there is no separator.
std::optional<std::string_view> take(std::string_view* text, char separator) {
  const size_t at = text->find(separator);
  if (at == std::string_view::npos) return std::nullopt;
  const std::string_view front = text->substr(0, at);
  text->remove_prefix(at + 1);
  return front;
}

bool parse_entrant(std::string_view line, Entrant* e) {
  std::array<std::string_view, kEntrantFields> f;
  for (size_t i = 0; i + 1 < kEntrantFields; ++i) {
    const auto part = take(&line, '\t');
    if (!part) return false;
    f[i] = *part;
  }
  if (line.find('\t') != std::string_view::npos) return false;
  f.back() = line;
  const auto outcome = std::find_if(kOutcomes.begin(), kOutcomes.end(),
                                    [&](Outcome o) { return f[1] == name_of(o); });
  if (f[0].empty() || outcome == kOutcomes.end()) return false;
  if (f[9] != "captured" && f[9] != "eager") return false;
  e->name = f[0];
  e->outcome = *outcome;
  e->captures = f[9] == "captured";
  e->reason = f[10];
  return parse_number(f[2], &e->expected_us) && parse_number(f[3], &e->median_us) &&
         parse_number(f[4], &e->spread_us) && parse_number(f[5], &e->samples) &&
         parse_number(f[6], &e->error) && parse_number(f[7], &e->memory_bytes) &&
         parse_number(f[8], &e->host_us);
}

// One "key value" line. Keys that a newer version might add are refused: it raises the version.
bool parse_fact(std::string_view key, std::string_view value, Record* r) {
  const std::pair<std::string_view, std::string*> texts[] = {
      {"signature", &r->signature},
      {"device_class", &r->device_class},
      {"environment", &r->environment},
      {"device", &r->device},
      {"problem", &r->description},
      {"winner", &r->winner},
      {"failure", &r->failure},
      {"captured_winner", &r->captured_winner},
      {"when", &r->when},
  };
  for (const auto& [name, target] : texts) {
    if (key == name) {
      *target = value;
      return true;
    }
  }
  const std::pair<std::string_view, double*> numbers[] = {
      {"seconds", &r->seconds}, {"nnz_flops", &r->nnz_flops},     {"dense_flops", &r->dense_flops},
      {"bytes", &r->bytes},     {"peak_tflops", &r->peak_tflops}, {"peak_gbps", &r->peak_gbps},
  };
  for (const auto& [name, target] : numbers) {
    if (key == name) return parse_number(value, target);
  }
  if (key != "timing" || (value != "cold" && value != "warm")) return false;
  r->timing = value == "cold" ? Timing::kCold : Timing::kWarm;
  return true;
}

// Why a record whose lines are all fine cannot be believed; empty when it can.
std::string contradiction(const Record& r) {
  if (r.signature.empty()) return "it has no signature";
  if (r.winner.empty()) return "";
  const Entrant* winner = r.find(r.winner);
  if (winner == nullptr) return "its winner did not race";
  if (winner->outcome != Outcome::kOk || winner->median_us <= 0) return "its winner has no time";
  if (r.captured_winner.empty()) return "";
  const Entrant* captured = r.find(r.captured_winner);
  if (captured == nullptr || captured->outcome != Outcome::kOk || captured->median_us <= 0 ||
      !captured->captures) {
    return "its winner in CUDA graphs has no time in one";
  }
  return "";
}

}  // namespace

const char* name_of(Outcome outcome) {
  switch (outcome) {
    case Outcome::kOk:
      return "ok";
    case Outcome::kUnsupported:
      return "unsupported";
    case Outcome::kSkipped:
      return "skipped";
    case Outcome::kEliminated:
      return "eliminated";
    case Outcome::kOutOfMemory:
      return "out_of_memory";
    case Outcome::kLaunchFailed:
      return "launch_failed";
    case Outcome::kWrongResult:
      return "wrong_result";
  }
  return "";
}

const Entrant* Record::find(std::string_view name) const {
  const auto it = std::find_if(entrants.begin(), entrants.end(),
                               [&](const Entrant& e) { return e.name == name; });
  return it == entrants.end() ? nullptr : &*it;
}

std::string to_text(const Record& r) {
  std::string s = std::string(kHeader) + std::to_string(kRecordVersion) + "\n";
  const auto fact = [&](const char* key, const std::string& value) {
    s += std::string(key) + " " + value + "\n";
  };
  fact("signature", field(r.signature));
  fact("device_class", field(r.device_class));
  if (!r.environment.empty()) fact("environment", field(r.environment));
  fact("device", field(r.device));
  fact("problem", field(r.description));
  fact("winner", field(r.winner));
  if (!r.captured_winner.empty()) fact("captured_winner", field(r.captured_winner));
  fact("failure", field(r.failure));
  fact("timing", r.timing == Timing::kCold ? "cold" : "warm");
  fact("when", field(r.when));
  fact("seconds", number(r.seconds));
  fact("nnz_flops", number(r.nnz_flops));
  fact("dense_flops", number(r.dense_flops));
  fact("bytes", number(r.bytes));
  fact("peak_tflops", number(r.peak_tflops));
  fact("peak_gbps", number(r.peak_gbps));
  size_t written = 0;
  for (const Entrant& e : r.entrants) {
    std::string line =
        "entrant " + field(e.name) + "\t" + name_of(e.outcome) + "\t" + number(e.expected_us) +
        "\t" + number(e.median_us) + "\t" + number(e.spread_us) + "\t" + std::to_string(e.samples) +
        "\t" + number(e.error) + "\t" + std::to_string(e.memory_bytes) + "\t" + number(e.host_us) +
        "\t" + (e.captures ? "captured" : "eager") + "\t" + field(e.reason) + "\n";
    if (written == kMaxEntrants || s.size() + line.size() + 32 > kMaxRecordBytes) break;
    s += line;
    ++written;
  }
  return s + std::string(kEnd) + std::to_string(written) + "\n";
}

std::optional<Record> parse_record(std::string_view text, std::string* why) {
  const auto refuse = [&](std::string reason) -> std::optional<Record> {
    if (why != nullptr) *why = std::move(reason);
    return std::nullopt;
  };
  if (text.size() > kMaxRecordBytes) return refuse("it is larger than a record may be");
  const auto header = take(&text, '\n');
  if (!header || !header->starts_with(kHeader)) return refuse("it does not begin as one");
  int version = 0;
  if (!parse_number(header->substr(kHeader.size()), &version) || version != kRecordVersion) {
    return refuse("it is of another version");
  }
  Record r;
  for (int64_t line_number = 2;; ++line_number) {
    const auto line = take(&text, '\n');
    if (!line) return refuse("it ends too early");
    const std::string where = "line " + std::to_string(line_number);
    const bool clean =
        std::all_of(line->begin(), line->end(), [](char c) { return c == '\t' || printable(c); });
    if (!clean) return refuse(where + " holds characters that no record has");
    if (line->starts_with(kEnd)) {
      size_t count = 0;
      if (!parse_number(line->substr(kEnd.size()), &count) || count != r.entrants.size()) {
        return refuse("lines are missing");
      }
      break;
    }
    std::string_view value = *line;
    const auto key = take(&value, ' ');
    if (!key) return refuse(where + " is malformed");
    if (*key == "entrant") {
      if (r.entrants.size() == kMaxEntrants) return refuse("it has too many entrants");
      if (!parse_entrant(value, &r.entrants.emplace_back())) return refuse(where + " is malformed");
    } else if (value.size() > kMaxFieldBytes || !parse_fact(*key, value, &r)) {
      return refuse(where + " is malformed");
    }
  }
  if (!text.empty()) return refuse("something follows its end");
  if (std::string reason = contradiction(r); !reason.empty()) return refuse(std::move(reason));
  return r;
}

std::vector<std::string> split_bundle(std::string_view bundle, std::string* why) {
  std::vector<std::string> found;
  while (!bundle.empty()) {
    const size_t last_line = bundle.find("\nend ");
    const size_t end =
        last_line == std::string_view::npos ? last_line : bundle.find('\n', last_line + 1);
    const std::string_view text =
        end == std::string_view::npos ? bundle : bundle.substr(0, end + 1);
    std::string reason;
    if (!parse_record(text, &reason)) {
      if (why != nullptr) *why = "record " + std::to_string(found.size() + 1) + ": " + reason;
      break;
    }
    found.emplace_back(text);
    bundle.remove_prefix(text.size());
  }
  return found;
}

}  // namespace sparse_autotune
