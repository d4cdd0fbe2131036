"""Attention past the dispatcher: the operator's bits, or the operator itself."""

import time
from types import SimpleNamespace

import pytest
import torch
from attention_reference import expected_attention, lies_as_result_of
from counted_calls import CountedCalls
from test_attention import CASES, DTYPES, check, make
from test_dispatch import Listener

from sparse_autotune import BlockMask, attention, settings
from sparse_autotune._torch.direct import install
from sparse_autotune.operators import attention as operators

DISPATCHED = torch._C._get_operation_overload("sparse_autotune::attention", "")[0]

READABLE = {
    "cpu": ("cpu_attention_naive", "cpu_attention_naive_backward"),
    "cuda": ("attention_naive", "attention_backward_naive"),
}


@pytest.fixture
def asked(no_races, monkeypatch):
    """How often a call asks the operator, and what it returns."""
    return CountedCalls(monkeypatch, {"attention_op": operators}).during


@pytest.fixture
def gradients_asked(monkeypatch):
    """How often gradients ask theirs, and what they are."""
    return CountedCalls(monkeypatch, {"attention_backward_op": operators})


def on(device, case, dtype=torch.float32):
    q, k, v, mask, is_causal = make(case, dtype)
    moved = [x.to(device) for x in (q, k, v)]
    assert [x.stride() for x in moved] == [x.stride() for x in (q, k, v)]
    return (*moved, None if mask is None else mask.to(device)), is_causal


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("case", CASES)
def test_direct_from_the_second_on(asked, device, case, dtype):
    operands, is_causal = on(device, case, dtype)

    def call():
        return attention(*operands, is_causal=is_causal, scale=0.3, return_lse=True)

    count, first = asked(call)
    assert count == 1
    count, second = asked(call)
    assert count == 0
    with Listener() as listener:
        heard = call()
    assert "sparse_autotune.attention.default" in listener.heard
    assert lies_as_result_of(operands[0], first[0]) and first[1].is_contiguous()
    for one, *others in zip(first, second, heard, strict=True):
        for other in others:
            assert torch.equal(one, other) and one.dtype == other.dtype
            assert one.stride() == other.stride()
    assert torch.equal(attention(*operands, is_causal=is_causal, scale=0.3), first[0])


def test_a_whole_number_as_scale(asked, device):
    operands, _ = on(device, "square")
    expected = attention(*operands, scale=1.0)
    count, found = asked(lambda: attention(*operands, scale=1))
    assert count == 0 and torch.equal(found, expected)


def test_a_counted_mask_and_a_variant_are_decided_once_each(asked, device):
    (q, k, v, mask), _ = on(device, "square")
    name = {"cpu": "cpu_attention_naive", "cuda": "attention_naive"}[device]
    expected = expected_attention(*(x.cpu() for x in (q, k, v)), mask.to("cpu"), False)[0]
    assert mask.nnzb
    for keywords in ({}, {"variant": name}):
        for most in (1, 0):
            count, out = asked(lambda keywords=keywords: attention(q, k, v, mask, **keywords))
            assert count <= most
            check(out.cpu(), expected, "out")


def test_below_autograd_it_is_direct_too(asked, device):
    (q, k, v, mask), _ = on(device, "square")
    out = attention(q, k, v, mask)
    leaf = q.clone().requires_grad_()
    count, trained = asked(lambda: attention(leaf, k, v, mask))
    assert count == 0 and trained.requires_grad and torch.equal(trained, out)
    trained.sum().backward()
    assert leaf.grad is not None


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("with_lse", [False, True], ids=["", "lse"])
@pytest.mark.parametrize("case", CASES)
def test_gradients_are_direct_from_the_second_on(
    no_races, gradients_asked, device, case, with_lse, dtype
):
    """And the operator's bits."""
    (q, k, v, mask), is_causal = on(device, case, dtype)
    leaves = [x.clone().requires_grad_() for x in (q, k, v)]
    draw = torch.Generator().manual_seed(5)
    forward, backward = READABLE[device]
    with settings.override(variant=backward):
        results = attention(*leaves, mask, is_causal=is_causal, return_lse=True, variant=forward)
        results = results[: 1 + with_lse]
        grads = [torch.randn(x.shape, generator=draw).to(x.dtype).to(device) for x in results]

        def gradients():
            return torch.autograd.grad(results, leaves, grads, retain_graph=True)

        count, first = gradients_asked.during(gradients)
        assert count == 1
        count, second = gradients_asked.during(gradients)
        assert count == 0
    for one, other, like in zip(first, second, leaves, strict=True):
        assert torch.equal(one, other) and one.stride() == other.stride()
        assert lies_as_result_of(like, one)


