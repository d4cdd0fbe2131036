// Operands, check and stopwatch on a CUDA device.
//
// Everything runs on the user's stream, from the library's own memory pool, so that neither torch's
// allocator nor a CUDA graph that another thread captures notices. A burst is timed by two events;
// a kernel that only waits stands before it, so that the host is ahead when the burst begins.
#include <cuda_runtime.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <memory>
#include <new>
#include <string>
#include <unordered_map>
#include <vector>

#include "autotune/bench.h"
#include "autotune/check_cuda.h"
#include "autotune/operands.h"
#include "autotune/verify.h"
#include "kernels/cuda/host/cuda_status.h"
#include "plan/capture_mode.h"
#include "plan/memory_pool.h"

namespace sparse_autotune {
namespace {

constexpr double kCheckFlops = 4e9;
constexpr double kUsualHostUs = 10;

__global__ void wait_kernel(int64_t cycles) {
  const int64_t start = clock64();
  while (clock64() - start < cycles) {
  }
}

// Memory of the library's own pool.
class Memory {
 public:
  Memory(int ordinal, cudaStream_t stream) : ordinal_(ordinal), stream_(stream) {}
  ~Memory() { pool_free(data_, stream_); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  Status allocate(int64_t bytes) {
    return pool_require(ordinal_, std::max<int64_t>(bytes, kOperandAlignment), stream_, &data_);
  }
  char* data() const { return static_cast<char*>(data_); }

 private:
  int ordinal_;
  cudaStream_t stream_;
  void* data_ = nullptr;
};

class CudaBench final : public Bench {
 public:
  CudaBench(AnyProblem problem, const Device& device, const AnyLaunch& user,
            const BenchOptions& options)
      : p_(problem),
        device_(device),
        given_(problem.op().operands(problem, user)),
        layout_(lay_out(given_)),
        options_(options),
        frozen_(problem.op().asked(problem).frozen),
        launch_(problem.op().copy_of(user)),
        stream_(static_cast<cudaStream_t>(user.stream)),
        operands_(device.ordinal, stream_),
        scratch_(device.ordinal, stream_),
        prepared_(device.ordinal, stream_),
        tiles_(device.ordinal, stream_),
        expected_(device.ordinal, stream_),
        findings_(device.ordinal, stream_) {}

  ~CudaBench() override {
    const RelaxedCapture relaxed;
    if (begin_ != nullptr) cudaEventDestroy(begin_);
    if (end_ != nullptr) cudaEventDestroy(end_);
    cudaStreamSynchronize(stream_);
    static_cast<void>(cudaGetLastError());  // a failure was reported when it happened
  }

  Status build() {
    const RelaxedCapture relaxed;
    // Rotation pays only where the cache could hold the operands.
    const int64_t cache = std::max<int64_t>(device_.l2_bytes, 1);
    if (options_.cold && layout_.bytes <= 2 * cache) sets_ = ceil_div(3 * cache, layout_.bytes) + 1;
    const int64_t prepared =
        ceil_div(options_.prepared_bytes, kOperandAlignment) * kOperandAlignment;
    const int64_t fixed = options_.scratch_bytes + prepared;
    if (layout_.bytes * sets_ + fixed > options_.tuning_bytes) sets_ = 1;
    if (layout_.bytes + fixed > options_.tuning_bytes) {
      return Status::failed(StatusCode::kOutOfMemory,
                            "a race would take " + std::to_string(layout_.bytes + fixed) +
                                " bytes, more than settings.tuning_bytes (" +
                                std::to_string(options_.tuning_bytes) + ")");
    }
    cudaError_t error = cudaEventCreate(&begin_);
    if (error == cudaSuccess) error = cudaEventCreate(&end_);
    if (error != cudaSuccess) return to_status(error, "creating events");
    Status status = operands_.allocate(layout_.bytes * sets_);
    if (status) status = scratch_.allocate(options_.scratch_bytes);
    if (status) status = prepared_.allocate(prepared);
    if (status) status = findings_.allocate(sizeof(Findings));
    if (!status) return status;
    status = renew();
    return status ? expect() : failed(status);
  }

  Status check(const AnyVariant& variant, double* error, double* us) override {
    const RelaxedCapture relaxed;
    *error = std::numeric_limits<double>::infinity();
    prepared_for_ = nullptr;
    LaunchTime taken;
    Status status = poison();
    launch_->only_timed = false;
    if (status) status = burst(variant, 1, &taken);
    launch_->only_timed = true;
    *us = taken.device_us;
    return status ? compare(error) : status;
  }

  Status time(const AnyVariant& variant, int64_t launches, LaunchTime* taken) override {
    const RelaxedCapture relaxed;
    const Status status = burst(variant, launches, taken);
    host_us_[&variant] = taken->host_us;
    return status;
  }

