// An operator of a test's own: z = a x + y and the sum over z, with five variants, of which three
// are wrong. It is all that an operator has to say.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "autotune/tuner.h"
#include "checks.h"
#include "operator.h"
#include "operators/fields.h"

namespace sparse_autotune::axpy {

struct Problem {
  int64_t n, step;  // of x
  int64_t scale;    // a: an eighth of it
  DeviceType device;
  DType dtype;  // of x, y and z
  bool deterministic, exact_nonfinite, frozen;
  uint8_t x_alignment, y_alignment, z_alignment;
};
const Operator& operator_of(const Problem&);

struct Launch : AnyLaunch {
  const float *x = nullptr, *y = nullptr;
  float* z = nullptr;
  double* sum = nullptr;
};

// The operator has two outputs of different types, and an operand that is made from the others.
class Axpy final : public OperatorOf<Problem, Launch> {
 public:
  constexpr Axpy() = default;
  std::string_view name() const override { return "axpy"; }
  Asked asked(const Problem& p) const override {
    return {p.device, p.deterministic, p.exact_nonfinite, p.frozen};
  }
  std::string describe(const Problem& p) const override {
    return "axpy of " + std::to_string(p.n) + " numbers";
  }
  std::string signature(const Problem& p, Buckets buckets) const override {
    return buckets == Buckets::kExact ? "_exactn" + std::to_string(p.n)
                                      : "_n" + std::to_string(p.n / 100);
  }
  Work work(const Problem& p, const Device& d) const override {
    return {2.0 * p.n, 3.0 * p.n, 12.0 * p.n, d.fp32_tflops};
  }
  std::string text(const Problem& p) const override { return fields().text(p); }
  std::optional<OwnedProblem> parse(std::string_view text, std::string* why) const override {
    const std::optional<Problem> p = fields().parse(text, why);
    if (!p) return std::nullopt;
    return OwnedProblem(*p);
  }

  std::vector<Operand> operands(const Problem& p, const Launch& user) const override {
    return {Operand::copied(user.x, 4),
            Operand::input(p.dtype, {p.n, 1, p.step, 1, 1, 0}, p.x_alignment),
            Operand::derived(p.dtype, vector(p.n), p.y_alignment),
            Operand::output(p.dtype, vector(p.n), p.z_alignment),
            Operand::output(DType::kFloat64, vector(1), 16)};
  }
  void bind(const Problem&, char* const* at, Launch* l) const override {
    l->x = reinterpret_cast<const float*>(at[1]);
    l->y = reinterpret_cast<const float*>(at[2]);
    l->z = reinterpret_cast<float*>(at[3]);
    l->sum = reinterpret_cast<double*>(at[4]);
  }
  Status derive(const Problem& p, const Launch& l) const override {
    for (int64_t i = 0; i < p.n; ++i) const_cast<float*>(l.y)[i] = 1 - l.x[i * p.step];
    return Status::ok();
  }
  Status choose_tiles(const Problem& p, const ReadBack& read, double,
                      std::vector<Tile>* tiles) const override {
    float first = 0;
    const Status status = read(0, &first);
    CHECK(status && first == 42);  // the user's
    for (int64_t i = 0; i < p.n; i += kTileCols) {
      const auto cols = static_cast<int16_t>(std::min<int64_t>(kTileCols, p.n - i));
      tiles->push_back({0, 1, cols, i, 0, 1, {i}});
    }
    tiles->push_back({1, 1, 1, 0, 0, 0, {-1}});
    return Status::ok();
  }
  Status expect(const Problem& p, const Launch& l, const Tile* tiles, int64_t count,
                Expected* expected) const override {
    for (int64_t t = 0; t < count; ++t) {
      Expected* to = expected + t * kTileElements;
      const int64_t from = tiles[t].origin[0];
      if (from < 0) *to = {0, 1e-5 * static_cast<double>(p.n)};
      for (int64_t i = 0; i < p.n; ++i) {
        const double z = p.scale / 8.0 * l.x[i * p.step] + l.y[i];
        if (from < 0) to->value += z;
        if (from >= 0 && i >= from && i < from + tiles[t].cols) to[i - from] = {z, 1e-6};
      }
    }
    return Status::ok();
  }

