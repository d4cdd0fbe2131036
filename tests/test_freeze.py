"""Frozen values: converted copies are kept, right, bounded, and gone when they must be."""

import gc

import pytest
import torch
from machine import each_built
from problem import BF16, FP32, Problem
from reference import assert_close, close, make
from test_compile import compiled

import sparse_autotune
from sparse_autotune import BsrTensor, SparseLinear, _tuner, linear, matmul, random_bsr
from sparse_autotune.errors import legality

pytestmark = pytest.mark.usefixtures("no_races")

# Families that keep a converted copy of frozen values.
COPYING = [
    ("cpu", "dense/mm"),
    pytest.param("cuda", "cublas_dense/mm", marks=pytest.mark.gpu),
    pytest.param("cuda", "cusparse_blocked_ell/alg1", marks=pytest.mark.gpu),
]


@pytest.fixture(autouse=True)
def _fp32_without_tf32(request):
    """Most of these products are fp32, which Blocked-ELL computes in TF32 only."""
    parameters = getattr(request.node, "callspec", None)
    variant = parameters.params.get("variant") if parameters else None
    if variant == "cusparse_blocked_ell/alg1" and "dtype" not in parameters.params:
        pytest.skip("fp32 in TF32 only")


def frozen_bytes():
    return _tuner.memory()["frozen_bytes"]


def expected(a, b):
    return (a.to_dense().double() @ b.double()).to(b.dtype)


@pytest.mark.parametrize("dtype", [FP32, BF16], ids=str)
@pytest.mark.parametrize(("device", "variant"), each_built())
def test_frozen_products_are_right(device, variant, dtype):
    """The first, which makes the copy, and those that use it."""
    case = Problem(f"frozen-{dtype}", 96, 128, 40, (32, 32), dtype, pattern="skewed")
    operands = make(case, device)
    operands.a.freeze()
    try:
        if legality(operands.a, operands.b)[variant] is None:
            for _ in range(3):
                assert_close(operands.call(variant), operands)
    finally:
        operands.a.thaw()


@pytest.mark.parametrize(("device", "variant"), COPYING)
def test_a_copy_is_kept_only_while_frozen(device, variant):
    a = random_bsr(128, 96, 32, density=0.5, device=device)
    b = torch.randn(96, 40, device=device)
    before = frozen_bytes()
    matmul(a, b, variant=variant)
    assert frozen_bytes() == before, "values that nobody froze must not be copied"
    a.freeze()
    close(matmul(a, b, variant=variant), expected(a, b))
    size = frozen_bytes() - before
    assert size > 0, "a frozen matrix should have its copy"
    close(matmul(a, b, variant=variant), expected(a, b))
    close(matmul(a, b[:, :7], variant=variant), expected(a, b[:, :7]))
    assert frozen_bytes() - before == size, "one copy serves all products"
    a.thaw()
    assert frozen_bytes() == before
    a.values.mul_(-3)
    close(matmul(a, b, variant=variant), expected(a, b))
    a.freeze()
    close(matmul(a, b, variant=variant), expected(a, b))
    del a
    gc.collect()
    assert frozen_bytes() == before


@pytest.mark.parametrize("mode", [torch.enable_grad, torch.inference_mode])
@pytest.mark.parametrize(("device", "variant"), COPYING)
def test_freezing_again_promises_the_new_values(device, variant, mode):
    """Without thaw() between, copies of the old values must not survive, whose version does not
    show the change in inference mode."""
    with mode():
        a = random_bsr(64, 96, 32, density=0.7, device=device).freeze()
        b = torch.randn(96, 16, device=device)
        matmul(a, b, variant=variant)
        a.values.mul_(2)
        a.freeze()
        close(matmul(a, b, variant=variant), expected(a, b))


@pytest.mark.parametrize(("device", "variant"), COPYING)
def test_freezing_again_keeps_the_copy_of_unchanged_values(device, variant, drops):
    a = random_bsr(64, 96, 32, density=0.7, device=device).freeze()
    matmul(a, torch.randn(96, 16, device=device), variant=variant)
    before = frozen_bytes()
    a.freeze()
    own = {t.data_ptr() for t in (a.crow_indices, a.col_indices, a.values)}
    assert frozen_bytes() == before and not [drop for drop in drops if own & set(drop[1:])]


@pytest.mark.parametrize(("device", "variant"), COPYING)
def test_matrices_that_share_memory_have_their_own_copies(device, variant):
    """The same values and indices in blocks of other shapes, and of another dtype, all frozen."""
    values = torch.randn(3, 32, 16, device=device)
    crow, col = torch.tensor([0, 2, 3], device=device), torch.tensor([0, 1, 1], device=device)
    first = BsrTensor(crow, col, values, (64, 32)).freeze()
    second = BsrTensor(crow, col, values.view(3, 16, 32), (32, 64)).freeze()
    third = BsrTensor(crow, col, values.view(3, 32, 16).view(torch.int32).view(FP32), (64, 32))
    b = torch.randn(64, 24, device=device)
    for _ in range(2):
        for a in (first, second, third.freeze()):
            rows = b[: a.shape[1]].contiguous()
            if legality(a, rows)[variant] is None:
                close(matmul(a, rows, variant=variant), expected(a, rows))


@pytest.mark.parametrize(("device", "variant"), COPYING)
def test_thawing_one_of_two_matrices_on_the_same_values(device, variant):
    a = random_bsr(64, 96, 32, density=0.7, device=device)
    b = torch.randn(96, 16, device=device)
    view = a.detach()
    a.freeze(), view.freeze()
    matmul(a, b, variant=variant)
    a.thaw()
    close(matmul(view, b, variant=variant), expected(a, b))
    a.values.add_(1)
    close(matmul(a, b, variant=variant), expected(a, b))
    with pytest.raises(RuntimeError, match="frozen BsrTensor must not change"):
        matmul(view, b, variant=variant)


