"""Which plain eager products are done directly; which are not: test_direct_limits.py."""

import math

import pytest
import torch
from problem import BF16
from reference import close
from test_dispatch import Listener, operands_on

import sparse_autotune
from sparse_autotune import BsrTensor, linear, matmul, random_bsr, sampled_matmul

pytestmark = pytest.mark.filterwarnings("ignore:.*Sparse BSR tensor support is in beta")


def by_the_operator(call):
    """What whoever listens is given."""
    with Listener() as listener:
        result = call()
    assert any(name.startswith("sparse_autotune.bsr_") for name in listener.heard)
    return result


def check_direct_from_the_second_on(calls, call):
    """The operator is asked once, and it gives these bits, too."""
    count, first = calls.during(call)
    assert count == 1
    for _ in range(2):
        count, result = calls.during(call)
        assert count == 0
        assert torch.equal(result, first)
    assert torch.equal(by_the_operator(call), first)
    return first


def test_a_patterns_first_product_is_the_operators(calls, device):
    """It makes the plan, which all who share the indices find."""
    a = random_bsr(64, 64, 16, density=0.5, device=device)
    b = torch.randn(64, 12, device=device)
    for expected in (1, 0, 0):
        count, result = calls.during(lambda: matmul(a, b))
        assert count == expected
        close(result, a.to_dense() @ b)
    for other in (a.detach(), 2 * a, BsrTensor(a.crow_indices, a.col_indices, a.values, a.shape)):
        count, result = calls.during(lambda other=other: matmul(other, b))
        assert count == 0
        close(result, other.to_dense() @ b)
    # What the plan says nothing of yet is the operator's once.
    lower, short = a.to(BF16), b[:, :5].contiguous()
    for call in (
        lambda: matmul(a.t(), b),
        lambda: matmul(a, short),
        lambda: matmul(a, b, activation="relu"),
        lambda: matmul(lower, b.to(BF16)),
    ):
        check_direct_from_the_second_on(calls, call)
    layer = sparse_autotune.SparseLinear(64, 48, 16, 0.5, device=device).requires_grad_(False)
    for expected in (1, 0, 0):
        assert calls.during(lambda: layer(b.T))[0] == expected
    sparse_autotune.prune_(layer, 0.25)  # other indices
    for expected in (1, 0, 0):
        assert calls.during(lambda: layer(b.T))[0] == expected


LEADING = {
    "one": lambda x: x,
    "two": lambda x: x.reshape(3, 2, *x.shape[1:]),
    "expanded": lambda x: x[:1].expand_as(x),
    "columns": lambda x: x.mT.contiguous().mT,
    "wide": lambda x: torch.cat([x, x], -1)[..., : x.shape[-1]],
    "every_other": lambda x: x[::2],
    "swapped": lambda x: x.reshape(3, 2, *x.shape[1:]).transpose(0, 1),
    "of_one": lambda x: x[:1],
}


@pytest.mark.parametrize("leading", LEADING)
@pytest.mark.parametrize("side", ["left", "right", "linear"])
def test_batches_are_direct(calls, device, side, leading):
    """Leading dimensions of the dense operand, on either side, however they lie."""
    a = random_bsr(48, 64, 16, density=0.5, device=device)
    shape, bias = {"left": ((64, 5), 48), "right": ((5, 48), 64), "linear": ((5, 64), 48)}[side]
    x = LEADING[leading](torch.randn(6, *shape, device=device))
    bias = torch.randn(bias, device=device)
    dense = a.to_dense()

    def call(**keywords):
        if side == "left":
            return matmul(a, x, bias=bias, **keywords)
        return (linear if side == "linear" else matmul)(x, a, bias=bias, **keywords)

    result = check_direct_from_the_second_on(calls, call)
    assert result.is_contiguous()
    if side == "left":
        close(result, dense @ x + bias[:, None])
    else:
        close(result, x @ (dense if side == "right" else dense.T) + bias)
    if side != "linear":
        turned = result.mT.contiguous().mT

        def into_columns():
            return call(out=torch.full_like(turned, math.nan))

        close(check_direct_from_the_second_on(calls, into_columns), result, 1e-5)


