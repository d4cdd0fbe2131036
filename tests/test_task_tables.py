"""Tables of tasks: what sampled products for large blocks walk, kept with the pattern's plan."""

import dataclasses
import math

import pytest
import torch
from machine import built
from plans import captured, index_bytes, plan_bytes
from problem import BF16, HALF
from reference import assert_close
from sampled_problems import SampledProblem, make_sampled

from sparse_autotune import BsrTensor, sampled_matmul
from sparse_autotune.errors import legality

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


def fresh(problem, variant):
    """A problem's tensors, with indices that no other test's plan knows."""
    operands = make_sampled(problem, "cuda")
    why = legality(operands.x, operands.b, pattern=operands.pattern)[variant]
    if why is not None:
        pytest.skip(f"{variant} is not legal: {why}")
    return dataclasses.replace(operands, pattern=operands.pattern.clone())


def test_there_are_such_kernels():
    assert VARIANTS


@each
@both
def test_built_once_and_counted_with_the_plan(problem, variant):
    operands = fresh(problem, variant)
    before = plan_bytes()
    operands.pattern.prepare()
    indices = before + index_bytes(operands.pattern)
    assert plan_bytes() == indices
    assert_close(operands.call(variant).values, operands)
    with_table = plan_bytes()
    assert with_table > indices
    for _ in range(2):
        assert_close(operands.call(variant).values, operands)
        assert plan_bytes() == with_table
    operands = None
    assert plan_bytes() == before


@each
@both
@pytest.mark.parametrize("known", [True, False])
def test_a_capture_builds_its_own(problem, variant, known):
    """Whether or not anybody has looked at the pattern."""
    operands = fresh(problem, variant)
    if known:
        operands.pattern.prepare()
    before = plan_bytes()
    graph, in_graph = captured(lambda: operands.call(variant).values)
    assert plan_bytes() == before
    for _ in range(2):
        in_graph.fill_(math.nan)
        graph.replay()
        assert_close(in_graph, operands)
    assert torch.equal(operands.call(variant).values, in_graph)
    assert plan_bytes() > before


@each
@both
def test_indices_edited_in_place(problem, variant):
    """The same blocks with the first block row last."""
    operands = fresh(problem, variant)
    a, p = operands.pattern, problem
    assert_close(operands.call(variant).values, operands)
    lengths = a.crow_indices.diff()
    where = torch.arange(len(a.col_indices), device="cuda").split(lengths.tolist())
    where = torch.cat(where[::-1])
    x = operands.x.reshape(p.m // p.block[0], p.block[0], p.n).flip(0).reshape(p.m, p.n)
    a.crow_indices[1:] = lengths.flip(0).cumsum(0)
    a.col_indices.copy_(a.col_indices[where])
    moved = where.cpu().numpy()
    edited = dataclasses.replace(
        operands, x=x, reference=operands.reference[moved], tolerance=operands.tolerance[moved]
    )
    for _ in range(2):
        assert_close(edited.call(variant).values, edited)


@each
def test_blocks_of_two_shapes_on_the_same_indices(variant):
    operands = fresh(PROBLEMS[4], variant)
    small = operands.pattern
    larger = BsrTensor(small.crow_indices, small.col_indices,
                       small.values.new_empty(len(small.col_indices), 128, 128),
                       (small.shape[0] * 2, small.shape[1] * 2))  # fmt: skip
    x = torch.randn(136, larger.shape[0], device="cuda").to(BF16).T
    y = torch.randn(136, larger.shape[1], device="cuda").to(BF16)
    simple = sampled_matmul(x, y, larger, variant="sampled_simt/tile32").values
    for _ in range(2):
        assert_close(operands.call(variant).values, operands)
        found = sampled_matmul(x, y, larger, variant=variant).values
        torch.testing.assert_close(found, simple, rtol=1e-2, atol=1e-2)


@each
@both
def test_a_graph_keeps_what_it_reads(problem, variant):
    """The pattern and its plan are gone; what others' plans hold wants the memory."""
    operands = fresh(problem, variant)
    a = operands.pattern
    kept = a.crow_indices, a.col_indices
    operands.call(variant)
    graph, result = captured(lambda: operands.call(variant).values)
    expected, before = dataclasses.replace(operands, pattern=None), plan_bytes()
    others = [a.clone() for _ in range(4)]
    operands = a = None
    assert plan_bytes() < before
    for other in others:
        sampled_matmul(expected.x, expected.b, other, variant=variant)
    result.fill_(math.nan)
    graph.replay()
    torch.cuda.synchronize()
    assert_close(result, expected)
    del kept


@each
@both
def test_others_wait_for_it(problem, variant):
    """A table is built behind work under way: no other stream, and no graph, may be earlier."""
    for elsewhere in ("stream", "graph"):
        operands = fresh(problem, variant)
        operands.pattern.prepare()
        builder, other = torch.cuda.Stream(), torch.cuda.Stream()
        torch.cuda.synchronize()
        with torch.cuda.stream(builder):
            torch.cuda._sleep(200_000_000)
            first = operands.call(variant).values
        assert not builder.query()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(other):
            if elsewhere == "graph":
                graph.capture_begin()  # torch.cuda.graph() would wait for all streams
            result = operands.call(variant).values
            if elsewhere == "graph":
                graph.capture_end()
                graph.replay()
        other.synchronize()
        assert_close(result, operands)
        torch.cuda.synchronize()
        assert torch.equal(result, first)
