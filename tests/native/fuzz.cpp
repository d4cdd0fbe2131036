// Calls of the C interface with hostile sizes, strides, flags and indices, at random from a seed:
//
//     fuzz SEED SECONDS
//
// Every array that a description names is as long as it says where that is not too long to be made;
// otherwise the library must refuse it by its sizes alone. Run it under the sanitizers
// (`make fuzz`): a call that reads or writes elsewhere ends the program. Exits with 1 if a call
// succeeds that must be refused, or a result is wrong.
#include <sparse_autotune.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

namespace {

using Random = std::mt19937_64;

int64_t pick(Random& random, std::initializer_list<int64_t> from) {
  return from.begin()[random() % from.size()];
}

// Mostly small, sometimes a number that breaks naive arithmetic.
int64_t hostile(Random& random, int64_t usual) {
  switch (random() % 24) {
    case 0:
      return pick(random, {-1, 0, 1, INT64_MIN, INT64_MAX, INT64_MAX - 1, int64_t{1} << 32,
                           int64_t{1} << 31, (int64_t{1} << 31) - 1, int64_t{1} << 56,
                           int64_t{1} << 62, -(int64_t{1} << 40)});
    case 1:
      return std::min(usual, INT64_MAX - 2) + static_cast<int64_t>(random() % 3) - 1;
    default:
      return usual;
  }
}

int32_t hostile_flag(Random& random, int32_t most) {
  if (random() % 40 == 0) return static_cast<int32_t>(random());
  return static_cast<int32_t>(random() % static_cast<uint64_t>(most + 1));
}

// Memory of exactly so many bytes, so that a sanitizer sees one byte too many. Sizes that nobody
// could have are given one byte: the library has to refuse them by other rules, or be wrong.
constexpr int64_t kMost = int64_t{1} << 22;
struct Memory {
  std::unique_ptr<char, void (*)(void*)> data{nullptr, std::free};
  size_t size;
  explicit Memory(int64_t bytes, int fill = 0)
      : size(static_cast<size_t>(bytes < 1 || bytes > kMost ? 1 : bytes)) {
    data.reset(static_cast<char*>(std::malloc(size)));
    std::memset(data.get(), fill, size);
  }
};

bool fits(int64_t bytes) { return bytes >= 0 && bytes <= kMost; }

// INT64_MAX where it is no number of bytes that fits.
int64_t times(std::initializer_list<int64_t> sizes) {
  int64_t product = 1;
  for (const int64_t size : sizes) {
    if (size < 0 || __builtin_mul_overflow(product, size, &product)) return INT64_MAX;
  }
  return product;
}

int64_t span(const sparse_autotune_dense& d) {
  if (d.rows <= 0 || d.cols <= 0) return 0;
  const bool packed = d.row_stride == 0 && d.col_stride == 0;
  const int64_t row = packed ? d.cols : d.row_stride, col = packed ? 1 : d.col_stride;
  const int64_t parts[] = {times({d.rows - 1, row}), times({d.cols - 1, col}),
                           d.batch > 1 ? times({d.batch - 1, d.batch_stride}) : 0};
  int64_t sum = 1;
  for (const int64_t part : parts) {
    if (__builtin_add_overflow(sum, part, &sum)) return INT64_MAX;
  }
  return sum;
}

struct Counts {
  int64_t patterns = 0, products = 0, refused = 0, unmade = 0;
};

constexpr int64_t kItem[] = {2, 2, 4, 8};

sparse_autotune_dense dense(Random& random, int64_t rows, int64_t cols, int64_t batch) {
  sparse_autotune_dense d{};
  d.rows = hostile(random, rows);
  d.cols = hostile(random, cols);
  d.batch = hostile(random, batch);
  switch (random() % 3) {
    case 0:
      break;
    case 1:
      d.row_stride = hostile(random, cols + static_cast<int64_t>(random() % 3));
      d.col_stride = hostile(random, 1);
      break;
    default:
      d.row_stride = hostile(random, 1);
      d.col_stride = hostile(random, rows + static_cast<int64_t>(random() % 3));
  }
  int64_t one = times({rows, cols});
  if (d.row_stride != 0) {
    one = d.row_stride > d.col_stride ? times({rows, d.row_stride}) : times({cols, d.col_stride});
  }
  d.batch_stride = hostile(random, random() % 6 == 0 ? 0 : one);
  return d;
}

class Fuzz {
 public:
  explicit Fuzz(uint64_t seed) : random_(seed) {
    auto options = SPARSE_AUTOTUNE_INIT(sparse_autotune_context_options);
    options.threads = 2;
    if (sparse_autotune_context_create(&options, &context_) != SPARSE_AUTOTUNE_OK) std::abort();
    auto settings = SPARSE_AUTOTUNE_INIT(sparse_autotune_settings);
    settings.mode = SPARSE_AUTOTUNE_OFF;
    settings.cache_directory = "";
    if (sparse_autotune_set_settings(&settings) != SPARSE_AUTOTUNE_OK) std::abort();
  }
  ~Fuzz() { sparse_autotune_context_destroy(context_); }

