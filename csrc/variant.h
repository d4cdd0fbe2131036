// The contract between the autotuner and everything it can race.
//
// A product C = activation(op(A) * B + bias): A is a BSR matrix (crow_indices, col_indices,
// values), B and C are dense. A `Problem` is that product without its data, a `Launch` is its data,
// a `Variant` is one way to compute it. Kernels, vendor libraries, tuner and operators share these
// types and nothing else. No torch and no CUDA header is included here.
//
// The second operation is the product's gradient with respect to A's values, the block-sampled
// dense-dense product: values = sum over the batch of C * B^T, at the stored blocks only.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include "row_groups.h"
#include "row_orders.h"
#include "sampled_tasks.h"

namespace sparse_autotune {

enum class DeviceType : uint8_t { kCpu, kCuda };
enum class DType : uint8_t { kFloat16, kBFloat16, kFloat32, kFloat64 };
enum class IndexType : uint8_t { kInt32, kInt64 };
enum class Layout : uint8_t { kRowMajor, kColMajor };
enum class Op : uint8_t {
  kMatmul,   // reads values and B, writes C
  kSampled,  // reads C and B, writes values; no bias, no activation, not transposed, not frozen
};
// The numbers are part of the operators' schema: exported programs store them.
enum class Activation : uint8_t { kNone = 0, kRelu = 1, kGelu = 2, kGeluTanh = 3, kSilu = 4 };

constexpr int64_t size_of(DType dtype) {
  return dtype == DType::kFloat64 ? 8 : dtype == DType::kFloat32 ? 4 : 2;
}
constexpr int64_t size_of(IndexType type) { return type == IndexType::kInt64 ? 8 : 4; }
constexpr bool is_half(DType dtype) { return size_of(dtype) == 2; }
constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Everything about a product but its data. Two problems are the same call exactly when their bytes
// are: it has no padding.
//
// Shapes are those of the normalised product C (m x n) = op(A) (m x k) * B (k x n). `linear`
// (y = x W^T) and products with the sparse operand on the right reach kernels in this form, with
// column-major B and C: y^T = W x^T. A sampled product has the fields of the product whose gradient
// it is.
struct Problem {
  int64_t m, n, k;
  int64_t nnzb;              // stored blocks
  int64_t block_m, block_k;  // block of op(A); stored as block_k x block_m under `transpose`
  int64_t longest_row;       // blocks in the longest block row of op(A), -1: nobody has looked
  int64_t ldb, ldc;          // elements between rows (row-major) or columns (column-major)
  int64_t batch;             // dense matrices multiplied by the one A, at least 1
  int64_t b_batch_stride, c_batch_stride;  // elements; 0 when batch is 1
  RowCuts row_cuts;
  GroupCounts group_counts;
  Op op;
  DeviceType device;
  DType dtype;  // of values, B, bias and C
  IndexType index_type;
  Layout b_layout, c_layout;
  Activation activation;
  bool has_bias;         // one value per row of C
  bool transpose;        // op(A) is A^T: see Launch::positions
  bool frozen;           // the caller promises that `values` will not change
  bool allow_tf32;       // fp32 products may round their inputs to TF32
  bool deterministic;    // only variants with repeatable results
  bool exact_nonfinite;  // no NaN from an absent block that meets an infinity
  // Largest power of two, at most 16, that divides the address in bytes and, for B and C, the
  // leading dimension and the batch stride in bytes too.
  uint8_t values_alignment, b_alignment, c_alignment;
};
static_assert(std::has_unique_object_representations_v<Problem>,
              "a member more must leave no padding: bytes are compared and hashed");
inline bool operator==(const Problem& a, const Problem& b) {
  return std::memcmp(&a, &b, sizeof(Problem)) == 0;
}

inline int64_t block_rows(const Problem& p) { return p.m / p.block_m; }
inline int64_t block_cols(const Problem& p) { return p.k / p.block_k; }
// Within a stored block, elements from one row of op(A) to the next, and from one k to the next.
inline int64_t row_stride_in_block(const Problem& p) { return p.transpose ? 1 : p.block_k; }
inline int64_t k_stride_in_block(const Problem& p) { return p.transpose ? p.block_m : 1; }
// Of a sampled product, the terms of each sum.
constexpr int64_t sampled_length(const Problem& p) { return p.n * p.batch; }
// Floating-point operations on stored blocks.
inline double nnz_flops(const Problem& p) {
  return 2.0 * static_cast<double>(p.nnzb) * p.block_m * p.block_k * p.n * p.batch;
}
inline double values_bytes(const Problem& p) {
  return static_cast<double>(p.nnzb) * p.block_m * p.block_k * size_of(p.dtype);
}
inline double b_bytes(const Problem& p) {
  return static_cast<double>(p.k) * p.n * p.batch * size_of(p.dtype);
}
inline double c_bytes(const Problem& p) {
  return static_cast<double>(p.m) * p.n * p.batch * size_of(p.dtype);
}
// Bytes that any variant must move: each input read once, the output written once.
inline double compulsory_bytes(const Problem& p) {
  return values_bytes(p) + b_bytes(p) + c_bytes(p) +
         static_cast<double>(p.nnzb + block_rows(p) + 1) * size_of(p.index_type);
}

enum class CpuIsa : uint8_t { kBaseline, kAvx2, kAvx512, kAvx512Bf16, kAmx };

// What legality and cost models may know of a device. Rates are leads for the heuristic and the
// "share of the limit" column, never results.
struct Device {
  DeviceType type = DeviceType::kCpu;
  int ordinal = -1;
  std::string name;
  std::string unavailable;     // why nothing of ours can run here; empty: it can
  int compute_capability = 0;  // 90 for sm_90
  int multiprocessors = 0;
  int64_t l2_bytes = 0;                 // last-level cache on a CPU
  int64_t shared_memory_per_block = 0;  // opt-in maximum, bytes
  int64_t memory_bytes = 0;
  double memory_gbps = 0;    // GB/s
  double l2_gbps = 0;        // of a GPU: what L2 can hand out to all multiprocessors, GB/s
  double tensor_tflops = 0;  // dense half-precision tensor-core rate
  double tf32_tflops = 0;
  double fp32_tflops = 0;         // plain FMA rate; on a CPU, of all threads
  double fp64_tflops = 0;         // plain FMA rate
  double fp64_tensor_tflops = 0;  // of a GPU; the plain one where tensor cores have no fp64
  CpuIsa isa = CpuIsa::kBaseline;
  // Why a processor that has AMX may not use it; empty: it may, or has none.
  std::string amx_refused;
  int threads = 1;  // CPU threads that a launch may use
};

// How the tasks of a sampled product are cut: for thread blocks that come in twos.
inline TaskShape task_shape_of(const Problem& p, const Device& d) {
  return task_shape(p.block_m, p.block_k, d.multiprocessors > 1 ? d.multiprocessors / 2 * 2 : 2);
}

// The device's limit for the problem's arithmetic, TFLOP/s.
inline double peak_tflops(const Problem& p, const Device& d) {
  if (is_half(p.dtype)) return d.tensor_tflops;
  if (p.dtype == DType::kFloat64) {
    return d.type == DeviceType::kCuda ? d.fp64_tensor_tflops : d.fp64_tflops;
  }
  return p.allow_tf32 && d.type == DeviceType::kCuda ? d.tf32_tflops : d.fp32_tflops;
}

// The limit of code without tensor cores, TFLOP/s: it computes half types, and TF32 products, at
// the rate of fp32.
inline double fma_tflops(const Problem& p, const Device& d) {
  return p.dtype == DType::kFloat64 ? d.fp64_tflops : d.fp32_tflops;
}

// Whether a variant may run a problem, and why not. `reason` completes "unsupported: ...".
class Support {
 public:
  static Support yes() { return Support(); }
  static Support no(std::string reason) {
    Support s;
    s.reason_ = std::move(reason);
    s.ok_ = false;
    return s;
  }
  explicit operator bool() const { return ok_; }
  const std::string& reason() const { return reason_; }

