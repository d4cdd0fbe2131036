// Calls of the C interface, legal and hostile ones mixed, at random from a seed:
//
//     fuzz SEED SECONDS [GROUP]
//
// Rounds come in groups, each with random numbers of its own; where a group ends the program, its
// number is told, and with it as GROUP that group runs first. Run it under the sanitizers
// (`make fuzz`): a call that reads or writes elsewhere ends the program. So do a legal call that
// is refused, an illegal one that is not, a result that is wrong, and a refusal without a message
// or with a result touched.
#include <sparse_autotune.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <string>
#include <thread>

#include "hostile.h"
#include "reference.h"

// AddressSanitizer asks for it: the handler below tells the group.
extern "C" const char* __asan_default_options() { return "abort_on_error=1"; }

namespace fuzz {
namespace {

struct Counts {
  int64_t patterns = 0, products = 0, refused = 0, verified = 0, races = 0, untried = 0;
};

[[noreturn]] void fail(const char* what) {
  std::fprintf(stderr, "fuzz: %s; the last message was: %s\n", what,
               sparse_autotune_error_message());
  std::abort();
}

void expect(bool holds, const char* what) {
  if (!holds) fail(what);
}

// One member of a product's flags becomes hostile.
void make_hostile(Random& random, sparse_autotune_product* p) {
  int32_t* const flags[] = {&p->dtype,      &p->activation,    &p->sparse_right, &p->transpose,
                            &p->allow_tf32, &p->deterministic, &p->reserved};
  if (one_in(random, 2))
    return fuzz::make_hostile(random, one_in(random, 2) ? &p->dense : &p->result);
  if (one_in(random, 4)) {
    p->struct_size = one_in(random, 2) ? random() % 5000 : random();
  } else {
    *flags[random() % std::size(flags)] = hostile_flag(random);
  }
}

void make_hostile(Random& random, sparse_autotune_sampled_product* p) {
  int32_t* const flags[] = {&p->dtype, &p->allow_tf32, &p->deterministic, &p->reserved};
  if (one_in(random, 2)) return fuzz::make_hostile(random, one_in(random, 2) ? &p->x : &p->y);
  if (one_in(random, 4)) {
    p->struct_size = one_in(random, 2) ? random() % 5000 : random();
  } else {
    *flags[random() % std::size(flags)] = hostile_flag(random);
  }
}

void make_hostile(Random& random, sparse_autotune_pattern_description* d) {
  int64_t* const sizes[] = {&d->rows, &d->cols, &d->block_rows, &d->block_cols, &d->nnzb};
  switch (random() % 8) {
    case 0:
      d->index_type = hostile_flag(random);
      break;
    case 1:
      d->reserved = hostile_flag(random);
      break;
    case 2:
      d->struct_size = one_in(random, 2) ? random() % 5000 : random();
      break;
    default: {
      int64_t& size = *sizes[random() % std::size(sizes)];
      size = hostile(random, size);
    }
  }
}

// Whether the sizes of a description keep every rule.
bool has_legal_sizes(const sparse_autotune_pattern_description& d) {
  if (d.struct_size < sizeof(d) || d.struct_size > 4096 || d.reserved != 0) return false;
  if (d.index_type != SPARSE_AUTOTUNE_INT32 && d.index_type != SPARSE_AUTOTUNE_INT64) return false;
  if (d.rows < 0 || d.cols < 0 || d.block_rows <= 0 || d.block_cols <= 0) return false;
  if (d.rows % d.block_rows != 0 || d.cols % d.block_cols != 0) return false;
  for (const int64_t size : {times({d.rows, d.cols}), times({d.block_rows, d.block_cols}),
                             times({d.rows, 8}), times({d.cols, 8})}) {
    if (size > kMostElements) return false;
  }
  return d.nnzb >= 0 && d.nnzb <= (d.rows / d.block_rows) * (d.cols / d.block_cols) &&
         (d.index_type == SPARSE_AUTOTUNE_INT64 ||
          (d.nnzb <= INT32_MAX && d.cols / d.block_cols <= INT32_MAX));
}

// A struct in memory of its own size, or of as much as it says that it has.
template <typename Struct>
class Given {
 public:
  explicit Given(const Struct& s)
      : memory_(static_cast<int64_t>(std::clamp(s.struct_size > 4096 ? sizeof(s) : s.struct_size,
                                                sizeof(size_t), size_t{4096}))) {
    std::memcpy(memory_.data(), &s, std::min(memory_.size, sizeof(s)));
  }
  operator const Struct*() const { return reinterpret_cast<const Struct*>(memory_.data()); }

