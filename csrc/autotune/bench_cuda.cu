// Operands, check and stopwatch on a CUDA device.
//
// Everything runs on the user's stream, from the library's own memory pool, so that neither torch's
// allocator nor a CUDA graph that another thread captures notices. A burst is timed by two events;
// a kernel that only waits stands before it, so that the host is ahead when the burst begins.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <new>
#include <string>
#include <vector>

#include "autotune/bench.h"
#include "autotune/operands.h"
#include "autotune/verify.h"
#include "kernels/cuda/cuda_status.h"
#include "plan/capture_mode.h"
#include "plan/memory_pool.h"

namespace sparse_autotune {
namespace {

constexpr int kThreads = 256;
constexpr double kCheckFlops = 4e9;

unsigned grid_for(int64_t count) {
  return static_cast<unsigned>(std::clamp<int64_t>(ceil_div(count, kThreads), 1, 1 << 16));
}

template <typename F>
void with_type(DType dtype, F&& f) {
  switch (dtype) {
    case DType::kFloat16:
      return f(static_cast<__half*>(nullptr));
    case DType::kBFloat16:
      return f(static_cast<__nv_bfloat16*>(nullptr));
    case DType::kFloat32:
      return f(static_cast<float*>(nullptr));
    case DType::kFloat64:
      return f(static_cast<double*>(nullptr));
  }
}

__global__ void wait_kernel(int64_t cycles) {
  const int64_t start = clock64();
  while (clock64() - start < cycles) {
  }
}

// Element e of every set: `sets` sets, `set_bytes` apart.
template <typename T>
__global__ void fill_kernel(char* first, int64_t sets, int64_t set_bytes, Strides s,
                            uint64_t number) {
  const int64_t per_set = s.batch * s.rows * s.cols;
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < per_set * sets; i += step) {
    const int64_t set = i / per_set, e = i % per_set;
    const int64_t line = e / s.cols, col = e % s.cols;
    T* out = reinterpret_cast<T*>(first + set * set_bytes);
    out[line / s.rows * s.batch_stride + line % s.rows * s.row_stride + col * s.col_stride] =
        static_cast<T>(operand_value(number + static_cast<uint64_t>(i)));
  }
}

template <typename Index>
__global__ void replicate_kernel(char* first, int64_t sets, int64_t set_bytes, const Index* source,
                                 int64_t count) {
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count * sets; i += step) {
    reinterpret_cast<Index*>(first + i / count * set_bytes)[i % count] = source[i % count];
  }
}

struct TileArguments {
  const void* crow;
  const void* col;
  const void* positions;
  const void* values;
  const void* b;
  const void* bias;
  const Tile* tiles;
  Expected* expected;
  Problem problem;
  Strides b_strides, c_strides;
  int64_t row_stride, k_stride;  // in a block of values
};

constexpr int kStripRows = kThreads / kTileCols;

// A thread an element; kTileRows / kStripRows thread blocks a tile.
template <typename T, typename Index>
__global__ void __launch_bounds__(kThreads) expected_kernel(const TileArguments a) {
  const Tile tile = a.tiles[blockIdx.x];
  const int i = blockIdx.y * kStripRows + threadIdx.x / kTileCols, j = threadIdx.x % kTileCols;
  if (tile.col + j >= a.problem.n || tile.row % a.problem.block_m + i >= a.problem.block_m) return;
  const int64_t block_row = tile.row / a.problem.block_m;
  const int64_t begin = static_cast<const Index*>(a.crow)[block_row];
  const int64_t end = static_cast<const Index*>(a.crow)[block_row + 1];
  const T* b = static_cast<const T*>(a.b) + tile.batch * a.b_strides.batch_stride +
               (tile.col + j) * a.b_strides.col_stride;
  double sum = 0, magnitude = 0;
  for (int64_t block = begin; block < end; ++block) {
    const int64_t position =
        a.positions == nullptr ? block : int64_t{static_cast<const Index*>(a.positions)[block]};
    const T* left = static_cast<const T*>(a.values) +
                    position * a.problem.block_m * a.problem.block_k +
                    (tile.row % a.problem.block_m + i) * a.row_stride;
    const T* right =
        b + static_cast<const Index*>(a.col)[block] * a.problem.block_k * a.b_strides.row_stride;
    for (int64_t k = 0; k < a.problem.block_k; ++k) {
      const double product = static_cast<double>(*left) * static_cast<double>(*right);
      sum += product;
      magnitude += fabs(product);
      left += a.k_stride;
      right += a.b_strides.row_stride;
    }
  }
  const double bias =
      a.bias == nullptr ? 0 : static_cast<double>(static_cast<const T*>(a.bias)[tile.row + i]);
  a.expected[int64_t{blockIdx.x} * kTileElements + i * kTileCols + j] = expected_element(
      sum, bias, magnitude + fabs(bias), (end - begin) * a.problem.block_k + 1, a.problem);
}