 private:
  static Strides vector(int64_t n) { return {n, 1, 1, 1, 1, 0}; }
  static const Fields<Problem>& fields() {
    static const Fields<Problem> all = {device_field<&Problem::device>(),
                                        dtype_field<&Problem::dtype>(),
                                        number_field<&Problem::n, 1>("n"),
                                        number_field<&Problem::step, 1>("step"),
                                        number_field<&Problem::scale, 0>("scale"),
                                        flag_field<&Problem::deterministic>("deterministic"),
                                        flag_field<&Problem::exact_nonfinite>("exact_nonfinite"),
                                        flag_field<&Problem::frozen>("frozen"),
                                        alignment_field<&Problem::x_alignment>("x_alignment"),
                                        alignment_field<&Problem::y_alignment>("y_alignment"),
                                        alignment_field<&Problem::z_alignment>("z_alignment")};
    return all;
  }
};
constinit const Axpy kAxpy;
const OperatorRegistration kRegisterAxpy{kAxpy};
const Operator& operator_of(const Problem&) { return kAxpy; }

enum class Fault { kNone, kElement, kSum, kBefore };

class Variant final : public VariantOf<Problem, Launch> {
 public:
  Variant(std::string_view name, double estimate, double busy_us, Fault fault = Fault::kNone)
      : VariantOf(kAxpy, DeviceType::kCpu, name),
        estimate_(estimate),
        busy_us_(busy_us),
        fault_(fault) {}
  Support supports(const Problem& p, const Device&) const override {
    return p.step == 1 || family() == "loop" ? Support::yes() : Support::no("x has a step");
  }
  double estimate_us(const Problem&, const Device&) const override { return estimate_; }
  Status launch(const Problem& p, const Launch& l) const override {
    if (fails) return Status::failed(StatusCode::kLaunchFailed, "planted");
    *l.sum = 0;
    for (int64_t i = 0; i < p.n; ++i) {
      l.z[i] = static_cast<float>(p.scale) / 8 * l.x[i * p.step] + l.y[i];
      *l.sum += l.z[i];
    }
    if (fault_ == Fault::kElement) l.z[p.n - 1] += 1e-3f;
    if (fault_ == Fault::kSum) *l.sum += 1;
    if (fault_ == Fault::kBefore) l.z[-1] = 0;
    CHECK(reinterpret_cast<uintptr_t>(l.y) % 16 == p.y_alignment);
    test::spin(busy_us_);
    return Status::ok();
  }
  bool deterministic() const override { return family() == "loop"; }

  mutable bool fails = false;

 private:
  double estimate_, busy_us_;
  Fault fault_;
};

const Variant kSlow("loop/slow", 1, 1000), kFast("unrolled/two", 9, 30);
const Variant kElement("unrolled/off", 5, 0, Fault::kElement);
const Variant kSum("unrolled/sum", 6, 0, Fault::kSum);
const Variant kBefore("unrolled/before", 7, 0, Fault::kBefore);
const Registration kRegister[] = {Registration{kSlow}, Registration{kFast}, Registration{kElement},
                                  Registration{kSum}, Registration{kBefore}};

// What a user calls with: the tuner writes none of it.
struct Call {
  Problem problem{1000, 1, 12, DeviceType::kCpu, DType::kFloat32, false, false, false, 4, 8, 4};
  std::vector<float> x{42};
  Launch launch;
  Device device;
  Call() {
    launch.x = x.data();
    launch.device = &device;
    device.name = "test CPU";
    device.fp32_tflops = 0.5;
  }
  Choice choice(std::string_view selector = "") const {
    return choose(problem, device, launch, selector, false, [](const auto&) {});
  }
};

}  // namespace sparse_autotune::axpy
