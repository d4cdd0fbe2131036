// What the tuner asks of an operator: how its problems read, the operands on which its variants
// race, and what a right result is.
//
// An operator is a folder of csrc/operators; docs/adding_an_operator.md says what belongs into it.
// The tuner lays operands out, fills and rotates them, poisons and scans outputs, and compares: an
// operator only lists its operands and computes a few elements of the right result.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "exported.h"
#include "host_device.h"
#include "variant.h"

namespace sparse_autotune {

enum class Buckets : uint8_t {
  kGeometric,  // sizes that vary from call to call share races
  kExact,      // each has its own
};

// What the tuner heeds in problems of every operator.
struct Asked {
  DeviceType device;
  bool deterministic;    // only variants with repeatable results
  bool exact_nonfinite;  // no NaN from an absent block that meets an infinity
  bool frozen;           // what prepare() reads will not change: its result is kept
};

// Of a launch, for records and reports.
struct Work {
  double nnz_flops;    // on stored blocks
  double dense_flops;  // of the dense computation of equal shape
  double bytes;        // that any variant must move
  double peak_tflops;  // of the device, for such arithmetic; 0: unknown
};

// A strided matrix of a batch: element (i, j) of matrix t is at
// t * batch_stride + i * row_stride + j * col_stride.
struct Strides {
  int64_t rows, cols, row_stride, col_stride, batch, batch_stride;

  int64_t elements() const { return batch * rows * cols; }
  // Elements from the first to the last, both included.
  int64_t span() const {
    if (elements() == 0) return 0;
    return (batch - 1) * batch_stride + (rows - 1) * row_stride + (cols - 1) * col_stride + 1;
  }
};

// One of the tuner's own operands.
struct Operand {
  enum class Use : uint8_t {
    kCopied,   // from the user's: a pattern or a mask, which decides how fast variants are
    kInput,    // random numbers, uniform in [-1, 1)
    kDerived,  // written by Operator::derive() from the others before anything runs
    kOutput,   // poisoned, and guarded on both sides
  };
  Use use;
  DType dtype;      // but of copied ones
  Strides strides;  // without elements: the problem has no such operand
  // Of its address: a power of two and no multiple of it, below 16; the user's, not a better one.
  int64_t alignment;
  const void* source = nullptr;  // of a copied one
  int64_t bytes = 0;

  static Operand copied(const void* source, int64_t bytes) {
    return {Use::kCopied, {}, {}, 16, source, bytes};
  }
  static Operand input(DType dtype, const Strides& strides, int64_t alignment) {
    return of(Use::kInput, dtype, strides, alignment);
  }
  static Operand derived(DType dtype, const Strides& strides, int64_t alignment) {
    return of(Use::kDerived, dtype, strides, alignment);
  }
  static Operand output(DType dtype, const Strides& strides, int64_t alignment) {
    return of(Use::kOutput, dtype, strides, alignment);
  }

 private:
  static Operand of(Use use, DType dtype, const Strides& strides, int64_t alignment) {
    return {use, dtype, strides, alignment, nullptr, strides.span() * size_of(dtype)};
  }
};

// A part of an output that is checked: element (i, j) of it lies at
// offset + i * row_stride + j * col_stride of that output.
struct Tile {
  int32_t output;  // among the operands that are outputs, from 0
  int16_t rows, cols;
  int64_t offset, row_stride, col_stride;
  int64_t origin[4];  // what the operator needs to know of it
};
constexpr int kTileRows = 16;
constexpr int kTileCols = 64;
constexpr int kTileElements = kTileRows * kTileCols;

// An element of an output in fp64, and how far a right result may be from it.
struct Expected {
  double value;
  double allowed;
};

// Unit roundoff: half the distance from 1 to the next number.
SPARSE_AUTOTUNE_HOST_DEVICE inline double unit_roundoff(DType dtype) {
  switch (dtype) {
    case DType::kFloat16:
      return 0x1p-11;
    case DType::kBFloat16:
      return 0x1p-8;
    case DType::kFloat32:
      return 0x1p-24;
    case DType::kFloat64:
      return 0x1p-53;
  }
  return 0;
}

// Copies the tuner's operand of that number to the host.
using ReadBack = std::function<Status(int operand, void* to)>;

// Objects are immutable and live as long as the process. Functions are called from many threads.
class Operator {
 public:
  // The public function that computes it, a word of [a-z_]: begins signatures and problem texts.
  virtual std::string_view name() const = 0;

