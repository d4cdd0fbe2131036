"""`matmul` and `linear` as a user calls them, on random problems and on every kind of operand."""

import dataclasses
import types

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from machine import DETERMINISTIC
from problem import BF16, DTYPES, FP32, FP64, INDEX_DTYPES, LAYOUTS, PATTERNS, Problem
from reference import PoisonedOut, assert_close, close, make

import sparse_autotune
from sparse_autotune import BsrTensor, linear, matmul, random_bsr
from sparse_autotune.operators import precision


@st.composite
def products(draw):
    """Any product of up to some 300 x 300 x 300."""
    block = draw(st.tuples(*[st.sampled_from((1, 2, 3, 5, 8, 16, 17, 32, 48, 64))] * 2))
    n = draw(st.one_of(st.none(), st.integers(1, 20), st.sampled_from((31, 64, 65, 130, 300))))
    matrices = draw(st.sampled_from(((), (1,), (2,), (3, 2)))) if n is not None else ()
    op = draw(st.sampled_from(("matmul", "linear", "transposed", "right")))
    b_layouts = LAYOUTS if n is not None else ("row", "offset", "scattered")
    if matrices:
        b_layouts = (*b_layouts, "expanded", "batch_inside")
    return Problem(
        name=f"random-{draw(st.integers(0, 2**32))}",
        m=block[0] * draw(st.integers(1, max(1, 300 // block[0] if block[0] > 4 else 20))),
        k=block[1] * draw(st.integers(1, max(1, 300 // block[1] if block[1] > 4 else 20))),
        n=n,
        block=block,
        dtype=draw(st.sampled_from(DTYPES)),
        index_dtype=draw(st.sampled_from(INDEX_DTYPES)),
        pattern=draw(st.sampled_from(("uniform", *PATTERNS))),
        density=draw(st.sampled_from((0.05, 0.3, 0.8))),
        b_layout=draw(st.sampled_from(b_layouts)),
        out_layout=draw(st.sampled_from(LAYOUTS if n is not None else ("row", "scattered"))),
        batch=matrices,
        bias=draw(st.booleans()),
        activation=draw(st.sampled_from((None, None, "relu", "gelu", "gelu_tanh", "silu"))),
        op=op,
        native=draw(st.booleans()),
    )


def check(operands):
    result = operands.call()
    assert_close(result, operands)
    assert result.is_contiguous() and not result.requires_grad
    if operands.problem.op != "linear":
        out = PoisonedOut(operands)
        version = out.tensor._version
        assert operands.call(out=out.tensor) is out.tensor
        assert out.tensor._version > version, "autograd must see that out was written"
        assert_close(out.tensor, operands)
        out.assert_only_out_written()


# Not the fixture: hypothesis refuses those that are made anew for each test, not each example.
each_device = pytest.mark.parametrize(
    "device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
)


@each_device
@settings(max_examples=300)
@given(case=products())
def test_any_product_by_heuristic(device, case):
    with sparse_autotune.settings.override(mode="off"):
        check(make(case, device))


@each_device
@settings(max_examples=60)
@given(case=products())
def test_any_product_by_race(device, case):
    """The call that races writes the right result too, and the next one does not race."""
    operands = make(case, device)
    assert_close(operands.call(), operands)
    races = sparse_autotune.tuning_count()
    assert_close(operands.call(), operands)
    assert sparse_autotune.tuning_count() == races
    check(operands)


def test_readme_product(device):
    """Nothing but public calls and torch."""
    dense = torch.randn(256, 192, device=device)
    dense[:128, 64:] = 0
    b = torch.randn(192, 72, device=device)
    native, ours = dense.to_sparse_bsr((32, 64)), BsrTensor.from_dense(dense, (32, 64))
    expected = (dense.double() @ b.double()).float()
    for a in (native, ours):
        close(matmul(a, b), expected)
        close(linear(b.T, a), expected.T)
        close(matmul(a, b[:, 0]), expected[:, 0])
    close(ours @ b, expected)


def test_inputs_stay_as_they_are(device):
    """Also by a call that races: it has operands of its own."""
    a = random_bsr(96, 128, 32, density=0.4, device=device)
    b, bias = torch.randn(128, 50, device=device), torch.randn(96, device=device)
    tensors = (a.crow_indices, a.col_indices, a.values, b, bias)
    before, versions = [t.clone() for t in tensors], [t._version for t in tensors]
    races = sparse_autotune.tuning_count()
    matmul(a, b, bias=bias, activation="gelu")
    assert sparse_autotune.tuning_count() == races + 1
    assert all(map(torch.equal, tensors, before))
    assert [t._version for t in tensors] == versions


@pytest.mark.parametrize("content", [0.0, float("nan"), float("inf")])
def test_content_of_the_operands_does_not_decide_a_race(content, device):
    """The first call may be a warm-up with zeros, or with memory that nothing has written yet."""
    a = random_bsr(96, 160, 16, density=0.4, device=device)
    a.values.fill_(content)
    b = torch.full((160, 41), content, device=device)
    report = sparse_autotune.tune(a, b)
    assert {r.status for r in report.records} <= {"ok", "eliminated", "skipped", "unsupported"}
    assert report.best is not None and 0 <= report.best.error <= 1


# Which operands are read in place


def copies_made(call):
    """Whether torch copied a tensor during the call."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        call()
    names = {event.key for event in profile.key_averages()}
    return bool(names & {"aten::copy_", "aten::clone", "aten::contiguous"})


@pytest.mark.parametrize("variant", ["reference", "cpu_tiled"])
def test_no_copy_of_rows_or_columns(variant):
    with sparse_autotune.settings.override(mode="off"):
        for layout, copied in (*((layout, False) for layout in LAYOUTS[:-1]), ("scattered", True)):
            case = Problem(f"copies-{layout}", 128, 192, 64, (32, 32), b_layout=layout)
            for op in ("matmul", "linear"):
                operands = make(dataclasses.replace(case, op=op))
                operands.call(variant)
                assert copies_made(lambda o=operands: o.call(variant)) == copied, (layout, op)


# Tensors with something special about them


def test_views_that_repeat_or_interleave_elements(device):
    a = random_bsr(24, 32, 8, density=0.6, device=device, dtype=FP64)
    dense, line = a.to_dense(), torch.randn(80, device=device, dtype=FP64)
    for b in (
        line[:32, None].expand(32, 5),
        line[None, :5].expand(32, 5),
        line[:1, None].expand(32, 5),
        line.as_strided((32, 5), (1, 1)),
        line.as_strided((3, 32, 5), (2, 1, 3)),
        torch.randn(32, 5, device=device, dtype=FP64).flip(0),
        torch.randn(5, 3, 32, device=device, dtype=FP64).permute(1, 2, 0),
    ):
        torch.testing.assert_close(matmul(a, b), dense @ b)
        torch.testing.assert_close(linear(b.mT, a), b.mT @ dense.T)
    bias = line[:48:2]
    torch.testing.assert_close(matmul(a, b, bias=bias), dense @ b + bias[:, None])


def test_lazily_negated_tensors(device):
    """Their memory holds the negated numbers."""
    a = random_bsr(16, 32, 8, density=0.6, device=device, dtype=FP64)
    b = torch.randn(32, 6, dtype=torch.complex128, device=device).conj().imag
    assert b.is_neg()
    torch.testing.assert_close(matmul(a, b), a.to_dense() @ b.resolve_neg())
    out = torch.full((16, 6), 1 + 2j, dtype=torch.complex128, device=device).conj().imag
    assert out.is_neg()
    with pytest.raises(ValueError, match=r"out must not be a lazily negated view.*resolve_neg"):
        matmul(a, b, out=out)
    assert bool((out == -2).all())


def test_native_matrix_with_column_major_blocks(device):
    """torch's transpose of a BSC tensor: values that are a transposed view."""
    dense = torch.randn(24, 32, device=device, dtype=FP64)
    dense[:8, 8:] = 0
    a = dense.T.contiguous().to_sparse_bsc((8, 4)).t()
    assert a.layout == torch.sparse_bsr and not a.values().is_contiguous()
    b = torch.randn(32, 7, device=device, dtype=FP64)
    torch.testing.assert_close(matmul(a, b), dense @ b)
    torch.testing.assert_close(linear(b.T, a), (dense @ b).T)


def test_parameters_under_no_grad(device):
    a = random_bsr(16, 32, 8, density=0.6, device=device)
    weight = torch.nn.Parameter(torch.randn(32, 6, device=device))
    with torch.no_grad():
        result = matmul(a, weight)
    assert type(result) is torch.Tensor and not result.requires_grad
    torch.testing.assert_close(result, a.to_dense() @ weight.detach())


def test_many_small_matrices(device):
    """More than 65535 of them, both as one long dimension and as a batch that cannot fold."""
    a = random_bsr(4, 4, 2, density=1, device=device)
    folded = torch.randn(70000, 4, 1, device=device)
    close(matmul(a, folded), a.to_dense() @ folded)
    apart = torch.randn(70000, 5, 3, device=device)[:, :4]
    close(matmul(a, apart), a.to_dense() @ apart)


def test_many_block_rows_and_a_wide_result(device):
    """Grids of more than 65535 in either direction."""
    tall = random_bsr(70000, 4, 1, density=0.5, device=device)
    b = torch.randn(4, 3, device=device)
    close(matmul(tall, b), tall.to_dense() @ b)
    a, wide = random_bsr(4, 4, 2, density=1, device=device), torch.randn(4, 1 << 22, device=device)
    close(matmul(a, wide), a.to_dense() @ wide)
    x = torch.randn(1 << 20, 4, device=device)
    close(linear(x, a), x @ a.to_dense().T)


# Settings that reach every product


def test_a_variant_forced_everywhere(device):
    family = "reference" if device == "cpu" else "simt"
    a = random_bsr(48, 64, 16, density=0.5, device=device)
    b = torch.randn(64, 33, device=device)
    forced = matmul(a, b, variant=family)
    races = sparse_autotune.tuning_count()
    with sparse_autotune.settings.override(variant=family, mode="off"):
        assert torch.equal(matmul(a, b), forced)
        profiled = sparse_autotune.variants(a, b)
    assert sparse_autotune.tuning_count() == races
    assert any(name.startswith(f"{family}/") for name in profiled)


def test_deterministic_algorithms(device):
    """Only deterministic variants are legal, and results repeat bit for bit."""
    a = random_bsr(256, 256, 32, density=0.5, device=device, dtype=BF16)
    b = torch.randn(256, 100, device=device, dtype=BF16)
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        reasons = sparse_autotune.errors.legality(a, b)
        first = matmul(a, b)
        assert all(torch.equal(matmul(a, b), first) for _ in range(20))
    finally:
        torch.use_deterministic_algorithms(before)
    assert reasons
    for name, reason in reasons.items():
        assert DETERMINISTIC[name] or reason is not None, f"{name} is not deterministic"


def test_every_way_asks_for_repeatable_results(caplog, fresh_cache):
    """A layer, a batch and a sampled product too: what is not raced names its signature."""
    a = random_bsr(24, 24, 4, density=0.5)
    batch = BsrTensor(
        a.crow_indices, a.col_indices, a.values.expand(2, -1, -1, -1).clone(), (24, 24)
    )
    layer, x = sparse_autotune.SparseLinear(24, 24, 4, 0.5), torch.randn(24, 24)
    ways = (
        lambda: matmul(a, x), lambda: linear(x, a), lambda: matmul(batch, x), lambda: layer(x),
        lambda: layer(x.clone().requires_grad_()), lambda: sparse_autotune.sampled_matmul(x, x, a),
    )  # fmt: skip
    before = torch.are_deterministic_algorithms_enabled()
    with (
        sparse_autotune.settings.override(mode="record", verbosity=1),
        caplog.at_level("INFO", "sparse_autotune"),
    ):
        for asked in (True, False):
            torch.use_deterministic_algorithms(asked)
            try:
                for way in ways:
                    caplog.clear()
                    sparse_autotune._tuner.forget()
                    way()
                    assert caplog.messages and all(
                        ("_det_" in message) == asked for message in caplog.messages
                    )
            finally:
                torch.use_deterministic_algorithms(before)


def test_tf32_follows_torch_on_fp32_cuda_tensors_only():
    """Through the old switch and the new one, after which the old one cannot always be read."""
    fp32 = types.SimpleNamespace(dtype=torch.float32, is_cuda=True)
    others = [types.SimpleNamespace(dtype=torch.float32, is_cuda=False)]
    others += [types.SimpleNamespace(dtype=d, is_cuda=True) for d in DTYPES if d != FP32]
    backend = torch.backends.cuda.matmul
    steps = (
        (False, lambda: None),
        (True, lambda: setattr(backend, "allow_tf32", True)),
        (False, lambda: torch.set_float32_matmul_precision("highest")),
        (True, lambda: torch.set_float32_matmul_precision("high")),
        (False, lambda: setattr(backend, "fp32_precision", "ieee")),
        (True, lambda: setattr(backend, "fp32_precision", "tf32")),
    )
    try:
        for expected, step in steps:
            step()
            assert precision.allow_tf32(fp32) is expected
            assert not any(map(precision.allow_tf32, others))
    finally:
        backend.fp32_precision = "ieee"
        torch.set_float32_matmul_precision("highest")
    assert backend.allow_tf32 is False


def test_tf32_is_nothing_to_the_cpu():
    assert precision.allow_tf32(torch.empty(1)) is False
    operands = make(Problem("no-tf32", 64, 96, 40, (16, 16), FP32))
    assert_close(operands.call("cpu_tiled"), operands)
