"""Rows of so many blocks that several thread blocks of one launch multiply them."""

import pytest
from machine import built
from plans import check_the_same_bits, fresh_operands
from problem import FP32, FP64, Problem
from reference import assert_close

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("no_races")]

NAMES = [name for name in built("cuda") if name.startswith("flat_rows/")]


def case(op, dtype, rows, blocks, block=(3, 3), **changes):
    """`blocks`: in the longest row, of which more than 512 are cut into parts."""
    name = f"flat-{op}-{dtype}-{rows}-{blocks}-{block}-{sorted(changes.items())}"
    m, k = rows * block[0], blocks * block[1]
    return Problem(name, m, k, 1, block, dtype, op=op, bias=True, activation="silu", **changes)


@pytest.mark.parametrize("variant", NAMES)
@pytest.mark.parametrize("dtype", [FP32, FP64])
@pytest.mark.parametrize("op", ["matmul", "transposed"])
def test_the_last_part_adds_up_all(variant, op, dtype):
    """Whichever ends last, where each launch finds its counters as the one before left them."""
    operands = fresh_operands(variant, case(op, dtype, 90, 5000, pattern="skewed"))
    assert_close(check_the_same_bits(lambda: operands.call(variant), 60), operands)


@pytest.mark.parametrize("variant", NAMES)
@pytest.mark.parametrize("blocks", [512, 513, 1023, 1024, 1025, 2600])
@pytest.mark.parametrize("block", [(1, 1), (2, 3), (32, 1)])
def test_parts_begin_and_end_anywhere(variant, block, blocks):
    """Long rows behind each other, whose parts share stretches of stored blocks."""
    problem = case("matmul", FP64, 5, blocks, block, pattern="full")
    operands = fresh_operands(variant, problem)
    assert_close(operands.call(variant), operands)
