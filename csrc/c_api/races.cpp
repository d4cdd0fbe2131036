// Races, and records of them.
#include <cmath>
#include <limits>
#include <optional>
#include <sstream>
#include <utility>

#include "autotune/tuner.h"
#include "c_api/read_product.h"
#include "c_api/status.h"
#include "c_api/surroundings.h"
#include "calls/race_call.h"

namespace sparse_autotune {
namespace {

struct Order {
  RaceOrder race;
  bool dry_run = false;
};

Order read_order(const sparse_autotune_race_options* given) {
  Order order;
  order.race.save = false;
  if (given == nullptr) return order;
  const auto o = read_struct(given, "options");
  const auto require_switch = [](int32_t value, const char* argument) {
    require(value == 0 || value == 1, argument, "must be 0 or 1", value);
  };
  require(o.rounds >= 0 && o.rounds <= std::numeric_limits<int>::max(), "options.rounds",
          "must be 0 to 2^31 - 1", o.rounds);
  require(std::isfinite(o.budget_s) && o.budget_s >= 0, "options.budget_s",
          "must be a finite number of seconds, not negative", o.budget_s);
  require_switch(o.keep_all, "options.keep_all");
  require_switch(o.save, "options.save");
  require_switch(o.dry_run, "options.dry_run");
  require(o.reserved == 0, "options.reserved", "must be 0", o.reserved);
  if (o.variants != nullptr) order.race.variants = o.variants;
  order.race.rounds = o.rounds;
  order.race.budget_s = o.budget_s;
  order.race.eliminate = o.keep_all == 0;
  order.race.save = o.save == 1;
  order.dry_run = o.dry_run == 1;
  return order;
}

// Nothing but who is legal, and why others are not.
Record legality_record(const Bound& bound) {
  Record record;
  std::istringstream lines(legality_of(bound.call.problem, *bound.device));
  for (std::string line; std::getline(lines, line);) {
    Entrant& e = record.entrants.emplace_back();
    const size_t name_end = line.find('\t');
    const size_t reason = line.find('\t', name_end + 1);
    e.name = line.substr(0, name_end);
    if (reason == std::string::npos) continue;
    e.outcome = Outcome::kUnsupported;
    e.reason = line.substr(reason + 1);
  }
  return record;
}

// What the device allows, at least; 0: unknown.
double limit_us(const Record& r) {
  return roofline_us(r.nnz_flops, r.peak_tflops, r.bytes, r.peak_gbps, 0);
}

Record raced(const sparse_autotune_pattern& pattern, CCall call, const Order& order) {
  Surroundings around(pattern, call.stream);
  const bool nothing = call.call.is_empty() || pattern.nnzb == 0;
  std::optional<Record> record;
  while_reading(pattern, call.stream, [&] {
    Bound bound = bind_for_questions(std::move(call.call), around.caller(), pattern.plan.get());
    if (order.dry_run) {
      record = legality_record(bound);
      return;
    }
    if (nothing) break_rule("product", "must have elements and stored blocks to be raced");
    record = parse_record(race_bound(bound, order.race), nullptr);
    if (!record) refuse("the race's record cannot be read", Fault::kLaunch);
  });
  return *std::move(record);
}

template <typename Product>
sparse_autotune_status race_product(sparse_autotune_pattern* pattern, const Product* product,
                                    const sparse_autotune_race_options* options,
                                    sparse_autotune_record** record) {
  return guarded_call([&] {
    const auto& p = checked(pattern, "pattern");
    checked(record, "record");
    const Order order = read_order(options);
    *record = new sparse_autotune_record{raced(p, read_product(p, product), order)};
  });
}

}  // namespace
}  // namespace sparse_autotune

using namespace sparse_autotune;

sparse_autotune_status sparse_autotune_race_matmul(sparse_autotune_pattern* pattern,
                                                   const sparse_autotune_product* product,
                                                   const sparse_autotune_race_options* options,
                                                   sparse_autotune_record** record) {
  return race_product(pattern, product, options, record);
}

sparse_autotune_status sparse_autotune_race_sampled_matmul(
    sparse_autotune_pattern* pattern, const sparse_autotune_sampled_product* product,
    const sparse_autotune_race_options* options, sparse_autotune_record** record) {
  return race_product(pattern, product, options, record);
}

sparse_autotune_status sparse_autotune_find_record(sparse_autotune_pattern* pattern,
                                                   const sparse_autotune_product* product,
                                                   sparse_autotune_record** record) {
  return guarded_call([&] {
    const auto& p = checked(pattern, "pattern");
    checked(record, "record");
    CCall call = read_product(p, product);
    Surroundings around(p, call.stream);
    std::optional<Record> found;
    while_reading(p, call.stream, [&] {
      const Bound bound = bind_for_questions(std::move(call.call), around.caller(), p.plan.get());
      found = find_record(bound.call.problem, *bound.device);
    });
    *record = found ? new sparse_autotune_record{*std::move(found)} : nullptr;
  });
}

void sparse_autotune_record_destroy(sparse_autotune_record* record) { delete record; }

sparse_autotune_status sparse_autotune_record_describe(const sparse_autotune_record* record,
                                                       sparse_autotune_record_info* info) {
  return guarded_call([&] {
    const Record& r = checked(record, "record").record;
    const sparse_autotune_record_info filled = {
        sizeof(filled),        r.signature.c_str(), r.device.c_str(),
        r.description.c_str(), r.winner.c_str(),    r.failure.c_str(),
        r.when.c_str(),        r.seconds,           r.nnz_flops,
        r.dense_flops,         limit_us(r),         static_cast<int64_t>(r.entrants.size()),
    };
    write_struct(filled, info, "info");
  });
}

sparse_autotune_status sparse_autotune_record_entrant(const sparse_autotune_record* record,
                                                      int64_t index,
                                                      sparse_autotune_entrant* entrant) {
  return guarded_call([&] {
    const auto& entrants = checked(record, "record").record.entrants;
    const auto count = static_cast<int64_t>(entrants.size());
    if (index < 0 || index >= count) {
      break_rule("index",
                 "must be 0 to " + std::to_string(count - 1) + ", got " + std::to_string(index));
    }
    const Entrant& e = entrants[static_cast<size_t>(index)];
    const sparse_autotune_entrant filled = {
        sizeof(filled),
        e.name.c_str(),
        e.reason.c_str(),
        static_cast<sparse_autotune_outcome>(e.outcome),
        0,
        e.expected_us,
        e.median_us,
        e.spread_us,
        e.error,
        e.samples,
        e.memory_bytes,
    };
    write_struct(filled, entrant, "entrant");
  });
}
