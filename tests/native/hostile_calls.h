// Products, legal and hostile, with a pattern; each result and each refusal is looked at.
#pragma once

#include <optional>

#include "checks.h"
#include "hostile.h"
#include "operations.h"
#include "reference.h"

namespace fuzz {

class Calls {
 public:
  Calls(Random& random, bool races, bool is_alone, Counts& counts)
      : random_(random), races_(races), is_alone_(is_alone), counts_(counts) {}

  void any(sparse_autotune_pattern* handle, const Pattern& a) {
    one_in(random_, 3) ? sampled(handle, a) : product(handle, a);
  }

  void refused() {
    ++counts_.refused;
    expect(*sparse_autotune_error_message() != '\0', "a refusal says nothing");
  }

  bool is_ok(sparse_autotune_status status) {
    ++counts_.products;
    if (status != SPARSE_AUTOTUNE_OK) refused();
    return status == SPARSE_AUTOTUNE_OK;
  }

 private:
  // What a description becomes before there is memory for its operands.
  struct Sizes {
    bool is_hostile, has_type;
    int64_t item, values;
  };

  // What both operations choose from alike; dense operands come next.
  template <typename Operation>
  typename Operation::Product description() {
    auto p = SPARSE_AUTOTUNE_INIT(typename Operation::Product);
    p.dtype = static_cast<int32_t>(random_() % 4);
    p.deterministic = one_in(random_, 4);
    p.allow_tf32 = one_in(random_, 4);
    p.variant = one_in(random_, 3) ? hostile_text(random_) : nullptr;
    return p;
  }

  // Makes it hostile, perhaps. Nullopt: its operands are too large for memory to be made, and not
  // so large that they must be refused.
  template <typename Operation>
  std::optional<Sizes> finish(const Pattern& a, typename Operation::Product* p) {
    Sizes s{};
    s.is_hostile = one_in(random_, 3);
    if (s.is_hostile) make_hostile<Operation>(random_, p);
    s.has_type = p->dtype >= 0 && p->dtype < 4;
    s.item = s.has_type ? kItem[p->dtype] : 8;
    s.values = times({static_cast<int64_t>(a.col.size()), a.block_rows, a.block_cols, s.item});
    bool can_be = fits(s.values);
    for (const sparse_autotune_dense* d : Operation::dense(*p)) can_be &= can_be_tried(span(*d));
    if (can_be) return s;
    ++counts_.untried;
    return std::nullopt;
  }

  void fill(const Sizes& s, int32_t dtype, std::initializer_list<const Memory*> memories) {
    if (!s.has_type) return;
    for (const Memory* memory : memories) {
      fill_with_numbers(memory->data(), memory->size, dtype, random_());
    }
  }

  // Perhaps in a workspace of ours, perhaps after a race.
  template <typename Operation>
  sparse_autotune_status call(sparse_autotune_pattern* handle, typename Operation::Product& p) {
    std::optional<Memory> workspace;
    if (one_in(random_, 8)) {
      int64_t bytes = -1;
      if (is_ok(Operation::workspace(handle, Given(p), &bytes))) {
        expect(bytes >= 0, "a workspace has a negative size");
        const bool too_small = bytes > 0 && one_in(random_, 2);
        workspace.emplace(bytes - (too_small ? 1 : 0), 0xFF);
        p.workspace = workspace->data();
        p.workspace_bytes = bytes - (too_small ? 1 : 0);
        // Other threads may change the settings, and so the choice, between the two calls.
        if (too_small && is_alone_) {
          expect(Operation::launch(handle, Given(p)) == SPARSE_AUTOTUNE_WORKSPACE_TOO_SMALL,
                 "a workspace that is too small is taken");
          return SPARSE_AUTOTUNE_WORKSPACE_TOO_SMALL;
        }
      }
    }
    if (one_in(random_, races_ ? 20 : 200)) race<Operation>(handle, p);
    const auto status = Operation::launch(handle, Given(p));
    p.workspace = nullptr;
    return status;
  }

  template <typename Operation>
  void race(sparse_autotune_pattern* handle, const typename Operation::Product& p) {
    auto options = SPARSE_AUTOTUNE_INIT(sparse_autotune_race_options);
    options.variants = one_in(random_, 2) ? nullptr : hostile_text(random_);
    options.rounds = one_in(random_, 4) ? hostile(random_, 1) : 1;
    if (options.rounds > 4) options.dry_run = 1;
    options.budget_s = 1e-4;
    options.save = one_in(random_, 2);
    options.dry_run |= one_in(random_, 2);
    options.keep_all = one_in(random_, 8) ? hostile_flag(random_) : 0;
    sparse_autotune_record* record = nullptr;
    ++counts_.races;
    const bool raced = is_ok(Operation::race(handle, Given(p), Given(options), &record));
    expect(raced == (record != nullptr), "a race has a record exactly where it succeeds");
    if (raced) read(record);
    sparse_autotune_record_destroy(record);
  }

  void read(const sparse_autotune_record* record) {
    auto info = SPARSE_AUTOTUNE_INIT(sparse_autotune_record_info);
    expect(is_ok(sparse_autotune_record_describe(record, &info)), "a record is not described");
    auto entrant = SPARSE_AUTOTUNE_INIT(sparse_autotune_entrant);
    for (int64_t i = 0; i < info.entrants; ++i) {
      expect(is_ok(sparse_autotune_record_entrant(record, i, &entrant)), "an entrant is missing");
      expect(entrant.outcome != SPARSE_AUTOTUNE_WRONG, entrant.name);
    }
    for (const int64_t index : {int64_t{-1}, info.entrants, hostile(random_, INT64_MAX - 1)}) {
      if (index >= 0 && index < info.entrants) continue;
      expect(!is_ok(sparse_autotune_record_entrant(record, index, &entrant)), "there is no such");
    }
  }