  void round() {
    const int64_t block_rows = pick(random_, {1, 2, 3, 4, 8, 16, 17, 32});
    const int64_t block_cols = random_() % 2 ? block_rows : pick(random_, {1, 2, 5, 8, 16, 32});
    const int64_t grid_rows = static_cast<int64_t>(random_() % 9);
    const int64_t grid_cols = static_cast<int64_t>(random_() % 9);
    auto d = SPARSE_AUTOTUNE_INIT(sparse_autotune_pattern_description);
    d.rows = hostile(random_, grid_rows * block_rows);
    d.cols = hostile(random_, grid_cols * block_cols);
    d.block_rows = hostile(random_, block_rows);
    d.block_cols = hostile(random_, block_cols);
    d.index_type = hostile_flag(random_, 1);
    const int64_t item = d.index_type == SPARSE_AUTOTUNE_INT32 ? 4 : 8;
    std::vector<int64_t> crow(1, 0), col;
    for (int64_t row = 0; row < grid_rows; ++row) {
      for (int64_t c = 0; c < grid_cols; ++c) {
        if (random_() % 3 == 0) col.push_back(c);
      }
      crow.push_back(static_cast<int64_t>(col.size()));
    }
    d.nnzb = hostile(random_, static_cast<int64_t>(col.size()));
    const bool damaged = random_() % 4 == 0;
    if (damaged) {
      auto& array = random_() % 2 || col.empty() ? crow : col;
      array[random_() % array.size()] = hostile(random_, static_cast<int64_t>(random_() % 12));
    }
    // As long as the description says, whatever lies there.
    const int64_t rows_of_blocks = d.block_rows > 0 && d.rows >= 0 ? d.rows / d.block_rows : 0;
    const int64_t crow_bytes = times({rows_of_blocks, item});
    const int64_t col_bytes = times({d.nnzb, item});
    if ((!fits(crow_bytes) || !fits(col_bytes)) && refusable(d)) {
      ++counts.unmade;  // it is legal, and larger than this program can make
      return;
    }
    Memory crow_memory(fits(crow_bytes) ? crow_bytes + item : 0), col_memory(col_bytes);
    put(crow, crow_memory, static_cast<int64_t>(crow.size()), item);
    put(col, col_memory, d.nnzb, item);
    d.crow_indices = random_() % 60 == 0 ? nullptr : crow_memory.data.get();
    d.col_indices = random_() % 60 == 0 ? nullptr : col_memory.data.get();
    sparse_autotune_pattern* pattern = nullptr;
    ++counts.patterns;
    if (sparse_autotune_pattern_create(context_, &d, &pattern) != SPARSE_AUTOTUNE_OK) {
      ++counts.refused;
      if (pattern != nullptr || *sparse_autotune_error_message() == '\0') std::abort();
      return;
    }
    for (int i = 0; i < 6; ++i) random_() % 3 == 0 ? sampled(pattern, d) : product(pattern, d);
    sparse_autotune_pattern_destroy(pattern);
  }

  Counts counts;

 private:
  // Whether its sizes alone say nothing against it.
  static bool refusable(const sparse_autotune_pattern_description& d) {
    return d.rows >= 0 && d.cols >= 0 && d.block_rows > 0 && d.block_cols > 0 &&
           d.rows % d.block_rows == 0 && d.cols % d.block_cols == 0 && d.nnzb >= 0;
  }

  static void put(const std::vector<int64_t>& from, Memory& to, int64_t count, int64_t item) {
    for (int64_t i = 0; i < count && i < static_cast<int64_t>(from.size()); ++i) {
      if (static_cast<size_t>((i + 1) * item) > to.size) return;
      const int64_t value = from[static_cast<size_t>(i)];
      std::memcpy(to.data.get() + i * item, &value, static_cast<size_t>(item));
    }
  }

  void count(sparse_autotune_status status) {
    ++counts.products;
    if (status == SPARSE_AUTOTUNE_OK) return;
    ++counts.refused;
    if (*sparse_autotune_error_message() == '\0') std::abort();
  }

  const char* variant() {
    static const char* const names[] = {"cpu_tiled",    "cpu_rows", "reference", "cpu_turned",
                                        "sampled_dots", "nobody",   "",          "sampled_tiled"};
    return random_() % 2 ? nullptr : names[random_() % std::size(names)];
  }

