"""torch's attention kernels, as operators that `torch_sdpa_cuda.cpp` and its backward one call.

`torch_call_dispatcher` (2.10 to 2.15) reads results in reverse, with the types in order: it refuses
operators that return tensors and numbers mixed, as flash and cuDNN do. Gradients take lse as our
own kernels write it: (batch, heads, rows), natural logarithms.
"""

from __future__ import annotations

import torch
from torch import Tensor

_FORWARD = "(Tensor q, Tensor k, Tensor v, bool is_causal, float scale) -> (Tensor, Tensor)"
_BACKWARD = (
    "(Tensor grad, Tensor q, Tensor k, Tensor v, Tensor out, Tensor lse, bool is_causal, float "
    "scale) -> (Tensor, Tensor, Tensor)"
)
_aten = torch.ops.aten


def _flash(q: Tensor, k: Tensor, v: Tensor, is_causal: bool, scale: float) -> tuple[Tensor, Tensor]:
    found = _aten._scaled_dot_product_flash_attention(q, k, v, 0.0, is_causal, False, scale=scale)
    return found[0], found[1]


def _cudnn(q: Tensor, k: Tensor, v: Tensor, is_causal: bool, scale: float) -> tuple[Tensor, Tensor]:
    found = _aten._scaled_dot_product_cudnn_attention(
        q, k, v, None, True, 0.0, is_causal, False, scale=scale
    )
    return found[0], found[1]


Gradients = tuple[Tensor, Tensor, Tensor]


def _seed(q: Tensor) -> Tensor:
    """What says where random numbers begin, of a dropout of zero: nobody reads it."""
    return torch.empty(2, dtype=torch.int64, device=q.device)


def _flash_backward(grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor,
                    is_causal: bool, scale: float) -> Gradients:  # fmt: skip
    seed = _seed(q)
    return _aten._scaled_dot_product_flash_attention_backward(
        grad, q, k, v, out, lse, None, None, q.shape[2], k.shape[2], 0.0, is_causal, seed, seed,
        scale=scale,
    )  # fmt: skip


def _efficient_backward(grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor,
                        is_causal: bool, scale: float) -> Gradients:  # fmt: skip
    seed = _seed(q)
    # It reads `out` as (batch, rows, heads, dim), contiguous, without looking at strides.
    out = out.transpose(1, 2).contiguous().transpose(1, 2)
    # It reads lse in whole tiles of 32 rows: those past the end get weights of exp(-inf) = 0.
    padded = torch.nn.functional.pad(lse, (0, -q.shape[2] % 32), value=float("inf"))
    return _aten._scaled_dot_product_efficient_attention_backward(
        grad, q, k, v, None, out, padded, seed, seed, 0.0, [True, True, True, False], is_causal,
        scale=scale,
    )[:3]  # fmt: skip


_library = torch.library.Library("sparse_autotune", "FRAGMENT")
for _form, _kernels in (
    (_FORWARD, {"sdpa_flash": _flash, "sdpa_cudnn": _cudnn}),
    (
        _BACKWARD,
        {
            "sdpa_flash_backward": _flash_backward,
            "sdpa_efficient_backward": _efficient_backward,
        },
    ),
):
    for _name, _kernel in _kernels.items():
        _library.define(_name + _form)
        _library.impl(_name, _kernel, "CUDA")
