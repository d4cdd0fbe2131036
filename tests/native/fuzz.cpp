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
#include <string>
#include <thread>

#include "hostile_calls.h"
#include "hostile_process.h"

// AddressSanitizer asks for it: the handler below tells the group.
extern "C" const char* __asan_default_options() { return "abort_on_error=1"; }

namespace fuzz {
namespace {

class Fuzz {
 public:
  Fuzz(uint64_t seed, const std::string& folder)
      : random_(seed), folder_(folder), races_(one_in(random_, 8)) {
    set_settings(random_, races_, folder_);
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
    if (one_in(random_, 20)) make_other_calls(random_, calls_, folder_, context_);
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
    if (!expected) return calls_.refused();
    for (int i = 0; i < 6; ++i) calls_.any(handle, pattern);
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

  // Each with products of its own on that pattern, and on patterns of its own; of two others one
  // changes the settings and one looks at contexts and bundles.
  void from_several_threads(sparse_autotune_pattern* handle, const Pattern& a) {
    std::vector<std::thread> threads;
    std::vector<Counts> done(4);
    for (size_t at = 0; at < done.size(); ++at) {
      threads.emplace_back([this, &one = done[at], at, handle, &a, seed = random_()] {
        Fuzz other(seed, *this);
        for (int i = 0; i < 4; ++i) {
          other.calls_.any(handle, a);
          if (i % 2) other.round();
          if (at == 0) set_settings(other.random_, races_, folder_);
          if (at == 1) make_other_calls(other.random_, other.calls_, folder_, context_);
        }
        one = other.counts;
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (const Counts& one : done) counts.add(one);
  }
  // Of a thread beside the one that has the context.
  Fuzz(uint64_t seed, const Fuzz& first)
      : random_(seed),
        folder_(first.folder_),
        races_(first.races_),
        owns_context_(false),
        context_(first.context_) {}

  Random random_;
  std::string folder_;
  const bool races_;  // they take their time: few groups have them
  bool owns_context_ = true;
  sparse_autotune_context* context_ = nullptr;
  Calls calls_{random_, races_, owns_context_, counts};
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
    all.add(fuzz.counts);
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
