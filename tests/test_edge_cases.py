"""Empty products, NaN and infinity, and more than 2^31 elements."""

import pathlib
import re

import numpy as np
import pytest
import torch
from machine import built, each_built
from problem import Problem
from reference import block_product, make, poisoned

import sparse_autotune
from sparse_autotune import BsrTensor, _tuner, linear, matmul, random_bsr
from sparse_autotune.errors import legality

pytestmark = pytest.mark.usefixtures("no_races")

PADDED = {v["name"] for v in _tuner.variants() if v["multiplies_padding"]}


# Empty products: the right shape and content, and nothing tuned, whatever the mode


def empty_matrix(rows, cols, device):
    return random_bsr(rows, cols, (2, 3), density=0, device=device)


@pytest.mark.parametrize(
    ("rows", "cols", "dense"),
    [
        (4, 6, (6, 5)), (4, 6, (6,)), (4, 6, (2, 6, 5)), (4, 6, (6, 1)),
        (0, 6, (6, 5)), (0, 6, (6,)), (0, 6, (3, 6, 5)),
        (4, 0, (0, 5)), (4, 0, (0,)), (4, 0, (3, 0, 5)),
        (4, 6, (6, 0)), (4, 6, (0, 6, 5)), (4, 6, (2, 0, 6, 5)), (0, 0, (0, 0)), (0, 0, (0,)),
    ],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("mode", ["on", "off"])
def test_empty_product(rows, cols, dense, mode, device, monkeypatch):
    monkeypatch.setattr(sparse_autotune.settings, "mode", mode)
    before = sparse_autotune.tuning_count()
    a, b = empty_matrix(rows, cols, device), torch.ones(dense, device=device)
    shape = (rows,) if len(dense) == 1 else (*dense[:-2], rows, dense[-1])
    bias = torch.arange(1.0, rows + 1, device=device)
    expected = torch.zeros(shape, device=device)
    for native in (a, a.to_torch()):
        assert torch.equal(matmul(native, b), expected)
    out = torch.full(shape, float("nan"), device=device)
    assert torch.equal(matmul(a, b, out=out), expected)
    biased = expected + (bias if len(dense) == 1 else bias[:, None])
    for activation, reference in (
        (None, lambda x: x),
        ("relu", torch.relu),
        ("gelu", torch.nn.functional.gelu),
        ("gelu_tanh", lambda x: torch.nn.functional.gelu(x, approximate="tanh")),
        ("silu", torch.nn.functional.silu),
    ):
        result = matmul(a, b, bias=bias, activation=activation)
        assert torch.allclose(result, reference(biased))
        out.fill_(float("nan"))
        assert torch.allclose(matmul(a, b, bias=bias, activation=activation, out=out),
                              reference(biased))  # fmt: skip
    x = b.mT if len(dense) > 1 else b
    assert torch.equal(linear(x, a), expected.mT if len(dense) > 1 else expected)
    assert torch.allclose(linear(x, a, bias), biased.mT if len(dense) > 1 else biased)
    assert sparse_autotune.tuning_count() == before


@pytest.mark.parametrize("dense", [(6, 0), (0, 6, 5)], ids=str)
def test_no_columns_but_stored_blocks(dense, device):
    a = random_bsr(4, 6, (2, 3), density=1, device=device)
    assert matmul(a, torch.ones(dense, device=device)).shape == (*dense[:-2], 4, dense[-1])


def test_no_matrices_of_strides_that_do_not_fold(device):
    a = random_bsr(4, 6, (2, 3), density=1, device=device)
    turned = torch.empty(3, 0, 6, 5, device=device).transpose(0, 1)
    assert matmul(a, turned).shape == (0, 3, 4, 5)
    assert linear(turned.mT, a).shape == (0, 3, 5, 4)
    assert matmul(a, turned, out=torch.empty(0, 3, 4, 5, device=device)).shape == (0, 3, 4, 5)


@pytest.mark.parametrize("dense", [(6, 0), (0, 6, 5), (2, 0, 6, 5)], ids=str)
def test_nothing_to_race_without_columns_or_matrices(dense, device):
    a, b = random_bsr(4, 6, (2, 3), density=1, device=device), torch.ones(dense, device=device)
    assert sparse_autotune.variants(a, b)
    assert sparse_autotune.benchmark(a, b).failure.startswith("nothing to race")


@pytest.mark.parametrize(("rows", "cols"), [(0, 6), (4, 0), (0, 0)], ids=str)
def test_transposes_without_rows_or_columns(rows, cols, device):
    a = empty_matrix(rows, cols, device).prepare()
    b = torch.ones(rows, 5, device=device, requires_grad=True)
    for result in (matmul(a.t(), b), matmul(b.T, a).T):
        assert torch.equal(result, torch.zeros(cols, 5, device=device))
        (grad,) = torch.autograd.grad(result.sum(), b)
        assert torch.equal(grad, torch.zeros(rows, 5, device=device))
    sampled = sparse_autotune.sampled_matmul(b, torch.ones(5, cols, device=device), a)
    assert sampled.values.shape == (0, 2, 3)


# NaN and infinity


def nonfinite_problem(dtype, block):
    return Problem(f"nonfinite-{dtype}-{block}", 6 * block, 8 * block, 40, (block, block), dtype,
                   density=0.5)  # fmt: skip


def nonfinite_operands(dtype, block, device):
    """`a`, `b` with non-finite elements in both, and the exact product with where it may differ.

    Returns:
        a, b, the fp64 product of the stored blocks, and a mask of the elements for which some
        padding meets a non-finite element.
    """
    operands = make(nonfinite_problem(dtype, block), device)
    a, b = operands.a.clone(), operands.b.clone()
    b[1, 3], b[block + 2, 5], b[-1, 7] = float("inf"), float("-inf"), float("nan")
    b[0, 9], b[2 * block, 9] = float("inf"), float("-inf")
    a.values[0, 1, 2], a.values[-1, 0, 0] = float("inf"), float("nan")
    crow, col = a.crow_indices.tolist(), a.col_indices.tolist()
    mask = np.zeros((6, 8), dtype=bool)
    for row in range(6):
        mask[row, col[crow[row] : crow[row + 1]]] = True
    with np.errstate(invalid="ignore"):
        exact = block_product(mask, a.values.double().cpu().numpy(), b.double().cpu().numpy())
    touched = ~np.isfinite(b.double().cpu().numpy()).all(0)[None, :] & np.ones_like(exact, bool)
    return operands, a, b, exact, touched


def check_nonfinite(result, operands, exact, may_be_nan):
    got = result.double().cpu().numpy()
    free = may_be_nan & np.isnan(got)
    assert (np.isnan(got) == np.isnan(exact))[~free].all()
    finite = np.isfinite(exact)
    assert (got == exact)[np.isinf(exact) & ~free].all()
    # The operands' own tolerance holds for elements that no changed element reaches.
    with np.errstate(invalid="ignore"):
        close = np.abs(got - exact) <= operands.tolerance
    assert close[finite & ~free].all()


@pytest.mark.parametrize(("device", "variant"), each_built())
@pytest.mark.parametrize("block", [8, 16, 32, 64])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_nonfinite_reaches_what_stored_blocks_carry_it_to(dtype, block, device, variant):
    operands, a, b, exact, touched = nonfinite_operands(dtype, block, device)
    if legality(a, b)[variant] is not None:
        return  # `test_variants` forces it and looks at the reason
    result = matmul(a, b, variant=variant)
    may_be_nan = touched if variant in PADDED else np.zeros_like(touched)
    # A block that is not stored, times the non-finite element: only then may the result differ.
    check_nonfinite(result, operands, exact, may_be_nan)


def test_exact_nonfinite(device, monkeypatch):
    operands, a, b, exact, _ = nonfinite_operands(torch.float32, 16, device)
    monkeypatch.setattr(sparse_autotune.settings, "exact_nonfinite", True)
    reasons = legality(a, b)
    for name in PADDED:
        if name in reasons:
            assert reasons[name] is not None
            with pytest.raises(ValueError, match=f"'{name}' is not legal"):
                matmul(a, b, variant=name)
    if device == "cpu":
        assert "exact_nonfinite" in " ".join(filter(None, reasons.values()))
    assert any(why is None for why in reasons.values())
    check_nonfinite(matmul(a, b), operands, exact, np.zeros_like(exact, bool))


@pytest.mark.parametrize(("device", "variant"), each_built())
def test_relu_keeps_nan(device, variant):
    a = BsrTensor.from_dense(torch.eye(32, device=device), 16)
    b = torch.zeros(32, 24, device=device)
    b[3, 5], b[4, 6] = float("nan"), float("-inf")
    if legality(a, b, activation="relu")[variant] is not None:
        return
    result = matmul(a, b, activation="relu", variant=variant)
    assert bool(result[3, 5].isnan())
    assert bool(result[:, :5].eq(0).all())


# Products with more than 2^31 elements


def available_bytes(device):
    if device == "cuda":
        return torch.cuda.mem_get_info()[0]
    # Not the free pages: files that were read hold most of them, until somebody wants the memory.
    text = pathlib.Path("/proc/meminfo").read_text()
    return 1024 * int(re.search(r"^MemAvailable: +(\d+) kB$", text, re.MULTILINE).group(1))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("device", "variant", "large"),
    [
        ("cpu", "auto", "result"),
        *(
            pytest.param("cuda", variant, large, marks=pytest.mark.gpu)
            for variant in ("auto", *built("cuda"))
            for large in ("result", "b", "values")
        ),
    ],
)
def test_more_than_2_to_the_31_elements(device, variant, large):
    needed = {"cpu": 12, "cuda": 32}[device]
    if available_bytes(device) < needed * 2**30:
        pytest.skip(f"needs {needed} GiB of free memory")
    block = 64
    blocks, n = {
        "result": ((1026, 1), 32768),
        "b": ((1, 1026), 32768),
        "values": ((1024, 1024), 8),
    }[large]
    rows, cols = (count * block for count in blocks)
    if large == "values":  # the first half of every row
        crow = torch.arange(blocks[0] + 1, device=device) * 513
        col = torch.arange(513, device=device).repeat(blocks[0])
    else:  # the last block of both is the only one
        crow = torch.zeros(blocks[0] + 1, dtype=torch.int64, device=device)
        crow[-1] = 1
        col = torch.tensor([blocks[1] - 1], device=device)
    values = torch.empty(col.numel(), block, block, dtype=torch.float16, device=device).normal_()
    a = BsrTensor(crow, col, values, (rows, cols))
    b = torch.zeros(cols, n, dtype=torch.float16, device=device)
    b[-block:].normal_()
    b[:block].normal_()
    assert max(rows * n, b.numel(), values.numel()) > 2**31
    if variant != "auto" and (why := legality(a, b)[variant]) is not None:
        pytest.skip(f"{variant} is not legal: {why}")
    out = poisoned(rows, n, dtype=torch.float16, device=device)
    matmul(a, b, out=out, variant=variant)
    first = int(crow[-2])
    expected = torch.zeros(block, n, dtype=torch.float32, device=device)
    for i in range(first, values.shape[0]):
        part = b[int(col[i]) * block : (int(col[i]) + 1) * block].float()
        expected += values[i].float() @ part
    assert torch.allclose(out[-block:].float(), expected, rtol=2e-3, atol=2e-2)
    for strip in out[:-block].split(2048):  # in strips: a mask of the whole would be as large
        # A NaN is true, as all that is not zero.
        assert not bool((strip.isnan() if large == "values" else strip).any())


