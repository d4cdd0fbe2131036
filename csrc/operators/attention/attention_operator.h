// The operators "attention" and "attention_backward", as the tuner sees them.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "operator.h"
#include "operators/attention/attention.h"

namespace sparse_autotune::attention {

class AttentionOperator final : public OperatorOf<Problem, Launch> {
 public:
  constexpr explicit AttentionOperator(const char* name) : name_(name) {}

  std::string_view name() const override { return name_; }
  Asked asked(const Problem& problem) const override;
  std::string describe(const Problem& problem) const override;
  std::string signature(const Problem& problem, Buckets buckets) const override;
  Work work(const Problem& problem, const Device& device) const override;
  std::string text(const Problem& problem) const override;
  std::optional<OwnedProblem> parse(std::string_view text, std::string* why) const override;
  std::vector<Operand> operands(const Problem& problem, const Launch& user) const override;
  void bind(const Problem& problem, char* const* at, Launch* launch) const override;
  Status derive(const Problem& problem, const Launch& launch) const override;
  Status choose_tiles(const Problem& problem, const ReadBack& read, double flop_limit,
                      std::vector<Tile>* tiles) const override;
  Status expect(const Problem& problem, const Launch& launch, const Tile* tiles, int64_t count,
                Expected* expected) const override;

 private:
  const char* name_;
};

}  // namespace sparse_autotune::attention
