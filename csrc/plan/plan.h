// What is known of one sparsity pattern: its facts, and which variant serves which call on it.
#pragma once

#include <array>
#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "exported.h"
#include "operators/product/product.h"
#include "plan/decisions.h"
#include "plan/kept_memory.h"
#include "plan/pattern.h"
#include "plan/pattern_fingerprint.h"
#include "plan/validity.h"

namespace sparse_autotune {

// The tuner's answer for one exact call: nothing is left to look up when it is found.
struct Decision {
  const Variant* variant = nullptr;
  int64_t workspace_bytes = 0;
  int64_t prepared_bytes = 0;
  int row_order = kNoRowOrder, grouping = kNoGrouping;  // the variant's
  bool wants_tasks = false;
  // Null: it wants none, or there is none (yet, in a graph that builds its own).
  std::shared_ptr<KeptMemory> ordered, grouped, tasks;
  RowGroups row_groups{};
  bool not_in_graphs = false;  // inside of a capture another one is chosen
  Validity validity{};         // Plan::find() does not give a decision that no longer holds

  // Whether everything that could be built for it has been.
  bool is_complete() const {
    return (row_order == kNoRowOrder || ordered != nullptr) &&
           (grouping == kNoGrouping || grouped != nullptr) && !builds_tasks();
  }
  // Whether each launch needs a table of tasks of its own.
  bool builds_tasks() const { return wants_tasks && tasks == nullptr; }
  // Into the launch; what keeps both must be ready for it.
  void put_pieces(Launch* l) const {
    if (ordered != nullptr) l->row_orders[row_order] = static_cast<OrderedRow*>(ordered->data());
    if (grouping != kNoGrouping) l->row_groups[grouping] = row_groups;
    if (tasks != nullptr) l->tasks = static_cast<const TaskTable*>(tasks->data());
  }
};

// What is built of a pattern for variants, by number: row orders, then groupings; and tasks, of
// which a plan may have several, for blocks of several shapes.
constexpr int kPieces = kRowOrders + kAllGroupings, kTasksOfLaunch = kPieces;
constexpr int piece_of_grouping(int grouping) { return kRowOrders + grouping; }

class Plan {
 public:
  // `owner` keeps the index tensors alive, so that no other pattern can appear at their addresses.
  // `fingerprint`, of patterns on the host, tells whether one has been written there; on a GPU only
  // the versions do.
  Plan(const PatternKey& key, PatternFacts facts, std::array<int64_t, 2> versions,
       std::shared_ptr<const void> owner, PatternFingerprint fingerprint = {})
      : key_(key),
        facts_(facts),
        versions_(versions),
        owner_(std::move(owner)),
        fingerprint_(std::move(fingerprint)) {}
  ~Plan();
  Plan(const Plan&) = delete;
  Plan& operator=(const Plan&) = delete;

  const PatternKey& key() const { return key_; }
  // Whether this is the plan of the pattern that lies there now, under these versions.
  bool describes(const std::array<int64_t, 2>& versions, const Parallel& parallel) const {
    return versions_ == versions && (fingerprint_.empty() || fingerprint_.matches(key_, parallel));
  }
  // Whether the facts are known, and pieces may be kept. If not, another pattern may lie there
  // unseen: what is remembered serves any.
  bool knows_pattern() const { return facts_.longest_row >= 0; }
  const PatternFacts& facts() const { return facts_; }
  // Version counters of crow_indices and col_indices when the facts were read; -1: has none.
  const std::array<int64_t, 2>& versions() const { return versions_; }

  // See Decisions.
  std::optional<Decision> find(const Problem& problem, uint64_t generation,
                               std::string_view selector) {
    return decisions_.find(problem, generation, selector);
  }
  void remember(const Problem& problem, uint64_t generation, std::string_view selector,
                const Decision& decision) {
    decisions_.remember(problem, generation, selector, decision);
  }

  // The frozen copy that `variant` made of the values at that address, read as `problem` does.
  std::shared_ptr<KeptMemory> find_copy(const void* values, const Variant* variant,
                                        const Problem& problem);
  void remember_copy(const void* values, const Variant* variant, const Problem& problem,
                     std::shared_ptr<KeptMemory> copy);
  // Null: those of all values.
  void drop_copies(const void* values);

  // A piece, once it has been built.
  std::shared_ptr<KeptMemory> piece(int number);
  // Of several threads that build one, the first is remembered.
  void remember_piece(int number, std::shared_ptr<KeptMemory> built);

  // The same for tables of tasks.
  std::shared_ptr<KeptMemory> tasks(const TaskShape& shape);
  void remember_tasks(const TaskShape& shape, std::shared_ptr<KeptMemory> built);

  // The plan of the transposed pattern, and the memory that holds it (plan/transpose.h), once they
  // have been made; null before.
  struct Transposed {
    std::shared_ptr<KeptMemory> memory;
    std::shared_ptr<Plan> plan;
  };
  SPARSE_AUTOTUNE_API Transposed transposed();
  // Of several threads that make one, the first is remembered.
  void remember_transposed(Transposed transposed);

  // What the plan keeps alive for its pattern: index tensors and their fingerprint; pieces and
  // transposed pattern, which come later.
  int64_t index_bytes() const {
    return (key_.nnzb + key_.block_rows + 1) * size_of(key_.index_type) + fingerprint_.bytes();
  }
  int64_t derived_bytes();
  // The latter of every plan that is alive: a sum over a thousand plans would take longer than to
  // make one.
  static int64_t all_derived_bytes();
  // In a forked child, where the plans of before are left alone.
  static void after_fork();
  // Of the same pattern, with nothing remembered. Takes no lock.
  std::shared_ptr<Plan> anew() const {
    return std::make_shared<Plan>(key_, facts_, versions_, owner_, fingerprint_);
  }

 private:
  void derived(int64_t bytes);

  const PatternKey key_;
  const PatternFacts facts_;
  const std::array<int64_t, 2> versions_;
  const std::shared_ptr<const void> owner_;
  const PatternFingerprint fingerprint_;

  std::atomic<int64_t> derived_bytes_{0};  // but for those of the transposed pattern's plan
  std::mutex mutex_;
  Decisions<Decision> decisions_;
  // One memory may hold blocks of several shapes and dtypes for the same indices.
  using CopyKey = std::tuple<const void*, const Variant*, int64_t, int64_t, DType, bool>;
  static CopyKey copy_key(const void* values, const Variant* variant, const Problem& p) {
    return {values, variant, p.block_m, p.block_k, p.dtype, p.transpose};
  }
  std::map<CopyKey, std::shared_ptr<KeptMemory>> copies_;
  std::array<std::shared_ptr<KeptMemory>, kPieces> pieces_;
  std::vector<std::pair<TaskShape, std::shared_ptr<KeptMemory>>> tasks_;
  Transposed transposed_;
};

}  // namespace sparse_autotune
