"""Long block rows cut into parts: which lists that takes, and that sums of parts are right."""

import gc

import pytest
import torch
from machine import built
from plans import (
    check_a_capture_that_keeps_nothing,
    check_the_same_bits,
    fresh_operands,
    plan_bytes,
)
from problem import BF16, HALF, Problem
from reference import PoisonedOut, assert_close, make

import sparse_autotune
from sparse_autotune import random_bsr
from sparse_autotune.errors import legality

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("no_races")]

SPLIT = [name for name in built("cuda") if name.startswith("split_k_")]
LIMITS = [4 * 2**i for i in range(8)]  # blocks in a part, at most
ENTRY_BYTES = 16


def case(block=(128, 128), rows=7, columns=21, n=264, dtype=BF16, **changes):
    """Legal for every configuration, with a few rows that are cut."""
    changes = {"pattern": "skewed", **changes}
    name = f"split-{block}-{rows}-{columns}-{n}-{dtype}-{sorted(changes.items())}"
    return Problem(name, rows * block[0], columns * block[1], n, block, dtype, **changes)


def operands_for(variant, problem):
    """As `fresh_operands`: tiles of 128 rows alone may refuse a problem."""
    why = make(problem, "cuda").legality()[variant]
    assert why is None or problem.block[0] % 128 != 0, f"{variant} is not legal: {why}"
    return fresh_operands(variant, problem)