  void product(sparse_autotune_pattern* pattern, const sparse_autotune_pattern_description& d) {
    auto p = SPARSE_AUTOTUNE_INIT(sparse_autotune_product);
    if (random_() % 50 == 0) p.struct_size = random_() % 5000;
    p.dtype = hostile_flag(random_, 3);
    p.activation = hostile_flag(random_, 4);
    p.sparse_right = hostile_flag(random_, 1);
    p.transpose = hostile_flag(random_, 1);
    p.frozen = 0;
    p.deterministic = hostile_flag(random_, 1);
    p.variant = variant();
    const int64_t outer = p.transpose ? d.cols : d.rows, inner = p.transpose ? d.rows : d.cols;
    const int64_t n = pick(random_, {0, 1, 2, 7, 16, 33});
    const int64_t batch = pick(random_, {0, 1, 1, 3});
    p.dense = p.sparse_right ? dense(random_, n, outer, batch) : dense(random_, inner, n, batch);
    p.result = p.sparse_right ? dense(random_, n, inner, batch) : dense(random_, outer, n, batch);
    const int64_t item = p.dtype >= 0 && p.dtype < 4 ? kItem[p.dtype] : 8;
    const int64_t dense_bytes = times({span(p.dense), item});
    const int64_t result_bytes = times({span(p.result), item});
    const int64_t values_bytes = times({d.nnzb, d.block_rows, d.block_cols, item});
    if (!fits(dense_bytes) || !fits(result_bytes) || !fits(values_bytes)) {
      if (p.dense.batch_stride > 0 || p.result.batch_stride > 0) ++counts.unmade;
      return;
    }
    const Memory values(values_bytes), from(dense_bytes), to(result_bytes, 0xFF);
    const Memory bias((p.sparse_right ? inner : outer) * item);
    p.values = random_() % 60 == 0 ? nullptr : values.data.get();
    p.dense.data = random_() % 60 == 0 ? nullptr : from.data.get();
    p.result.data = random_() % 60 == 0 && from.size >= to.size ? from.data.get() : to.data.get();
    p.bias = random_() % 2 ? bias.data.get() : nullptr;
    // As long as it may have to be: structs of other sizes are read to their end.
    std::vector<char> given(std::max<size_t>(p.struct_size, sizeof(p)), 0);
    std::memcpy(given.data(), &p, sizeof(p));
    const auto* product = reinterpret_cast<const sparse_autotune_product*>(given.data());
    count(sparse_autotune_matmul(pattern, product));
    if (random_() % 8 == 0) {
      int64_t bytes = 0;
      count(sparse_autotune_matmul_workspace(pattern, product, &bytes));
    }
    if (random_() % 8 == 0) {
      auto options = SPARSE_AUTOTUNE_INIT(sparse_autotune_race_options);
      options.dry_run = 1;
      options.rounds = hostile(random_, 1);
      sparse_autotune_record* record = nullptr;
      count(sparse_autotune_race_matmul(pattern, product, &options, &record));
      auto entrant = SPARSE_AUTOTUNE_INIT(sparse_autotune_entrant);
      if (record) count(sparse_autotune_record_entrant(record, hostile(random_, 0), &entrant));
      sparse_autotune_record_destroy(record);
    }
  }

  void sampled(sparse_autotune_pattern* pattern, const sparse_autotune_pattern_description& d) {
    auto p = SPARSE_AUTOTUNE_INIT(sparse_autotune_sampled_product);
    p.dtype = hostile_flag(random_, 3);
    p.variant = variant();
    const int64_t n = pick(random_, {0, 1, 2, 7, 16, 33});
    const int64_t batch = pick(random_, {0, 1, 1, 3});
    p.x = dense(random_, d.rows, n, batch);
    p.y = dense(random_, n, d.cols, batch);
    const int64_t item = p.dtype >= 0 && p.dtype < 4 ? kItem[p.dtype] : 8;
    const int64_t x_bytes = times({span(p.x), item}), y_bytes = times({span(p.y), item});
    const int64_t values_bytes = times({d.nnzb, d.block_rows, d.block_cols, item});
    if (!fits(x_bytes) || !fits(y_bytes) || !fits(values_bytes)) {
      ++counts.unmade;
      return;
    }
    const Memory x(x_bytes), y(y_bytes), values(values_bytes, 0xFF);
    p.x.data = x.data.get();
    p.y.data = y.data.get();
    p.values = random_() % 60 == 0 && x.size >= values.size ? x.data.get() : values.data.get();
    count(sparse_autotune_sampled_matmul(pattern, &p));
  }

  Random random_;
  sparse_autotune_context* context_ = nullptr;
};

}  // namespace

int main(int count, char** words) {
  if (count != 3) {
    std::fprintf(stderr, "usage: fuzz SEED SECONDS\n");
    return 2;
  }
  const auto seed = std::strtoull(words[1], nullptr, 10);
  const double seconds = std::atof(words[2]);
  const auto start = std::chrono::steady_clock::now();
  Counts all;
  uint64_t rounds = 0;
  // A new stream of numbers for each round, so that one round can be run again alone.
  for (; std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() < seconds;
       rounds += 1000) {
    Fuzz fuzz(seed * 1000003 + rounds);
    for (int i = 0; i < 1000; ++i) fuzz.round();
    all.patterns += fuzz.counts.patterns;
    all.products += fuzz.counts.products;
    all.refused += fuzz.counts.refused;
    all.unmade += fuzz.counts.unmade;
  }
  std::printf(
      "%lld patterns, %lld other calls, %lld refused, %lld too large to be tried: no fault\n",
      static_cast<long long>(all.patterns), static_cast<long long>(all.products),
      static_cast<long long>(all.refused), static_cast<long long>(all.unmade));
  return all.refused > 0 && all.products > all.refused ? 0 : 1;
}