@pytest.mark.parametrize(("device", "variant"), COPYING)
def test_bound_on_frozen_copies(device, variant):
    """Beyond it the conversion is part of every launch again, and the result the same."""
    a = random_bsr(64, 96, 32, density=0.7, device=device).freeze()
    b = torch.randn(96, 16, device=device)
    before = frozen_bytes()
    with sparse_autotune.settings.override(frozen_bytes=0):
        close(matmul(a, b, variant=variant), expected(a, b))
        assert frozen_bytes() == before
    close(matmul(a, b, variant=variant), expected(a, b))
    assert frozen_bytes() > before


def test_copies_go_with_the_pattern():
    """An in-place edit of the indices ends the plan, and the copies with it."""
    crow, col = torch.tensor([0, 1, 2]), torch.tensor([0, 2])
    a = BsrTensor(crow, col, torch.randn(2, 32, 32), (64, 96)).freeze()
    b = torch.randn(96, 16)
    close(matmul(a, b, variant="dense"), expected(a, b))
    a.col_indices.copy_(torch.tensor([1, 0]))
    close(matmul(a, b, variant="dense"), expected(a, b))


@pytest.mark.parametrize("product", ["matmul", "linear"])
def test_changed_frozen_values_raise_at_every_call_until_thawed(product):
    a = random_bsr(64, 64, 16, density=0.5)
    b = torch.randn(64, 64)
    call = {"matmul": lambda: matmul(a, b), "linear": lambda: linear(b, a)}[product]
    a.freeze()
    call()
    with torch.no_grad():
        a.values[0, 0, 0] += 1
    for ask in (call, call, lambda: sparse_autotune.variants(a, b), lambda: a @ b):
        with pytest.raises(RuntimeError, match=r"frozen.*version was.*thaw\(\)"):
            ask()
    a.thaw()
    call()


def test_values_that_start_to_require_grad_while_frozen():
    a = random_bsr(64, 64, 16, density=0.5).freeze()
    a.values.requires_grad_()
    b = torch.randn(64, 8)
    with pytest.raises(RuntimeError, match="they require grad"):
        matmul(a, b)
    with torch.no_grad():
        close(matmul(a, b), expected(a, b))


# Plans


def test_prepare_builds_what_the_product_uses():
    a, b = random_bsr(64, 64, 16, density=0.5), torch.randn(64, 8)
    before = _tuner.memory()
    a.prepare()
    prepared = _tuner.memory()
    assert prepared["plans"] == before["plans"] + 1
    assert prepared["plan_bytes"] > before["plan_bytes"]
    matmul(a, b), linear(b.T.contiguous(), a), matmul(a.to(torch.float64), b.double())
    assert _tuner.memory()["plans"] == prepared["plans"]
    del a
    gc.collect()
    assert _tuner.memory()["plans"] == before["plans"]
    assert _tuner.memory()["plan_bytes"] == before["plan_bytes"]


def test_prepare_without_blocks():
    for shape in ((64, 64), (0, 64), (64, 0)):
        a = random_bsr(*shape, 16, density=0)
        assert a.prepare() is a


def test_the_plan_used_least_recently_goes_first():
    matrices = [random_bsr(64, 64, 16, density=0.5) for _ in range(4)]
    b = torch.randn(64, 8)
    before = _tuner.memory()["plan_bytes"]
    matmul(matrices[0], b)
    size = _tuner.memory()["plan_bytes"] - before
    with sparse_autotune.settings.override(plan_bytes=3 * size):
        for i in (1, 2, 0, 0, 3):
            matmul(matrices[i], b)
        assert _tuner.memory()["plans"] == 3
        matrices[1] = None  # whose plan has gone
        assert _tuner.memory()["plans"] == 3
        matrices[0] = None
        assert _tuner.memory()["plans"] == 2


def test_bound_on_the_number_of_plans():
    """More than models have experts; the plans of all that are there go with the matrices."""
    bound = 1 << 14
    crow_indices, col_indices, values = torch.tensor([0, 1]), torch.tensor([0]), torch.ones(1, 1, 1)
    matrices = [
        BsrTensor(crow_indices.clone(), col_indices.clone(), values, (1, 1)).prepare()
        for _ in range(bound + 6)
    ]
    assert _tuner.memory()["plans"] == bound
    matrices.clear()
    assert _tuner.memory()["plans"] == 0


def test_bound_on_plans():
    """Old plans make room, and what they served stays right."""
    matrices = [random_bsr(64, 64, 16, density=0.5) for _ in range(6)]
    b = torch.randn(64, 8)
    with sparse_autotune.settings.override(plan_bytes=300):
        for a in matrices * 2:
            close(matmul(a, b), expected(a, b))
            assert _tuner.memory()["plan_bytes"] <= 300


@pytest.mark.usefixtures("fresh_dynamo")
def test_values_that_stand_in_for_frozen_ones():
    """Nobody promised that these will not change: no copy of them is kept."""
    layer = SparseLinear(24, 32, 4, 0.5).requires_grad_(False).freeze()
    x, values = torch.randn(3, 24), layer.values.clone()
    function, _ = compiled(lambda values: torch.func.functional_call(layer, {"values": values}, x))
    with sparse_autotune.settings.override(variant="dense"):
        for _ in range(3):
            values.mul_(2)
            others = BsrTensor(layer.crow_indices, layer.col_indices, values, (32, 24)).to_dense()
            close(function(values), x @ others.t() + layer.bias)