 private:
  std::string reason_;
  bool ok_ = true;
};

enum class StatusCode : uint8_t { kOk, kOutOfMemory, kLaunchFailed, kWrongResult };

class [[nodiscard]] Status {
 public:
  static Status ok() { return Status(); }
  static Status failed(StatusCode code, std::string message) {
    Status s;
    s.code_ = code;
    s.message_ = std::move(message);
    return s;
  }
  explicit operator bool() const { return code_ == StatusCode::kOk; }
  StatusCode code() const { return code_; }
  const std::string& message() const { return message_; }

 private:
  std::string message_;
  StatusCode code_ = StatusCode::kOk;
};

// The threads of whoever calls us: a second pool in the process would fight with the first.
struct Parallel {
  using Body = void (*)(int64_t begin, int64_t end, void* context);
  void (*run)(int64_t begin, int64_t end, int64_t grain, Body body, void* context) = nullptr;
  int threads = 1;
};

// Calls f(begin, end) on disjoint ranges that cover [begin, end). `f` must not throw.
template <typename F>
void parallel_for(const Parallel& parallel, int64_t begin, int64_t end, int64_t grain, F&& f) {
  if (begin >= end) return;
  if (parallel.run == nullptr || parallel.threads <= 1 || end - begin <= grain) {
    f(begin, end);
    return;
  }
  using Function = std::remove_reference_t<F>;
  parallel.run(
      begin, end, grain,
      [](int64_t b, int64_t e, void* context) { (*static_cast<Function*>(context))(b, e); },
      const_cast<void*>(static_cast<const void*>(&f)));
}

// The data of one product. Pointers are to device memory on a GPU. `stream` is a cudaStream_t.
struct Launch {
  const void* crow_indices = nullptr;  // op(A)'s pattern
  const void* col_indices = nullptr;
  // Where in `values` each block of op(A) lies; null exactly when !problem.transpose, as they lie
  // in order then. Of problem.index_type, as the indices are.
  const void* positions = nullptr;
  const void* values = nullptr;
  const void* b = nullptr;
  const void* bias = nullptr;  // null exactly when !problem.has_bias
  void* c = nullptr;           // an input of a sampled product
  void* sampled = nullptr;     // the values that a sampled product writes; `values` is null then
  void* workspace = nullptr;   // workspace_bytes() of scratch, 256-byte aligned
  void* prepared = nullptr;    // prepared_bytes() written by prepare(), 256-byte aligned
  // Those that a variant asked for, where they pay and could be built; in device memory.
  const OrderedRow* row_orders[kRowOrders] = {};
  // Those that a variant asked for.
  RowGroups row_groups[kAllGroupings] = {};
  const TaskTable* tasks = nullptr;  // of task_shape_of(problem), for a variant that wants them
  void* stream = nullptr;
  const Device* device = nullptr;
  Parallel parallel;
};

// One way to compute a problem: one algorithm in one configuration.
//
// Objects are immutable, live as long as the process and are used from many threads at once.
// launch() and prepare() only enqueue work on the stream (or run it, on a CPU): they never
// allocate, never synchronise and never hand the work to another variant.
class Variant {
 public:
  // `name` is "family/config": stable, the key of caches, tests and reports.
  Variant(DeviceType device, std::string_view name, Op op = Op::kMatmul)
      : device_(device), op_(op), name_(name) {}
  virtual ~Variant() = default;
  Variant(const Variant&) = delete;
  Variant& operator=(const Variant&) = delete;