def order_bytes(a, limit):
    """Of a list of rows, those of more than `limit` blocks in parts, and of the rows so cut."""
    lengths = a.crow_indices.diff().cpu()
    cut = lengths > limit
    parts = int(((lengths + limit - 1) // limit)[cut].sum())
    return ENTRY_BYTES * (int((~cut).sum()) + parts + int(cut.sum()))


PROBLEMS = (
    case(),
    case(dtype=HALF, index_dtype=torch.int32, b_layout="column", out_layout="column"),
    case(columns=40, n=1000, pattern="one_dense_row", bias=True, activation="gelu"),
    case(rows=2, columns=33, pattern="full", out_layout="column", dtype=HALF, bias=True),
    case(rows=1, columns=5, pattern="full", b_layout="column", activation="relu"),
    case(op="linear", n=300, bias=True, activation="silu"),
    case(batch=(3,), pattern="one_dense_row", bias=True, activation="gelu_tanh"),
    case(batch=(2, 2), rows=2, pattern="full", dtype=HALF, b_layout="expanded"),
    case((256, 64), rows=3, columns=30, out_layout="padded"),
    case((64, 64), rows=90, columns=64, n=2056, density=0.02, bias=True),
    case((192, 128), rows=4, columns=12, pattern="one_dense_row"),
    case((64, 192), columns=9, n=264, pattern="full", rows=3, dtype=HALF),
)


@pytest.mark.parametrize("problem", PROBLEMS, ids=str)
@pytest.mark.parametrize("variant", SPLIT)
def test_right(variant, problem):
    operands = operands_for(variant, problem)
    if problem.op == "linear":
        assert_close(operands.call(variant), operands)
        return
    out = PoisonedOut(operands)
    operands.call(variant, out=out.tensor)
    assert_close(out.tensor, operands)
    out.assert_only_out_written()


@pytest.mark.parametrize("columns", [5, 8, 9, 16, 17, 31, 32, 33, 63, 64, 65, 129, 700])
def test_rows_of_any_length(columns):
    """Around the limits, and around a batch of column indices."""
    variant = next(name for name in SPLIT if name.endswith("m64_n128"))
    problem = case((64, 64), rows=3, columns=columns, n=72, pattern="one_dense_row")
    operands = operands_for(variant, problem)
    assert_close(operands.call(variant), operands)


@pytest.mark.parametrize("variant", SPLIT)
def test_its_list_is_built_once(variant):
    """One entry for each whole row and each part, one for each row that is cut, and no more."""
    operands = operands_for(variant, case(columns=40))
    a = operands.a
    a.prepare()
    before = plan_bytes()
    assert_close(operands.call(variant), operands)
    grown = plan_bytes() - before
    longest = int(a.crow_indices.diff().max())
    assert grown in {order_bytes(a, limit) for limit in LIMITS if limit < longest}
    for _ in range(3):
        operands.call(variant)
    assert plan_bytes() == before + grown
    assert grown <= 0.02 * a.values.numel() * a.values.element_size()


@pytest.mark.parametrize("variant", SPLIT)
def test_bounded_workspace(variant):
    """Sums of parts alone: a row's blocks over the smallest limit, and what tiles overhang."""
    operands = operands_for(variant, case(columns=40, pattern="one_dense_row"))
    p = operands.problem
    operands.call(variant)
    torch.cuda.synchronize()
    gc.collect()  # an earlier test's tensors, given back meanwhile, would count against it
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    result = operands.call(variant)
    used = torch.cuda.max_memory_allocated() - before - result.numel() * result.element_size()
    parts = p.k // p.block[1] // min(LIMITS)
    assert 0 < used <= parts * p.block[0] * 1024 * 4 + 4096


@pytest.mark.parametrize("variant", SPLIT)
@pytest.mark.parametrize("rows, columns, n", [(7, 4, 264), (300, 8, 2048)])
def test_not_where_nothing_would_be_cut(variant, rows, columns, n):
    """No row of more than four blocks; rows all alike, and enough of them."""
    a = random_bsr(rows * 128, columns * 128, 128, density=1, dtype=BF16, device="cuda")
    why = legality(a, torch.empty(columns * 128, n, dtype=BF16, device="cuda"))
    assert "too few for its parts to end sooner" in why[variant]


@pytest.mark.parametrize("variant", SPLIT)
def test_same_bits_a_hundred_times(variant):
    """Whoever computes which part, whatever else runs, in graphs too."""
    problem = case(rows=60, columns=24, n=1032, bias=True, activation="relu", density=0.2)
    operands = operands_for(variant, problem)
    busy, elsewhere = torch.randn(2048, 2048, device="cuda"), torch.cuda.Stream()
    torch.cuda.synchronize()

    def other_work():
        with torch.cuda.stream(elsewhere):
            busy.copy_((busy * busy.roll(1, 0)).clamp(-1, 1) + 0.1)

    first = check_the_same_bits(lambda: operands.call(variant), 100, other_work)
    assert_close(first, operands)


@pytest.mark.parametrize("variant", SPLIT)
def test_right_in_a_capture_that_may_not_build_the_list(variant):
    """Rows stay whole then; behind the capture they are cut."""
    operands = operands_for(variant, case(bias=True))
    operands.a.prepare()
    before = plan_bytes()
    check_a_capture_that_keeps_nothing(operands, variant)
    assert_close(operands.call(variant), operands)
    assert plan_bytes() > before


def test_chosen_where_one_row_dominates():
    """By the cost model alone."""
    uneven = make(case((64, 64), rows=64, columns=128, n=1024, pattern="one_dense_row"), "cuda")
    result = uneven.call()
    assert_close(result, uneven)
    assert any(torch.equal(result, uneven.call(name)) for name in SPLIT if "m64_" in name)


def test_a_race_with_several_limits():
    """Each entrant finds its own list among those of the launch."""
    operands = make(case((64, 64), rows=40, columns=96, n=520), "cuda")
    report = sparse_autotune.benchmark(
        operands.a, operands.b, variants=[*SPLIT, "wgmma_sm90"], num_runs=2
    )
    raced = [r for r in report.records if r.status != "unsupported"]
    assert {r.family for r in raced} == {"split_k_sm90", "wgmma_sm90"}
    assert all(r.status == "ok" for r in raced), raced
    assert all((r.memory_bytes > 0) == (r.family == "split_k_sm90") for r in raced)
