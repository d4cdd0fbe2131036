"""`register_variant` of attention: Python callables in its races, FlexAttention among them."""

import math
from types import SimpleNamespace

import pytest
import torch
from attention_reference import expected_attention, expected_gradients, lies_as_result_of
from test_attention import CASES, check, make

from sparse_autotune import (
    AttentionProblem,
    BlockMask,
    _tuner,
    attention,
    benchmark,
    register_flex_attention,
    register_variant,
    settings,
    tune,
    variants,
)
from sparse_autotune.tuning.flex_attention import FlexAttention, supports


@pytest.fixture(autouse=True)
def _quick(fresh_cache, monkeypatch):
    monkeypatch.setattr(settings, "budget_s", 0.05)


@pytest.fixture
def register():
    """As `register_variant` on the CPU; what a test registers ends with it."""
    handles = []

    def call(fn, op="attention", name="mine", **options):
        handles.append(register_variant(name, fn, op=op, device="cpu", **options))
        return handles[-1]

    yield call
    for handle in handles:
        handle.unregister()


def seen_by(q, k, mask, is_causal):
    """(batch, heads, S, T), from what the documentation says of the mask."""
    seen = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool)
    if mask is not None:
        batch, heads, *lengths = mask.shape
        assert batch in (1, q.shape[0]) and heads in (1, q.shape[1])
        assert tuple(lengths) == mask.lengths and mask.is_causal == is_causal
        seen = mask.to_dense()
    seen = seen.tril() if is_causal else seen
    return seen.expand(*q.shape[:3], k.shape[2])


class Forward:
    """Dense attention in fp64; counts its calls."""

    def __init__(self):
        self.calls = 0

    def __call__(self, q, k, v, mask, *, out, lse, is_causal, scale):
        self.calls += 1
        assert lies_as_result_of(q, out) and lse.is_contiguous() and out.shape == q.shape
        group = q.shape[1] // k.shape[1]
        k, v = (x.double().repeat_interleave(group, 1) for x in (k, v))
        scores = (scale * (q.double() @ k.mT)).masked_fill(
            ~seen_by(q, k, mask, is_causal), -math.inf
        )
        lse.copy_(torch.logsumexp(scores, -1))
        p = torch.exp(scores - scores.logsumexp(-1, keepdim=True).nan_to_num(0, 0, 0))
        out.copy_(p @ v)


class Backward:
    """Its gradients, from what anybody left in ``out`` and ``lse``."""

    def __init__(self):
        self.calls = 0

    def __call__(
        self, grad_out, q, k, v, out, lse, mask,
        *, grad_q, grad_k, grad_v, grad_lse, by_column, is_causal, scale,
    ):  # fmt: skip
        self.calls += 1
        assert (by_column is None) == (mask is None)
        if mask is not None:
            rebuilt = BlockMask(*by_column, mask.block_size[::-1], mask.lengths[::-1])
            assert torch.equal(rebuilt.blocks().mT, mask.blocks())
        group = q.shape[1] // k.shape[1]
        wide_k, wide_v = (x.double().repeat_interleave(group, 1) for x in (k, v))
        scores = scale * (q.double() @ wide_k.mT)
        scores = scores.masked_fill(~seen_by(q, k, mask, is_causal), -math.inf)
        p = torch.exp(scores - lse.double().nan_to_num(0, 0, 0)[..., None])
        grad = grad_out.double()
        delta = (grad * out.double()).sum(-1, keepdim=True)
        if grad_lse is not None:
            delta = delta - grad_lse.double()[..., None]
        ds = scale * p * (grad @ wide_v.mT - delta)
        grad_q.copy_(ds @ wide_k)
        grad_k.copy_((ds.mT @ q.double()).unflatten(1, (-1, group)).sum(2))
        grad_v.copy_((p.mT @ grad).unflatten(1, (-1, group)).sum(2))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("case", CASES)
def test_forced_attention(case, dtype, register):
    fn = Forward()
    handle = register(fn)
    assert handle.name == "mine/1"
    q, k, v, mask, is_causal = make(case, dtype)
    out, lse = attention(q, k, v, mask, is_causal=is_causal, return_lse=True, variant="mine")
    assert fn.calls == 1
    expected = expected_attention(q, k, v, mask, is_causal)
    check(out, expected[0], "out")
    check(lse, expected[1], "lse")


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("with_lse", [False, True], ids=["", "lse"])
@pytest.mark.parametrize("case", CASES)
def test_forced_gradients(case, with_lse, dtype, register):
    fn = Backward()
    register(fn, "attention_backward")
    q, k, v, mask, is_causal = make(case, dtype)
    leaves = [x.clone().requires_grad_() for x in (q, k, v)]
    with settings.override(variant="mine"):
        out, lse = attention(*leaves, mask, is_causal=is_causal, return_lse=True)
        grad, grad_lse = torch.randn(out.shape).to(dtype), torch.randn(lse.shape).to(lse.dtype)
        grads = (grad, grad_lse) if with_lse else (grad,)
        torch.autograd.backward((out, lse)[: len(grads)], grads)
    assert fn.calls == 1
    expected = expected_gradients(
        q, k, v, out.detach(), lse.detach(), grad, grad_lse if with_lse else None, mask, is_causal
    )
    for name, leaf, right in zip("qkv", leaves, expected, strict=True):
        check(leaf.grad, right, f"d{name}")


