"""Tables of tasks: what sampled products for large blocks walk, kept with the pattern's plan."""

import dataclasses

import pytest
import torch
from machine import built
from plans import (
    check_a_capture_that_keeps_nothing,
    check_that_a_graph_keeps_what_it_reads,
    check_that_others_wait_for_it,
    fresh_operands,
    index_bytes,
    plan_bytes,
    reversed_rows,
)
from problem import BF16, HALF
from reference import assert_close
from sampled_problems import SampledProblem

from sparse_autotune import BsrTensor, sampled_matmul

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("no_races")]

VARIANTS = [name for name in built("cuda", "sampled_matmul") if name.startswith("sampled_sm90/")]

# On a GPU of 132 multiprocessors: sums in parts, the second time of tasks with parts of two blocks;
# blocks that two rows have left become one task; tasks of one row each, in several rounds; tasks
# that run across rows; very different rows.
PROBLEMS = [
    SampledProblem("few", 384, 640, 1112, (128, 128), BF16, x_layout="column"),
    SampledProblem("wide", 64, 768 * 12, 264, (64, 768), HALF, density=0.9, x_layout="column"),
    SampledProblem("joined", 128 * 33, 128 * 16, 392, (128, 128), HALF, density=0.503,
                   x_layout="column"),
    SampledProblem("rounds", 128 * 40, 128 * 26, 136, (128, 128), BF16, torch.int32, density=0.5),
    SampledProblem("across", 64 * 64, 64 * 64, 136, (64, 64), BF16, density=0.25,
                   x_layout="column"),
    SampledProblem("uneven", 64 * 200, 64 * 50, 136, (64, 64), HALF, torch.int32, "skewed"),
    SampledProblem("strips", 256 * 9, 192 * 7, 136, (256, 192), BF16, density=0.6),
]  # fmt: skip

both = pytest.mark.parametrize("problem", PROBLEMS, ids=str)
each = pytest.mark.parametrize("variant", VARIANTS)


def test_there_are_such_kernels():
    assert VARIANTS


@each
@both
def test_built_once_and_counted_with_the_plan(problem, variant):
    operands = fresh_operands(variant, problem)
    before = plan_bytes()
    operands.a.prepare()
    indices = before + index_bytes(operands.a)
    assert plan_bytes() == indices
    assert_close(operands.call(variant), operands)
    with_table = plan_bytes()
    assert with_table > indices
    for _ in range(2):
        assert_close(operands.call(variant), operands)
        assert plan_bytes() == with_table
    operands = None
    assert plan_bytes() == before


@each
@both
@pytest.mark.parametrize("known", [True, False])
def test_a_capture_builds_its_own(problem, variant, known):
    """Whether or not anybody has looked at the pattern."""
    operands = fresh_operands(variant, problem)
    if known:
        operands.a.prepare()
    before = plan_bytes()
    in_graph = check_a_capture_that_keeps_nothing(operands, variant)
    assert torch.equal(operands.call(variant), in_graph)
    assert plan_bytes() > before


@each
@both
def test_indices_edited_in_place(problem, variant):
    """The same blocks with the first block row last."""
    operands = fresh_operands(variant, problem)
    a, p = operands.a, problem
    assert_close(operands.call(variant), operands)
    crow, col, where = reversed_rows(a)
    x = operands.x.reshape(p.m // p.block[0], p.block[0], p.n).flip(0).reshape(p.m, p.n)
    a.crow_indices.copy_(crow), a.col_indices.copy_(col)
    moved = where.cpu().numpy()
    edited = dataclasses.replace(
        operands, x=x, reference=operands.reference[moved], tolerance=operands.tolerance[moved]
    )
    for _ in range(2):
        assert_close(edited.call(variant), edited)


@each
def test_blocks_of_two_shapes_on_the_same_indices(variant):
    operands = fresh_operands(variant, PROBLEMS[4])
    small = operands.a
    larger = BsrTensor(small.crow_indices, small.col_indices,
                       small.values.new_empty(len(small.col_indices), 128, 128),
                       (small.shape[0] * 2, small.shape[1] * 2))  # fmt: skip
    x = torch.randn(136, larger.shape[0], device="cuda").to(BF16).T
    y = torch.randn(136, larger.shape[1], device="cuda").to(BF16)
    simple = sampled_matmul(x, y, larger, variant="sampled_simt/tile32").values
    for _ in range(2):
        assert_close(operands.call(variant), operands)
        found = sampled_matmul(x, y, larger, variant=variant).values
        torch.testing.assert_close(found, simple, rtol=1e-2, atol=1e-2)


@each
@both
def test_a_graph_keeps_what_it_reads(problem, variant):
    check_that_a_graph_keeps_what_it_reads(variant, problem)


@each
@both
def test_others_wait_for_it(problem, variant):
    check_that_others_wait_for_it(variant, problem)