  // See OperatorOf, which has them for the operator's own types.
  Asked asked(AnyProblem p) const { return any_asked(p); }
  Support supported_by(const AnyVariant& v, AnyProblem p, const Device& d) const {
    return any_supported_by(v, p, d);
  }
  std::string describe(AnyProblem p) const { return any_describe(p); }
  std::string signature(AnyProblem p, Buckets buckets) const { return any_signature(p, buckets); }
  Work work(AnyProblem p, const Device& d) const { return any_work(p, d); }
  std::string text(AnyProblem p) const { return any_text(p); }
  // The problem that text() gives such a text for. nullopt, and why, for anything else, and for
  // problems whose operands cannot exist: sizes are bounded, so that nothing overflows.
  virtual std::optional<OwnedProblem> parse(std::string_view text, std::string* why) const = 0;

  std::vector<Operand> operands(AnyProblem p, const AnyLaunch& user) const {
    return any_operands(p, user);
  }
  virtual std::shared_ptr<AnyLaunch> copy_of(const AnyLaunch& launch) const = 0;
  void bind(AnyProblem p, char* const* at, AnyLaunch* launch) const { any_bind(p, at, launch); }
  Status derive(AnyProblem p, const AnyLaunch& launch) const { return any_derive(p, launch); }
  Status choose_tiles(AnyProblem p, const ReadBack& read, double flop_limit,
                      std::vector<Tile>* tiles) const {
    Status status = any_choose_tiles(p, read, flop_limit, tiles);
    if (!status || !tiles->empty()) return status;
    return Status::failed(StatusCode::kWrongResult, "nothing of the result would be checked");
  }
  Status expect(AnyProblem p, const AnyLaunch& launch, const Tile* tiles, int64_t count,
                Expected* expected) const {
    return any_expect(p, launch, tiles, count, expected);
  }

 protected:
  constexpr Operator() = default;
  ~Operator() = default;

 private:
  virtual Asked any_asked(AnyProblem problem) const = 0;
  virtual Support any_supported_by(const AnyVariant&, AnyProblem, const Device&) const = 0;
  virtual std::string any_describe(AnyProblem problem) const = 0;
  virtual std::string any_signature(AnyProblem problem, Buckets buckets) const = 0;
  virtual Work any_work(AnyProblem problem, const Device& device) const = 0;
  virtual std::string any_text(AnyProblem problem) const = 0;
  virtual std::vector<Operand> any_operands(AnyProblem, const AnyLaunch& user) const = 0;
  virtual void any_bind(AnyProblem problem, char* const* at, AnyLaunch* launch) const = 0;
  virtual Status any_derive(AnyProblem problem, const AnyLaunch& launch) const = 0;
  virtual Status any_choose_tiles(AnyProblem, const ReadBack&, double flop_limit,
                                  std::vector<Tile>*) const = 0;
  virtual Status any_expect(AnyProblem, const AnyLaunch&, const Tile*, int64_t count,
                            Expected*) const = 0;
};

// An operator whose problems and launches have these types.
template <typename ProblemType, typename LaunchType>
class OperatorOf : public Operator {
 public:
  virtual Asked asked(const ProblemType& problem) const = 0;

  // Whether a variant may run a problem, and why not: what holds for all variants of the operator
  // besides their own supports().
  virtual Support supported_by(const AnyVariant& variant, const ProblemType& problem,
                               const Device& device) const {
    return variant.supports(AnyProblem(problem), device);
  }

