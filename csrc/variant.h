// The contract between the autotuner and everything it can race.
//
// An operator is a kind of computation: sparse product, attention, ... Each has a `Problem` (one
// computation without its data) and a `Launch` (its data) of its own, in csrc/operators, and
// variants: ways to compute it. The tuner sees all of them as AnyProblem, AnyLaunch and AnyVariant,
// and knows no operator by name (see operator.h). No torch and no CUDA header is included here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace sparse_autotune {

enum class DeviceType : uint8_t { kCpu, kCuda };
enum class DType : uint8_t { kFloat16, kBFloat16, kFloat32, kFloat64 };
enum class IndexType : uint8_t { kInt32, kInt64 };
enum class Layout : uint8_t { kRowMajor, kColMajor };

constexpr int64_t size_of(DType dtype) {
  return dtype == DType::kFloat64 ? 8 : dtype == DType::kFloat32 ? 4 : 2;
}
constexpr int64_t size_of(IndexType type) { return type == IndexType::kInt64 ? 8 : 4; }
constexpr bool is_half(DType dtype) { return size_of(dtype) == 2; }
// As signatures, texts and reports print it: f16, bf16, f32, f64.
constexpr const char* short_name(DType dtype) {
  switch (dtype) {
    case DType::kFloat16:
      return "f16";
    case DType::kBFloat16:
      return "bf16";
    case DType::kFloat32:
      return "f32";
    case DType::kFloat64:
      return "f64";
  }
  return "";
}
constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

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

// The device's limit for arithmetic of that type, TFLOP/s. `tf32`: fp32 inputs may be rounded to
// it.
inline double peak_tflops(DType dtype, bool tf32, const Device& d) {
  if (is_half(dtype)) return d.tensor_tflops;
  if (dtype == DType::kFloat64) {
    return d.type == DeviceType::kCuda ? d.fp64_tensor_tflops : d.fp64_tflops;
  }
  return tf32 && d.type == DeviceType::kCuda ? d.tf32_tflops : d.fp32_tflops;
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

// Calls f(i) for each of `count`; a thread takes `grain` of them at least.
template <typename F>
void parallel_each(const Parallel& parallel, int64_t count, int64_t grain, F&& f) {
  parallel_for(parallel, 0, count, grain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) f(i);
  });
}

class Operator;

// A problem of any operator: who understands it, and its bytes. A view: the problem must outlive
// it. Two problems of an operator are the same exactly when their bytes are.
class AnyProblem {
 public:
  // From a type for which its namespace has operator_of(problem).
  template <typename Problem, typename = std::enable_if_t<std::is_same_v<
                                  decltype(operator_of(std::declval<const Problem&>())),
                                  const Operator&>>>
  AnyProblem(const Problem& problem)  // NOLINT: a call takes problems of all operators
      : AnyProblem(operator_of(problem), &problem, sizeof(Problem)) {
    static_assert(std::is_trivially_copyable_v<Problem>);
    static_assert(std::has_unique_object_representations_v<Problem>,
                  "a problem must have no padding: its bytes are compared and hashed");
    static_assert(sizeof(Problem) % sizeof(uint64_t) == 0 && alignof(Problem) <= sizeof(uint64_t));
  }
  AnyProblem(const Operator& op, const void* bytes, size_t size)
      : operator_(&op), bytes_(bytes), size_(size) {}

  const Operator& op() const { return *operator_; }
  // Only as the type that the operator's problems have.
  template <typename Problem>
  const Problem& as() const {
    return *static_cast<const Problem*>(bytes_);
  }

  size_t hash() const {
    uint64_t h = 0;
    for (size_t at = 0; at < size_; at += sizeof(uint64_t)) {
      uint64_t word;
      std::memcpy(&word, static_cast<const char*>(bytes_) + at, sizeof(word));
      h = (h ^ word) * 0x9e3779b97f4a7c15u + (h >> 29);
    }
    return static_cast<size_t>(h ^ (h >> 32));
  }
  friend bool operator==(const AnyProblem& a, const AnyProblem& b) {
    return a.operator_ == b.operator_ && a.size_ == b.size_ &&
           std::memcmp(a.bytes_, b.bytes_, a.size_) == 0;
  }

 private:
  friend class OwnedProblem;
  const Operator* operator_;
  const void* bytes_;
  size_t size_;
};

// The same with the bytes.
class OwnedProblem {
 public:
  explicit OwnedProblem(AnyProblem problem)
      : operator_(problem.operator_), words_(problem.size_ / sizeof(uint64_t)) {
    std::memcpy(words_.data(), problem.bytes_, problem.size_);
  }
  AnyProblem view() const { return {*operator_, words_.data(), words_.size() * sizeof(uint64_t)}; }

 private:
  const Operator* operator_;
  std::vector<uint64_t> words_;
};

// What every launch has; an operator's own adds the addresses of operands, which are in device
// memory on a GPU. `stream` is a cudaStream_t.
struct AnyLaunch {
  void* workspace = nullptr;  // workspace_bytes() of scratch, 256-byte aligned
  void* prepared = nullptr;   // prepared_bytes() written by prepare(), 256-byte aligned
  void* stream = nullptr;
  const Device* device = nullptr;
  Parallel parallel;
  // A race's clock: nobody reads the results. What a call would take over from a variant that has
  // its results in memory of its own need not be copied.
  bool only_timed = false;
};

// One way to compute an operator's problems: one algorithm in one configuration.
//
// Objects are immutable, live as long as the process and are used from many threads at once.
// launch() and prepare() only enqueue work on the stream (or run it, on a CPU): they never
// allocate, never synchronise and never hand the work to another variant.
class AnyVariant {
 public:
  // `name` is "family/config": stable, the key of caches, tests and reports.
  AnyVariant(const Operator& op, DeviceType device, std::string_view name)
      : operator_(&op), name_(name), device_(device) {}
  virtual ~AnyVariant() = default;
  AnyVariant(const AnyVariant&) = delete;
  AnyVariant& operator=(const AnyVariant&) = delete;