struct Findings {
  unsigned long long missing;  // elements of C that are NaN
  unsigned long long written;  // elements around and inside C that are not poison
  float worst;                 // largest |c - expected| / allowed; ordered as an int, being >= 0
};

template <typename T>
__global__ void __launch_bounds__(kThreads)
    compare_kernel(const TileArguments a, const T* c, Findings* findings) {
  const Tile tile = a.tiles[blockIdx.x];
  const int j = threadIdx.x % kTileCols;
  float worst = 0;
  for (int i = threadIdx.x / kTileCols; i < kTileRows; i += kThreads / kTileCols) {
    if (tile.col + j >= a.problem.n || tile.row % a.problem.block_m + i >= a.problem.block_m)
      continue;
    const Expected e = a.expected[int64_t{blockIdx.x} * kTileElements + i * kTileCols + j];
    const double x = static_cast<double>(
        c[tile.batch * a.c_strides.batch_stride + (tile.row + i) * a.c_strides.row_stride +
          (tile.col + j) * a.c_strides.col_stride]);
    const double off = fabs(x - e.value) / e.allowed;
    worst = off <= 1e30 ? fmaxf(worst, static_cast<float>(off)) : 1e30f;  // NaN too
  }
  if (worst > 0) atomicMax(reinterpret_cast<int*>(&findings->worst), __float_as_int(worst));
}

template <typename T>
__device__ bool is_nan(T x) {
  const auto y = static_cast<double>(x);
  return y != y;
}

template <typename T>
__global__ void __launch_bounds__(kThreads)
    missing_kernel(const T* c, Strides s, Findings* findings) {
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  unsigned long long missing = 0;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < s.batch * s.rows * s.cols;
       i += step) {
    const int64_t line = i / s.cols;
    missing += is_nan(c[line / s.rows * s.batch_stride + line % s.rows * s.row_stride +
                        i % s.cols * s.col_stride]);
  }
  if (missing > 0) atomicAdd(&findings->missing, missing);
}

template <typename T>
__global__ void __launch_bounds__(kThreads)
    written_kernel(const T* guarded, int64_t count, Findings* findings) {
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  unsigned long long written = 0;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step) {
    const auto* bytes = reinterpret_cast<const unsigned short*>(guarded + i);
    bool poison = true;
    for (size_t b = 0; b < sizeof(T) / 2; ++b) poison = poison && bytes[b] == 0xFFFFu;
    written += !poison;
  }
  if (written > 0) atomicAdd(&findings->written, written);
}

// Memory of the library's own pool.
class Memory {
 public:
  Memory(int ordinal, cudaStream_t stream) : ordinal_(ordinal), stream_(stream) {}
  ~Memory() { pool_free(data_, stream_); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  Status allocate(int64_t bytes) {
    return pool_allocate(ordinal_, std::max<int64_t>(bytes, kOperandAlignment), stream_, &data_);
  }
  char* data() const { return static_cast<char*>(data_); }

 private:
  int ordinal_;
  cudaStream_t stream_;
  void* data_ = nullptr;
};

class CudaBench final : public Bench {
 public:
  CudaBench(const Problem& problem, const Device& device, const Launch& user,
            const BenchOptions& options)
      : p_(problem),
        device_(device),
        user_(user),
        layout_(lay_out_operands(problem)),
        options_(options),
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
    status = fill();
    return status ? expect() : status;
  }

  Status check(const Variant& variant, double* error, double* us) override {
    const RelaxedCapture relaxed;
    *error = std::numeric_limits<double>::infinity();
    prepared_for_ = nullptr;
    cudaError_t poisoned = cudaMemsetAsync(operands_.data() + layout_.c_begin, 0xFF,
                                           static_cast<size_t>(layout_.c_bytes), stream_);
    if (poisoned != cudaSuccess) return broken(poisoned, "poisoning the output");
    cursor_ = 0;
    const Status status = burst(variant, 1, us);
    return status ? compare(error) : status;
  }

