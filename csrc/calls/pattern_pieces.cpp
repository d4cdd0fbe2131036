#include "calls/pattern_pieces.h"

#include <array>
#include <memory>
#include <utility>

#include "plan/row_groups.h"
#include "plan/row_order.h"
#include "plan/task_table.h"

namespace sparse_autotune {
namespace {

using Wanted = std::array<bool, kPieces + 1>;

Wanted wanted_by(const std::vector<const AnyVariant*>& variants, const Bound& bound) {
  const Problem& p = bound.call.problem;
  Wanted wanted{};
  for (const AnyVariant* any : variants) {
    const Variant& v = product(*any);
    const int order = v.row_order(p, *bound.device), grouping = v.grouping(p, *bound.device);
    if (order != kNoRowOrder) wanted[static_cast<size_t>(order)] = true;
    if (grouping != kNoGrouping) wanted[static_cast<size_t>(piece_of_grouping(grouping))] = true;
    if (v.wants_tasks()) wanted[kTasksOfLaunch] = true;
  }
  return wanted;
}

// A piece is a row order, row groups or, the last one, tasks.
bool is_order(int piece) { return piece < kRowOrders; }
bool is_tasks(int piece) { return piece == kTasksOfLaunch; }

const PatternKey& key_of(const Bound& bound) {
  return bound.plan == nullptr ? bound.call.pattern : bound.plan->key();
}
TaskShape shape_of(const Bound& bound) { return task_shape_of(bound.call.problem, *bound.device); }

int64_t bytes_of(int piece, const Bound& bound) {
  const PatternKey& key = key_of(bound);
  if (is_tasks(piece)) return task_table_bytes(shape_of(bound), key.nnzb, key.block_rows);
  const PatternFacts& facts = bound.plan->facts();
  return is_order(piece) ? row_order_bytes(key, facts, piece)
                         : row_groups_bytes(key, facts, piece - kRowOrders);
}

Status build(int piece, const Bound& bound, void* memory) {
  const PatternKey& key = key_of(bound);
  void* const stream = bound.call.launch.stream;
  if (is_tasks(piece)) {
    return build_task_table_cuda(key, shape_of(bound), stream, static_cast<TaskTable*>(memory));
  }
  const PatternFacts& facts = bound.plan->facts();
  return is_order(piece)
             ? build_row_order_cuda(key, facts, piece, stream, static_cast<OrderedRow*>(memory))
             : build_row_groups_cuda(key, facts, piece - kRowOrders, stream, memory);
}

// Memory for a piece that is worth building; null: there is to be none.
std::shared_ptr<KeptMemory> memory_for(int piece, const Bound& bound) {
  if (is_order(piece) &&
      !row_order_pays(key_of(bound), bound.plan->facts(), bound.call.problem, piece)) {
    return nullptr;
  }
  Status status = Status::ok();
  auto memory =
      make_pattern_memory(*bound.device, bytes_of(piece, bound), bound.call.launch.stream, &status);
  // Without an order rows are taken as they come; nobody can do without the others.
  if (memory == nullptr && !is_order(piece)) {
    refuse("no memory for row groups or tasks: " + status.message(), Fault::kMemory);
  }
  return memory;
}

void put(int piece, Bound& bound, const void* memory) {
  Launch& l = bound.call.launch;
  if (is_tasks(piece)) {
    l.tasks = static_cast<const TaskTable*>(memory);
  } else if (is_order(piece)) {
    l.row_orders[piece] = static_cast<const OrderedRow*>(memory);
  } else {
    l.row_groups[piece - kRowOrders] = row_groups_at(key_of(bound), piece - kRowOrders, memory);
  }
}

void check(const Status& status) {
  if (!status) refuse(status.message(), Fault::kLaunch);
}

// Kept with the plan or, tasks and row groups, for this call alone.
void add_piece(int piece, Bound& bound) {
  Plan* const plan = bound.plan.get();
  const bool keeps = plan != nullptr && plan->knows_pattern();
  if (!keeps && !is_tasks(piece)) return;  // a piece would outlast the pattern
  const Launch& l = bound.call.launch;
  std::shared_ptr<KeptMemory> found;
  if (keeps) found = is_tasks(piece) ? plan->tasks(shape_of(bound)) : plan->piece(piece);
  if (found != nullptr) {
    check(found->ready_for(l.stream));
  } else if (!keeps || bound.is_capturing) {
    if (is_order(piece) || (is_tasks(piece) && l.tasks != nullptr)) return;
    void* const memory = bound.caller->allocate(bytes_of(piece, bound));
    check(build(piece, bound, memory));
    return put(piece, bound, memory);
  } else {
    found = memory_for(piece, bound);
    if (found == nullptr) return;
    const Status built = build(piece, bound, found->data());
    // Also after a failure: what was enqueued before it may still write the memory.
    const Status filled = found->filled_by(l.stream);
    check(built ? filled : built);
    is_tasks(piece) ? plan->remember_tasks(shape_of(bound), found)
                    : plan->remember_piece(piece, found);
  }
  put(piece, bound, found->data());
  bound.pieces[static_cast<size_t>(piece)] = std::move(found);
}

}  // namespace

void add_pieces(Bound& bound, const std::vector<const AnyVariant*>& variants) {
  if (bound.call.problem.device != DeviceType::kCuda) return;
  const Wanted wanted = wanted_by(variants, bound);
  for (int piece = 0; piece <= kTasksOfLaunch; ++piece) {
    if (wanted[static_cast<size_t>(piece)]) add_piece(piece, bound);
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