  DeviceType device() const { return device_; }
  const Operator& op() const { return *operator_; }  // what it computes
  std::string_view name() const { return name_; }
  std::string_view family() const { return name_.substr(0, name_.find('/')); }

  // See VariantOf, which has them for the operator's own types.
  Support supports(AnyProblem p, const Device& d) const { return any_supports(p, d); }
  double estimate_us(AnyProblem p, const Device& d) const { return any_estimate_us(p, d); }
  Status launch(AnyProblem p, const AnyLaunch& l) const { return any_launch(p, l); }
  int64_t workspace_bytes(AnyProblem p, const Device& d) const { return any_workspace_bytes(p, d); }
  int64_t prepared_bytes(AnyProblem p, const Device& d) const { return any_prepared_bytes(p, d); }
  Status prepare(AnyProblem p, const AnyLaunch& l) const { return any_prepare(p, l); }

  // Whether a CUDA graph can hold its launches.
  virtual bool captures() const { return true; }

  virtual bool deterministic() const { return true; }
  // Computes with blocks that are not stored, so an infinity that meets one may become NaN.
  virtual bool multiplies_padding() const { return false; }

 private:
  virtual Support any_supports(AnyProblem problem, const Device& device) const = 0;
  virtual double any_estimate_us(AnyProblem problem, const Device& device) const = 0;
  virtual Status any_launch(AnyProblem problem, const AnyLaunch& launch) const = 0;
  virtual int64_t any_workspace_bytes(AnyProblem problem, const Device& device) const = 0;
  virtual int64_t any_prepared_bytes(AnyProblem problem, const Device& device) const = 0;
  virtual Status any_prepare(AnyProblem problem, const AnyLaunch& launch) const = 0;

  const Operator* operator_;
  std::string_view name_;
  DeviceType device_;
};

// A variant of the operator whose problems and launches have these types: what kernels implement.
template <typename ProblemType, typename LaunchType>
class VariantOf : public AnyVariant {
 public:
  using AnyVariant::AnyVariant;

  // The only statement of legality; pure, and free of the flags above, which the registry checks.
  virtual Support supports(const ProblemType& problem, const Device& device) const = 0;

  // Expected microseconds of a launch (and of prepare(), unless what it reads is frozen);
  // infinity: nobody knows.
  virtual double estimate_us(const ProblemType& problem, const Device& device) const = 0;

  virtual Status launch(const ProblemType& problem, const LaunchType& launch) const = 0;

  // Scratch that one launch needs, bytes.
  virtual int64_t workspace_bytes(const ProblemType&, const Device&) const { return 0; }

  // A copy of an operand in a form of the variant's own (densified, Blocked-ELL, repacked): its
  // size in bytes and the call that writes it. Kept only for frozen operands, otherwise made again
  // for, and timed with, every launch.
  virtual int64_t prepared_bytes(const ProblemType&, const Device&) const { return 0; }
  virtual Status prepare(const ProblemType&, const LaunchType&) const { return Status::ok(); }

 private:
  static const ProblemType& typed(const AnyProblem& problem) { return problem.as<ProblemType>(); }
  static const LaunchType& typed(const AnyLaunch& launch) {
    return static_cast<const LaunchType&>(launch);
  }

  Support any_supports(AnyProblem p, const Device& d) const final { return supports(typed(p), d); }
  double any_estimate_us(AnyProblem p, const Device& d) const final {
    return estimate_us(typed(p), d);
  }
  Status any_launch(AnyProblem p, const AnyLaunch& l) const final {
    return launch(typed(p), typed(l));
  }
  int64_t any_workspace_bytes(AnyProblem p, const Device& d) const final {
    return workspace_bytes(typed(p), d);
  }
  int64_t any_prepared_bytes(AnyProblem p, const Device& d) const final {
    return prepared_bytes(typed(p), d);
  }
  Status any_prepare(AnyProblem p, const AnyLaunch& l) const final {
    return prepare(typed(p), typed(l));
  }
};

// Makes a variant or an operator known. Use it at namespace scope in the variant's own file:
//   const Simt kSimt16x64{...};
//   const Registration kRegisterSimt16x64{kSimt16x64};
// It links itself into a list: nothing to allocate, nothing that can throw, no call into CUDA.
template <typename T>
class RegistrationOf {
 public:
  explicit RegistrationOf(const T& one) noexcept : one_(&one), next_(head()) { head() = this; }
  RegistrationOf(const RegistrationOf&) = delete;
  RegistrationOf& operator=(const RegistrationOf&) = delete;

  const T& get() const { return *one_; }
  const RegistrationOf* next() const { return next_; }
  static const RegistrationOf* first() { return head(); }

 private:
  static const RegistrationOf*& head() noexcept;  // defined in autotune/registry.cpp

  const T* one_;
  const RegistrationOf* next_;
};
using Registration = RegistrationOf<AnyVariant>;
template <>
const Registration*& Registration::head() noexcept;

// Time of a launch that moves `bytes` and computes `flops` at the given rates, in microseconds.
inline double roofline_us(double flops, double tflops, double bytes, double gbps,
                          double overhead_us) {
  const double compute = tflops > 0 ? flops / (tflops * 1e6) : 0;
  const double memory = gbps > 0 ? bytes / (gbps * 1e3) : 0;
  return (compute > memory ? compute : memory) + overhead_us;
}

}  // namespace sparse_autotune
