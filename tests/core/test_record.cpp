// Records as text: nothing but a complete record is taken back, whatever the bytes are.
#include <random>

#include "autotune/record.h"
#include "fakes.h"

using namespace sparse_autotune;

namespace {

Record example() {
  Record r;
  r.signature = "matmul_64x64";
  r.device_class = "device";
  r.device = "A device";
  r.description = "64x64x64 bs16";
  r.winner = "a/b";
  r.when = "2026-01-31T12:34:56Z";
  r.nnz_flops = 1e9;
  for (int i = 0; i < 3; ++i) {
    Entrant e;
    e.name = i == 0 ? "a/b" : "c/" + std::to_string(i);
    e.outcome = i == 2 ? Outcome::kWrongResult : Outcome::kOk;
    e.median_us = i == 2 ? 0 : 12.5 + i;
    e.error = i == 2 ? 1e300 : 0.25;
    e.reason = i == 2 ? "off by\ttabs\nand lines" : "";
    r.entrants.push_back(e);
  }
  return r;
}

void every_truncation_is_refused() {
  const std::string text = to_text(example());
  CHECK(parse_record(text, nullptr).has_value());
  for (size_t n = 0; n < text.size(); ++n) {
    std::string why;
    CHECK(!parse_record(text.substr(0, n), &why).has_value());
    CHECK(!why.empty());
  }
  CHECK(!parse_record(text + "x", nullptr).has_value());
  CHECK(!parse_record(text + text, nullptr).has_value());
}

void flipped_bytes_never_break_the_parser() {
  const std::string text = to_text(example());
  std::mt19937 random(1);
  int refused = 0;
  for (int i = 0; i < 20000; ++i) {
    std::string bad = text;
    for (int flips = 1 + static_cast<int>(random() % 3); flips > 0; --flips) {
      bad[random() % bad.size()] = static_cast<char>(random());
    }
    const auto r = parse_record(bad, nullptr);
    refused += !r.has_value();
    // What is taken is a record: its winner raced and has a time.
    if (r) CHECK(r->winner.empty() || r->find(r->winner)->median_us > 0);
  }
  CHECK(refused > 1000);
}

void contradictions_are_refused() {
  Record r = example();
  r.winner = "not/there";
  CHECK(!parse_record(to_text(r), nullptr).has_value());
  r.winner = "c/2";  // the wrong result
  CHECK(!parse_record(to_text(r), nullptr).has_value());
}

void what_is_taken_back_is_the_same() {
  Record r = example();
  r.entrants[1].host_us = 40.5;
  r.entrants[1].captures = false;
  const auto same = parse_record(to_text(r), nullptr);
  CHECK(same && same->winner == "a/b" && same->captured_winner.empty());
  CHECK(same->entrants[0].captures && same->entrants[0].host_us == 0);
  CHECK(!same->entrants[1].captures && same->entrants[1].host_us == 40.5);
  CHECK(same->entrants[1].eager_us() == 40.5 && same->entrants[0].eager_us() == 12.5);
  CHECK(to_text(*same) == to_text(r));
  r.winner = "c/1";
  r.captured_winner = "a/b";
  CHECK(parse_record(to_text(r), nullptr)->captured_winner == "a/b");
  for (const char* name : {"c/1", "c/2", "not/there"}) {  // not captured, wrong, absent
    r.captured_winner = name;
    CHECK(!parse_record(to_text(r), nullptr).has_value());
  }
}

void bundles_are_split() {
  const std::string one = to_text(example());
  std::string why;
  CHECK(split_bundle(one + one + one, &why).size() == 3);
  CHECK(why.empty());
  CHECK(split_bundle(one + "garbage", &why).size() == 1);
  CHECK(!why.empty());
}

}  // namespace

int main() {
  every_truncation_is_refused();
  flipped_bytes_never_break_the_parser();
  contradictions_are_refused();
  what_is_taken_back_is_the_same();
  bundles_are_split();
  std::puts("all passed");
}
