"""The common patterns that `BlockMask` makes itself."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .. import _tuner
from .._torch import direct
from .._torch.transforms import is_plainly_eager
from ..checks.matrix import block_shape, size
from ..mask_forms import lead_count
from ..operators.mask_lists import mask_of_rule
from .checks import ends_of, flag, positive
from .stored_blocks import StoredBlocks

if TYPE_CHECKING:
    from typing_extensions import Self


_MOST_KNOWN_ENDS = 448  # as plan/mask_lists.h has it


def _gpu_of(device: Any) -> int | None:
    """The ordinal of a GPU in use, -1: the current one; None: none, or torch's default device."""
    if device is None or not torch.cuda.is_initialized():
        return None
    named = torch.device(device)
    if named.type != "cuda":
        return None
    return -1 if named.index is None else int(named.index)


class CommonPatterns(StoredBlocks):
    """Class methods of `BlockMask`."""

    __slots__ = ()

    @classmethod
    def causal(
        cls,
        S: int,  # noqa: N803
        T: int | None = None,  # noqa: N803
        block_size: int | Sequence[int] = 128,
        *,
        device: torch.device | str | int | None = None,
    ) -> Self:
        """Each query sees the keys up to its own position.

        ``attention`` takes it as ``is_causal=True`` without a mask, which has more variants.

        Args:
            S: the number of queries.
            T: that of keys; None: ``S``.
            block_size: an int or ``(block_m, block_n)``.
            device: of the indices; None: torch's default device.

        Raises:
            TypeError, ValueError: a length or the block size is no number or out of range.
        """
        made = cls._generated(S, T, block_size, device, True)
        made._hides_only_later = True
        return made

    @classmethod
    def sliding_window(
        cls,
        S: int,  # noqa: N803
        T: int | None = None,  # noqa: N803
        block_size: int | Sequence[int] = 128,
        *,
        window: int,
        sinks: int = 0,
        is_causal: bool = True,
        device: torch.device | str | int | None = None,
    ) -> Self:
        """Each query sees the last ``window`` keys, its own included, and the first ``sinks``.

        Whole blocks are stored: a query sees all keys of a block that holds one of its window or
        of that of another query of its block, up to its own position if ``is_causal``.

        Args:
            S: the number of queries.
            T: that of keys; None: ``S``.
            block_size: an int or ``(block_m, block_n)``.
            window: tokens, at least 1; without ``is_causal`` as many on either side.
            sinks: first tokens that all queries see.
            is_causal: keys behind a query are not seen.
            device: of the indices; None: torch's default device.

        Raises:
            TypeError, ValueError: a number is none or out of range.
        """
        window, sinks = positive(window, "window"), size(sinks, "sinks")
        return cls._generated(S, T, block_size, device, is_causal, (window, sinks, 0, 0))

    @classmethod
    def strided(
        cls,
        S: int,  # noqa: N803
        T: int | None = None,  # noqa: N803
        block_size: int | Sequence[int] = 128,
        *,
        stride: int,
        local: int = 1,
        is_causal: bool = True,
        device: torch.device | str | int | None = None,
    ) -> Self:
        """Each block row sees the ``local`` blocks up to the diagonal and every ``stride``-th one.

        The pattern of Sparse Transformers (Child et al., 2019), in blocks: block columns ``stride -
        1``, ``2 stride - 1`` and so on are seen by all.

        Args:
            S: the number of queries.
            T: that of keys; None: ``S``.
            block_size: an int or ``(block_m, block_n)``.
            stride: block columns from one that all see to the next, at least 1.
            local: block columns up to the diagonal, the diagonal's included, at least 1; without
                ``is_causal`` as many behind it.
            is_causal: keys behind a query are not seen.
            device: of the indices; None: torch's default device.

        Raises:
            TypeError, ValueError: a number is none or out of range.
        """
        stride, local = positive(stride, "stride"), positive(local, "local")
        return cls._generated(S, T, block_size, device, is_causal, (0, 0, stride, local))

    @classmethod
    def documents(
        cls,
        lengths: Sequence[int] | Tensor,
        S: int | None = None,  # noqa: N803
        block_size: int | Sequence[int] = 128,
        *,
        is_causal: bool = True,
        device: torch.device | str | int | None = None,
    ) -> Self:
        """Tokens of packed documents see those of their own document.

        A mask of blocks keeps documents apart only where each begins at a block: pad them. Lengths
        that the host knows are checked; of those on a GPU, which are not waited for, a block that
        two documents share is seen whole by both. Tokens behind the last document see nothing.

        Args:
            lengths: (documents,) or (batch, documents), tokens of each: ints, or an integer tensor.
            S: tokens of each batch entry; None: the largest sum of ``lengths``, which the host must
                know.
            block_size: an int or ``(block_m, block_n)``.
            is_causal: within a document, keys behind a query are not seen.
            device: of the indices; None: that of ``lengths``, or torch's default device.

        Raises:
            TypeError: ``lengths`` are no integers.
            ValueError: documents are negative, longer than ``S``, or do not begin at a block; ``S``
                is None for lengths on a GPU.
        """
        block = block_shape(block_size)
        ends, total = ends_of(lengths, S, math.lcm(*block))
        if device is None and isinstance(lengths, Tensor):
            device = lengths.device
        if isinstance(ends, Tensor) and ends.dim() == 2:
            ends = ends[:, None]  # for all heads
        return cls._generated(total, None, block, device, is_causal, ends=ends)

    @classmethod
    def _generated(
        cls,
        queries: Any,
        keys: Any,
        block_size: Any,
        device: Any,
        is_causal: Any,
        rule: tuple[int, int, int, int] | None = None,  # window, sinks, stride, local
        ends: Tensor | list[int] | None = None,
    ) -> Self:
        queries = size(queries, "S")
        lengths = (queries, queries if keys is None else size(keys, "T"))
        block, is_causal = block_shape(block_size), flag(is_causal, "is_causal")
        whole = (*lengths, *block, *(rule or (sum(lengths), 0, 0, 0)), is_causal)
        if not isinstance(ends, Tensor):
            ordinal = _gpu_of(device)
            if ordinal is not None and is_plainly_eager():
                found = direct.mask_of_rule(ordinal, whole, ends)
                if found is not None:
                    made = cls._made_of(found[0], found[1], block, lengths, is_causal)
                    made._count(found[2], about=not found[3])
                    return made
            if ends is not None:
                ends = torch.tensor(ends, dtype=torch.int64, device="cpu")
        is_known = ends is None or ends.device.type == "cpu"
        there = ends  # few go as parameters of a kernel, which a CUDA graph can hold
        like = (
            torch.empty(0, dtype=torch.int32, device=device)
            if ends is None or ends.device != device
            else ends
        )
        if ends is not None and not (is_known and ends.numel() <= _MOST_KNOWN_ENDS):
            there = ends.to(like.device, non_blocking=True)
        made = cls._made_of(*mask_of_rule(like, there, *whole), block, lengths, is_causal)
        # So that races of this density serve the mask: what the host was told it can count.
        if is_known and like.device.type != "cpu" and is_plainly_eager():
            patterns, documents, at = 1, -1, 0
            if ends is not None:
                patterns, documents = lead_count(ends.shape[:-1]), ends.shape[-1]
                at = ends.data_ptr()
            nnzb, exact = _tuner.count_mask((*whole, documents), patterns, at)
            made._count(nnzb, about=not exact)
        return made
