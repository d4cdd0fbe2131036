"""What the direct way leaves to the operator: what it cannot read, and all that is wrong."""

import pytest
import torch
from reference import close
from test_dispatch import operands_on

from sparse_autotune import BsrTensor, linear, matmul, random_bsr, sampled_matmul
from sparse_autotune._torch import direct
from sparse_autotune.operators.forms import Form


class Own(torch.Tensor):
    """Somebody's own kind of tensor."""


def test_what_is_left_to_the_operator(calls, device):
    """What has to be copied first, what is read otherwise than it lies, what has no versions."""
    a, b, _ = operands_on(device)
    matmul(a, b)
    with torch.inference_mode():
        uncounted = random_bsr(48, 64, 16, density=0.5, device=device)
    bias = torch.randn(48, device=device)
    for matrix, dense, keywords in (
        (a, torch.randn(128, 36, device=device)[::2, ::3], {}),
        (a, torch.randn(64, 12, 3, device=device)[..., 0], {}),
        (a, b.as_subclass(Own), {}),
        (a, b.cfloat().conj().imag, {}),
        (a, b, {"bias": torch.randn(96, device=device)[::2]}),
        (a, b, {"bias": bias.cfloat().conj().imag}),
        (a, b, {"bias": bias.as_subclass(Own)}),
        (a, b, {"out": torch.empty(96, 36, device=device)[::2, ::3]}),
        (uncounted, b, {}),
    ):
        for _ in range(2):
            count, result = calls.during(lambda m=matrix, d=dense, k=keywords: matmul(m, d, **k))
            assert count == 1, (matrix, dense, keywords)
        expected = matrix.to_dense() @ dense
        if "bias" in keywords:
            expected = expected + keywords["bias"][:, None]
        close(*(tensor.as_subclass(torch.Tensor) for tensor in (result, expected)))


def test_what_launches_nothing_is_the_operators(calls, device):
    """No blocks, no rows, no columns of dense: zeros, or the bias alone."""
    full, empty = (random_bsr(48, 64, 16, density=d, device=device) for d in (0.5, 0))
    b, bias = torch.randn(64, 12, device=device), torch.randn(48, device=device)
    for matrix, dense in ((empty, b), (full, b[:, :0]), (full, b.expand(0, 64, 12))):
        for _ in range(2):
            count, result = calls.during(lambda m=matrix, d=dense: matmul(m, d, bias=bias))
            assert count == 1
            close(result, matrix.to_dense() @ dense + bias[:, None])


def directly(crow, col, values, shape, dense):
    with torch.no_grad():
        return direct.matmul(crow, col, values, dense, None, Form(*shape))


@pytest.mark.usefixtures("no_races")
def test_what_makes_up_no_matrix_is_left_alone(device):
    """`BsrTensor` refuses these, but its tensors may change their shapes afterwards."""
    crow, col = torch.tensor([0, 1, 2], device=device), torch.tensor([0, 1], device=device)
    values = torch.randn(2, 16, 32, device=device)
    dense = torch.randn(64, 12, device=device)
    a = BsrTensor(crow, col, values, (32, 64))
    expected = matmul(a, dense)
    assert torch.equal(directly(crow, col, values, (32, 64), dense), expected)
    with torch.inference_mode():
        assert torch.equal(directly(crow, col, values.clone(), (32, 64), dense), expected)
    values.requires_grad_()
    assert torch.equal(directly(crow, col, values, (32, 64), dense), expected)
    values = values.detach()
    wide = torch.randn(2, 16, 64, device=device)[..., ::2]
    for parts in (
        (crow, col, values, (48, 64)),
        (crow, col, values, (32, 65)),
        (crow, col, values, (-32, 64)),
        (crow, col, values, (32.0, 64)),
        (crow, col, values, (32, 1 << 70)),
        (crow, col, values, (None, 64)),
        (crow[:2], col, values, (32, 64)),
        (crow, col[:1], values, (32, 64)),
        (crow.int(), col, values, (32, 64)),
        (crow.short(), col.short(), values, (32, 64)),
        (crow.float(), col.float(), values, (32, 64)),
        (crow[None], col, values, (32, 64)),
        (crow, col, values[0], (32, 64)),
        (crow, col, values[None], (32, 64)),
        (crow, col, values[:, :0], (32, 64)),
        (crow, col, values.int(), (32, 64)),
        (crow, col, values.cfloat(), (32, 64)),
        (crow, col, values.double(), (32, 64)),
        (crow, col, wide, (32, 64)),
        (crow, torch.tensor([0, 9, 1], device=device)[::2], values, (32, 64)),
        (crow, col, values.to("meta"), (32, 64)),
        (crow, col.to_sparse(), values, (32, 64)),
        (crow, col, values.to_sparse(), (32, 64)),
        (crow, col, values.as_subclass(Own), (32, 64)),
        (crow.as_subclass(Own), col, values, (32, 64)),
        (crow, col, values.cfloat().conj().imag, (32, 64)),
        (crow, col, values.tolist(), (32, 64)),
        (crow.tolist(), col, values, (32, 64)),
        (None, col, values, (32, 64)),
        (crow, col, None, (32, 64)),
    ):
        assert directly(*parts, dense) is None, parts
    with torch.inference_mode():
        assert directly(crow.clone(), col.clone(), values, (32, 64), dense) is None
    if device == "cuda":
        assert directly(crow.cpu(), col.cpu(), values, (32, 64), dense) is None
    assert torch.equal(directly(crow, col, values, (32, 64), dense), expected)


def test_zeros_without_memory(calls):
    """The dispatcher gives torch's unstored zeros, which forward-mode derivatives make, memory."""
    a, b = random_bsr(64, 64, 16, density=0.5), torch.randn(64, 12)
    for _ in range(2):
        expected = matmul(a, b)
    zeros, no_bias = torch._efficientzerotensor((64, 12)), torch._efficientzerotensor((64,))
    assert torch.equal(matmul(a, zeros), torch.zeros(64, 12))
    assert torch.equal(matmul(a, b, bias=no_bias), expected)
    no_values = torch._efficientzerotensor(tuple(a.values.shape))
    nothing = BsrTensor(a.crow_indices, a.col_indices, no_values, a.shape)
    for _ in range(2):
        assert torch.equal(matmul(nothing, b), torch.zeros(64, 12))
        x = torch.randn(12, 64)
        assert not sampled_matmul(zeros, x, a).values.any()
        assert sampled_matmul(b, x, nothing).values.any()


@pytest.mark.parametrize("wrong", ["no_such_family", "", "sampled_reference", "reference/none"])
def test_a_wrong_variant_is_refused_every_time(calls, wrong):
    """Where something was decided for other variants, too, and where nothing is launched."""
    a, b, family = operands_on("cpu")
    message = r"variant (must be one of|'.*' is not legal)"
    for dense in (b, b[:, :0]):
        for _ in range(2):
            matmul(a, dense), matmul(a, dense, variant=family)
            with pytest.raises(ValueError, match=message):
                matmul(a, dense, variant=wrong)
            with pytest.raises(ValueError, match=message):
                linear(dense.T, a, variant=wrong)
            x = torch.randn(48, dense.shape[1])
            sampled_matmul(x, dense.T, a, variant=f"sampled_{family}")
            with pytest.raises(ValueError, match=message):
                sampled_matmul(x, dense.T, a, variant=wrong.removeprefix("sampled_"))