def test_gradients_list_a_mask_anew(no_races, gradients_asked, device):
    """Whose blocks, by column too, somebody wrote in place."""
    (q, k, v, _), _ = on(device, "square")
    blocks = torch.eye(4, device=device) > 0  # and others, as many
    mask, other = (BlockMask.from_blocks(each, 16) for each in (blocks, blocks.flip(0)))
    leaves = [x.clone().requires_grad_() for x in (q, k, v)]
    forward, backward = READABLE[device]

    def gradients(mask):
        out = attention(*leaves, mask, variant=forward)
        return torch.autograd.grad(out, leaves, torch.ones_like(out))

    with settings.override(variant=backward):
        for _ in range(2):
            gradients(mask)
        expected = gradients(other)
        mask.crow_indices.copy_(other.crow_indices)
        mask.col_indices.copy_(other.col_indices)
        count, found = gradients_asked.during(lambda: gradients(mask))
    assert count == 0
    assert all(map(torch.equal, found, expected))


def test_gradients_that_are_left_to_the_operator(no_races, gradients_asked, device):
    """Of a gradient without strides, and those that are to be differentiated, which raise."""
    (q, k, v, mask), _ = on(device, "square")
    leaves = [x.clone().requires_grad_() for x in (q, k, v)]
    forward, backward = READABLE[device]
    with settings.override(variant=backward):
        out = attention(*leaves, mask, variant=forward)
        for _ in range(2):
            expected = torch.autograd.grad(out, leaves, torch.ones_like(q), retain_graph=True)
        assert len(gradients_asked.asked) == 1
        found = torch.autograd.grad(out.sum(), leaves, retain_graph=True)
        assert len(gradients_asked.asked) == 2
        assert all(map(torch.equal, found, expected))
        with torch.autograd.profiler.profile():
            torch.autograd.grad(out, leaves, torch.ones_like(q), retain_graph=True)
        assert len(gradients_asked.asked) == 3
        (first, *_) = torch.autograd.grad(out, leaves, torch.ones_like(q), create_graph=True)
        assert len(gradients_asked.asked) > 3
        with pytest.raises(RuntimeError, match="no second derivative"):
            torch.autograd.grad(first.sum(), leaves[0])


def wait_for_sole_owner(tensors):
    """Autograd's thread for a GPU tells that it is done before it lets go of the gradients."""
    until = time.monotonic() + 10
    while any(each._use_count() > 1 for each in tensors):
        assert time.monotonic() < until, "somebody else keeps a gradient"
        time.sleep(0.001)


@pytest.mark.parametrize("trains", [False, True])
def test_torchs_kernels_hand_their_results_over(asked, gradients_asked, device, trains):
    """Past the dispatcher too: tensors like any others, which live as long as somebody has them."""
    forward, backward = {
        "cpu": ("sdpa", "sdpa_backward"),
        "cuda": ("torch_sdpa/efficient", "torch_sdpa_backward/efficient"),
    }[device]
    q, k, v = (
        torch.randn(2, 70, 2, 16, device=device).transpose(1, 2).requires_grad_(trains)
        for _ in range(3)
    )
    found, gradients = [], []
    with settings.override(variant=backward):
        for most in (1, 0, 0):
            before = len(gradients_asked.asked)
            count, (out, lse) = asked(lambda: attention(q, k, v, return_lse=True, variant=forward))
            assert count <= most
            found.append((out.detach().clone(), lse.detach().clone()))
            if trains:
                grad = torch.ones_like(out)
                gradients.append(torch.autograd.grad(out, (q, k, v), grad, retain_graph=True))
                assert len(gradients_asked.asked) - before <= most
                wait_for_sole_owner(gradients[-1])
                out.sum().backward()
            else:
                assert out._use_count() == lse._use_count() == 1
                out.add_(1)
                lse.add_(1)
                del out, lse
    expected = expected_attention(*(x.detach().cpu() for x in (q, k, v)), None, False)
    for out, lse in found:
        check(out.cpu(), expected[0], "out")
        check(lse.cpu(), expected[1], "lse")
    for ours in gradients:
        for one, other in zip(ours, gradients[0], strict=True):
            torch.testing.assert_close(one, other)


