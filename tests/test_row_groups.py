"""Groups of block rows, neighbours or matched pairs, and the columns they share."""

import math
import re

import pytest
import torch
from machine import built
from plans import (
    captured,
    check_a_capture_that_keeps_nothing,
    check_that_a_graph_keeps_what_it_reads,
    check_that_others_wait_for_it,
    fresh_operands,
    index_bytes,
    plan_bytes,
    with_reversed_rows,
)
from problem import BF16, HALF, Problem
from reference import assert_close

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("no_races")]

UNION = [name for name in built("cuda") if name.startswith("union_")]
PAIRS = [name for name in built("cuda") if name.startswith("wgmma_pairs_")]
MATCHED = PAIRS + [name for name in UNION if name.endswith("_matched")]
GROUPED = UNION + PAIRS


def case(variant, rows=37, columns=20, n=136, dtype=BF16, **changes):
    """Rows of very different lengths, the last group smaller than the others; b in the layout that
    the variant takes."""
    if variant in PAIRS:
        block, n = (64, 64), max(n, 264)
    else:
        sides = re.search(r"/b(\d+)(?:x(\d+))?", variant)
        block = int(sides[1]), int(sides[2] or sides[1])
    layout = "column" if variant.endswith(("_r32", "_lines", "_spans")) else "row"
    changes = {"pattern": "skewed", "b_layout": layout, **changes}
    name = f"groups-{block}-{rows}-{columns}-{n}-{dtype}-{sorted(changes.items())}"
    return Problem(name, rows * block[0], columns * block[1], n, block, dtype, **changes)


def group_bytes(a, variant):
    """What a grouping takes: 16 bytes a group, 8 a column, 4 a group's end.

    Matched rows take 4 more each, and there is room for as many columns as there are blocks.
    """
    rows = 2 if variant in PAIRS else int(re.search(r"_r(\d+)", variant)[1])
    groups = math.ceil((len(a.crow_indices) - 1) / rows)
    if variant in MATCHED:
        return (16 + 4 * rows + 4) * groups + 8 * a.nnzb + 4
    lengths = a.crow_indices.diff()
    row = torch.repeat_interleave(torch.arange(len(lengths), device=lengths.device), lengths)
    keys = row // rows * (a.shape[1] + 1) + a.col_indices
    columns = len(torch.unique(keys))
    return 16 * groups + 8 * columns + 4 * (groups + 1)


def test_there_are_such_kernels():
    assert UNION and PAIRS


@pytest.mark.parametrize("variant", GROUPED)
def test_built_once_and_counted_with_the_plan(variant):
    operands = fresh_operands(variant, case(variant))
    a, before = operands.a, plan_bytes()
    a.prepare()
    assert plan_bytes() == before + index_bytes(a)
    for _ in range(3):
        assert_close(operands.call(variant), operands)
        assert plan_bytes() == before + index_bytes(a) + group_bytes(a, variant)
    del a
    operands = None
    assert plan_bytes() == before


@pytest.mark.parametrize("dtype", [BF16, HALF])
@pytest.mark.parametrize("variant", GROUPED)
def test_a_capture_that_meets_the_plan_first_builds_its_own(variant, dtype):
    operands = fresh_operands(variant, case(variant, dtype=dtype, bias=True, activation="relu"))
    operands.a.prepare()
    before = plan_bytes()
    in_graph = check_a_capture_that_keeps_nothing(operands, variant)
    assert torch.equal(operands.call(variant), in_graph)
    assert plan_bytes() == before + group_bytes(operands.a, variant)


@pytest.mark.parametrize("variant", GROUPED)
def test_a_capture_that_meets_the_pattern_first_says_what_it_lacks(variant):
    operands = fresh_operands(variant, case(variant))
    with pytest.raises(ValueError, match="nobody has looked"):
        captured(lambda: operands.call(variant))
    torch.cuda.synchronize()
    assert_close(operands.call(variant), operands)


@pytest.mark.parametrize("variant", GROUPED)
def test_indices_edited_in_place(variant):
    operands = fresh_operands(variant, case(variant))
    a, before = operands.a, plan_bytes()
    assert_close(operands.call(variant), operands)
    edited = with_reversed_rows(operands)
    for _ in range(2):
        assert_close(operands.call(variant), edited)
    assert plan_bytes() == before + index_bytes(a) + group_bytes(a, variant)


@pytest.mark.parametrize("variant", GROUPED)
def test_a_graph_keeps_what_it_reads(variant):
    check_that_a_graph_keeps_what_it_reads(variant, case(variant))


@pytest.mark.parametrize("variant", GROUPED)
def test_others_wait_for_it(variant):
    check_that_others_wait_for_it(variant, case(variant))


@pytest.mark.parametrize("rows", [1, 2, 7, 8, 9, 15, 16, 17, 31, 33])
@pytest.mark.parametrize("variant", GROUPED)
def test_groups_of_any_size(variant, rows):
    operands = fresh_operands(variant, case(variant, rows=rows))
    assert_close(operands.call(variant), operands)


@pytest.mark.parametrize("columns", [1, 31, 32, 33, 8192, 8193, 20000])
@pytest.mark.parametrize("variant", UNION)
def test_columns_in_several_windows(variant, columns):
    """The builder looks at 8192 block columns at a time."""
    density = min(1.0, 400 / columns)
    problem = case(variant, rows=18, columns=columns, n=72, pattern="uniform", density=density)
    operands = fresh_operands(variant, problem)
    assert_close(operands.call(variant), operands)


@pytest.mark.parametrize("pattern", ["uniform", "empty_rows", "skewed", "one_dense_row"])
@pytest.mark.parametrize(("rows", "columns"), [(255, 3), (257, 33), (600, 40), (5, 1100)])
@pytest.mark.parametrize("variant", MATCHED)
def test_every_row_is_in_a_group(variant, rows, columns, pattern):
    """Rows are matched within windows of 256, by columns of which those 1024 apart count as one."""
    problem = case(variant, rows=rows, columns=columns, pattern=pattern, density=0.06)
    operands = fresh_operands(variant, problem)
    assert_close(operands.call(variant), operands)
