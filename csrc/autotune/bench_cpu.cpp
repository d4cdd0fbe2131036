// Operands, check and stopwatch on the CPU.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "autotune/bench.h"
#include "autotune/operands.h"
#include "autotune/verify.h"
#include "half.h"
#include "operator.h"

namespace sparse_autotune {
namespace {

struct Free {
  void operator()(char* memory) const { std::free(memory); }
};
using Memory = std::unique_ptr<char, Free>;

Memory allocate(int64_t bytes) {
  const int64_t rounded = ceil_div(std::max<int64_t>(bytes, 1), kOperandAlignment);
  return Memory(static_cast<char*>(
      std::aligned_alloc(kOperandAlignment, static_cast<size_t>(rounded * kOperandAlignment))));
}

// Longer launches are their own warm-up.
constexpr double kLongUs = 2000;

class CpuBench final : public Bench {
 public:
  CpuBench(AnyProblem problem, const AnyLaunch& user, const BenchOptions& options)
      : p_(problem),
        user_(user),
        given_(problem.op().operands(problem, user)),
        layout_(lay_out(given_)),
        options_(options),
        frozen_(problem.op().asked(problem).frozen),
        launch_(problem.op().copy_of(user)) {}

  Status build() {
    const int64_t scratch = ceil_div(options_.scratch_bytes, kOperandAlignment) * kOperandAlignment;
    const int64_t bytes = layout_.bytes + scratch + options_.prepared_bytes;
    if (bytes > options_.tuning_bytes) {
      return Status::failed(StatusCode::kOutOfMemory,
                            "a race would take " + std::to_string(bytes) +
                                " bytes, more than settings.tuning_bytes (" +
                                std::to_string(options_.tuning_bytes) + ")");
    }
    operands_ = allocate(layout_.bytes);
    scratch_ = allocate(scratch);
    prepared_ = allocate(options_.prepared_bytes);
    if (!operands_ || !scratch_ || !prepared_) {
      return Status::failed(StatusCode::kOutOfMemory,
                            "no memory for operands of " + std::to_string(bytes) + " bytes");
    }
    const std::vector<char*> at = addresses_at(layout_, operands_.get());
    p_.op().bind(p_, at.data(), launch_.get());
    launch_->workspace = scratch_.get();
    launch_->prepared = prepared_.get();
    Status status = renew();
    if (status) status = expect();
    return status;
  }

  Status check(const AnyVariant& variant, double* error, double* us) override {
    std::memset(operands_.get() + layout_.output_begin(), 0xFF,
                static_cast<size_t>(layout_.output_bytes()));
    launch_->only_timed = false;
    const Status status = run(variant, 1, true, us);
    launch_->only_timed = true;
    if (!status) return status;
    prepared_for_ = nullptr;
    return compare(error);
  }

  // Short launches depend on whose data the caches of all cores hold: their own last launch's.
  Status time(const AnyVariant& variant, int64_t launches, LaunchTime* taken) override {
    if (last_ != &variant) {
      const Status status = run(variant, 1, false, &taken->device_us);
      if (!status || taken->device_us > kLongUs) return status;
    }
    return run(variant, launches, false, &taken->device_us);
  }

  Status renew() override {
    prepared_for_ = nullptr;
    fill();
    return p_.op().derive(p_, *launch_);
  }

  bool is_cold() const override { return false; }

 private:
  template <typename T>
  void fill_run(T* out, int64_t count, int64_t stride, uint64_t number) const {
    for (int64_t i = 0; i < count; ++i) out[i * stride] = narrowed<T>(operand_value(number + i));
  }

  void fill() {
    char* base = operands_.get();
    // What lies between the rows of an operand is NaN: a variant that lets it into a result is
    // found out.
    std::memset(base, 0xFF, static_cast<size_t>(layout_.bytes));
    for (size_t i = 0; i < given_.size(); ++i) {
      const Operand& operand = given_[i];
      char* const to = base + layout_.offsets[i];
      if (operand.use == Operand::Use::kCopied && operand.bytes > 0) {
        std::memcpy(to, operand.source, static_cast<size_t>(operand.bytes));
      } else if (operand.use == Operand::Use::kInput && operand.bytes > 0) {
        fill_input(operand.strides, operand.dtype, to, first_number(i));
      }
    }
  }

  void fill_input(const Strides& s, DType dtype, char* to, uint64_t number) const {
    with_type(dtype, [&]<typename T>(T*) {
      T* const first = reinterpret_cast<T*>(to);
      // Matrices of a batch may share memory, which one thread then writes.
      const int64_t reach = (s.rows - 1) * s.row_stride + (s.cols - 1) * s.col_stride;
      const bool apart = s.batch == 1 || s.batch_stride > reach;
      const int64_t grain = apart ? ceil_div(1 << 12, s.cols) : s.batch * s.rows;
      parallel_for(user_.parallel, 0, s.batch * s.rows, grain, [&](int64_t begin, int64_t end) {
        for (int64_t line = begin; line < end; ++line) {
          fill_run(first + line / s.rows * s.batch_stride + line % s.rows * s.row_stride, s.cols,
                   s.col_stride, number + static_cast<uint64_t>(line * s.cols));
        }
      });
    });
  }

