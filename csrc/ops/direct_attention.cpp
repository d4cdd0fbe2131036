// Attention and its gradients past the dispatcher.
#include <torch/csrc/stable/tensor.h>

#include <algorithm>
#include <array>
#include <optional>

#include "ops/direct_launch.h"
#include "ops/handed_over.h"
#include "ops/torch_runtime.h"
#include "plan/current_device.h"
#include "plan/mask_lists.h"

namespace sparse_autotune::direct {
namespace {

// Where attention runs; none where that is not the current device.
struct Place {
  void* stream = nullptr;
  Parallel parallel;
};
std::optional<Place> place_of(const AttentionCall& call) {
  if (call.q.device == kCpuDevice) return Place{nullptr, torch_parallel()};
  if (!is_current_device(call.q.device)) return std::nullopt;
  return Place{current_stream(call.q.device), {}};
}

// The blocks of a mask by column, as the operator mask_columns lists them.
class ColumnLists {
 public:
  // `call` keeps its rules, and has a mask. False where there is no memory.
  bool list(const AttentionCall& call, void* stream, const Circumstances& here) {
    const TensorView &crow = *call.crow_indices, &col = *call.col_indices;
    like_ = crow;
    std::copy(crow.sizes, crow.sizes + crow.dims, sizes_.begin());
    int64_t& lines = sizes_[static_cast<size_t>(crow.dims) - 1];
    const MaskGrid shape{elements_of(crow) / lines, lines - 1,
                         ceil_div(call.k.sizes[2], call.block_n)};
    const MaskGrid turned{shape.patterns, shape.columns, shape.rows};
    lines = shape.columns + 1;
    blocks_ = turned.blocks();
    if (blocks_ > INT32_MAX) return false;
    int64_t stride = 1;
    for (auto d = static_cast<size_t>(crow.dims); d-- > 0; stride *= sizes_[d]) {
      strides_[d] = stride;
    }
    const auto aligned = [](int64_t bytes) { return ceil_div(bytes, 256) * 256; };
    const int64_t first = aligned(turned.patterns * lines * 4), second = aligned(blocks_ * 4);
    auto* const memory = static_cast<char*>(
        here.scratch(first + second + std::max<int64_t>(marked_bytes(turned), 1)));
    if (memory == nullptr) return false;
    out_ = {reinterpret_cast<int32_t*>(memory), reinterpret_cast<int32_t*>(memory + first)};
    const GivenLists from{crow.data, col.data, col.sizes[0], crow.type == ElementType::kInt64};
    if (crow.device == kCpuDevice) return turn_lists(shape, from, out_);
    return static_cast<bool>(turn_lists_cuda(shape, from, out_, memory + first + second, stream));
  }

  TensorView begins() const {
    TensorView view = like_;
    view.data = out_.begins;
    view.sizes = sizes_.data();
    view.strides = strides_.data();
    return view;
  }
  TensorView entries() const {
    return {out_.entries, &blocks_, &kOne, 1, like_.type, like_.device};
  }

 private:
  static constexpr int64_t kOne = 1;
  TensorView like_;
  MaskLists out_{};
  std::array<int64_t, 3> sizes_{}, strides_{};
  int64_t blocks_ = 0;
};

// The launch, which writes results to their places or hands its own over.
bool serve(AttentionBound& bound, AttentionResults* results, const Circumstances& here) {
  attention::HandedOver own;
  bound.launch.handed_over = &own;
  if (bound.is_empty() || !serve_remembered(bound, here.variant, here.scratch)) return false;
  for (size_t i = 0; i < own.results.size(); ++i) {
    if (!own.results[i].has_value()) continue;
    AtenTensorHandle handle = nullptr;
    TORCH_ERROR_CODE_CHECK(aoti_torch_new_tensor_handle(own.results[i]->get(), &handle));
    results->own[i] = handle;
  }
  return true;
}

}  // namespace

bool attention(const AttentionCall& call, AttentionResults* results, const Circumstances& here) {
  const auto place = place_of(call);
  if (!place) return false;
  AttentionBound bound = bind_attention(call, nullptr, place->stream, place->parallel);
  bound.launch.out = results->places[0].writable();
  bound.launch.lse = results->places[1].writable();
  return serve(bound, results, here);
}

bool attention_gradients(const AttentionCall& call, AttentionGradients gradients,
                         AttentionResults* results, const Circumstances& here) {
  const auto place = place_of(call);
  if (!place) return false;
  ColumnLists columns;
  if (call.crow_indices) {
    if (!columns.list(call, place->stream, here)) return false;
    gradients.ccol_indices = columns.begins();
    gradients.row_indices = columns.entries();
  }
  if (broken_rule(call, gradients) != nullptr) return false;
  AttentionBound bound = bind_attention(call, &gradients, place->stream, place->parallel);
  bound.launch.dq = results->places[0].writable();
  bound.launch.dk = results->places[1].writable();
  bound.launch.dv = results->places[2].writable();
  return serve(bound, results, here);
}

bool mask_of_rule(const MaskGrid& shape, const MaskRule& rule, int64_t known_ends,
                  const MaskLists& out, int32_t ordinal) {
  return is_current_device(ordinal) &&
         static_cast<bool>(list_rule_cuda(shape, rule, known_ends, out, current_stream(ordinal)));
}

}  // namespace sparse_autotune::direct
