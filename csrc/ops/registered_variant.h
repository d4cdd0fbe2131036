// What variants of all operators have that are registered while the process runs; how one calls its
// operator of torch's dispatcher is said for each kind of computation.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <utility>

#include "autotune/problem_text.h"
#include "operator.h"
#include "ops/dispatched.h"
#include "ops/registered.h"

namespace sparse_autotune {

// `Base` is the variant class of operators whose problems and launches have these types; `Kind`
// says which of these operators it is.
template <typename Base, typename Kind, typename ProblemType, typename LaunchType>
class RegisteredAs : public Base {
 public:
  // Registered objects live as long as the process, and so do their names.
  RegisteredAs(api::RegisteredVariant facts, Kind kind)
      : Base(facts.device, *new std::string(facts.name), kind), facts_(std::move(facts)) {}

  Support supports(const ProblemType& p, const Device&) const override {
    const std::string why = facts_.refusal(problem_text(p));
    return why.empty() ? Support::yes() : Support::no(why);
  }

  double estimate_us(const ProblemType&, const Device&) const override {
    return std::numeric_limits<double>::infinity();
  }

  // On torch's current stream, which is the launch's.
  Status launch(const ProblemType& p, const LaunchType& l) const override {
    int64_t code = 0;
    const Status status = guarded([&] { code = call(facts_.dispatched.c_str(), p, l); });
    if (!status || code == 0) return status;
    return Status::failed(code == 2 ? StatusCode::kOutOfMemory : StatusCode::kLaunchFailed,
                          facts_.failure());
  }

  bool captures() const override { return facts_.captures || this->device() == DeviceType::kCpu; }
  bool deterministic() const override { return facts_.deterministic; }
  bool multiplies_padding() const override { return facts_.multiplies_padding; }

 private:
  // What the operator of that name returns.
  virtual int64_t call(const char* name, const ProblemType& p, const LaunchType& l) const = 0;

  const api::RegisteredVariant facts_;
};

// A new variant, which lives as long as the process; null where `facts.op` is none of these.
const AnyVariant* registered_product(const api::RegisteredVariant& facts);
const AnyVariant* registered_attention(const api::RegisteredVariant& facts);

}  // namespace sparse_autotune
