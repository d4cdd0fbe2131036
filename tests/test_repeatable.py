"""The same call gives the same bits, again and again, alone and beside other work on the GPU."""

import contextlib

import pytest
import torch
from machine import DETERMINISTIC, built
from problem import BF16, FP32, FP64, Problem
from problems import CASES
from reference import assert_close, make

from sparse_autotune import linear
from sparse_autotune.errors import legality

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("no_races")]

VARIANTS = ("auto", *built("cuda"))


def uneven_problems():
    """Skewed rows and a ragged n; then, for variants that take none of them, all plain products."""
    for changes in (
        {"m": 1536, "k": 3072, "n": 264, "block": (128, 128), "dtype": BF16},
        {"m": 1536, "k": 3072, "n": 261, "block": (128, 128), "dtype": BF16},
        {"m": 1536, "k": 1024, "n": 261, "block": (64, 64), "dtype": BF16},
        *(
            {"m": 960, "k": 1024, "n": 264, "block": block, "dtype": BF16}
            for block in ((16, 16), (32, 32), (16, 32), (32, 16), (8, 8), (4, 4))
        ),
        *(
            {"m": 1536, "k": 1024, "n": n, "block": (64, 64), "dtype": BF16}
            for n in (104, 56, 101, 7)
        ),
        *(
            {"m": 960, "k": 1024, "n": n, "block": block, "dtype": BF16, "b_layout": b_layout}
            for b_layout in ("row", "column")
            for block in ((16, 16), (32, 32))
            for n in (104, 40, 24)
        ),
        *(
            {"m": 960, "k": 1024, "n": 16, "block": block, "dtype": BF16}
            for block in ((16, 16), (32, 32), (64, 64))
        ),
        *(
            {"m": 960, "k": 1024, "n": n, "block": block, "dtype": BF16, "b_layout": "column"}
            for block in ((16, 16), (32, 32), (64, 64), (32, 16))
            for n in (7, 13, 264)
        ),
        {"m": 480, "k": 512, "n": 133, "block": (16, 16), "dtype": BF16, "pattern": "even"},
        {"m": 480, "k": 512, "n": 133, "block": (16, 16), "dtype": FP32},
        *(
            {"m": 960, "k": 1020, "n": n, "block": block, "dtype": dtype}
            for dtype in (FP64, FP32)
            for block in ((16, 20), (6, 6), (3, 3))
            for n in (261, 11)
        ),
        {"m": 960, "k": 1024, "n": 272, "block": (16, 16), "dtype": FP64},
        {"m": 480, "k": 512, "n": 133, "block": (16, 16), "dtype": BF16, "batch": (3,)},
        {"m": 60, "k": 6000, "n": 1, "block": (3, 3), "dtype": FP64},
    ):
        yield Problem(**{"name": f"uneven-{changes}", "pattern": "skewed", **changes})
    for case in CASES:
        if case.op == "matmul" and not (case.batch or case.bias or case.activation) and case.n:
            yield case


def uneven(variant):
    """The first of them that the variant takes."""
    for problem in uneven_problems():
        operands = make(problem, "cuda")
        if variant == "auto" or legality(operands.a, operands.b)[variant] is None:
            return operands
    raise AssertionError(f"{variant} takes none of them")


@contextlib.contextmanager
def deterministic_algorithms(mode):
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(mode)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)


def differing(results, first):
    """How many of the results are not the first one's bits."""
    bits = {2: torch.int16, 4: torch.int32, 8: torch.int64}[first.element_size()]
    return sum(int((r.view(bits) != first.view(bits)).any()) for r in results)


@pytest.mark.parametrize("op", ["matmul", "linear"])
@pytest.mark.parametrize("variant", [n for n in VARIANTS if DETERMINISTIC.get(n, True)])
def test_the_same_bits_a_hundred_times(variant, op):
    """Of the same call, with other results in memory in between."""
    operands = uneven(variant)
    x = operands.b.mT.contiguous()
    if op == "linear" and variant != "auto":
        why = legality(operands.a, x, linear=True)[variant]
        if why is not None:
            pytest.skip(f"{variant} is not legal for linear: {why}")

    def call():
        if op == "linear":
            return linear(x, operands.a, variant=variant).mT
        return operands.call(variant)

    with deterministic_algorithms(True):
        first = call()
        assert_close(first, operands)
        results = [call() for _ in range(100)]
    assert differing(results, first) == 0


@pytest.mark.parametrize("variant", VARIANTS)
def test_right_while_another_stream_is_busy(variant):
    """All the time, with products of its own: the same bits as alone, where that is promised."""
    operands = uneven(variant)
    promised = DETERMINISTIC.get(variant, True)
    # So large that a launch keeps the GPU busy for longer than a loaded host needs for the next.
    busy, other = torch.randn(8192, 8192, device="cuda", dtype=BF16), torch.cuda.Stream()
    spoils = [torch.empty_like(busy) for _ in range(2)]

    def call():
        with deterministic_algorithms(promised):
            return operands.call(variant)

    alone = call()
    assert_close(alone, operands)
    other.wait_stream(torch.cuda.current_stream())
    results = []
    for i in range(50):
        with torch.cuda.stream(other):
            for _ in range(4):  # some milliseconds: more than the slowest call takes alone
                torch.mm(busy, busy, out=spoils[i % 2])
        results.append(call())
    torch.cuda.current_stream().synchronize()
    assert not other.query(), "the other stream was done before: nothing ran beside the products"
    if promised:
        assert differing(results, alone) == 0
    else:
        for result in results:
            assert_close(result, operands)
    other.synchronize()
