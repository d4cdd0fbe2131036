"""Under autocast a product converts its operands first, as torch's own products do."""

import pytest
import torch
from problem import BF16, FP32, FP64, HALF
from reference import close
from refusals import K, M, N, matrix

from sparse_autotune import (
    BsrTensor,
    SparseLinear,
    linear,
    matmul,
    override_torch,
    sampled_matmul,
    tune,
    variants,
)

pytestmark = pytest.mark.usefixtures("no_races")

F = torch.nn.functional


def operands(device="cpu"):
    """A matrix, x for its right, y for its left and a bias."""
    a = matrix(device)
    x, y = torch.randn(K, N, device=device), torch.randn(N, M, device=device)
    return a, x, y, torch.randn(M, device=device)


# Of a matrix (or torch's own BSR tensor, or a dense one) and the other operands.
PRODUCTS = {
    "@": lambda a, x, y, bias: a @ x,
    "dense @": lambda a, x, y, bias: y @ a,
    "vector": lambda a, x, y, bias: a @ x[:, 0],
    "transposed": lambda a, x, y, bias: a.t() @ y.t(),
    "torch.matmul": lambda a, x, y, bias: torch.matmul(a, x),
    "torch.mm": lambda a, x, y, bias: torch.mm(y, a),
    "torch.mv": lambda a, x, y, bias: torch.mv(a, x[:, 0]),
    "torch.addmm": lambda a, x, y, bias: torch.addmm(bias[:, None], a, x),
    "torch.addmm scaled": lambda a, x, y, bias: torch.addmm(y.t(), a, x, beta=2, alpha=3),
    "torch.addmm of a row": lambda a, x, y, bias: torch.addmm(x[:, 0], y, a),
    "torch.addmm, beta 0": lambda a, x, y, bias: torch.addmm(y.t(), a, x, beta=0),
    "linear": lambda a, x, y, bias: F.linear(x.t(), a),
    "linear with a bias": lambda a, x, y, bias: F.linear(x.t(), a, bias),
}
OURS = {
    "matmul": lambda a, x, y, bias: matmul(a, x),
    "matmul with a bias": lambda a, x, y, bias: matmul(a, x, bias=bias, activation="gelu"),
    "matmul from the left": lambda a, x, y, bias: matmul(y, a),
    "linear of this package": lambda a, x, y, bias: linear(x.t(), a, bias, activation="relu"),
}
# What each has as input: parameters in fp32, and activations that came from another product.
MIXTURES = {"all fp32": (FP32, FP32), "x in autocast's dtype": (FP32, None), "a": (None, FP32)}


def mixed(a, others, mixture, lower):
    of_a, of_others = (lower if dtype is None else dtype for dtype in MIXTURES[mixture])
    others = [other.to(of_others) for other in others]
    return a.to(of_a), others


@pytest.mark.parametrize("lower", [BF16, HALF], ids=str)
@pytest.mark.parametrize("mixture", MIXTURES)
@pytest.mark.parametrize("name", [*PRODUCTS, *OURS])
def test_products(name, mixture, lower, device):
    """The product of what the operands are converted to, bit by bit."""
    function = {**PRODUCTS, **OURS}[name]
    a, *others = operands(device)
    given, given_others = mixed(a, others, mixture, lower)
    expected = function(a.to(lower), *(other.to(lower) for other in others))
    with torch.autocast(device, dtype=lower):
        got = function(given, *given_others)
    assert got.dtype == lower
    assert torch.equal(got, expected)


@pytest.mark.parametrize("name", PRODUCTS)
def test_the_dtype_is_that_of_the_dense_product(name, device):
    function = PRODUCTS[name]
    a, *others = operands(device)
    with torch.autocast(device, dtype=BF16):
        got, expected = function(a, *others), function(a.to_dense(), *others)
    assert got.dtype == BF16
    assert expected.dtype == BF16 or (name, device) == ("torch.mv", "cpu")  # which torch forgot
    close(got.float(), expected.float(), 0.05)


@pytest.mark.parametrize("name", PRODUCTS)
def test_products_of_native_tensors(name, device):
    """Under `override_torch`; `matmul` takes them anyway."""
    function = PRODUCTS[name]
    a, *others = operands(device)
    with torch.autocast(device, dtype=BF16), override_torch():
        got = function(a.to_torch(), *others)
    expected = function(a.to(BF16), *(other.to(BF16) for other in others))
    assert got.dtype == BF16 and torch.equal(got, expected)
    with torch.autocast(device, dtype=BF16), override_torch():
        assert torch.equal(function(a.to_torch(), *(t.to(BF16) for t in others)), expected)


