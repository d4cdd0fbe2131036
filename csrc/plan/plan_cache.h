// All plans of the process, bounded by count and bytes, least recently used first out.
#pragma once

#include <memory>

#include "exported.h"
#include "plan/plan.h"

namespace sparse_autotune {

class PlanCache {
 public:
  SPARSE_AUTOTUNE_API static PlanCache& instance();

  SPARSE_AUTOTUNE_API std::shared_ptr<Plan> find(const PatternKey& key);
  void insert(std::shared_ptr<Plan> plan);
  // Every plan whose pattern lies at these addresses.
  void drop(const void* crow_indices, const void* col_indices);

  // From own to disown, which are counted, the memory at these addresses belongs to one pattern:
  // somebody who lives that long holds the tensors.
  void own(const void* crow_indices, const void* col_indices);
  // The last one drops the plans, too.
  void disown(const void* crow_indices, const void* col_indices);
  // Whether what lies at these addresses stays the pattern that it was while its versions do.
  SPARSE_AUTOTUNE_API bool lasts(const PatternKey& key) const;

  // Every frozen copy of the values at an address that a product with the pattern made.
  void drop_copies(const void* crow_indices, const void* col_indices, const void* values);

  struct Use {
    int64_t plans = 0;
    int64_t bytes = 0;  // index tensors and derived pieces kept alive
  };
  Use use() const;
  // Room for that many bytes; the newest plan always stays.
  void set_byte_bound(int64_t bytes);

  // Makes the cache usable, and empty, in a forked child, whatever locks other threads held.
  void after_fork();

 private:
  PlanCache();
  struct State;
  State* state_;  // never freed: plans may be used while the process winds down
};

}  // namespace sparse_autotune
