#include "calls/pattern_pieces.h"

#include <algorithm>
#include <array>
#include <memory>
#include <utility>

#include "plan/row_groups.h"
#include "plan/row_order.h"
#include "plan/task_table.h"

namespace sparse_autotune {
namespace {

using Wanted = std::array<bool, kPieces>;

Wanted wanted_by(const std::vector<const AnyVariant*>& variants, const Bound& bound) {
  const Problem& p = bound.call.problem;
  Wanted wanted{};
  for (const AnyVariant* any : variants) {
    const Variant& v = product(*any);
    const int order = v.row_order(p, *bound.device), grouping = v.grouping(p, *bound.device);
    if (order != kNoRowOrder) wanted[static_cast<size_t>(order)] = true;
    if (grouping != kNoGrouping) wanted[static_cast<size_t>(piece_of_grouping(grouping))] = true;
  }
  return wanted;
}

int64_t bytes_of(int piece, const Bound& bound) {
  const PatternKey& key = bound.plan->key();
  const PatternFacts& facts = bound.plan->facts();
  return piece < kRowOrders ? row_order_bytes(key, facts, piece)
                            : row_groups_bytes(key, facts, piece - kRowOrders);
}

Status build(int piece, const Bound& bound, void* memory) {
  const PatternKey& key = bound.plan->key();
  const PatternFacts& facts = bound.plan->facts();
  const Launch& l = bound.call.launch;
  return piece < kRowOrders
             ? build_row_order_cuda(key, facts, piece, l.stream, static_cast<OrderedRow*>(memory))
             : build_row_groups_cuda(key, facts, piece - kRowOrders, l.stream, memory);
}

// Memory for a piece that is worth building; null: there is to be none.
std::shared_ptr<KeptMemory> memory_for(int piece, const Bound& bound) {
  const bool order = piece < kRowOrders;
  if (order && !row_order_pays(bound.plan->key(), bound.plan->facts(), bound.call.problem, piece)) {
    return nullptr;
  }
  Status status = Status::ok();
  auto memory =
      make_pattern_memory(*bound.device, bytes_of(piece, bound), bound.call.launch.stream, &status);
  // Rows are taken as they come, then; groups nobody can do without.
  if (memory == nullptr && !order) {
    refuse("no memory for row groups: " + status.message(), Fault::kMemory);
  }
  return memory;
}

void put(int piece, const Bound& bound, const void* memory, Launch* l) {
  if (piece < kRowOrders) {
    l->row_orders[piece] = static_cast<const OrderedRow*>(memory);
  } else {
    l->row_groups[piece - kRowOrders] =
        row_groups_at(bound.plan->key(), piece - kRowOrders, memory);
  }
}

void check(const Status& status) {
  if (!status) refuse(status.message(), Fault::kLaunch);
}

void build_in_graph(int piece, Bound& bound) {
  void* const memory = bound.caller->allocate(bytes_of(piece, bound));
  check(build(piece, bound, memory));
  put(piece, bound, memory, &bound.call.launch);
}

// First tells the memory who fills it: what was enqueued before a failure may still write it.
void check_built(Status status, KeptMemory& memory, void* stream) {
  Status filled = memory.filled_by(stream);
  check(status ? filled : status);
}

// Kept with the plan or, where that cannot keep one, for this call alone.
void add_tasks(Bound& bound) {
  Launch& l = bound.call.launch;
  const Problem& p = bound.call.problem;
  const PatternKey& key = bound.call.pattern;
  const TaskShape shape = task_shape_of(p, *bound.device);
  const int64_t bytes = task_table_bytes(shape, key.nnzb, key.block_rows);
  const bool keeps = bound.plan != nullptr && bound.plan->knows_pattern();
  std::shared_ptr<KeptMemory> found = keeps ? bound.plan->tasks(shape) : nullptr;
  if (found != nullptr) {
    check(found->ready_for(l.stream));
  } else if (keeps && !bound.is_capturing) {
    Status status = Status::ok();
    found = make_pattern_memory(*bound.device, bytes, l.stream, &status);
    if (found == nullptr) refuse("no memory for tasks: " + status.message(), Fault::kMemory);
    check_built(build_task_table_cuda(key, shape, l.stream, static_cast<TaskTable*>(found->data())),
                *found, l.stream);
    bound.plan->remember_tasks(shape, found);
  } else {
    if (l.tasks != nullptr) return;
    auto* const table = static_cast<TaskTable*>(bound.caller->allocate(bytes));
    check(build_task_table_cuda(key, shape, l.stream, table));
    l.tasks = table;
    return;
  }
  l.tasks = static_cast<const TaskTable*>(found->data());
  bound.pieces[kTasksOfLaunch] = std::move(found);
}

}  // namespace

void add_pieces(Bound& bound, const std::vector<const AnyVariant*>& variants) {
  if (bound.call.problem.device != DeviceType::kCuda) return;
  if (std::any_of(variants.begin(), variants.end(),
                  [](auto* v) { return product(*v).wants_tasks(); })) {
    add_tasks(bound);
  }
  if (bound.plan == nullptr) return;
  if (!bound.plan->knows_pattern()) return;  // a piece would outlast the pattern
  const Wanted wanted = wanted_by(variants, bound);
  void* const stream = bound.call.launch.stream;
  for (int piece = 0; piece < kPieces; ++piece) {
    if (!wanted[static_cast<size_t>(piece)]) continue;
    std::shared_ptr<KeptMemory> found = bound.plan->piece(piece);
    if (found != nullptr) {
      check(found->ready_for(stream));
    } else if (bound.is_capturing) {
      if (piece >= kRowOrders) build_in_graph(piece, bound);
      continue;
    } else {
      found = memory_for(piece, bound);
      if (found == nullptr) continue;
      check_built(build(piece, bound, found->data()), *found, stream);
      bound.plan->remember_piece(piece, found);
    }
    put(piece, bound, found->data(), &bound.call.launch);
    bound.pieces[static_cast<size_t>(piece)] = std::move(found);
  }
}

Decision decision_for(const Bound& bound, const Variant& variant) {
  const Problem& p = bound.call.problem;
  const Launch& l = bound.call.launch;
  Decision d{.variant = &variant,
             .workspace_bytes = variant.workspace_bytes(p, *bound.device),
             .prepared_bytes = variant.prepared_bytes(p, *bound.device),
             .row_order = variant.row_order(p, *bound.device),
             .grouping = variant.grouping(p, *bound.device),
             .wants_tasks = variant.wants_tasks()};
  if (d.row_order != kNoRowOrder) d.ordered = bound.pieces[static_cast<size_t>(d.row_order)];
  if (d.grouping != kNoGrouping) {
    d.grouped = bound.pieces[static_cast<size_t>(piece_of_grouping(d.grouping))];
    d.row_groups = l.row_groups[d.grouping];
  }
  if (d.wants_tasks) d.tasks = bound.pieces[kTasksOfLaunch];
  return d;
}

}  // namespace sparse_autotune