def test_native_tensors_without_the_override(device):
    a, x, y, bias = operands(device)
    with torch.autocast(device, dtype=BF16):
        for product in OURS.values():
            assert torch.equal(product(a.to_torch(), x, y, bias), product(a, x, y, bias))


def test_sampled_products(device):
    a, x, y, _ = operands(device)
    left, right = y.t(), x.t()  # (M, N) and (N, K)
    expected = sampled_matmul(left.to(BF16), right.to(BF16), a)
    for one, other in ((left, right), (left.to(BF16), right), (left, right.to(BF16))):
        for pattern in (a, a.to(BF16), a.to_torch()):
            with torch.autocast(device, dtype=BF16):
                got = sampled_matmul(one, other, pattern)
            assert got.dtype == BF16 and torch.equal(got.values, expected.values)


def test_what_is_no_product_keeps_its_dtype(device):
    """As torch has it of dense tensors."""
    a, _, _, _ = operands(device)
    with torch.autocast(device, dtype=BF16):
        for result in (2 * a, -a, a + a, a.sum(0), a.norm(), a.amax(1), a.to_dense(), a.clone()):
            assert result.dtype == FP32


def test_where_it_is_off(device):
    a, x, _, _ = operands(device)
    expected = matmul(a, x)
    with torch.autocast(device, dtype=BF16):
        with torch.autocast(device, enabled=False):
            assert torch.equal(matmul(a, x), expected)
        assert matmul(a, x).dtype == BF16
    if device == "cuda":
        with torch.autocast("cpu", dtype=BF16):
            assert torch.equal(matmul(a, x), expected)
    assert torch.equal(matmul(a, x), expected)


def test_fp64_stays(device):
    a, x, y, bias = operands(device)
    wide = [tensor.double() for tensor in (a, x, y, bias)]
    for product in (*PRODUCTS.values(), *OURS.values()):
        expected = product(*wide)
        with torch.autocast(device, dtype=BF16):
            got = product(*wide)
        assert got.dtype == FP64 and torch.equal(got, expected)


def test_questions_are_about_the_product_that_runs(device):
    a, x, _, _ = operands(device)
    expected = variants(a.to(BF16), x.to(BF16))
    with torch.autocast(device, dtype=BF16):
        assert variants(a, x) == variants(a, x.to(BF16)) == expected
        assert tune(a, x).problem.endswith("bf16")


def test_frozen_matrices(device):
    """Copies of frozen values are of their own dtype; that they changed is seen all the same."""
    a, x, _, _ = operands(device)
    expected = matmul(a.to(BF16), x.to(BF16))
    a.freeze()
    outside = matmul(a, x)
    for _ in range(2):
        with torch.autocast(device, dtype=BF16):
            assert torch.equal(matmul(a, x), expected)
        assert torch.equal(matmul(a, x), outside)
    a.values.mul_(2)
    with torch.autocast(device, dtype=BF16), pytest.raises(RuntimeError, match=r"frozen.*thaw\(\)"):
        matmul(a, x)


# Gradients


@pytest.mark.parametrize("x_dtype", [FP32, BF16], ids=str)
@pytest.mark.parametrize("name", ["@", "dense @", "torch.mm", "linear with a bias", "torch.addmm"])
def test_gradients(name, x_dtype, device):
    """In the dtype of each parameter, and those of the product in autocast's."""
    function = {**PRODUCTS, **OURS}[name]
    a, *others = operands(device)
    given = [tensor.to(x_dtype).requires_grad_() for tensor in others]
    a.requires_grad_()
    lowered = [tensor.detach().to(BF16).requires_grad_() for tensor in others]
    a_lowered = a.detach().to(BF16).requires_grad_()
    with torch.autocast(device, dtype=BF16):
        got = function(a, *given)
    expected = function(a_lowered, *lowered)
    upstream = torch.randn_like(expected)
    got.backward(upstream)
    expected.backward(upstream)
    assert a.grad.dtype == FP32 and torch.equal(a.values.grad, a_lowered.values.grad.float())
    for ours, theirs in zip(given, lowered, strict=True):
        assert (ours.grad is None) is (theirs.grad is None)
        if ours.grad is not None:
            assert ours.grad.dtype == x_dtype
            assert torch.equal(ours.grad, theirs.grad.to(x_dtype))


def test_gradients_of_sampled_products(device):
    a, x, y, _ = operands(device)
    factors = y.t().detach().requires_grad_(), x.t().detach().requires_grad_()
    lowered = [factor.detach().to(BF16).requires_grad_() for factor in factors]
    with torch.autocast(device, dtype=BF16):
        got = sampled_matmul(*factors, a).values
    expected = sampled_matmul(*lowered, a).values
    upstream = torch.randn_like(expected)
    got.backward(upstream)
    expected.backward(upstream)
    for ours, theirs in zip(factors, lowered, strict=True):
        assert ours.grad.dtype == FP32 and torch.equal(ours.grad, theirs.grad.float())


