"""Rows of so many blocks that several thread blocks of one launch multiply them."""

import pytest
from machine import built
from plans import check_the_same_bits, fresh_operands
from problem import FP32, FP64, Problem
from reference import assert_close

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("no_races")]

NAMES = [name for name in built("cuda") if name.startswith("flat_rows/")]
MERGED = [name for name in built("cuda") if name.startswith("merge_rows/")]
COLUMNS = {**dict.fromkeys(NAMES, 1), **dict.fromkeys(MERGED, 6)}


def case(op, dtype, rows, blocks, block=(3, 3), n=1, **changes):
    """`blocks`: in the longest row, of which more than 512 are cut into parts."""
    name = f"flat-{op}-{dtype}-{rows}-{blocks}-{block}-{n}-{sorted(changes.items())}"
    m, k = rows * block[0], blocks * block[1]
    return Problem(name, m, k, n, block, dtype, op=op, bias=True, activation="silu", **changes)


@pytest.mark.parametrize("variant", COLUMNS)
@pytest.mark.parametrize("dtype", [FP32, FP64])
@pytest.mark.parametrize("op", ["matmul", "transposed"])
def test_the_last_part_adds_up_all(variant, op, dtype):
    """Whichever ends last, where each launch finds its counters as the one before left them."""
    problem = case(op, dtype, 90, 5000, n=COLUMNS[variant], pattern="skewed")
    operands = fresh_operands(variant, problem)
    assert_close(check_the_same_bits(lambda: operands.call(variant), 60), operands)


@pytest.mark.parametrize("variant", NAMES)
@pytest.mark.parametrize("blocks", [512, 513, 1023, 1024, 1025, 2600])
@pytest.mark.parametrize("block", [(1, 1), (2, 3), (32, 1)])
def test_parts_begin_and_end_anywhere(variant, block, blocks):
    """Long rows behind each other, whose parts share stretches of stored blocks."""
    problem = case("matmul", FP64, 5, blocks, block, pattern="full")
    operands = fresh_operands(variant, problem)
    assert_close(operands.call(variant), operands)


@pytest.mark.parametrize("variant", MERGED)
@pytest.mark.parametrize(("blocks", "batch"), [(30, ()), (700, (3,)), (40_000, (64,))], ids=str)
def test_rows_without_a_block(variant, blocks, batch):
    """So many beside one long row that more end in a chunk than are noted at one time, and a row
    over many chunks of many shares."""
    rows = 10_000_000 // blocks
    problem = case("matmul", FP32, rows, blocks, (1, 1), 2, pattern="one_dense_row", batch=batch)
    operands = fresh_operands(variant, problem)
    assert_close(operands.call(variant), operands)
