"""`register_flex_attention`: torch's compiled FlexAttention as a candidate of `attention`."""

from __future__ import annotations

import functools
import itertools
import zlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..masks.block_mask import BlockMask
from .installed_kernels import in_letters
from .registration import RegisteredVariant, register_variant
from .variant_problems import AttentionProblem

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask as FlexBlockMask

# FlexAttention's own tiles are of up to so many queries and keys, and have to divide a block.
_ITS_TILE = 128
_LEAST_TILE = 16

_number = itertools.count()


def register_flex_attention(
    *, kernel_options: Mapping[str, Any] | None = None, version: str | None = None
) -> RegisteredVariant:
    """Lets torch's FlexAttention, compiled, take part in races of `attention` on CUDA devices.

    As the variant "flex_attention" it races like this package's own kernels, under the same
    verification. The form of the mask that it wants is made in every call, and timed with it. It is
    compiled where it first runs with a new dtype, head size or kind of mask, which takes seconds.
    It computes no gradients: a backward pass chooses among those that read ``out`` and lse of
    whoever wrote them.

    Args:
        kernel_options: as of ``torch.nn.attention.flex_attention.flex_attention``; where blocks are
            no multiples of 128, tiles that fit them are set unless these set any.
        version: as of `register_variant`; None: torch's, and what tells the options apart.

    Returns:
        Its handle, with `unregister`.

    Raises:
        ValueError: the version is unfit, or registered already.
    """
    options = dict(kernel_options or {})
    if version is None:
        version = "torch" + in_letters(torch.__version__)
        if options:
            text = repr(sorted((name, repr(value)) for name, value in options.items()))
            version += f"_{zlib.crc32(text.encode()):08x}"
    return register_variant(
        "flex_attention",
        FlexAttention(_compiled, options),
        version=version,
        op="attention",
        supports=supports,
    )


def supports(problem: AttentionProblem) -> bool | str:
    """True, or why FlexAttention does not compute a problem."""
    if problem.dtype == torch.float64:
        return "float16, bfloat16 and float32 only"
    if problem.dim < 16:
        return "needs heads of at least 16 numbers"
    if problem.block_size is not None and any(side % _LEAST_TILE for side in problem.block_size):
        return f"needs blocks of multiples of {_LEAST_TILE}"
    return True


def _compiled() -> Callable[..., Any]:
    """A compiled function with a cache of its own: Dynamo bounds how often one is compiled."""
    from torch.nn.attention.flex_attention import flex_attention

    compute: Any = flex_attention

    def attend(*tensors: Tensor, **options: Any) -> Any:
        return compute(*tensors, **options)

    attend.__code__ = attend.__code__.replace(co_name=f"flex_attention_{next(_number)}")
    return torch.compile(attend, fullgraph=True)


@functools.lru_cache(maxsize=8)
def _causal(queries: int, keys: int, device: torch.device) -> FlexBlockMask:
    return BlockMask.causal(queries, keys, device=device).to_flex_attention(gradients=False)


class FlexAttention:
    """What `register_variant` calls; ``make`` gives a function for each kind of problem."""

    def __init__(self, make: Callable[[], Callable[..., Any]], options: dict[str, Any]) -> None:
        self._options = options
        self._of_kind = functools.lru_cache(maxsize=None)(lambda *_: make())

    def __call__(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: BlockMask | None,
        *,
        out: Tensor,
        lse: Tensor,
        is_causal: bool,
        scale: float,
    ) -> None:
        """Writes ``out`` and ``lse``."""
        from torch.nn.attention.flex_attention import AuxRequest

        block_mask = None if mask is None else mask.to_flex_attention(gradients=False)
        if mask is None and is_causal:
            block_mask = _causal(q.shape[2], k.shape[2], q.device)
        shares_heads = q.shape[1] != k.shape[1]
        block = None if mask is None else mask.block_size
        attend = self._of_kind(q.dtype, q.shape[3], block, is_causal, shares_heads)
        result, aux = attend(
            q,
            k,
            v,
            block_mask=block_mask,
            scale=scale,
            enable_gqa=shares_heads,
            return_aux=AuxRequest(lse=True),
            kernel_options=self._options_for(block),
        )
        out.copy_(result)
        lse.copy_(aux.lse)

    def _options_for(self, block: tuple[int, int] | None) -> dict[str, Any] | None:
        tiles: dict[str, int] = {}
        if block is not None and any(side % _ITS_TILE for side in block):
            # The greatest power of two that divides a side.
            sides = zip(("BLOCK_M", "BLOCK_N"), block, strict=True)
            tiles = {name: min(side & -side, _ITS_TILE // 2) for name, side in sides}
        return {**tiles, **self._options} or None
