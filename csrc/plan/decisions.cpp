#include "plan/decisions.h"

#include <atomic>

namespace sparse_autotune::detail {
namespace {

// A loop over ever new shapes must not grow without bound; a signature is cheap to look up again.
constexpr int64_t kMaxDecisions = 4096;
// A decision takes some 430 bytes, and thousands of experts see ever new numbers of tokens, too:
// where all places together remember so many, each goes on with few.
constexpr int64_t kManyDecisions = 1 << 18;
constexpr int64_t kFewDecisions = 16;

std::atomic<int64_t> all_decisions{0};

}  // namespace

int64_t most_decisions() { return all_decisions < kManyDecisions ? kMaxDecisions : kFewDecisions; }
void count_decisions(int64_t more) { all_decisions += more; }
void forget_decision_count() { all_decisions = 0; }

}  // namespace sparse_autotune::detail