 private:
  Memory memory_;
};

template <typename Struct>
bool has_known_size(const Struct& s) {
  return s.struct_size >= sizeof(s) && s.struct_size <= 4096;
}

class Fuzz {
 public:
  Fuzz(uint64_t seed, const std::string& folder) : random_(seed), folder_(folder) {
    // Races take their time: few groups have them.
    races_ = one_in(random_, 8);
    set_settings();
    auto options = SPARSE_AUTOTUNE_INIT(sparse_autotune_context_options);
    options.threads = static_cast<int32_t>(1 + random_() % 3);
    expect(sparse_autotune_context_create(&options, &context_) == SPARSE_AUTOTUNE_OK,
           "a context is refused");
  }
  ~Fuzz() {
    if (owns_context_) sparse_autotune_context_destroy(context_);
  }
  Fuzz(const Fuzz&) = delete;
  Fuzz& operator=(const Fuzz&) = delete;

  void round() {
    if (one_in(random_, 20)) other_calls();
    const int64_t block_rows = pick(random_, {1, 2, 3, 4, 5, 8, 16, 17, 32, 40});
    const int64_t block_cols =
        one_in(random_, 2) ? block_rows : pick(random_, {1, 2, 5, 8, 16, 24});
    const auto grid_rows = static_cast<int64_t>(random_() % 9);
    const auto grid_cols = static_cast<int64_t>(random_() % 9);
    auto d = SPARSE_AUTOTUNE_INIT(sparse_autotune_pattern_description);
    d.rows = grid_rows * block_rows;
    d.cols = grid_cols * block_cols;
    d.block_rows = block_rows;
    d.block_cols = block_cols;
    d.index_type = static_cast<int32_t>(random_() % 2);
    std::vector<int64_t> crow(1, 0), col;
    const uint64_t share = 1 + random_() % 6;
    for (int64_t row = 0; row < grid_rows; ++row) {
      for (int64_t c = 0; c < grid_cols; ++c) {
        if (one_in(random_, share)) col.push_back(c);
      }
      crow.push_back(static_cast<int64_t>(col.size()));
    }
    d.nnzb = static_cast<int64_t>(col.size());
    const bool is_hostile = one_in(random_, 3);
    if (is_hostile && one_in(random_, 2)) {
      auto& array = one_in(random_, 2) || col.empty() ? crow : col;
      int64_t& index = array[random_() % array.size()];
      index = one_in(random_, 2) ? static_cast<int64_t>(random_() % 12) : hostile(random_, index);
    } else if (is_hostile) {
      make_hostile(random_, &d);
    }
    with_arrays(d, crow, col);
  }

  Counts counts;