  Status time(const Variant& variant, int64_t launches, double* us) override {
    const RelaxedCapture relaxed;
    return burst(variant, launches, us);
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

  Status fill() {
    char* base = operands_.data();
    // What lies between the rows of B is NaN: a variant that lets it into a result is found out.
    cudaError_t error =
        cudaMemsetAsync(base, 0xFF, static_cast<size_t>(layout_.bytes * sets_), stream_);
    if (error != cudaSuccess) return broken(error, "filling operands");
    const auto replicate = [&]<typename Index>(const Index*) {
      const auto copy = [&](int64_t offset, const void* source, int64_t count) {
        replicate_kernel<Index><<<grid_for(count * sets_), kThreads, 0, stream_>>>(
            base + offset, sets_, layout_.bytes, static_cast<const Index*>(source), count);
      };
      copy(layout_.crow_indices, user_.crow_indices, block_rows(p_) + 1);
      copy(layout_.col_indices, user_.col_indices, p_.nnzb);
      if (p_.transpose) copy(layout_.positions, user_.positions, p_.nnzb);
    };
    if (p_.index_type == IndexType::kInt64) {
      replicate(static_cast<const int64_t*>(nullptr));
    } else {
      replicate(static_cast<const int32_t*>(nullptr));
    }
    with_type(p_.dtype, [&]<typename T>(T*) {
      const auto put = [&](int64_t offset, const Strides& s, uint64_t number) {
        fill_kernel<T><<<grid_for(s.batch * s.rows * s.cols * sets_), kThreads, 0, stream_>>>(
            base + offset, sets_, layout_.bytes, s, number);
      };
      const int64_t count = p_.nnzb * p_.block_m * p_.block_k;
      put(layout_.values, Strides{1, count, 0, 1, 1, 0}, 0);
      put(layout_.b, strides_of_b(p_), kNumberOfB);
      if (p_.has_bias) put(layout_.bias, Strides{1, p_.m, 0, 1, 1, 0}, kNumberOfBias);
    });
    error = cudaGetLastError();
    return error == cudaSuccess ? Status::ok() : broken(error, "filling operands");
  }

  Status expect() {
    std::vector<int64_t> crow(static_cast<size_t>(block_rows(p_) + 1));
    std::vector<int32_t> narrow(p_.index_type == IndexType::kInt32 ? crow.size() : 0);
    void* target = narrow.empty() ? static_cast<void*>(crow.data()) : narrow.data();
    cudaError_t error = cudaMemcpyAsync(target, user_.crow_indices,
                                        crow.size() * static_cast<size_t>(size_of(p_.index_type)),
                                        cudaMemcpyDeviceToHost, stream_);
    if (error == cudaSuccess) error = cudaStreamSynchronize(stream_);
    if (error != cudaSuccess) return broken(error, "reading crow_indices");
    if (!narrow.empty()) std::copy(narrow.begin(), narrow.end(), crow.begin());

    const std::vector<Tile> tiles = choose_tiles(p_, crow, kCheckFlops);
    tile_count_ = static_cast<int64_t>(tiles.size());
    Status status = tiles_.allocate(tile_count_ * static_cast<int64_t>(sizeof(Tile)));
    if (status) {
      status =
          expected_.allocate(tile_count_ * kTileElements * static_cast<int64_t>(sizeof(Expected)));
    }
    if (!status) return status;
    error = cudaMemcpyAsync(tiles_.data(), tiles.data(), tiles.size() * sizeof(Tile),
                            cudaMemcpyHostToDevice, stream_);
    if (error != cudaSuccess) return broken(error, "copying tiles");
    const TileArguments a = tile_arguments();
    with_type(p_.dtype, [&]<typename T>(T*) {
      const dim3 blocks(static_cast<unsigned>(tile_count_), kTileRows / kStripRows);
      if (p_.index_type == IndexType::kInt64) {
        expected_kernel<T, int64_t><<<blocks, kThreads, 0, stream_>>>(a);
      } else {
        expected_kernel<T, int32_t><<<blocks, kThreads, 0, stream_>>>(a);
      }
    });
    error = cudaGetLastError();
    if (error == cudaSuccess) error = cudaStreamSynchronize(stream_);
    return error == cudaSuccess ? Status::ok() : broken(error, "computing the reference");
  }

  TileArguments tile_arguments() const {
    const Launch l = launch_on(layout_, p_, user_, operands_.data());
    TileArguments a{};
    a.crow = l.crow_indices;
    a.col = l.col_indices;
    a.positions = l.positions;
    a.values = l.values;
    a.b = l.b;
    a.bias = l.bias;
    a.tiles = reinterpret_cast<const Tile*>(tiles_.data());
    a.expected = reinterpret_cast<Expected*>(expected_.data());
    a.problem = p_;
    a.b_strides = strides_of_b(p_);
    a.c_strides = strides_of_c(p_);
    a.row_stride = row_stride_in_block(p_);
    a.k_stride = k_stride_in_block(p_);
    return a;
  }

  Status compare(double* error) {
    auto* findings = reinterpret_cast<Findings*>(findings_.data());
    cudaError_t e = cudaMemsetAsync(findings, 0, sizeof(Findings), stream_);
    if (e != cudaSuccess) return broken(e, "comparing");
    const Strides s = strides_of_c(p_);
    with_type(p_.dtype, [&]<typename T>(T*) {
      const T* c = reinterpret_cast<const T*>(operands_.data() + layout_.c);
      const int64_t item = static_cast<int64_t>(sizeof(T));
      const int64_t skipped = (layout_.c - layout_.c_begin) % item;
      const int64_t count = (layout_.c_bytes - skipped) / item;
      missing_kernel<T>
          <<<grid_for(s.batch * s.rows * s.cols), kThreads, 0, stream_>>>(c, s, findings);
      written_kernel<T><<<grid_for(count), kThreads, 0, stream_>>>(
          reinterpret_cast<const T*>(operands_.data() + layout_.c_begin + skipped), count,
          findings);
      compare_kernel<T><<<static_cast<unsigned>(tile_count_), kThreads, 0, stream_>>>(
          tile_arguments(), c, findings);
    });
    e = cudaGetLastError();
    Findings found{};
    if (e == cudaSuccess) {
      e = cudaMemcpyAsync(&found, findings, sizeof(found), cudaMemcpyDeviceToHost, stream_);
    }
    if (e == cudaSuccess) e = cudaStreamSynchronize(stream_);
    if (e != cudaSuccess) return broken(e, "comparing");
    const auto wrong = [](std::string what) {
      return Status::failed(StatusCode::kWrongResult, std::move(what));
    };
    if (found.missing > 0) {
      return wrong(std::to_string(found.missing) + " elements are NaN or were not written");
    }
    // No element of C is poison by now, so what is not poison must be as many as C has.
    if (found.written != static_cast<unsigned long long>(s.batch * s.rows * s.cols)) {
      return wrong("it wrote outside C");
    }
    *error = found.worst;
    if (found.worst <= 1) return Status::ok();
    return wrong("off by " + std::to_string(found.worst) + " times what rounding explains");
  }

  Launch next_launch() {
    Launch l = launch_on(layout_, p_, user_, operands_.data() + cursor_ * layout_.bytes);
    cursor_ = (cursor_ + 1) % sets_;
    l.workspace = scratch_.data();
    l.prepared = prepared_.data();
    return l;
  }

  Status burst(const Variant& variant, int64_t launches, double* us) {
    const bool converts = variant.prepared_bytes(p_, device_) > 0;
    if (converts && p_.frozen && prepared_for_ != &variant) {
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
    const double wait_us = std::min(enqueue_us_ * static_cast<double>(launches) * 3 + 20, 20e3);
    wait_kernel<<<1, 1, 0, stream_>>>(static_cast<int64_t>(wait_us * 1e3));
    error = cudaEventRecord(begin_, stream_);
    if (error != cudaSuccess) return broken(error, "running");
    const auto start = std::chrono::steady_clock::now();
    for (int64_t i = 0; i < launches; ++i) {
      const Launch l = next_launch();
      if (converts && !p_.frozen) {
        const Status status = variant.prepare(p_, l);
        if (!status) return failed(status);
        prepared_for_ = nullptr;
      }
      const Status status = variant.launch(p_, l);
      if (!status) return failed(status);
    }
    const std::chrono::duration<double, std::micro> enqueue =
        std::chrono::steady_clock::now() - start;
    enqueue_us_ = launches > 1 ? enqueue.count() / static_cast<double>(launches) : enqueue_us_;
    error = cudaEventRecord(end_, stream_);
    if (error == cudaSuccess) error = cudaStreamSynchronize(stream_);
    if (error != cudaSuccess) return broken(error, "running");
    float milliseconds = 0;
    error = cudaEventElapsedTime(&milliseconds, begin_, end_);
    if (error != cudaSuccess) return broken(error, "running");
    *us = static_cast<double>(milliseconds) * 1e3 / static_cast<double>(launches);
    return Status::ok();
  }

  // A variant's own failure: what it enqueued may have broken more.
  Status failed(const Status& status) {
    broken_ = broken_ || cudaStreamSynchronize(stream_) != cudaSuccess;
    static_cast<void>(cudaGetLastError());
    return status;
  }

  const Problem p_;
  const Device& device_;
  const Launch& user_;
  const OperandLayout layout_;
  const BenchOptions options_;
  const cudaStream_t stream_;
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
  Memory operands_, scratch_, prepared_, tiles_, expected_, findings_;
  int64_t sets_ = 1, cursor_ = 0, tile_count_ = 0;
  double enqueue_us_ = 10;  // host time of one launch
  const Variant* prepared_for_ = nullptr;
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
  Status check(const Variant& variant, double* error, double* us) override {
    return bench_->check(variant, error, us);
  }
  Status time(const Variant& variant, int64_t launches, double* us) override {
    return bench_->time(variant, launches, us);
  }
  bool is_cold() const override { return bench_->is_cold(); }
  bool is_broken() override { return bench_->is_broken(); }

 private:
  std::unique_ptr<CudaBench> bench_;
  int ordinal_;
  cudaStream_t stream_;
};

}  // namespace

std::unique_ptr<Bench> make_cuda_bench(const Problem& problem, const Device& device,
                                       const Launch& user, const BenchOptions& options,
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