def test_a_training_step(device):
    """Parameters in fp32 beside activations that other layers made in bf16."""
    torch.manual_seed(3)
    layers = torch.nn.Sequential(
        torch.nn.Linear(12, 16), SparseLinear(16, 24, 4, 0.5), torch.nn.GELU(),
        SparseLinear(24, 8, (4, 6), 0.5),
    ).to(device)  # fmt: skip
    x = torch.randn(5, 12, device=device)
    heard = []
    for layer in layers:
        layer.register_forward_hook(lambda _, given, result: heard.append(result.dtype))
    with torch.autocast(device, dtype=BF16):
        loss = layers(x).float().square().mean()
    loss.backward()
    assert heard[:4] == [BF16] * 4
    for parameter in layers.parameters():
        assert parameter.grad.dtype == FP32 and bool(parameter.grad.isfinite().all())
    before = loss.item()
    torch.optim.SGD(layers.parameters(), lr=0.01).step()
    with torch.autocast(device, dtype=BF16):
        assert layers(x).float().square().mean() < before


# Refusals are about the rule that is broken: dtypes that autocast makes equal are none.


@pytest.mark.parametrize("dtype", [FP32, BF16, HALF], ids=str)
def test_refusals_of_shapes(dtype, device):
    a, x, y, _ = operands(device)
    x, y = x.to(dtype), y.to(dtype)
    with torch.autocast(device, dtype=BF16):
        for words, call in (
            (r"columns of a must match.*\(8, 12\).*\(11, 5\)", lambda: matmul(a, x[:11])),
            (r"columns of a must match the rows of b", lambda: matmul(x.t(), a)),
            (r"last dimension of x must match", lambda: linear(y, a)),
            (r"bias must have one value per row", lambda: matmul(a, x, bias=x[:, 0])),
            (r"activation must be one of", lambda: matmul(a, x, activation="tanh")),
            (r"variant must be one of", lambda: matmul(a, x, variant="fastest")),
            (r"y must have the columns of pattern", lambda: sampled_matmul(y.t(), y, a)),
            (r"columns of x must match the rows of y", lambda: sampled_matmul(y.t(), x, a)),
        ):
            with pytest.raises(ValueError, match=words):
                call()
        with pytest.raises(
            ValueError, match="last dimension of x must match the columns of weight"
        ):
            SparseLinear(12, 8, 2, 0.5, device=device)(y)


def test_refusals_of_indices(device):
    a, x, _, _ = operands(device)
    col = a.col_indices.clone()
    col[1] = 99
    bad = BsrTensor(a.crow_indices, col, a.values, a.shape)
    with torch.autocast(device, dtype=BF16):
        for call in (lambda: matmul(bad, x), lambda: linear(x.t(), bad)):
            with pytest.raises(ValueError, match=r"col_indices must lie in \[0, 4\)"):
                call()


def test_refusals_of_dtypes_that_stay(device):
    a, x, y, bias = operands(device)
    with torch.autocast(device, dtype=BF16):
        for words, call in (
            ("b must have the dtype of a: a has torch.float32, b torch.float64",
             lambda: matmul(a, x.double())),
            ("b must have the dtype of a: a has torch.float64, b torch.float32",
             lambda: matmul(a.double(), x)),
            ("b must have the dtype of a: a has torch.bfloat16, b torch.int64",
             lambda: matmul(a.bfloat16(), x.long())),
            ("x must have the dtype of weight", lambda: linear(x.t().double(), a)),
            ("bias must have the dtype of a: .*float64", lambda: matmul(a, x, bias=bias.double())),
            ("y must have the dtype of x: x has torch.float32, y torch.float64",
             lambda: sampled_matmul(y.t(), x.t().double(), a)),
            ("x must be float16, .*got torch.int64",
             lambda: sampled_matmul(y.t().long(), x.t().long(), a)),
        ):  # fmt: skip
            with pytest.raises(TypeError, match=words):
                call()


def test_out(device):
    """Autocast leaves products into a tensor alone, as torch's own."""
    a, x, _, _ = operands(device)
    out = torch.empty(M, N, device=device, dtype=FP32)
    with torch.no_grad():
        expected = matmul(a, x)
        with torch.autocast(device, dtype=BF16):
            for _ in range(3):
                out.fill_(float("nan"))
                assert matmul(a, x, out=out) is out
                assert torch.equal(out, expected)
            for dtype in (BF16, FP64, HALF):
                with pytest.raises(TypeError, match=r"out must .*torch\.float32"):
                    matmul(a, x, out=out.to(dtype))