 private:
  void with_arrays(sparse_autotune_pattern_description d, const std::vector<int64_t>& crow,
                   const std::vector<int64_t>& col) {
    const bool legal = has_legal_sizes(d);
    const int64_t item = d.index_type == SPARSE_AUTOTUNE_INT32 ? 4 : 8;
    const int64_t crow_bytes = legal ? (d.rows / d.block_rows + 1) * item : 0;
    const int64_t col_bytes = legal ? d.nnzb * item : 0;
    if (!fits(crow_bytes) || !fits(col_bytes)) {
      ++counts.untried;
      return;
    }
    const Memory crow_memory(crow_bytes), col_memory(col_bytes);
    put(crow, crow_bytes / item, item, crow_memory);
    put(col, col_bytes / item, item, col_memory);
    d.crow_indices = one_in(random_, 60) ? nullptr : crow_memory.data();
    d.col_indices = one_in(random_, 60) ? nullptr : col_memory.data();
    ++counts.patterns;
    sparse_autotune_pattern* handle = nullptr;
    const auto status = sparse_autotune_pattern_create(context_, Given(d), &handle);
    Pattern pattern{d.rows, d.cols, d.block_rows, d.block_cols, {}, {}};
    bool expected = legal && d.crow_indices != nullptr && (d.nnzb == 0 || d.col_indices != nullptr);
    if (expected) {
      take(crow_memory, crow_bytes / item, item, &pattern.crow);
      take(col_memory, col_bytes / item, item, &pattern.col);
      expected = pattern.is_bsr();
    }
    expect((status == SPARSE_AUTOTUNE_OK) == expected,
           expected ? "a pattern is refused" : "a pattern that is none is taken");
    expect((handle != nullptr) == expected, "a refusal makes a pattern");
    if (!expected) return refused();
    for (int i = 0; i < 6; ++i)
      one_in(random_, 3) ? sampled(handle, pattern) : product(handle, pattern);
    if (owns_context_ && one_in(random_, 100)) from_several_threads(handle, pattern);
    sparse_autotune_pattern_destroy(handle);
  }

  static void put(const std::vector<int64_t>& from, int64_t count, int64_t item, const Memory& to) {
    const int64_t most = std::min(count, static_cast<int64_t>(from.size()));
    for (int64_t i = 0; i < most; ++i) {
      std::memcpy(to.data() + i * item, &from[static_cast<size_t>(i)], static_cast<size_t>(item));
    }
  }

  static void take(const Memory& from, int64_t count, int64_t item, std::vector<int64_t>* to) {
    for (int64_t i = 0; i < count; ++i) {
      int64_t wide = 0;
      int32_t narrow = 0;
      std::memcpy(&wide, from.data() + i * item, static_cast<size_t>(item));
      std::memcpy(&narrow, from.data() + i * item, sizeof(narrow));
      to->push_back(item == 4 ? narrow : wide);
    }
  }

  void refused() {
    ++counts.refused;
    expect(*sparse_autotune_error_message() != '\0', "a refusal says nothing");
  }

  bool is_ok(sparse_autotune_status status) {
    ++counts.products;
    if (status != SPARSE_AUTOTUNE_OK) refused();
    return status == SPARSE_AUTOTUNE_OK;
  }

  // What is the same of both kinds of products once their operands are there.
  template <typename Product, typename Launch, typename Ask, typename Race>
  sparse_autotune_status call(sparse_autotune_pattern* handle, Product& p, Launch launch, Ask ask,
                              Race race) {
    std::optional<Memory> workspace;
    if (one_in(random_, 8)) {
      int64_t bytes = -1;
      if (is_ok(ask(handle, Given(p), &bytes))) {
        expect(bytes >= 0, "a workspace has a negative size");
        const bool too_small = bytes > 0 && one_in(random_, 2);
        workspace.emplace(bytes - (too_small ? 1 : 0), 0xFF);
        p.workspace = workspace->data();
        p.workspace_bytes = bytes - (too_small ? 1 : 0);
        if (too_small) {
          expect(launch(handle, Given(p)) == SPARSE_AUTOTUNE_WORKSPACE_TOO_SMALL,
                 "a workspace that is too small is taken");
          return SPARSE_AUTOTUNE_WORKSPACE_TOO_SMALL;
        }
      }
    }
    if (one_in(random_, races_ ? 20 : 200)) this->race(handle, p, race);
    const auto status = launch(handle, Given(p));
    p.workspace = nullptr;
    return status;
  }

