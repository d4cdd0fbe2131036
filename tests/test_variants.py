"""Every case with variants of the device, forced: right, or refused with a reason."""

import itertools
import math
import re

import pytest
import torch
from covering import by_family, check_each, each_covered
from kernel_problems import AS_LARGE_AS_A_GPU
from machine import assert_legal_somewhere, built, each_built, reasons_until_settled
from problem import BF16, Problem
from problems import CASES, TF32_CASES
from reference import PoisonedOut, assert_close, close, make, poisoned

import sparse_autotune
from sparse_autotune import benchmark, matmul, random_bsr, variants

pytestmark = pytest.mark.usefixtures("as_the_tolerance_assumes")


def _check(case, operands, variant):
    """The product into new memory, and into a poisoned `out` with guards around it."""
    # The next allocation of this size is likely to get this memory.
    poisoned(*case.result_shape, dtype=case.dtype, device=operands.b.device)
    result = operands.call(variant)
    assert_close(result, operands)
    assert result.is_contiguous()
    if case.op != "linear":
        out = PoisonedOut(operands)
        try:
            returned = operands.call(variant, out=out.tensor)
        except (RuntimeError, ValueError) as error:
            # Legality is asked for a contiguous result; another layout may need another variant.
            if case.out_layout == "row" or "not legal" not in str(error):
                raise
            assert_nothing_written(out)
            return
        assert returned is out.tensor
        assert_close(out.tensor, operands)
        out.assert_only_out_written()


def assert_nothing_written(out):
    assert bool(out.tensor.isnan().all())
    out.assert_only_out_written()


COMBINATIONS = each_covered(CASES, each_built(), AS_LARGE_AS_A_GPU)


@pytest.mark.parametrize(("case", "device", "names"), by_family(COMBINATIONS))
def test_case(case, device, names):
    operands = make(case, device)
    reasons = {"auto": None, **operands.legality()}
    check_each(names, lambda name: _check_or_refusal(case, operands, name, reasons[name]))


def _check_or_refusal(case, operands, variant, reason):
    if reason is None:
        _check(case, operands, variant)
        return
    assert reason.strip()
    if case.pattern == "empty":
        return  # nothing is launched, so nothing is refused
    with pytest.raises(ValueError, match=re.escape(reason)):
        operands.call(variant)
    if case.op == "linear":
        return
    out = PoisonedOut(operands)
    try:
        operands.call(variant, out=out.tensor)
    except (RuntimeError, ValueError) as error:
        # The question was about a contiguous result: another layout may have another answer.
        assert reason in str(error) or (case.out_layout != "row" and "not legal" in str(error))
        assert_nothing_written(out)
        return
    assert case.out_layout != "row", "refused for new memory, and done for the same layout"
    assert_close(out.tensor, operands)
    out.assert_only_out_written()


@pytest.mark.parametrize(("device", "variant"), each_built())
@pytest.mark.parametrize("b_layout", ["row", "column"])
@pytest.mark.parametrize("n", [132, 133, 136])
def test_nothing_is_written_between_rows(n, b_layout, device, variant):
    """Rows begin at multiples of 16 bytes, as TMA wants them, and end anywhere."""
    problem = Problem(f"between-{n}", 192, 256, n, (64, 64), BF16)
    operands = make(problem, device)
    buffer = torch.full((192, 144), math.nan, dtype=BF16, device=device)
    out, b = buffer[:, :n], torch.full((256, 144), math.nan, dtype=BF16, device=device)[:, :n]
    b.copy_(operands.b)
    if b_layout == "column":
        b = b.T.contiguous().T
    try:
        sparse_autotune.matmul(operands.a, b, out=out, variant=variant)
    except (RuntimeError, ValueError) as error:
        assert "not legal" in str(error)
        assert bool(buffer.isnan().all())
        return
    assert_close(out, operands)
    assert bool(buffer[:, n:].isnan().all())


@pytest.mark.gpu
@pytest.mark.parametrize("variant", built("cuda"))
@pytest.mark.parametrize("case", TF32_CASES, ids=str)
def test_tf32_case(case, variant):
    operands = make(case, "cuda")
    if operands.legality()[variant] is None:
        _check(case, operands, variant)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("rows_and_cols", [(32, 48), (0, 48), (32, 0)], ids=str)
def test_questions_about_nothing(rows_and_cols, dtype, device):
    """They have answers, as products without elements have results."""
    rows, cols = rows_and_cols
    for block in (1, 4, 16):
        a = random_bsr(rows, cols, block, density=0.5, dtype=dtype, device=device)
        for shape in ((cols, 0), (cols, 4), (0, cols, 4), (2, cols, 0)):
            b = torch.ones(shape, dtype=dtype, device=device)
            if a.nnzb * b.numel():
                continue
            assert variants(a, b) and variants(a, b.mT, linear=True)
            assert "nothing to race" in benchmark(a, b).failure
            x = torch.ones(*shape[:-2], rows, shape[-1], dtype=dtype, device=device)
            assert variants(x, b.mT, pattern=a)


def test_every_variant_is_legal_for_some_case(device):
    """Together with `test_case`: no variant goes untested, but for what the machine lacks."""
    run = [combination.values for combination in COMBINATIONS]
    run += itertools.product(TF32_CASES, ["cuda"], built("cuda"))
    reasons = reasons_until_settled(run, device, lambda case: make(case, device).legality())
    assert set(reasons) == set(built(device))
    assert_legal_somewhere(reasons)


def test_a_batch_is_one_dense_product_where_its_results_lie_together(no_races):
    """torch has no fast way to write others: in half types one took seconds."""
    a, b = random_bsr(48, 32, 16, density=0.5), torch.randn(5, 32, 24)
    assert "dense/bmm" in variants(a, b)
    assert "dense/bmm" not in variants(a, b[0])
    expected = a.to_dense() @ b
    close(matmul(a, b, variant="dense/bmm"), expected)
    wide = torch.full((5, 48, 30), float("nan"))
    for out in (wide[..., :24], torch.empty(5, 24, 48).mT):
        with pytest.raises((RuntimeError, ValueError), match="one after another"):
            matmul(a, b, out=out, variant="dense/bmm")
        close(matmul(a, b, out=out), expected)
    assert bool(wide[..., 24:].isnan().all())
