"""Two ways to one product: the direct one of plain eager calls, the operator for all who listen.

The direct one (`_torch.direct`) bypasses torch's dispatcher, so it must be taken only where nothing
but time would be lost, and give the operator's very bits. See also test_direct_calls.py.
"""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from problem import BF16, DTYPES, FP32, FP64, Problem
from reference import assert_close, close, make
from test_matmul import products
from torch.autograd import forward_ad
from torch.utils._python_dispatch import TorchDispatchMode

import sparse_autotune
from sparse_autotune import BsrTensor, linear, matmul, random_bsr, sampled_matmul


def operands_on(device, dtype=FP32):
    family = {"cpu": "reference", "cuda": "simt"}[device]
    a = random_bsr(48, 64, 16, density=0.5, device=device, dtype=dtype)
    return a, torch.randn(64, 12, device=device, dtype=dtype), family


def with_the_operator(a, b):
    """What it computes, without `matmul`."""
    parts = (a.crow_indices, a.col_indices, a.values, *a.shape, b)
    return torch.ops.sparse_autotune.bsr_matmul(*parts)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_direct_way_is_taken_and_gives_the_same_bits(calls, device, dtype):
    a, b, _ = operands_on(device, dtype)
    expected = with_the_operator(a, b)
    for operand in (b, b.T.contiguous().T, torch.cat([b, b], 1)[:, :12], b[:, :1]):
        matmul(a, operand)
        count, result = calls.during(lambda operand=operand: matmul(a, operand))
        assert count == 0
        assert torch.equal(result, with_the_operator(a, operand))
        assert result.is_contiguous() and result.dtype == dtype
    assert torch.equal(matmul(a, b), expected)


FORMS = {
    "left": lambda a, x, **k: matmul(a, x.T, **k),
    "left_transposed": lambda a, x, **k: matmul(a.t(), x.T, **k),
    "right": lambda a, x, **k: matmul(x, a, **k),
    "right_transposed": lambda a, x, **k: matmul(x, a.t(), **k),
    "linear": lambda a, x, **k: linear(x, a, **k),
    "linear_transposed": lambda a, x, **k: linear(x, a.t(), **k),
    "vector": lambda a, x, **k: matmul(a, x[0], **k),
    "vector_right": lambda a, x, **k: matmul(x[0], a, **k),
    "linear_of_leading_dimensions": lambda a, x, **k: linear(x.reshape(2, 3, 2, -1), a, **k),
}


@pytest.mark.parametrize("activation", [None, "relu", "gelu"])
@pytest.mark.parametrize("form", FORMS)
def test_every_form_takes_it(calls, device, form, activation):
    """Either side, transposes, bias and activation: the operator's bits without the operator."""
    a = random_bsr(64, 64, 16, density=0.5, device=device)
    x, bias = torch.randn(12, 64, device=device), torch.randn(64, device=device)
    for keywords in ({}, {"bias": bias}, {"bias": torch.nn.Parameter(bias)}):
        keywords["activation"] = activation

        def call(keywords=keywords):
            with torch.no_grad():
                return FORMS[form](a, x, **keywords)

        first = call()
        count, second = calls.during(call)
        assert count == 0
        assert torch.equal(first, second) and second.is_contiguous()
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
            count, listened = calls.during(call)
        assert count == 1 and torch.equal(listened, second)


@pytest.mark.parametrize("form", [name for name in FORMS if "linear" not in name])
def test_out_takes_it(calls, device, form):
    """Into memory of the caller's, row-major, column-major or wider, which saved tensors notice."""
    a = random_bsr(64, 64, 16, density=0.5, device=device)
    x = torch.randn(12, 64, device=device)
    expected = FORMS[form](a, x)
    wide = torch.empty(*expected.shape[:-1], 2 * expected.shape[-1], device=device)
    outs = [torch.empty_like(expected), wide[..., : expected.shape[-1]]]
    if expected.dim() == 2:
        outs.append(torch.empty_like(expected.T.contiguous()).T)
    for out in outs:
        FORMS[form](a, x, out=out)  # the other way, which makes what this one needs
        out.fill_(float("nan"))
        version = out._version
        count, result = calls.during(lambda out=out: FORMS[form](a, x, out=out))
        assert count == 0 and result is out
        assert out._version > version
        close(out, expected, 1e-5)