  DeviceType device() const { return device_; }
  Op op() const { return op_; }  // what it computes
  std::string_view name() const { return name_; }
  std::string_view family() const { return name_.substr(0, name_.find('/')); }

  // The only statement of legality; pure, and free of the flags below, which the registry checks.
  virtual Support supports(const Problem& problem, const Device& device) const = 0;

  // Expected microseconds of a launch (and of prepare(), unless frozen); infinity: nobody knows.
  virtual double estimate_us(const Problem& problem, const Device& device) const = 0;

  virtual Status launch(const Problem& problem, const Launch& launch) const = 0;

  // Scratch that one launch needs, bytes.
  virtual int64_t workspace_bytes(const Problem&, const Device&) const { return 0; }

  // A copy of the operand in a form of the variant's own (densified, Blocked-ELL, repacked): its
  // size in bytes and the call that writes it. Kept only for frozen values, otherwise made again
  // for, and timed with, every launch.
  virtual int64_t prepared_bytes(const Problem&, const Device&) const { return 0; }
  virtual Status prepare(const Problem&, const Launch&) const { return Status::ok(); }

  // Which of Launch::row_orders launch() makes use of; it must do without where there is none.
  virtual int row_order(const Problem&, const Device&) const { return kNoRowOrder; }

  // Which of Launch::row_groups launch() and prepare() need. supports() must refuse a problem whose
  // group_counts are not known, then.
  virtual int grouping(const Problem&, const Device&) const { return kNoGrouping; }

  // Whether launch() needs Launch::tasks.
  virtual bool wants_tasks() const { return false; }

  // Whether a CUDA graph can hold its launches.
  virtual bool captures() const { return true; }

  virtual bool deterministic() const { return true; }
  // Multiplies blocks that are not stored, so an infinity in B may become NaN in C.
  virtual bool multiplies_padding() const { return false; }

 private:
  DeviceType device_;
  Op op_;
  std::string_view name_;
};

// Makes a variant known. Use it at namespace scope in the variant's own file:
//   const Simt kSimt16x64{...};
//   const Registration kRegisterSimt16x64{kSimt16x64};
// It links itself into a list: nothing to allocate, nothing that can throw, no call into CUDA.
class Registration {
 public:
  explicit Registration(const Variant& variant) noexcept : variant_(&variant), next_(head()) {
    head() = this;
  }
  Registration(const Registration&) = delete;
  Registration& operator=(const Registration&) = delete;

  const Variant& variant() const { return *variant_; }
  const Registration* next() const { return next_; }
  static const Registration* first() { return head(); }

 private:
  static const Registration*& head() noexcept;  // defined in autotune/registry.cpp

  const Variant* variant_;
  const Registration* next_;
};

// Time of a launch that moves `bytes` and computes `flops` at the given rates, in microseconds.
inline double roofline_us(double flops, double tflops, double bytes, double gbps,
                          double overhead_us) {
  const double compute = tflops > 0 ? flops / (tflops * 1e6) : 0;
  const double memory = gbps > 0 ? bytes / (gbps * 1e3) : 0;
  return (compute > memory ? compute : memory) + overhead_us;
}

// The same of what a launch must move beyond what the last-level cache may hold of it still, at the
// share of the memory's rate that streams reach.
inline double uncached_us(const Problem& p, const Device& d) {
  return (compulsory_bytes(p) - static_cast<double>(d.l2_bytes)) / (d.memory_gbps * 850);
}

}  // namespace sparse_autotune