  Status expect() {
    const ReadBack read = [&](int operand, void* to) {
      const auto i = static_cast<size_t>(operand);
      std::memcpy(to, operands_.get() + layout_.offsets[i], static_cast<size_t>(given_[i].bytes));
      return Status::ok();
    };
    Status status = p_.op().choose_tiles(p_, read, 1e8 * user_.parallel.threads, &tiles_);
    if (!status) return status;
    expected_.resize(tiles_.size() * kTileElements);
    return p_.op().expect(p_, *launch_, tiles_.data(), static_cast<int64_t>(tiles_.size()),
                          expected_.data());
  }

  // Of one output.
  struct Found {
    uint64_t missing = 0, written = 0;
    double worst = 0;
  };

  template <typename T>
  Found look_at(const OperandLayout::Output& place, int32_t number) const {
    constexpr auto kItem = static_cast<int64_t>(sizeof(T));
    const Strides& s = given_[place.operand].strides;
    const int64_t offset = layout_.offsets[place.operand];
    const T* output = reinterpret_cast<const T*>(operands_.get() + offset);
    Found found;
    for (int64_t line = 0; line < s.batch * s.rows; ++line) {
      const T* row = output + line / s.rows * s.batch_stride + line % s.rows * s.row_stride;
      for (int64_t j = 0; j < s.cols; ++j) {
        const double x = widened(row[j * s.col_stride]);
        found.missing += x != x;
      }
    }
    const char* guarded = operands_.get() + place.begin;
    char poison[sizeof(T)];
    std::memset(poison, 0xFF, sizeof(poison));
    for (int64_t at = (offset - place.begin) % kItem; at + kItem <= place.bytes; at += kItem) {
      found.written += std::memcmp(guarded + at, poison, sizeof(T)) != 0;
    }
    for (size_t t = 0; t < tiles_.size(); ++t) {
      const Tile& tile = tiles_[t];
      if (tile.output != number) continue;
      for (int i = 0; i < tile.rows; ++i) {
        for (int j = 0; j < tile.cols; ++j) {
          const Expected& e = expected_[t * kTileElements + static_cast<size_t>(i * kTileCols + j)];
          const T* x = output + tile.offset + i * tile.row_stride + j * tile.col_stride;
          // Infinities too are right where they are expected.
          const double off = widened(*x) == e.value ? 0 : std::abs(widened(*x) - e.value);
          found.worst = std::max(found.worst, off / e.allowed);
        }
      }
    }
    return found;
  }

  Status compare(double* error) const {
    Found all;
    int64_t elements = 0;
    for (size_t i = 0; i < layout_.outputs.size(); ++i) {
      const Operand& operand = given_[layout_.outputs[i].operand];
      const Found found = with_type(operand.dtype, [&]<typename T>(T*) {
        return look_at<T>(layout_.outputs[i], static_cast<int32_t>(i));
      });
      all.missing += found.missing;
      all.written += found.written;
      all.worst = std::max(all.worst, found.worst);
      elements += operand.strides.elements();
    }
    return judge(elements, all.missing, all.written, all.worst, error);
  }

  Status run(const AnyVariant& variant, int64_t launches, bool prepare_anew, double* us) {
    const bool converts =
        options_.prepared_bytes > 0 && variant.prepared_bytes(p_, *user_.device) > 0;
    if (converts && frozen_ && (prepare_anew || prepared_for_ != &variant)) {
      const Status status = variant.prepare(p_, *launch_);
      if (!status) return status;
      prepared_for_ = &variant;
    }
    const auto start = std::chrono::steady_clock::now();
    for (int64_t i = 0; i < launches; ++i) {
      if (converts && !frozen_) {
        prepared_for_ = nullptr;
        const Status status = variant.prepare(p_, *launch_);
        if (!status) return status;
      }
      const Status status = variant.launch(p_, *launch_);
      if (!status) return status;
    }
    const std::chrono::duration<double, std::micro> taken =
        std::chrono::steady_clock::now() - start;
    *us = taken.count() / static_cast<double>(launches);
    last_ = &variant;
    return Status::ok();
  }

  const AnyProblem p_;
  const AnyLaunch& user_;
  const std::vector<Operand> given_;
  const OperandLayout layout_;
  const BenchOptions options_;
  const bool frozen_;
  const std::shared_ptr<AnyLaunch> launch_;
  Memory operands_, scratch_, prepared_;
  std::vector<Tile> tiles_;
  std::vector<Expected> expected_;
  const AnyVariant* prepared_for_ = nullptr;
  const AnyVariant* last_ = nullptr;  // that ran
};

}  // namespace

std::unique_ptr<Bench> make_cpu_bench(AnyProblem problem, const Device&, const AnyLaunch& user,
                                      const BenchOptions& options, Status* status) {
  try {
    auto bench = std::make_unique<CpuBench>(problem, user, options);
    *status = bench->build();
    if (*status) return bench;
  } catch (const std::bad_alloc&) {
    *status = Status::failed(StatusCode::kOutOfMemory, "no memory for a race");
  }
  return nullptr;
}

}  // namespace sparse_autotune