def test_they_race_and_are_verified(register, monkeypatch):
    monkeypatch.setattr(settings, "budget_s", 5.0)  # who has no cost model is the last to run
    register(Forward())
    register(Backward(), "attention_backward", "mine_backward")
    register(lambda *_, out, lse, **__: out.fill_(1.0), name="wrong")
    q, k, v, mask, _ = make("square", torch.float32)
    assert {"mine/1", "wrong/1"} <= set(variants(q, k, v=v, mask=mask))
    report = tune(q, k, v=v, mask=mask)
    found = {r.name: r for r in report.records}
    assert found["mine/1"].status in ("ok", "eliminated") and found["mine/1"].error <= 1
    assert found["wrong/1"].status == "failed" and "wrong" in found["wrong/1"].reason
    report = benchmark(q, k, v=v, mask=mask, backward=True, variants=["mine_backward"])
    assert report.winner == "mine_backward/1" and report.best.error <= 1


def test_supports_is_asked_about_the_problem(register):
    asked = []

    def refuse(problem):
        asked.append(problem)
        return "not today"

    register(Forward(), supports=refuse)
    register(Backward(), "attention_backward", "back", supports=refuse)
    q, k, v, mask, is_causal = make("causal", torch.bfloat16)
    with pytest.raises(ValueError, match="not today"):
        attention(q, k, v, mask, is_causal=is_causal, variant="mine")
    expected = AttentionProblem(
        op="attention",
        device="cpu",
        dtype=torch.bfloat16,
        batch=2,
        heads=4,
        kv_heads=1,
        queries=70,
        keys=45,
        dim=33,
        block_size=(8, 32),
        patterns=(2, 4),
        nnzb=mask.nnzb,
        is_causal=True,
        grad_lse=False,
        allow_tf32=False,
        deterministic=False,
    )
    assert asked[-1] == expected
    assert "back/1" not in variants(q, k, v=v, backward=True)
    assert asked[-1].op == "attention_backward"
    assert asked[-1].block_size is asked[-1].patterns is None and not asked[-1].is_causal


def test_an_unknown_operator():
    """Of the core: Python asks before."""
    with pytest.raises(ValueError, match="no operator 'conv' takes registered variants"):
        _tuner.register_variant(
            "mine/1", dispatched="a::b", device="cpu", op="conv", deterministic=True,
            multiplies_padding=False, captures=False, refusal=str, failure=str,
        )  # fmt: skip


# FlexAttention. Compiled it gives lse on GPUs alone: here its wiring runs with the eager one.


def eager():
    from torch.nn.attention.flex_attention import flex_attention

    return flex_attention


@pytest.mark.filterwarnings("ignore:.*flex_attention called without torch.compile")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("case", CASES)
def test_flex_attention(case, dtype, register):
    register(FlexAttention(eager, {}), name="flex_attention")
    q, k, v, mask, is_causal = make(case, dtype)
    out, lse = attention(
        q, k, v, mask, is_causal=is_causal, return_lse=True, variant="flex_attention"
    )
    expected = expected_attention(q, k, v, mask, is_causal)
    # Its eager form rounds scores to the operands' dtype.
    loose = 1 if dtype == torch.float32 else 60
    check(out, (expected[0][0], loose * expected[0][1]), "out")
    check(lse, (expected[1][0], loose * expected[1][1]), "lse")


def test_what_flex_attention_is_given():
    q, k, v, mask, _ = make("large blocks", torch.float32)
    given = []

    def attend(*tensors, **options):
        given.append(options)
        return tensors[0], SimpleNamespace(lse=tensors[0][..., 0])

    made = []
    flex = FlexAttention(lambda: made.append(1) or attend, {"BACKEND": "FLASH"})
    results = {"out": torch.empty_like(q), "lse": torch.empty(q.shape[:3])}
    flex(q, k, v, mask, **results, is_causal=False, scale=0.5)
    flex(q, k, v, mask, **results, is_causal=False, scale=0.25)
    assert len(made) == 1, "one compiled function for a kind of problem"
    assert given[0]["scale"] == 0.5 and given[0]["kernel_options"] == {"BACKEND": "FLASH"}
    assert given[0]["block_mask"].BLOCK_SIZE == (128, 128) and not given[0]["enable_gqa"]
    small = BlockMask.causal(200, 260, (96, 32))
    flex(q, k, v, small, **results, is_causal=True, scale=0.5)
    assert given[-1]["kernel_options"] == {"BLOCK_M": 32, "BLOCK_N": 32, "BACKEND": "FLASH"}
    flex(q, k, v, None, **results, is_causal=True, scale=0.5)
    assert given[-1]["block_mask"].seq_lengths == (200, 260)
    flex(q, k, v, None, **results, is_causal=False, scale=0.5)
    assert given[-1]["block_mask"] is None and len(made) == 4


def test_flex_attention_is_registered_for_gpus():
    before = variants()
    handles = [register_flex_attention(), register_flex_attention(kernel_options={"num_warps": 4})]
    try:
        names = [handle.name for handle in handles]
        assert all(name.startswith("flex_attention/torch") for name in names)
        assert len(set(names)) == 2 and set(names) <= set(variants())
        with pytest.raises(ValueError, match="already"):
            register_flex_attention()
    finally:
        for handle in handles:
            handle.unregister()
    assert variants() == before


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({}, True),
        ({"block_size": None}, True),
        ({"dtype": torch.float64}, "float16, bfloat16 and float32 only"),
        ({"dim": 8}, "at least 16 numbers"),
        ({"block_size": (64, 8)}, "multiples of 16"),
    ],
)
def test_what_flex_attention_supports(change, why):
    facts = {
        "op": "attention", "device": "cuda", "dtype": torch.float16, "batch": 1, "heads": 1,
        "kv_heads": 1, "queries": 64, "keys": 64, "dim": 64, "block_size": (64, 64),
        "patterns": (1, 1), "nnzb": -1, "is_causal": False, "grad_lse": False,
        "allow_tf32": False, "deterministic": False,
    }  # fmt: skip
    found = supports(AttentionProblem(**(facts | change)))
    assert found is True if why is True else why in found
