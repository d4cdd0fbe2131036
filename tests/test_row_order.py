"""Block rows longest first: how kernels for large blocks take them; plans keep that order."""

import dataclasses
import re

import pytest
import torch
from machine import built
from parallel import run_threads
from plans import (
    check_a_capture_that_keeps_nothing,
    check_that_a_graph_keeps_what_it_reads,
    check_that_others_wait_for_it,
    check_the_same_bits,
    fresh_operands,
    index_bytes,
    plan_bytes,
    with_reversed_rows,
)
from problem import BF16, FP32, FP64, HALF, Problem
from reference import assert_close, make

import sparse_autotune
from sparse_autotune import _tuner, random_bsr
from sparse_autotune.errors import legality

pytestmark = pytest.mark.usefixtures("no_races")

gpu = pytest.mark.gpu

# Families that take block rows longest first, and the dtypes that they multiply.
FAMILIES = {
    "wgmma_sm90": (BF16, HALF),
    "mma_sm80": (BF16, HALF),
    "dmma_sm80": (FP64,),
    "dmma_sm90": (FP64,),
}
# Of the ragged ones one test is enough: they differ from wgmma_sm90 in how B and C travel.
RAGGED = "wgmma_ragged_sm90/m128_n128"
# Where one is enough.
ANY = "wgmma_sm90/m128_n128"
# What cuts rows or groups them: see test_split_k.py, uneven_problems.py and test_row_groups.py.
ELSEWHERE = re.compile(r"split_k_|fma_tiled/|union_|wgmma_pairs_|wgmma_ragged_|\w+/\w+_groups")
NAMES = [name for name in built("cuda") if not ELSEWHERE.match(name)]
ORDERED = {name: FAMILIES[f] for name in NAMES if (f := name.split("/")[0]) in FAMILIES}
OTHERS = [name for name in NAMES if name not in ORDERED]
ROW_BYTES = 16


def case(dtype=BF16, block=(128, 128), rows=12, columns=8, n=272, **changes):
    """Legal for every configuration of the dtype, with rows of very different lengths."""
    changes = {"pattern": "skewed", **changes}
    name = f"order-{block}-{rows}-{columns}-{n}-{dtype}-{sorted(changes.items())}"
    return Problem(name, rows * block[0], columns * block[1], n, block, dtype, **changes)


def order_bytes(a):
    return ROW_BYTES * (a.crow_indices.numel() - 1)


# What it costs


@gpu
@pytest.mark.parametrize("dtype", [BF16, FP64], ids=str)
def test_built_once_and_counted_with_the_plan(dtype):
    """The first product that has a use for it builds it; all such variants share it."""
    names = [name for name, dtypes in ORDERED.items() if dtype in dtypes]
    operands = fresh_operands(names[0], case(dtype))
    a, before = operands.a, plan_bytes()
    a.prepare()
    assert plan_bytes() == before + index_bytes(a)
    why = legality(a, operands.b)
    assert not [(name, why[name]) for name in names if why[name] is not None]
    for name in names * 2:
        assert_close(operands.call(name), operands)
        assert plan_bytes() == before + index_bytes(a) + order_bytes(a)
    del a
    operands = None
    assert plan_bytes() == before


@gpu
def test_ragged_rows_share_it():
    operands = fresh_operands(RAGGED, case(n=261))
    before = plan_bytes()
    for _ in range(2):
        assert_close(operands.call(RAGGED), operands)
        assert plan_bytes() == before + index_bytes(operands.a) + order_bytes(operands.a)


@gpu
def test_little_beside_the_values():
    a = fresh_operands(ANY, case()).a
    assert order_bytes(a) <= 0.02 * a.values.numel() * a.values.element_size()


@gpu
@pytest.mark.parametrize("pattern", ["even", "full"])
def test_none_where_rows_are_even(pattern):
    operands = fresh_operands(ANY, case(pattern=pattern, density=0.5))
    before = plan_bytes()
    assert_close(operands.call(ANY), operands)
    assert plan_bytes() == before + index_bytes(operands.a)