  Status renew() override {
    const RelaxedCapture relaxed;
    prepared_for_ = nullptr;
    const cudaError_t error = fill_operands(given_, layout_, operands_.data(), sets_, stream_);
    if (error != cudaSuccess) return broken(error, "filling operands");
    Status status = Status::ok();
    for (int64_t set = 0; set < sets_ && status; ++set) status = p_.op().derive(p_, bound_to(set));
    return status;
  }

  bool is_cold() const override { return sets_ > 1; }
  bool is_broken() override { return broken_; }

 private:
  Status broken(cudaError_t error, const char* what) {
    const Status status = to_status(error, what);
    // An error that stays after it was read has broken the context.
    broken_ = broken_ || cudaStreamSynchronize(stream_) != cudaSuccess;
    static_cast<void>(cudaGetLastError());
    return status;
  }

  Status poison() {
    cursor_ = 0;
    const cudaError_t error = cudaMemsetAsync(operands_.data() + layout_.output_begin(), 0xFF,
                                              static_cast<size_t>(layout_.output_bytes()), stream_);
    return error == cudaSuccess ? Status::ok() : broken(error, "poisoning the output");
  }

  // Operand `i` of the first set.
  Status read_back(size_t i, void* to) {
    cudaError_t error =
        cudaMemcpyAsync(to, operands_.data() + layout_.offsets[i],
                        static_cast<size_t>(given_[i].bytes), cudaMemcpyDeviceToHost, stream_);
    if (error == cudaSuccess) error = cudaStreamSynchronize(stream_);
    return error == cudaSuccess ? Status::ok() : broken(error, "reading an operand back");
  }

  Status expect() {
    std::vector<Tile> tiles;
    const ReadBack read = [&](int i, void* to) { return read_back(static_cast<size_t>(i), to); };
    Status status = p_.op().choose_tiles(p_, read, kCheckFlops, &tiles);
    if (!status) return status;
    tile_count_ = static_cast<int64_t>(tiles.size());
    status = tiles_.allocate(tile_count_ * static_cast<int64_t>(sizeof(Tile)));
    if (status) {
      status =
          expected_.allocate(tile_count_ * kTileElements * static_cast<int64_t>(sizeof(Expected)));
    }
    if (!status) return status;
    cudaError_t error = cudaMemcpyAsync(tiles_.data(), tiles.data(), tiles.size() * sizeof(Tile),
                                        cudaMemcpyHostToDevice, stream_);
    if (error != cudaSuccess) return broken(error, "copying tiles");
    status = p_.op().expect(p_, bound_to(0), tiles_on_device(), tile_count_, expected_on_device());
    if (!status) return failed(status);
    error = cudaStreamSynchronize(stream_);
    return error == cudaSuccess ? Status::ok() : broken(error, "computing the reference");
  }

  const Tile* tiles_on_device() const { return reinterpret_cast<const Tile*>(tiles_.data()); }
  Expected* expected_on_device() const { return reinterpret_cast<Expected*>(expected_.data()); }

  Status compare(double* error) {
    auto* findings = reinterpret_cast<Findings*>(findings_.data());
    cudaError_t e = compare_outputs(given_, layout_, operands_.data(), tiles_on_device(),
                                    tile_count_, expected_on_device(), findings, stream_);
    Findings found{};
    if (e == cudaSuccess) {
      e = cudaMemcpyAsync(&found, findings, sizeof(found), cudaMemcpyDeviceToHost, stream_);
    }
    if (e == cudaSuccess) e = cudaStreamSynchronize(stream_);
    if (e != cudaSuccess) return broken(e, "comparing");
    int64_t elements = 0;
    for (const auto& output : layout_.outputs) {
      elements += given_[output.operand].strides.elements();
    }
    return judge(elements, found.missing, found.written, found.worst, error);
  }

  // The launch, on the operands of that set.
  const AnyLaunch& bound_to(int64_t set) {
    for (size_t i = 0; i < at_.size(); ++i) {
      at_[i] = operands_.data() + set * layout_.bytes + layout_.offsets[i];
    }
    p_.op().bind(p_, at_.data(), launch_.get());
    return *launch_;
  }

  const AnyLaunch& next_launch() {
    const int64_t set = cursor_;
    cursor_ = (cursor_ + 1) % sets_;
    launch_->workspace = scratch_.data();
    launch_->prepared = prepared_.data();
    return bound_to(set);
  }