def test_what_is_left_to_the_operator(asked, device):
    """What has to be copied first, and what has nothing to launch."""
    (q, k, v, mask), _ = on(device, "square")
    attention(q, k, v, mask)
    strided = q.transpose(2, 3).contiguous().transpose(2, 3)
    for operands in ((strided, k, v, mask), (q[:, :, :0], k, v), (q, k[:, :, :0], v[:, :, :0])):
        for _ in range(2):
            count, out = asked(lambda operands=operands: attention(*operands))
            assert count == 1
    with torch.autocast(device, torch.bfloat16):
        assert asked(lambda: attention(q, k, v, mask))[1].dtype == torch.bfloat16
    mapped = torch.vmap(lambda q: attention(q, k, v, mask))(torch.stack([q, q + 1]))
    torch.testing.assert_close(mapped[0], attention(q, k, v, mask))
    del out


def test_what_is_wrong_is_still_refused(asked, device):
    """After the like of it was decided: blocks of 16 alone do not tell 64 queries from 60."""
    (q, k, v, mask), _ = on(device, "square")
    attention(q, k, v, mask)
    attention(q[:, :, :60], k, v)
    with pytest.raises(ValueError, match=r"mask must be of \(S, T\)"):
        attention(q[:, :, :60], k, v, mask)
    with pytest.raises(ValueError, match="mask must be one for all"):
        attention(q, k, v, BlockMask.from_blocks(torch.ones(3, 4, 4, device=device).bool(), 16))
    with pytest.raises(ValueError, match="variant must be one of"):
        attention(q, k, v, mask, variant="no_such_family")


def test_a_mask_written_in_place_is_read_anew(asked, device):
    (q, k, v, _), _ = on(device, "square")
    blocks = torch.eye(4, device=device) > 0  # and others, as many
    mask, other = (BlockMask.from_blocks(each, 16) for each in (blocks, blocks.flip(0)))
    attention(q, k, v, mask)
    mask.crow_indices.copy_(other.crow_indices)
    mask.col_indices.copy_(other.col_indices)
    count, out = asked(lambda: attention(q, k, v, mask))
    assert count == 0
    assert torch.equal(out, attention(q, k, v, other))


def test_settings_change_what_was_decided(asked, device):
    (q, k, v, mask), _ = on(device, "square")
    name = {"cpu": "cpu_attention_naive", "cuda": "attention_naive"}[device]
    attention(q, k, v, mask)
    with settings.override(variant=name):
        assert asked(lambda: attention(q, k, v, mask))[0] == 1
        assert asked(lambda: attention(q, k, v, mask))[0] == 0


def test_compiled_graphs_call_it(no_races, device):
    (q, k, v, mask), _ = on(device, "square")
    count = [0]

    def dispatched(*arguments, **keywords):
        count[0] += 1
        return DISPATCHED(*arguments, **keywords)

    stand_in = SimpleNamespace(_schema=operators.attention_op._schema, _op=dispatched)
    install(stand_in)
    arguments = (q, k, v, mask.crow_indices, mask.col_indices, *mask.block_size)
    for keywords in ({}, {"is_causal": True, "scale": 0.5}):
        DISPATCHED(*arguments, **keywords)
        before = count[0]
        found = stand_in._op(*arguments, **keywords)
        assert count[0] == before
        for one, other in zip(found, DISPATCHED(*arguments, **keywords), strict=True):
            assert torch.equal(one, other)
    # Names that it does not have, and what is none of its types, are the dispatcher's to refuse.
    for keywords in ({"no_such": 1}, {"scale": "a"}, {"nnzb": 0.5}):
        with pytest.raises((TypeError, RuntimeError)):
            stand_in._op(*arguments, **keywords)
