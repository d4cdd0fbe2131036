// The sparse product and the sampled product as the tuner sees them: two operators of one class.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "operator.h"
#include "operators/product/product.h"

namespace sparse_autotune {

class ProductOperator final : public OperatorOf<Problem, Launch> {
 public:
  explicit constexpr ProductOperator(const char* name) : name_(name) {}

  std::string_view name() const override { return name_; }
  Asked asked(const Problem& problem) const override;
  Support supported_by(const AnyVariant& variant, const Problem& problem,
                       const Device& device) const override;
  std::string describe(const Problem& problem) const override;
  std::string signature(const Problem& problem, Buckets buckets) const override;
  Work work(const Problem& problem, const Device& device) const override;

  std::string text(const Problem& problem) const override;
  std::optional<OwnedProblem> parse(std::string_view text, std::string* why) const override;

  std::vector<Operand> operands(const Problem& problem, const Launch& user) const override;
  void bind(const Problem& problem, char* const* at, Launch* launch) const override;
  Status choose_tiles(const Problem& problem, const ReadBack& read, double flop_limit,
                      std::vector<Tile>* tiles) const override;
  Status expect(const Problem& problem, const Launch& launch, const Tile* tiles, int64_t count,
                Expected* expected) const override;

 private:
  const char* name_;
};

// A problem's text that is of one of these operators. nullopt, and why, for anything else.
std::optional<Problem> parse_product(std::string_view text, std::string* why);

// As signatures and reports print it.
const char* name_of(Activation activation);

}  // namespace sparse_autotune
