// What a race found out, and the text form in which it is kept and shown.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "autotune/settings.h"

namespace sparse_autotune {

// How a variant fared. Only kOk can win.
enum class Outcome : uint8_t {
  kOk,           // right, and timed to the end
  kUnsupported,  // not legal for the problem
  kSkipped,      // not tried: its estimate does not fit the budget, or the race was stopped
  kEliminated,   // right, and timed until it was far behind
  kOutOfMemory,
  kLaunchFailed,
  kWrongResult,
};
// As records and reports write it: ok, unsupported, skipped, eliminated, out_of_memory,
// launch_failed, wrong_result.
const char* name_of(Outcome outcome);

struct Entrant {
  std::string name;
  Outcome outcome = Outcome::kSkipped;
  double expected_us = 0;  // by the variant's cost model, which orders the race; 0: it has none
  double median_us = 0;    // of one launch, with its prepare() unless frozen; 0: not timed
  double spread_us = 0;    // interquartile range of the samples
  double host_us = 0;      // of a GPU's launch until it is enqueued, median; 0: not timed apart
  int64_t samples = 0;     // timed bursts behind the median
  double error = 0;  // largest |result - reference| as a share of what is allowed: wrong above 1
  int64_t memory_bytes = 0;  // scratch of one launch, and the converted copy
  bool captures = true;  // whether a CUDA graph can hold it; if not, median_us has the host's part
  std::string reason;    // why it did not race, or left early

  // Of one of many launches that the host enqueues: where it takes longer than the kernels, that.
  double eager_us() const { return std::max(median_us, host_us); }
  bool timed() const { return outcome == Outcome::kOk || outcome == Outcome::kEliminated; }
  bool failed() const {
    return outcome == Outcome::kOutOfMemory || outcome == Outcome::kLaunchFailed ||
           outcome == Outcome::kWrongResult;
  }
};

struct Record {
  std::string signature;
  std::string device_class;
  std::string device;           // its name, for people
  std::string environment;      // of whoever keeps it: its versions; may be empty, not written then
  std::string description;      // describe(problem)
  std::string winner;           // empty when nothing could be chosen
  std::string captured_winner;  // of launches in a CUDA graph; empty: the same
  std::string failure;          // why there was no race to its end; empty otherwise
  Timing timing = Timing::kCold;  // as it was measured; a CPU's is always warm
  std::string when;               // UTC, 2026-01-31T12:34:56Z
  double seconds = 0;             // that the race took
  double nnz_flops = 0;           // on stored blocks
  double dense_flops = 0;         // of the dense computation of equal shape
  double bytes = 0;               // that any variant must move
  double peak_tflops = 0;         // of the device, for the problem's dtype; 0: unknown
  double peak_gbps = 0;           // of its memory; 0: unknown
  std::vector<Entrant> entrants;  // fastest first, then those without a time
  bool stopped = false;           // by the host; not part of the text

  const Entrant* find(std::string_view name) const;
};

// Bounds of the text form; the parser refuses what exceeds them.
constexpr size_t kMaxRecordBytes = size_t{1} << 20;
constexpr size_t kMaxEntrants = 2048;
constexpr size_t kMaxFieldBytes = 400;
constexpr int kRecordVersion = 4;

// Lines of printable ASCII, first a header, last a line that says how many entrants came before it.
// Fields are cut, and other characters replaced, so that parse_record() takes every record back.
std::string to_text(const Record& record);

// nullopt, and why, for anything but the complete text of one record. Throws nothing (but
// bad_alloc), whatever the bytes are.
std::optional<Record> parse_record(std::string_view text, std::string* why);

// Splits a bundle, which is records one after the other, into the texts of its records. Stops, and
// says why, at the first that is not one.
std::vector<std::string> split_bundle(std::string_view bundle, std::string* why);

}  // namespace sparse_autotune