  // For people, one line: "4096x4096x4096 bs64 density 0.125 bf16".
  virtual std::string describe(const ProblemType& problem) const = 0;

  // Everything of a problem that can change which variant wins, but for what Asked says, with a
  // '_' before each part: "_4096x4096_bs64x64_n4096". Only [A-Za-z0-9_.-].
  virtual std::string signature(const ProblemType& problem, Buckets buckets) const = 0;

  virtual Work work(const ProblemType& problem, const Device& device) const = 0;

  // Words "key=value", each value a name or a whole number: what mode "record" writes. Of the
  // pattern it holds its size, not what a plan derives from the indices.
  virtual std::string text(const ProblemType& problem) const = 0;

  // What a race runs on, numbered in this order. The user's launch says where the pattern lies.
  virtual std::vector<Operand> operands(const ProblemType& problem,
                                        const LaunchType& user) const = 0;
  // Puts the tuner's operands, whose addresses these are, in place of the user's.
  virtual void bind(const ProblemType& problem, char* const* at, LaunchType* launch) const = 0;
  // Writes the derived operands from the inputs; enqueued, or with the launch's threads.
  virtual Status derive(const ProblemType&, const LaunchType&) const { return Status::ok(); }

  // The whole of all outputs where their fp64 reference costs at most `flop_limit`, otherwise
  // tiles that every part of the work leaves a trace in, the same in every call.
  virtual Status choose_tiles(const ProblemType& problem, const ReadBack& read, double flop_limit,
                              std::vector<Tile>* tiles) const = 0;
  // What is right at those tiles on a bound launch: kTileElements entries for each, row after row
  // of kTileCols. On a GPU all pointers are to its memory, and the work is enqueued.
  virtual Status expect(const ProblemType& problem, const LaunchType& launch, const Tile* tiles,
                        int64_t count, Expected* expected) const = 0;

 private:
  static const ProblemType& typed(const AnyProblem& problem) { return problem.as<ProblemType>(); }
  static const LaunchType& typed(const AnyLaunch& launch) {
    return static_cast<const LaunchType&>(launch);
  }

  std::shared_ptr<AnyLaunch> copy_of(const AnyLaunch& launch) const final {
    return std::make_shared<LaunchType>(typed(launch));
  }
  Asked any_asked(AnyProblem p) const final { return asked(typed(p)); }
  Support any_supported_by(const AnyVariant& v, AnyProblem p, const Device& d) const final {
    return supported_by(v, typed(p), d);
  }
  std::string any_describe(AnyProblem p) const final { return describe(typed(p)); }
  std::string any_signature(AnyProblem p, Buckets buckets) const final {
    return signature(typed(p), buckets);
  }
  Work any_work(AnyProblem p, const Device& d) const final { return work(typed(p), d); }
  std::string any_text(AnyProblem p) const final { return text(typed(p)); }
  std::vector<Operand> any_operands(AnyProblem p, const AnyLaunch& user) const final {
    return operands(typed(p), typed(user));
  }
  void any_bind(AnyProblem p, char* const* at, AnyLaunch* launch) const final {
    bind(typed(p), at, static_cast<LaunchType*>(launch));
  }
  Status any_derive(AnyProblem p, const AnyLaunch& l) const final {
    return derive(typed(p), typed(l));
  }
  Status any_choose_tiles(AnyProblem p, const ReadBack& read, double flop_limit,
                          std::vector<Tile>* tiles) const final {
    return choose_tiles(typed(p), read, flop_limit, tiles);
  }
  Status any_expect(AnyProblem p, const AnyLaunch& l, const Tile* tiles, int64_t count,
                    Expected* expected) const final {
    return expect(typed(p), typed(l), tiles, count, expected);
  }
};

// For people.
inline std::string describe(AnyProblem p) { return p.op().describe(p); }

using OperatorRegistration = RegistrationOf<Operator>;
template <>
const OperatorRegistration*& OperatorRegistration::head() noexcept;

}  // namespace sparse_autotune
