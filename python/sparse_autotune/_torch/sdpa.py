"""Two of torch's attention kernels, as operators whose results torch's stable ABI can carry.

`torch_call_dispatcher` (2.10 to 2.15) reads results in reverse, with the types in order: it refuses
operators that return tensors and numbers mixed, as these two do. `torch_sdpa_cuda.cpp` calls ours.
"""

from __future__ import annotations

import torch
from torch import Tensor

_FORM = "(Tensor q, Tensor k, Tensor v, bool is_causal, float scale) -> (Tensor, Tensor)"


def _flash(q: Tensor, k: Tensor, v: Tensor, is_causal: bool, scale: float) -> tuple[Tensor, Tensor]:
    found = torch.ops.aten._scaled_dot_product_flash_attention(
        q, k, v, 0.0, is_causal, False, scale=scale
    )
    return found[0], found[1]


def _cudnn(q: Tensor, k: Tensor, v: Tensor, is_causal: bool, scale: float) -> tuple[Tensor, Tensor]:
    found = torch.ops.aten._scaled_dot_product_cudnn_attention(
        q, k, v, None, True, 0.0, is_causal, False, scale=scale
    )
    return found[0], found[1]


_library = torch.library.Library("sparse_autotune", "FRAGMENT")
for _name, _kernel in {"sdpa_flash": _flash, "sdpa_cudnn": _cudnn}.items():
    _library.define(_name + _FORM)
    _library.impl(_name, _kernel, "CUDA")