  template <typename Product, typename Race>
  void race(sparse_autotune_pattern* handle, const Product& p, Race race) {
    auto options = SPARSE_AUTOTUNE_INIT(sparse_autotune_race_options);
    options.variants = one_in(random_, 2) ? nullptr : hostile_text(random_);
    options.rounds = one_in(random_, 4) ? hostile(random_, 1) : 1;
    if (options.rounds > 4) options.dry_run = 1;
    options.budget_s = 1e-4;
    options.save = one_in(random_, 2);
    options.dry_run |= one_in(random_, 2);
    options.keep_all = one_in(random_, 8) ? hostile_flag(random_) : 0;
    sparse_autotune_record* record = nullptr;
    ++counts.races;
    const bool raced = is_ok(race(handle, Given(p), Given(options), &record));
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
    auto p = SPARSE_AUTOTUNE_INIT(sparse_autotune_product);
    p.dtype = static_cast<int32_t>(random_() % 4);
    p.activation = one_in(random_, 2) ? 0 : static_cast<int32_t>(random_() % 5);
    p.sparse_right = one_in(random_, 2);
    p.transpose = one_in(random_, 2);
    p.deterministic = one_in(random_, 4);
    p.allow_tf32 = one_in(random_, 4);
    p.variant = one_in(random_, 3) ? hostile_text(random_) : nullptr;
    const int64_t outer = p.transpose ? a.cols : a.rows, inner = p.transpose ? a.rows : a.cols;
    const int64_t n = pick(random_, {0, 1, 1, 2, 7, 16, 33}), batch = pick(random_, {0, 1, 1, 3});
    p.dense = p.sparse_right ? legal_dense(random_, n, outer, batch, false)
                             : legal_dense(random_, inner, n, batch, false);
    p.result = p.sparse_right ? legal_dense(random_, n, inner, batch, true)
                              : legal_dense(random_, outer, n, batch, true);
    const bool is_hostile = one_in(random_, 3);
    if (is_hostile) make_hostile(random_, &p);
    const bool known = p.dtype >= 0 && p.dtype < 4;
    const int64_t item = known ? kItem[p.dtype] : 8;
    const int64_t values_count =
        times({static_cast<int64_t>(a.col.size()), a.block_rows, a.block_cols});
    if (!can_be_tried(span(p.dense)) || !can_be_tried(span(p.result)) ||
        !fits(times({values_count, item}))) {
      ++counts.untried;
      return;
    }
    const Memory values(values_count * item), from(times({span(p.dense), item})),
        to(times({span(p.result), item}), 0xFF), bias(std::max(outer, inner) * item);
    if (known) {
      for (const Memory* memory : {&values, &from, &bias}) {
        fill_with_numbers(memory->data(), memory->size, p.dtype, random_());
      }
    }
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
    const auto run = [&] {
      return call(handle, p, sparse_autotune_matmul, sparse_autotune_matmul_workspace,
                  sparse_autotune_race_matmul);
    };
    const auto status = run();
    const bool legal = !is_hostile && !points_nowhere;
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
    auto p = SPARSE_AUTOTUNE_INIT(sparse_autotune_sampled_product);
    p.dtype = static_cast<int32_t>(random_() % 4);
    p.deterministic = one_in(random_, 4);
    p.allow_tf32 = one_in(random_, 4);
    p.variant = one_in(random_, 3) ? hostile_text(random_) : nullptr;
    const int64_t n = pick(random_, {0, 1, 1, 2, 7, 16, 33}), batch = pick(random_, {0, 1, 1, 3});
    p.x = legal_dense(random_, a.rows, n, batch, false);
    p.y = legal_dense(random_, n, a.cols, batch, false);
    const bool is_hostile = one_in(random_, 3);
    if (is_hostile) make_hostile(random_, &p);
    const bool known = p.dtype >= 0 && p.dtype < 4;
    const int64_t item = known ? kItem[p.dtype] : 8;
    const int64_t values_count =
        times({static_cast<int64_t>(a.col.size()), a.block_rows, a.block_cols});
    if (!can_be_tried(span(p.x)) || !can_be_tried(span(p.y)) ||
        !fits(times({values_count, item}))) {
      ++counts.untried;
      return;
    }
    const Memory x(times({span(p.x), item})), y(times({span(p.y), item})),
        values(values_count * item, 0xFF);
    if (known) {
      for (const Memory* memory : {&x, &y}) {
        fill_with_numbers(memory->data(), memory->size, p.dtype, random_());
      }
    }
    p.x.data = x.data();
    p.y.data = y.data();
    const bool aliased = one_in(random_, 60) && x.size >= values.size;
    p.values = aliased ? x.data() : values.data();
    const auto status =
        call(handle, p, sparse_autotune_sampled_matmul, sparse_autotune_sampled_matmul_workspace,
             sparse_autotune_race_sampled_matmul);
    const bool legal = !is_hostile && !aliased;
    settle(status, legal && p.variant == nullptr, values);
    if (status == SPARSE_AUTOTUNE_OK && !aliased && one_in(random_, 3)) {
      ++counts.verified;
      expect(is_right(a, p), "a sampled product is wrong");
    }
  }