  void product(sparse_autotune_pattern* handle, const Pattern& a) {
    auto p = description<Matmul>();
    p.activation = one_in(random_, 2) ? 0 : static_cast<int32_t>(random_() % 5);
    p.sparse_right = one_in(random_, 2);
    p.transpose = one_in(random_, 2);
    const int64_t outer = p.transpose ? a.cols : a.rows, inner = p.transpose ? a.rows : a.cols;
    const int64_t n = pick(random_, {0, 1, 1, 2, 7, 16, 33}), batch = pick(random_, {0, 1, 1, 3});
    p.dense = p.sparse_right ? legal_dense(random_, n, outer, batch, false)
                             : legal_dense(random_, inner, n, batch, false);
    p.result = p.sparse_right ? legal_dense(random_, n, inner, batch, true)
                              : legal_dense(random_, outer, n, batch, true);
    const auto sizes = finish<Matmul>(a, &p);
    if (!sizes) return;
    const int64_t item = sizes->item;
    const Memory values(sizes->values), from(times({span(p.dense), item})),
        to(times({span(p.result), item}), 0xFF), bias(std::max(outer, inner) * item);
    fill(*sizes, p.dtype, {&values, &from, &bias});
    p.values = values.data();
    p.dense.data = from.data();
    p.result.data = to.data();
    p.bias =
        one_in(random_, 2)
            ? bias.data() + (std::max(outer, inner) - (p.sparse_right == 1 ? inner : outer)) * item
            : nullptr;
    const bool points_nowhere = one_in(random_, 40);
    if (points_nowhere) {
      const void** const pointers[] = {&p.values, const_cast<const void**>(&p.dense.data),
                                       const_cast<const void**>(&p.result.data)};
      *pointers[random_() % 3] = one_in(random_, 2) ? nullptr : from.data() + 1;
    }
    p.frozen = one_in(random_, 5);
    const auto run = [&] { return call<Matmul>(handle, p); };
    const auto status = run();
    const bool legal = !sizes->is_hostile && !points_nowhere;
    settle(status, legal && p.variant == nullptr, to);
    if (status == SPARSE_AUTOTUNE_OK && !points_nowhere) verify(a, p, to);
    if (p.frozen == 1) {
      // The promise holds until they are thawed; after it other values have another result.
      if (legal) run();
      if (!is_ok(sparse_autotune_pattern_thaw(handle, one_in(random_, 2) ? nullptr : p.values))) {
        fail("values are not thawed");
      }
      if (status == SPARSE_AUTOTUNE_OK && legal) {
        fill_with_numbers(values.data(), values.size, p.dtype, random_());
        std::memset(to.data(), 0xFF, to.size);
        if (is_ok(run())) verify(a, p, to);
        sparse_autotune_pattern_thaw(handle, nullptr);
      }
    }
    if (one_in(random_, 10)) {
      sparse_autotune_record* record = nullptr;
      if (is_ok(sparse_autotune_find_record(handle, Given(p), &record)) && record) read(record);
      sparse_autotune_record_destroy(record);
    }
  }

  void sampled(sparse_autotune_pattern* handle, const Pattern& a) {
    auto p = description<Sampled>();
    const int64_t n = pick(random_, {0, 1, 1, 2, 7, 16, 33}), batch = pick(random_, {0, 1, 1, 3});
    p.x = legal_dense(random_, a.rows, n, batch, false);
    p.y = legal_dense(random_, n, a.cols, batch, false);
    const auto sizes = finish<Sampled>(a, &p);
    if (!sizes) return;
    const Memory x(times({span(p.x), sizes->item})), y(times({span(p.y), sizes->item})),
        values(sizes->values, 0xFF);
    fill(*sizes, p.dtype, {&x, &y});
    p.x.data = x.data();
    p.y.data = y.data();
    const bool aliased = one_in(random_, 60) && x.size >= values.size;
    p.values = aliased ? x.data() : values.data();
    const auto status = call<Sampled>(handle, p);
    const bool legal = !sizes->is_hostile && !aliased;
    settle(status, legal && p.variant == nullptr, values);
    if (status == SPARSE_AUTOTUNE_OK && !aliased && one_in(random_, 3)) {
      ++counts_.verified;
      expect(is_right(a, p), "a sampled product is wrong");
    }
  }

  // `must` is for calls that keep every rule.
  void settle(sparse_autotune_status status, bool must, const Memory& result) {
    ++counts_.products;
    if (status == SPARSE_AUTOTUNE_OK) return;
    refused();
    expect(!must || status == SPARSE_AUTOTUNE_WORKSPACE_TOO_SMALL, "a legal product is refused");
    for (size_t i = 0; i < result.size; ++i) {
      expect(static_cast<unsigned char>(result.data()[i]) == 0xFF, "a refusal wrote a result");
    }
  }

  void verify(const Pattern& a, const sparse_autotune_product& p, const Memory& to) {
    if (!one_in(random_, 3)) return;
    ++counts_.verified;
    expect(is_right(a, p, to.size), "a product is wrong");
  }

  Random& random_;
  const bool races_, is_alone_;
  Counts& counts_;
};

}  // namespace fuzz