@gpu
@pytest.mark.parametrize("variant", OTHERS)
def test_none_for_variants_that_have_no_use_for_it(variant):
    operands = fresh_operands(variant, case())
    before = plan_bytes()
    assert_close(operands.call(variant), operands)
    assert plan_bytes() == before + index_bytes(operands.a)


def test_none_on_a_cpu():
    operands = make(case(FP32))
    a, before = operands.a.clone(), plan_bytes()
    assert_close(dataclasses.replace(operands, a=a).call(), operands)
    # The indices, and the copy that they are compared with.
    assert plan_bytes() == before + 2 * index_bytes(a)


@gpu
def test_bound_on_plans():
    """Orders count, and what they served stays right when they make room."""
    all_operands = [fresh_operands(ANY, case()) for _ in range(5)]
    one = index_bytes(all_operands[0].a) + order_bytes(all_operands[0].a)
    with sparse_autotune.settings.override(plan_bytes=2 * one):
        for operands in all_operands * 2:
            assert_close(operands.call(ANY), operands)
            operands.a.prepare()
            assert _tuner.memory()["plan_bytes"] <= 3 * one  # an order comes after its plan
        random_bsr(64, 64, 16, density=1, device="cuda").prepare()
        assert _tuner.memory()["plan_bytes"] <= 2 * one


# What it must not change


@gpu
@pytest.mark.parametrize(
    ("variant", "dtype"), [(name, dtype) for name in ORDERED for dtype in ORDERED[name]]
)
def test_same_bits_with_and_without(variant, dtype):
    """A pattern first met in a capture has none, as building one would synchronise."""
    operands = fresh_operands(variant, case(dtype, bias=True, activation="relu"))
    operands.a.prepare()
    before = plan_bytes()
    without = check_a_capture_that_keeps_nothing(operands, variant)
    ordered = operands.call(variant)
    assert plan_bytes() == before + order_bytes(operands.a)
    assert torch.equal(ordered, without)


@gpu
@pytest.mark.parametrize("variant", ["auto", *ORDERED])
def test_indices_edited_in_place(variant):
    """The version counters tell: the old order would send rows to each other's places."""
    dtype = BF16 if variant == "auto" else ORDERED[variant][0]
    operands = fresh_operands(ANY if variant == "auto" else variant, case(dtype))
    before = plan_bytes()
    assert_close(operands.call(variant), operands)
    grown = plan_bytes()
    edited = with_reversed_rows(operands)
    for _ in range(2):
        assert_close(operands.call(variant), edited)
    assert plan_bytes() == grown > before


@gpu
@pytest.mark.parametrize("variant", ORDERED)
def test_a_graph_keeps_what_it_reads(variant):
    check_that_a_graph_keeps_what_it_reads(variant, case(ORDERED[variant][0]))


@gpu
@pytest.mark.parametrize("variant", ORDERED)
def test_others_wait_for_it(variant):
    check_that_others_wait_for_it(variant, case(ORDERED[variant][0]))


@gpu
@pytest.mark.parametrize("variant", ORDERED)
def test_more_tiles_than_two_a_multiprocessor(variant):
    """From there on tiles go to whoever is free; launches at the same time share nothing."""
    operands = fresh_operands(variant, case(ORDERED[variant][0], rows=80, columns=6, n=2064))
    assert_close(check_the_same_bits(lambda: operands.call(variant), 60), operands)


@gpu
@pytest.mark.parametrize("columns", [31, 32, 33, 65, 4200])
def test_rows_of_any_length(columns):
    """Around a batch of column indices, and past the lengths that are told apart."""
    variant = "wgmma_sm90/m64_n128"
    problem = case(block=(64, 64), rows=3, columns=columns, n=72, pattern="one_dense_row")
    operands = fresh_operands(variant, problem)
    assert_close(operands.call(variant), operands)


@gpu
def test_threads_build_the_same_one():
    operands = fresh_operands(ANY, case())
    before = plan_bytes()

    def work():
        with torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(3):
                result = operands.call(ANY)
            torch.cuda.current_stream().synchronize()
            assert_close(result, operands)

    torch.cuda.synchronize()
    run_threads(*[work] * 4)
    assert plan_bytes() == before + index_bytes(operands.a) + order_bytes(operands.a)