def test_a_batch_of_matrices_is_direct(calls, device):
    a = random_bsr(48, 64, 16, density=0.5, device=device)
    batch = BsrTensor(a.crow_indices, a.col_indices, torch.stack([a.values] * 3), a.shape)
    x = torch.randn(3, 64, 12, device=device)
    matmul(batch, x)
    count, result = calls.during(lambda: matmul(batch, x))
    assert count == 0
    close(result, a.to_dense() @ x)


def products_on(device):
    """A product and a sampled one, by a family that computes it."""
    a, b, family = operands_on(device)
    x, y = torch.randn(48, 12, device=device), torch.randn(12, 64, device=device)
    return {
        family: lambda **k: matmul(a, b, **k),
        f"sampled_{family}": lambda **k: sampled_matmul(x, y, a, **k).values,
    }


def test_a_variant_is_direct_from_its_second_use_on(calls, device):
    """A family or one variant, of products and sampled products, beside the tuner's choice."""
    products = products_on(device)
    for meant, product in products.items():
        auto = product()
        families = {v["name"]: v["family"] for v in sparse_autotune._tuner.variants()}
        for name in (meant, *(name for name in families if families[name] == meant)):

            def forced(product=product, name=name):
                return product(variant=name)

            close(check_direct_from_the_second_on(calls, forced), auto)
        count, again = calls.during(product)
        assert count == 0 and torch.equal(again, auto)


def test_the_variant_of_the_settings_is_direct_likewise(calls, device):
    """It is about one of the operations; the other goes on as before."""
    products = products_on(device)
    auto = {name: product() for name, product in products.items()}
    for name in products:
        forced = auto | {name: products[name](variant=name)}
        with sparse_autotune.settings.override(variant=name):
            for other, product in products.items():
                result = check_direct_from_the_second_on(calls, product)
                assert torch.equal(result, forced[other])
            # What the call names comes before it.
            with pytest.raises(ValueError, match=r"^variant must be one of"):
                products[name](variant="no_such_family")
        for other, product in products.items():
            assert torch.equal(check_direct_from_the_second_on(calls, product), auto[other])


def test_a_race_sends_only_its_own_kind_the_slow_way(calls, device):
    """Once, as it may have another winner: all other products stay direct."""
    a, b, _ = operands_on(device)
    wide = torch.randn(64, 400, device=device)
    with sparse_autotune.settings.override(mode="on", budget_s=0.02):
        check_direct_from_the_second_on(calls, lambda: matmul(a, b))
        check_direct_from_the_second_on(calls, lambda: matmul(a, wide))
        assert sparse_autotune.tune(a, b).best is not None
        assert calls.during(lambda: matmul(a, wide))[0] == 0
        assert calls.during(lambda: matmul(a, b))[0] == 1
        assert calls.during(lambda: matmul(a, b))[0] == 0


def test_parameters_are_direct(calls, device):
    """As dense operand and bias, and as values; with gradients, too, below their Function."""
    a, b, _ = operands_on(device)
    expected = matmul(a, b)
    parameter = torch.nn.Parameter(b)
    bias = torch.nn.Parameter(torch.zeros(48, device=device))
    trained = BsrTensor(a.crow_indices, a.col_indices, torch.nn.Parameter(a.values), a.shape)
    matmul(a, b, bias=bias)
    for matrix in (a, trained):
        for keywords in ({}, {"bias": bias}):
            with torch.no_grad():
                count, result = calls.during(lambda m=matrix, k=keywords: matmul(m, parameter, **k))
            assert count == 0 and not result.requires_grad
            close(result, expected, 1e-6)
            count, result = calls.during(lambda m=matrix, k=keywords: matmul(m, parameter, **k))
            assert count == 0 and result.requires_grad
            close(result, expected, 1e-6)


# Of a matrix (48, 64) and b (64, 12), for matrices of either kind.
WITH_NATIVE = {
    "left": lambda a, b: matmul(a, b),
    "right": lambda a, b: matmul(b.T[:, :48], a),
    "transposed": lambda a, b: matmul(a.mT, b[:48]),
    "right_transposed": lambda a, b: matmul(b.T, a.mT),
    "linear": lambda a, b: linear(b.T, a, activation="gelu"),
    "linear_transposed": lambda a, b: linear(b.T[:, :48], a.mT),
    "vector": lambda a, b: matmul(a, b.T.contiguous()[0]),
    "batch": lambda a, b: matmul(a, torch.stack([b, b])),
}


