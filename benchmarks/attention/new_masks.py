"""What a new mask costs: `python -m benchmarks.attention.new_masks`, on a GPU or a CPU.

A mask that changes in every call is made of a bool tensor of blocks on the device, or by another
constructor, and its first attention meets a signature that was raced before. For each shape: the
host's time and the device's of making one, of its form by columns, which a backward pass reads, and
of an attention with a new mask beside one whose mask stays. The host's times are of calls issued
without waiting; a call that waits for the GPU is an error here.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import dataclass

import torch

import sparse_autotune as sa
from benchmarks import environment, markdown, timing
from benchmarks.cell import Call

from .cells import AttentionCell, AttentionOperands

CELLS = tuple(
    AttentionCell(heads, length, 128, block, "random", 0.13)
    for heads, length in ((32, 8192), (8, 32768))
    for block in (128, 64)
)
ON_A_CPU = (AttentionCell(8, 1024, 64, 64, "random", 0.13, "float32"),)
# Issued one after the other, and few enough for a queue of launches.
_CALLS = 20
_ROUNDS = 15


@dataclass(frozen=True)
class Cost:
    """Medians in microseconds; `device_us` is None on a CPU, where both are one."""

    cell: str
    what: str
    host_us: float
    device_us: float | None


def _ways(cell: AttentionCell, device: str) -> dict[str, Call]:
    operands = AttentionOperands(cell, device)
    q, k, v, mask = operands.q, operands.k, operands.v, operands.mask
    assert mask is not None
    blocks = mask.blocks().contiguous()  # as whoever chooses blocks has them
    of_one_head = blocks[0]
    kept = sa.BlockMask.from_blocks(blocks, cell.block)  # nobody has counted its blocks, either

    length, block = cell.length, cell.block
    lists, counts = kept.index_lists()
    document = max(length // 8 // block, 1) * block
    documents = [document] * (length // document)
    on_device = torch.tensor(documents, device=device)
    pattern = sa.random_bsr(
        length, length, block, density=cell.density, dtype=torch.float16, device=device
    ).t()

    def attend(make: Callable[[], sa.BlockMask]) -> Call:
        return lambda: sa.attention(q, k, v, make())

    return {
        "make a mask": lambda: sa.BlockMask.from_blocks(blocks, cell.block),
        "one pattern for all heads": lambda: sa.BlockMask.from_blocks(of_one_head, cell.block),
        "sliding window": lambda: sa.BlockMask.sliding_window(
            length, block_size=block, window=length // 8, sinks=block, device=device
        ),
        "strided": lambda: sa.BlockMask.strided(
            length, block_size=block, stride=8, local=2, device=device
        ),
        "documents": lambda: sa.BlockMask.documents(
            documents, length, block_size=block, device=device
        ),
        "documents, lengths on the device": lambda: sa.BlockMask.documents(
            on_device, length, block_size=block
        ),
        "transposed BSR pattern": lambda: sa.BlockMask.from_bsr(pattern),
        "index lists": lambda: sa.BlockMask.from_index_lists(
            lists, counts, block, (length, length)
        ),
        "its form by columns": kept.by_column,
        "attention, the mask stays": attend(lambda: kept),
        "attention, a new mask": attend(lambda: sa.BlockMask.from_blocks(blocks, cell.block)),
    }


@torch.no_grad()
def measure(cell: AttentionCell, device: str) -> list[Cost]:
    """All ways of a cell, host and device, in interleaved rounds.

    Raises:
        RuntimeError: a call waited for the GPU, or raced again.
    """
    ways = _ways(cell, device)
    for call in ways.values():
        call()  # races
        call()
    before = sa.tuning_count()
    if device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode("error")
        try:
            for call in ways.values():
                call()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    wait = timing.wait_of(device)
    hosts = {name: timing.host_sampler(call, _CALLS, wait) for name, call in ways.items()}
    host = timing.interleave(hosts, _ROUNDS, keep=hosts)
    on_device: dict[str, timing.Timing] = {}
    if device == "cuda":
        kernels = {name: timing.kernel_sampler([call])[0] for name, call in ways.items()}
        on_device = timing.interleave(kernels, _ROUNDS, keep=kernels)
    if sa.tuning_count() != before:
        raise RuntimeError("a new mask raced again")
    return [
        Cost(str(cell), name, host[name].median_us,
             on_device[name].median_us if on_device else None)
        for name in ways
    ]  # fmt: skip


def table(costs: list[Cost]) -> str:
    """A line a way."""
    return markdown.lines(
        [
            {
                "attention": cost.cell,
                "what": cost.what,
                "host, µs": f"{cost.host_us:.1f}",
                "device, µs": "" if cost.device_us is None else f"{cost.device_us:.1f}",
            }
            for cost in costs
        ]
    )


def main() -> int:
    """Prints the table; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.attention.new_masks")
    parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    cells = CELLS if device == "cuda" else ON_A_CPU
    with environment.own_cache():
        print(table([cost for cell in cells for cost in measure(cell, device)]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