  // `must` is for calls that keep every rule.
  void settle(sparse_autotune_status status, bool must, const Memory& result) {
    ++counts.products;
    if (status == SPARSE_AUTOTUNE_OK) return;
    refused();
    expect(!must || status == SPARSE_AUTOTUNE_WORKSPACE_TOO_SMALL, "a legal product is refused");
    for (size_t i = 0; i < result.size; ++i) {
      expect(static_cast<unsigned char>(result.data()[i]) == 0xFF, "a refusal wrote a result");
    }
  }

  void verify(const Pattern& a, const sparse_autotune_product& p, const Memory& to) {
    if (!one_in(random_, 3)) return;
    ++counts.verified;
    expect(is_right(a, p, to.size), "a product is wrong");
  }

  // Each with products of its own on that pattern, and on patterns of its own; of two others one
  // changes the settings and one looks at contexts and bundles.
  void from_several_threads(sparse_autotune_pattern* handle, const Pattern& a) {
    std::vector<std::thread> threads;
    std::vector<Counts> done(4);
    for (size_t at = 0; at < done.size(); ++at) {
      threads.emplace_back([this, &one = done[at], at, handle, &a, seed = random_()] {
        Fuzz other(seed, *this);
        for (int i = 0; i < 4; ++i) {
          i % 2 ? other.sampled(handle, a) : other.product(handle, a);
          if (i % 2) other.round();
          if (at == 0) other.set_settings();
          if (at == 1) other.other_calls();
        }
        one = other.counts;
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (const Counts& one : done) add(one);
  }
  // Of a thread beside the one that has the context.
  Fuzz(uint64_t seed, const Fuzz& first)
      : random_(seed),
        folder_(first.folder_),
        races_(first.races_),
        owns_context_(false),
        context_(first.context_) {}

  void set_settings() {
    auto settings = SPARSE_AUTOTUNE_INIT(sparse_autotune_settings);
    settings.mode = races_ ? SPARSE_AUTOTUNE_ON : static_cast<int32_t>(1 + random_() % 3);
    settings.budget_s = 1e-4;
    settings.exact_nonfinite = one_in(random_, 4);
    settings.frozen_bytes = pick(random_, {0, 1, 5000});
    settings.plan_bytes = pick(random_, {0, 1, 5000});
    const std::string cache = one_in(random_, 2) ? "" : folder_ + "/cache";
    settings.cache_directory = cache.c_str();
    expect(sparse_autotune_set_settings(&settings) == SPARSE_AUTOTUNE_OK, "settings are refused");
  }

  void add(const Counts& other) {
    counts.patterns += other.patterns;
    counts.products += other.products;
    counts.refused += other.refused;
    counts.verified += other.verified;
    counts.races += other.races;
    counts.untried += other.untried;
  }

  // Contexts, settings and bundles.
  void other_calls() {
    auto options = SPARSE_AUTOTUNE_INIT(sparse_autotune_context_options);
    options.device_type = hostile_flag(random_);
    options.ordinal = hostile_flag(random_);
    options.threads = one_in(random_, 2) ? 0 : hostile_flag(random_);
    if (one_in(random_, 4)) options.struct_size = random_() % 5000;
    sparse_autotune_context* made = nullptr;
    if (is_ok(sparse_autotune_context_create(Given(options), &made))) {
      auto info = SPARSE_AUTOTUNE_INIT(sparse_autotune_device_info);
      expect(is_ok(sparse_autotune_context_device(made, &info)), "a context has no device");
    }
    sparse_autotune_context_destroy(made);
    auto settings = SPARSE_AUTOTUNE_INIT(sparse_autotune_settings);
    settings.mode = 4 + static_cast<int32_t>(random_() % 1000);  // refused: the group keeps its own
    settings.budget_s = one_in(random_, 2) ? NAN : -INFINITY;
    settings.plan_bytes = hostile(random_, 0);
    settings.variant = hostile_text(random_);
    expect(!is_ok(sparse_autotune_set_settings(&settings)), "hostile settings are taken");
    expect(!is_ok(sparse_autotune_pattern_create(context_, nullptr, nullptr)), "null is taken");
    bundle();
  }

  // One of what is known, and the same with some bytes changed.
  void bundle() {
    const std::string path = folder_ + "/bundle" + std::to_string(random_());
    int64_t entries = -1;
    if (!is_ok(sparse_autotune_bundle_export(path.c_str(), &entries))) fail("no bundle is written");
    std::ifstream written(path, std::ios::binary);
    std::string text{std::istreambuf_iterator<char>(written), {}};
    if (text.empty()) text = "sparse_autotune_race 1\n";
    for (uint64_t i = random_() % 6; i > 0; --i) {
      const size_t where = random_() % text.size();
      switch (random_() % 3) {
        case 0:
          text[where] = static_cast<char>(random_());
          break;
        case 1:
          text.erase(where, random_() % 40);
          break;
        default:
          text.insert(where, text.substr(random_() % text.size(), random_() % 200));
      }
      if (text.empty()) break;
    }
    std::ofstream(path, std::ios::binary) << text;
    is_ok(sparse_autotune_bundle_load(path.c_str(), &entries));
    is_ok(sparse_autotune_bundle_load(hostile_text(random_), nullptr));
    std::filesystem::remove(path);
  }

  Random random_;
  std::string folder_;
  bool races_ = false, owns_context_ = true;
  sparse_autotune_context* context_ = nullptr;
};

uint64_t group_of_now = 0;

void tell_group(int) {
  char text[64];
  const int length = std::snprintf(text, sizeof(text), "fuzz: in group %llu\n",
                                   static_cast<unsigned long long>(group_of_now));
  static_cast<void>(!write(STDERR_FILENO, text, static_cast<size_t>(length)));
}

int run(uint64_t seed, double seconds, uint64_t first) {
  std::string folder = std::filesystem::temp_directory_path() / "sparse_autotune_fuzz_XXXXXX";
  if (mkdtemp(folder.data()) == nullptr) fail("there is no folder for temporary files");
  std::signal(SIGABRT, tell_group);
  const auto start = std::chrono::steady_clock::now();
  Counts all;
  group_of_now = first;
  for (; std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() < seconds;
       ++group_of_now) {
    Fuzz fuzz(seed * 1000003 + group_of_now, folder);
    for (int i = 0; i < 100; ++i) fuzz.round();
    const Counts& c = fuzz.counts;
    all.patterns += c.patterns;
    all.products += c.products;
    all.refused += c.refused;
    all.verified += c.verified;
    all.races += c.races;
    all.untried += c.untried;
  }
  std::filesystem::remove_all(folder);
  std::printf(
      "%llu groups: %lld patterns, %lld other calls, %lld refused, %lld races, %lld results "
      "verified, %lld too large to be tried: no fault\n",
      static_cast<unsigned long long>(group_of_now - first), static_cast<long long>(all.patterns),
      static_cast<long long>(all.products), static_cast<long long>(all.refused),
      static_cast<long long>(all.races), static_cast<long long>(all.verified),
      static_cast<long long>(all.untried));
  return all.refused > 0 && all.verified > 0 ? 0 : 1;
}

}  // namespace
}  // namespace fuzz

int main(int count, char** words) {
  if (count != 3 && count != 4) {
    std::fprintf(stderr, "usage: fuzz SEED SECONDS [GROUP]\n");
    return 2;
  }
  return fuzz::run(std::strtoull(words[1], nullptr, 10), std::atof(words[2]),
                   count == 4 ? std::strtoull(words[3], nullptr, 10) : 0);
}