@pytest.mark.parametrize("product", WITH_NATIVE)
def test_native_tensors_are_direct(calls, device, product):
    """torch.sparse_bsr and its transpose; a BsrTensor on the same memory has the same plan."""
    call = WITH_NATIVE[product]
    a, b, _ = operands_on(device)
    native = a.to_torch()
    result = check_direct_from_the_second_on(calls, lambda: call(native, b))
    parts = native.crow_indices(), native.col_indices(), native.values()
    count, ours = calls.during(lambda: call(BsrTensor(*parts, a.shape), b))
    assert count == 0 and torch.equal(ours, result)
    with torch.no_grad():
        count, again = calls.during(lambda: call(native.detach().requires_grad_(), b))
    assert count == 0 and torch.equal(again, result)
    assert call(native.detach().requires_grad_(), b).requires_grad


def test_native_tensors_that_are_written(calls, device):
    """Their values are read, and their indices compared, at every product."""
    a = random_bsr(64, 64, 16, density=0.5, device=device)
    b = torch.randn(64, 12, device=device)
    native = torch.sparse_bsr_tensor(
        a.crow_indices.clone(), a.col_indices.clone(), a.values.clone(), a.shape
    )
    matmul(native, b)
    # One counter counts the writes to all parts of such a tensor.
    for factor, write in (
        (2, lambda: native.values().mul_(2)),
        (2, lambda: native.col_indices().copy_(a.col_indices)),
        (1, lambda: native.mul_(0.5)),
    ):
        write()
        for expected in (1, 0):
            count, result = calls.during(lambda: matmul(native, b))
            assert count == expected
            close(result, factor * a.to_dense() @ b)
    native.values().data.mul_(2)
    count, result = calls.during(lambda: matmul(native, b))
    assert count == 0
    close(result, 2 * a.to_dense() @ b)
    native.col_indices()[0] = 9
    with pytest.raises(ValueError, match=r"col_indices must lie in \[0, 4\)"):
        matmul(native, b)


def test_frozen_matrices_are_direct(calls, device):
    """With their converted copy, as long as the promise holds."""
    variant = {"cpu": "dense", "cuda": "cublas_dense"}[device]
    a, b, _ = operands_on(device)
    a.freeze()
    before = sparse_autotune._tuner.memory(-1 if device == "cpu" else 0)["frozen_bytes"]
    check_direct_from_the_second_on(calls, lambda: matmul(a, b, variant=variant))
    assert sparse_autotune._tuner.memory(-1 if device == "cpu" else 0)["frozen_bytes"] > before
    a.values.mul_(2)
    with pytest.raises(RuntimeError, match="the values of a frozen BsrTensor must not change"):
        matmul(a, b, variant=variant)
    a.thaw()
    result = check_direct_from_the_second_on(calls, lambda: matmul(a, b, variant=variant))
    close(result, a.to_dense() @ b)
    a.freeze()
    result = check_direct_from_the_second_on(calls, lambda: matmul(a, b, variant=variant))
    close(result, a.to_dense() @ b)


def test_inference_mode_is_plain_for_what_was_made_outside(calls, device):
    a, b, _ = operands_on(device)
    matmul(a, b)
    with torch.inference_mode():
        for dense, values in ((b, a.values), (b.clone(), a.values), (b, a.values.clone())):
            other = BsrTensor(a.crow_indices, a.col_indices, values, a.shape)
            count, result = calls.during(lambda x=dense, other=other: matmul(other, x))
            assert count == 0 and result.is_inference()
            close(result, a.to_dense() @ b)


def test_saved_tensors_notice_what_is_written_directly(calls, device):
    a, b, _ = operands_on(device)
    out = torch.ones(48, 12, device=device)
    matmul(a, b, out=out)
    factor = torch.ones(48, 12, device=device, requires_grad=True)
    product = factor * out
    assert calls.during(lambda: matmul(a, b, out=out))[0] == 0
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.sum().backward()
