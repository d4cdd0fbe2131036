#include "autotune/problem_text.h"

#include <algorithm>
#include <utility>

#include "autotune/registry.h"
#include "operator.h"

namespace sparse_autotune {

std::string problem_text(AnyProblem p) {
  return "op=" + std::string(p.op().name()) + " " + p.op().text(p);
}

std::optional<OwnedProblem> parse_problem(std::string_view text, std::string* why) {
  std::string unused;
  if (why == nullptr) why = &unused;
  const auto refuse = [&](std::string reason) {
    // It may hold words of a text that is none of ours.
    std::replace_if(
        reason.begin(), reason.end(), [](char c) { return c < ' ' || c > '~'; }, '?');
    *why = std::move(reason);
    return std::nullopt;
  };
  constexpr size_t kMaxText = 4096;
  constexpr std::string_view kKey = "op=";
  if (text.size() > kMaxText) return refuse("it is longer than a problem's text");
  const std::string_view word = text.substr(0, text.find(' '));
  const std::string_view name = word.substr(std::min(kKey.size(), word.size()));
  const Operator* const op = word.starts_with(kKey) ? find_operator(name) : nullptr;
  if (op == nullptr) {
    const bool named = word.starts_with(kKey);
    return refuse("'" + std::string(word.substr(0, 60)) + "' " +
                  (named ? "names no operator" : "says nothing of a problem: op=NAME comes first"));
  }
  text.remove_prefix(std::min(word.size() + 1, text.size()));
  std::optional<OwnedProblem> problem = op->parse(text, why);
  if (!problem) return refuse(*why);
  return problem;
}

}  // namespace sparse_autotune