  Status burst(const AnyVariant& variant, int64_t launches, LaunchTime* taken) {
    const bool converts = variant.prepared_bytes(p_, device_) > 0;
    if (converts && frozen_ && prepared_for_ != &variant) {
      // All sets hold other values, but a copy of the first set's is as good for the clock.
      const int64_t at = cursor_;
      cursor_ = 0;
      const Status status = variant.prepare(p_, next_launch());
      cursor_ = at;
      if (!status) return failed(status);
      prepared_for_ = &variant;
    }
    cudaError_t error = cudaStreamSynchronize(stream_);
    if (error != cudaSuccess) return broken(error, "running");
    const auto known = host_us_.find(&variant);
    const double host_us = known == host_us_.end() ? kUsualHostUs : known->second;
    const double wait_us = std::min(host_us * static_cast<double>(launches) * 3 + 20, 20e3);
    wait_kernel<<<1, 1, 0, stream_>>>(static_cast<int64_t>(wait_us * 1e3));
    error = cudaEventRecord(begin_, stream_);
    if (error != cudaSuccess) return broken(error, "running");
    const auto start = std::chrono::steady_clock::now();
    for (int64_t i = 0; i < launches; ++i) {
      const AnyLaunch& l = next_launch();
      if (converts && !frozen_) {
        const Status status = variant.prepare(p_, l);
        if (!status) return failed(status);
        prepared_for_ = nullptr;
      }
      const Status status = variant.launch(p_, l);
      if (!status) return failed(status);
    }
    const std::chrono::duration<double, std::micro> enqueue =
        std::chrono::steady_clock::now() - start;
    taken->host_us = enqueue.count() / static_cast<double>(launches);
    return elapsed(stream_, launches, &taken->device_us);
  }

  // Since begin_ was recorded, for each launch.
  Status elapsed(cudaStream_t stream, int64_t launches, double* us) {
    float milliseconds = 0;
    cudaError_t error = cudaEventRecord(end_, stream);
    if (error == cudaSuccess) error = cudaStreamSynchronize(stream);
    if (error == cudaSuccess) error = cudaEventElapsedTime(&milliseconds, begin_, end_);
    *us = static_cast<double>(milliseconds) * 1e3 / static_cast<double>(launches);
    return error == cudaSuccess ? Status::ok() : broken(error, "running");
  }

  // A variant's own failure: what it enqueued may have broken more.
  Status failed(const Status& status) {
    broken_ = broken_ || cudaStreamSynchronize(stream_) != cudaSuccess;
    static_cast<void>(cudaGetLastError());
    return status;
  }

  const AnyProblem p_;
  const Device& device_;
  const std::vector<Operand> given_;
  const OperandLayout layout_;
  const BenchOptions options_;
  const bool frozen_;
  const std::shared_ptr<AnyLaunch> launch_;
  std::vector<char*> at_ = std::vector<char*>(given_.size());  // where its operands lie
  const cudaStream_t stream_;
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
  Memory operands_, scratch_, prepared_, tiles_, expected_, findings_;
  int64_t sets_ = 1, cursor_ = 0, tile_count_ = 0;
  std::unordered_map<const AnyVariant*, double> host_us_;  // of the last burst's launches
  const AnyVariant* prepared_for_ = nullptr;
  bool broken_ = false;
};

// The pool gives back what the race held, once the bench is gone.
class TrimmedBench final : public Bench {
 public:
  TrimmedBench(std::unique_ptr<CudaBench> bench, int ordinal, cudaStream_t stream)
      : bench_(std::move(bench)), ordinal_(ordinal), stream_(stream) {}
  ~TrimmedBench() override {
    bench_.reset();
    const RelaxedCapture relaxed;
    cudaStreamSynchronize(stream_);  // until then the pool has back nothing that it could give
    pool_trim(ordinal_);
  }
  Status check(const AnyVariant& variant, double* error, double* us) override {
    return bench_->check(variant, error, us);
  }
  Status time(const AnyVariant& variant, int64_t launches, LaunchTime* taken) override {
    return bench_->time(variant, launches, taken);
  }
  Status renew() override { return bench_->renew(); }
  bool is_cold() const override { return bench_->is_cold(); }
  bool is_broken() override { return bench_->is_broken(); }

 private:
  std::unique_ptr<CudaBench> bench_;
  int ordinal_;
  cudaStream_t stream_;
};

}  // namespace

std::unique_ptr<Bench> make_cuda_bench(AnyProblem problem, const Device& device,
                                       const AnyLaunch& user, const BenchOptions& options,
                                       Status* status) {
  try {
    auto bench = std::make_unique<CudaBench>(problem, device, user, options);
    *status = bench->build();
    if (*status) {
      return std::make_unique<TrimmedBench>(std::move(bench), device.ordinal,
                                            static_cast<cudaStream_t>(user.stream));
    }
  } catch (const std::bad_alloc&) {
    *status = Status::failed(StatusCode::kOutOfMemory, "no memory for a race");
  }
  return nullptr;
}

}  // namespace sparse_autotune
