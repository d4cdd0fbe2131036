#include "calls/pattern_pieces.h"

#include <array>
#include <memory>
#include <utility>

#include "plan/row_groups.h"
#include "plan/row_order.h"

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

void build_in_graph(int piece, Bound& bound) {
  void* const memory = bound.caller->allocate(bytes_of(piece, bound));
  const Status status = build(piece, bound, memory);
  if (!status) refuse(status.message(), Fault::kLaunch);
  put(piece, bound, memory, &bound.call.launch);
}

}  // namespace

void add_pieces(Bound& bound, const std::vector<const AnyVariant*>& variants) {
  if (bound.plan == nullptr || bound.call.problem.device != DeviceType::kCuda) return;
  if (!bound.plan->knows_pattern()) return;  // a piece would outlast the pattern
  const Wanted wanted = wanted_by(variants, bound);
  void* const stream = bound.call.launch.stream;
  for (int piece = 0; piece < kPieces; ++piece) {
    if (!wanted[static_cast<size_t>(piece)]) continue;
    std::shared_ptr<KeptMemory> found = bound.plan->piece(piece);
    if (found != nullptr) {
      if (const Status status = found->ready_for(stream); !status) {
        refuse(status.message(), Fault::kLaunch);
      }
    } else if (bound.is_capturing) {
      if (piece >= kRowOrders) build_in_graph(piece, bound);
      continue;
    } else {
      found = memory_for(piece, bound);
      if (found == nullptr) continue;
      Status status = build(piece, bound, found->data());
      // First: what was enqueued before a failure may still write the memory.
      Status filled = found->filled_by(stream);
      if (status) status = std::move(filled);
      if (!status) refuse(status.message(), Fault::kLaunch);
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
             .grouping = variant.grouping(p, *bound.device)};
  if (d.row_order != kNoRowOrder) d.ordered = bound.pieces[static_cast<size_t>(d.row_order)];
  if (d.grouping != kNoGrouping) {
    d.grouped = bound.pieces[static_cast<size_t>(piece_of_grouping(d.grouping))];
    d.row_groups = l.row_groups[d.grouping];
  }
  return d;
}

}  // namespace sparse_autotune