def test_out_over_an_input_is_refused_there_too(calls):
    b, bias = torch.randn(64, 12), torch.randn(64)
    square = random_bsr(64, 64, 16, density=0.5)
    for _ in range(2):
        for dense in (b, b[:, :1]):
            matmul(square, dense, bias=bias)  # from now on it could be done directly
        for out in (b, bias.as_strided((64, 1), (1, 1)), square.values.view(-1)[:768].view(64, 12)):
            dense = b[:, :1] if out.shape[1] == 1 else b
            kept = [t.clone() for t in (b, bias, square.values)]
            with pytest.raises(RuntimeError, match="overlap"):
                matmul(square, dense, bias=bias, out=out)
            assert all(
                torch.equal(*pair) for pair in zip(kept, (b, bias, square.values), strict=True)
            )


def test_training_takes_it(calls):
    """A layer's forward and its gradients, as soon as they are known."""
    layer = sparse_autotune.SparseLinear(64, 48, 16, 0.5)
    x = torch.randn(5, 3, 64, requires_grad=True)

    def step():
        y = layer(x)
        return y, *torch.autograd.grad(y.square().sum(), (x, *layer.parameters()))

    first = step()
    count, second = calls.during(step)
    assert count == 0
    assert all(map(torch.equal, first, second))
    dense = layer.weight.to_dense()
    close(second[0], x @ dense.T + layer.bias)
    torch.testing.assert_close(second[1], 2 * second[0] @ dense, rtol=1e-4, atol=1e-3)
    layer.double()
    x = x.detach().double()
    torch.testing.assert_close(layer(x), x @ layer.weight.to_dense().T + layer.bias)


def test_values_that_move_are_followed(calls):
    """Other memory at the next call."""
    layer = sparse_autotune.SparseLinear(64, 48, 16, 0.5).requires_grad_(False)
    x = torch.randn(5, 64)
    layer(x)
    for change in (
        lambda: layer.values.set_(torch.randn_like(layer.values)),
        lambda: sparse_autotune.prune_(layer, 0.25),
        lambda: setattr(layer.values, "data", torch.randn_like(layer.values)),
        lambda: layer.load_state_dict(sparse_autotune.SparseLinear(64, 48, 16, 0.75).state_dict()),
    ):
        change()
        for _ in range(3):
            count, y = calls.during(lambda: layer(x))
            expected = x @ layer.weight.to_dense().T + layer.bias
            close(y, expected)
        assert count == 0
    stand_in = {"values": torch.randn_like(layer.values)}
    y = torch.func.functional_call(layer, stand_in, (x,))
    indices = layer.crow_indices, layer.col_indices
    dense = BsrTensor(*indices, stand_in["values"], (48, 64)).to_dense()
    close(y, x @ dense.T + layer.bias)


@settings(max_examples=80)
@given(case=products(), frozen=st.booleans())
def test_any_product_by_the_second_call(case, frozen):
    """Whichever way it takes."""
    operands = make.__wrapped__(case)
    if frozen and type(operands.a) is BsrTensor:
        operands.a.freeze()
    with sparse_autotune.settings.override(mode="off"):
        for _ in range(3):
            assert_close(operands.call(), operands)