@pytest.mark.slow
@pytest.mark.gpu
@pytest.mark.parametrize("form", ["matmul", "linear"])
@pytest.mark.parametrize(("block", "tile"), [(16, 512), (64, 128)], ids=str)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("variant", built("cuda"))
def test_more_columns_than_a_grid_has_tiles(variant, dtype, block, tile, form, monkeypatch):
    """CUDA takes 65535 thread blocks but along one dimension of a grid."""
    if available_bytes("cuda") < 24 * 2**30:
        pytest.skip("needs 24 GiB of free memory")
    monkeypatch.setattr(torch.backends.cuda.matmul, "allow_tf32", True)
    n = 65535 * tile + 72
    index = torch.arange(2, device="cuda")
    a = BsrTensor(index, index[:1].clone(), torch.randn(1, block, block, device="cuda",
                  dtype=dtype), (block, block))  # fmt: skip
    x = torch.randn(n, block, dtype=dtype, device="cuda")
    b = x if form == "linear" else x.T.contiguous()
    why = legality(a, b, linear=form == "linear")[variant]
    if why is not None:
        pytest.skip(f"{variant} is not legal: {why}")
    result = linear(b, a, variant=variant).T if form == "linear" else matmul(a, b, variant=variant)
    for columns in (slice(0, 128), slice(n // 2, n // 2 + 128), slice(n - 128, n)):
        expected = a.values[0].double() @ x[columns].double().T
        assert torch.allclose(result[:, columns].double(), expected, rtol=2e-2, atol=5e-2)
    assert not bool(result.isnan().any())