def test_settings_and_switches_reach_it(calls, device):
    """What may change the choice sends the next call to the operator, once."""
    a, b, family = operands_on(device)
    matmul(a, b)
    with sparse_autotune.settings.override(variant=family):
        count, forced = calls.during(lambda: matmul(a, b))
        assert count == 1
        count, again = calls.during(lambda: matmul(a, b))
        assert count == 0
        assert torch.equal(forced, matmul(a, b, variant=family)) and torch.equal(forced, again)
    for change in ("exact_nonfinite", "deterministic", "threads", "frozen", "invalidated"):
        matmul(a, b)
        threads = torch.get_num_threads()
        try:
            if change == "exact_nonfinite":
                sparse_autotune.settings.exact_nonfinite = True
            elif change == "deterministic":
                torch.use_deterministic_algorithms(True)
            elif change == "threads":
                torch.set_num_threads(threads + 1)
            elif change == "frozen":
                a.freeze()
            else:
                a.invalidate()
            count, result = calls.during(lambda: matmul(a, b))
            assert count == 1 or (device == "cuda" and change == "threads"), change
            close(result, a.to_dense() @ b)
        finally:
            sparse_autotune.settings.exact_nonfinite = False
            torch.use_deterministic_algorithms(False)
            torch.set_num_threads(threads)
            a.thaw()


def test_edits_of_the_indices_reach_it(calls, device):
    crow, col = torch.tensor([0, 1, 2], device=device), torch.tensor([0, 1], device=device)
    a = BsrTensor(crow, col, torch.randn(2, 16, 16, device=device), (32, 32))
    b = torch.randn(32, 8, device=device)
    for columns in ([0, 1], [1, 0], [1, 1], [0, 0]):
        col.copy_(torch.tensor(columns))
        for expected in (1, 0, 0):
            count, result = calls.during(lambda: matmul(a, b))
            assert count == expected
            close(result, a.to_dense() @ b)
    col[0] = 2
    for _ in range(2):
        with pytest.raises(ValueError, match=r"col_indices must lie in \[0, 2\)"):
            matmul(a, b)


# Who listens


class Listener(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.heard = []

    def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
        self.heard.append(str(function))
        return function(*arguments, **(keywords or {}))


def test_dispatch_modes_and_profilers_see_the_operator():
    a, b, _ = operands_on("cpu")
    matmul(a, b)
    with Listener() as listener:
        matmul(a, b)
    assert "sparse_autotune.bsr_matmul.default" in listener.heard
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        matmul(a, b)
    assert "sparse_autotune::bsr_matmul" in {event.key for event in profile.key_averages()}


def test_tracers_see_the_operator():
    a, b, _ = operands_on("cpu")
    matmul(a, b)
    expected = a.to_dense() @ (2 * b)
    from torch.fx.experimental.proxy_tensor import make_fx

    traced = make_fx(lambda x: matmul(a, x))(b)
    assert "sparse_autotune.bsr_matmul" in traced.code
    close(traced(2 * b), expected)
    scripted = torch.jit.trace(lambda x: matmul(a, x), b)
    close(scripted(2 * b), expected)


def test_vmap():
    a, _, _ = operands_on("cpu")
    b = torch.randn(3, 64, 12)
    expected = a.to_dense() @ b
    got = torch.vmap(lambda x: matmul(a, x))(b)
    close(got, expected)
    got = torch.vmap(lambda x: linear(x, a))(b.mT)
    close(got, expected.mT)


def test_vmap_of_what_returns_matrices():
    """A batch on one pattern: vmap has no other way to return the indices than as often as that."""
    a = random_bsr(8, 12, (2, 3), density=0.5)
    for pattern in (a, a.t()):
        rows, cols = pattern.shape
        for batch in (1, 3):
            x, y = torch.randn(batch, rows, 4), torch.randn(batch, 4, cols)
            got = torch.vmap(lambda x, y, pattern=pattern: sampled_matmul(x, y, pattern))(x, y)
            each = [sampled_matmul(*factors, pattern) for factors in zip(x, y, strict=True)]
            assert got.shape == (batch, rows, cols) and got.nnzb == a.nnzb
            assert torch.equal(got.crow_indices, a.crow_indices)
            expected = torch.stack([one.to_dense() for one in each])
            close(got.to_dense(), expected)


@pytest.mark.parametrize("transform", [torch.vmap, torch.func.jacrev, torch.func.jacfwd])
def test_transforms_refuse_out(transform):
    a, b, _ = operands_on("cpu")
    out = torch.zeros(a.shape[0], 12)
    with pytest.raises(RuntimeError, match=r"out cannot be transformed .* b belongs"):
        transform(lambda b: matmul(a, b, out=out))(b[None] if transform is torch.vmap else b)


def test_transforms_after_a_launch():
    """What was decided for a plain tensor must not be launched on what a transform hands it."""
    a, b, _ = operands_on("cpu")
    matmul(a, b)
    dense = a.to_dense()
    gradient = torch.func.grad(lambda x: matmul(a, x).sum())(b)
    close(gradient, dense.sum(0)[:, None].expand_as(b))
    _, tangent = torch.func.jvp(lambda x: matmul(a, x), (b,), (2 * b,))
    close(tangent, 2 * dense @ b)
    got = torch.vmap(lambda x: matmul(a, x))(torch.stack([b, -b]))
    close(got, torch.stack([dense @ b, -dense @ b]))


@pytest.mark.parametrize("where", ["a", "b", "bias", "out"])
def test_tangents_do_not_reach_out(where):
    """By default torch would drop them without a word."""
    a, b, _ = operands_on("cpu")
    tensors = {"a": a.values, "b": b, "bias": torch.randn(48), "out": torch.empty(48, 12)}
    matmul(a, b)
    with forward_ad.dual_level():
        tensors[where] = forward_ad.make_dual(tensors[where], torch.ones_like(tensors[where]))
        carrying = BsrTensor(a.crow_indices, a.col_indices, tensors.pop("a"), a.shape)
        b, bias, out = tensors["b"], tensors["bias"], tensors["out"]
        with pytest.raises(RuntimeError, match=f"but {where} carries a tangent"):
            matmul(carrying, b, bias=bias, out=out)
    # Without a tangent, the level does no harm.
    with forward_ad.dual_level():
        torch.testing.assert_close(matmul(a, a.to_dense().T), a.to_dense() @ a.to_dense().T)


def test_autocast(calls, device):
    """It converts operands, as for `torch.matmul`; float64 stays. Outside all is as before."""
    a, b, _ = operands_on(device)
    x, y = torch.randn(48, 12, device=device), b.T.contiguous()
    lower = a.to(BF16)
    for _ in range(2):
        plain = matmul(a, b), sampled_matmul(x, y, a).values
    with torch.autocast(device, dtype=BF16):
        assert torch.equal(matmul(a, b), matmul(lower, b.to(BF16)))
        assert torch.equal(matmul(a, b), matmul(a, b.to(BF16)))
        sampled = sampled_matmul(x, y, a)
        assert torch.equal(sampled.values, sampled_matmul(x.to(BF16), y.to(BF16), lower).values)
        assert matmul(a, b).dtype == sampled.dtype == BF16
        assert matmul(a.double(), b.double()).dtype == FP64
        with pytest.raises(TypeError, match="b must have the dtype of a"):
            matmul(a.double(), b)
        with torch.autocast(device, enabled=False):
            count, again = calls.during(lambda: (matmul(a, b), sampled_matmul(x, y, a).values))
            assert count == 0 and all(map(torch.equal, again, plain))
    count, again = calls.during(lambda: (matmul(a, b), sampled_matmul(x, y, a).values))
    assert count == 0 and all(map(torch.equal, again, plain))


def test_a_case_of_its_own():
    """fp64 beside fp32 on the same indices: one plan, two decisions."""
    operands = make(Problem("direct", dtype=FP64))
    single = operands.a.to(FP32)
    for _ in range(3):
        assert_close(operands.call(), operands)
        close(matmul(single, operands.b.float()), operands.call().float())
