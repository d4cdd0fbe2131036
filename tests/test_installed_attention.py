"""FlashAttention 4 and cuDNN's block-sparse attention as registered variants."""

import importlib
import sys
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
from attention_reference import expected_attention, expected_gradients
from test_attention import CASES, check, make
from test_attention_gpu import LARGE, on_gpu
from test_registered_attention import Backward, Forward

from sparse_autotune import (
    AttentionProblem,
    BlockMask,
    attention,
    register_cudnn_bsa,
    register_flash_attention_4,
    settings,
    tune,
    variants,
)
from sparse_autotune.mask_forms import grid_of_lists
from sparse_autotune.tuning import cudnn_bsa, flash_attention_4, installed_kernels

REGISTER = {"flash_attention_4": register_flash_attention_4, "cudnn_bsa": register_cudnn_bsa}
MODULES = {
    "flash_attention_4": "flash_attn.cute.interface",
    "cudnn_bsa": "cudnn.block_sparse_attention._interface",
}
# As those of `test_attention`.
MORE = {
    "128, odd ends": ((600, 700), 4, 4, 128, (128, 128), (2, 4), False),
    "64, heads alike": ((448, 330), 4, 4, 128, (64, 64), (4,), False),
    "128, causal, fewer queries": ((500, 700), 4, 2, 128, (128, 128), (4,), True),
    "128, causal, fewer keys": ((700, 500), 4, 2, 64, (128, 128), (4,), True),
    "96 numbers": ((512, 640), 4, 2, 96, (128, 128), (), False),
    "40 numbers": ((512, 640), 4, 2, 40, (128, 128), (), True),
    "192 numbers": ((512, 640), 4, 2, 192, (128, 96), (), True),
    "256 numbers": ((512, 640), 4, 2, 256, (64, 64), (), True),
    "64 by 128": ((448, 640), 4, 2, 128, (64, 128), (4,), True),
    "256 by 128": ((600, 640), 6, 2, 128, (256, 128), (), True),
    "128 by 16": ((512, 640), 4, 2, 128, (128, 16), (4,), True),
    "dense, 256 numbers": ((300, 300), 2, 2, 256, None, (), True),
    "dense, other lengths": ((300, 500), 4, 2, 128, None, (), False),
}


@pytest.fixture(autouse=True)
def more_cases(monkeypatch):
    for name, case in {**LARGE, **MORE}.items():
        monkeypatch.setitem(CASES, name, case)


@pytest.mark.parametrize("name", REGISTER)
def test_what_is_not_installed_is_not_registered(name, monkeypatch):
    monkeypatch.setitem(sys.modules, MODULES[name], None)
    before = variants()
    with pytest.raises(ImportError, match="pip install .*" + MODULES[name].split(".")[0]):
        REGISTER[name]()
    assert variants() == before


def register_stand_in():
    return installed_kernels.register_both(
        "stand_in", Forward(), Backward(), lambda problem: "not today",
        distribution="torch", module="json", version=None,
    )  # fmt: skip


def test_both_are_registered_or_none():
    before = variants()
    first, second = register_stand_in()
    try:
        version = installed_kernels.in_letters(torch.__version__)
        assert (first.name, second.name) == (f"stand_in/{version}", f"stand_in_backward/{version}")
        for gone in ((), (first,)):
            for handle in gone:
                handle.unregister()
            with pytest.raises(ValueError, match="already"):
                register_stand_in()
        assert set(variants()) - set(before) == {second.name}
    finally:
        first.unregister()
        second.unregister()
    assert variants() == before


def problem(**facts):
    plain = {
        "op": "attention", "device": "cuda", "dtype": torch.bfloat16, "batch": 1, "heads": 2,
        "kv_heads": 2, "queries": 256, "keys": 256, "dim": 128, "block_size": (128, 128),
        "patterns": (1, 1), "nnzb": -1, "is_causal": False, "grad_lse": False,
        "allow_tf32": False, "deterministic": False,
    }  # fmt: skip
    return AttentionProblem(**(plain | facts))


@pytest.mark.parametrize(
    ("capability", "dtype", "why"),
    [
        ((9, 0), torch.float16, "not today"),
        ((9, 0), torch.float32, "float16 and bfloat16 only"),
        ((8, 0), torch.float16, "Hopper GPUs only"),
        ((10, 0), torch.float16, "Hopper GPUs only"),
    ],
)
def test_of_which_gpus_and_dtypes_a_package_is_asked(capability, dtype, why, monkeypatch):
    asked = []
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)
    monkeypatch.setattr(
        installed_kernels, "register_variant", lambda *_, supports, **__: asked.append(supports)
    )
    register_stand_in()
    assert len(asked) == 2 and all(why in supports(problem(dtype=dtype)) for supports in asked)


BACK = {"op": "attention_backward"}


@pytest.mark.parametrize(
    ("facts", "why"),
    [
        ({}, True),
        (BACK, True),
        (BACK | {"grad_lse": True, "is_causal": True, "kv_heads": 1}, True),
        ({"dim": 36}, "multiples of 8"),
        ({"block_size": None, "is_causal": True}, True),
        ({"block_size": None, "is_causal": True, "queries": 64}, "lengths differ"),
        ({"block_size": (64, 16)}, True),
        ({"block_size": (32, 32)}, "multiples of 64 queries, and of 16 up to 128 keys"),
        ({"block_size": (128, 256)}, "up to 128 keys"),
        ({"block_size": (128, 96), "dim": 192}, True),
        ({"block_size": (128, 96), "dim": 256}, "up to 80 keys"),
        (BACK | {"block_size": (64, 64)}, "multiples of 64 queries, and 128 keys"),
        (BACK | {"block_size": (64, 128), "dim": 64}, "multiples of 128 queries, and 128 keys"),
        (BACK | {"block_size": (64, 64), "dim": 256}, True),
        (BACK | {"block_size": (128, 96), "dim": 192}, True),
        (BACK | {"dim": 40}, "heads of 64, 96, 128, 192 or 256"),
    ],
)
def test_what_flash_attention_4_supports(facts, why):
    found = flash_attention_4.supports(problem(**facts))
    assert found is True if why is True else why in found


@pytest.mark.parametrize(
    ("facts", "why"),
    [
        ({}, True),
        (BACK, True),
        ({"dtype": torch.float16, "kv_heads": 1, "dim": 64, "queries": 100}, True),
        ({"dim": 80}, "heads of 64, 96 or 128 numbers"),
        ({"block_size": None}, "needs a mask"),
        ({"block_size": (64, 128)}, "blocks of 64 or of 128"),
        ({"is_causal": True}, "whole blocks only"),
        ({"block_size": (64, 64)}, True),
        ({"block_size": (64, 64), "queries": 100}, "multiples as queries"),
        (BACK | {"dtype": torch.float16}, "gradients in bfloat16"),
        (BACK | {"dim": 64}, "of heads of 128 numbers"),
        (BACK | {"kv_heads": 1}, "without heads that share keys"),
        (BACK | {"grad_lse": True}, "no gradients of lse"),
    ],
)
def test_what_cudnn_bsa_supports(facts, why):
    found = cudnn_bsa.supports(problem(**facts))
    assert found is True if why is True else why in found


# Their wiring, with functions in their place that compute what the lists say.


def of_flash(lists, rule, lengths, by_column=False):
    grids = [
        grid_of_lists(counts, columns, columns.shape[-1])
        for counts, columns in (
            (lists.mask_block_cnt, lists.mask_block_idx),
            (lists.full_block_cnt, lists.full_block_idx),
        )
    ]
    blocks = grids[0] | grids[1]
    if rule is None:
        assert not grids[0].any(), "blocks that no rule cuts"
    blocks = blocks.mT if by_column else blocks
    return BlockMask.from_blocks(blocks, lists.block_size, lengths, is_causal=rule is not None)


@pytest.mark.parametrize("case", ["square", "large blocks", "causal", "no mask, causal"])
def test_what_flash_attention_4_is_given(case, monkeypatch):
    def mask_of(q, k, options, by_column=False):
        lists = options.get("block_sparse_tensors")
        if lists is None:
            return None, options["causal"]
        rule = options["mask_mod"]
        assert rule in (None, "rule")
        lengths = q.shape[1], k.shape[1]
        return of_flash(lists, rule, lengths, by_column), rule is not None

    def fwd(q, k, v, *, softmax_scale, out, lse, **options):
        mask, is_causal = mask_of(q, k, options)
        heads = (x.transpose(1, 2) for x in (q, k, v))
        results = {"out": out.transpose(1, 2), "lse": lse}
        Forward()(*heads, mask, **results, is_causal=is_causal, scale=softmax_scale)

    def bwd(q, k, v, out, dout, lse, *, softmax_scale, dlse, dq, dk, dv, **options):
        mask, is_causal = mask_of(q, k, options, by_column=True)
        dout, q, k, v, out, dq, dk, dv = (
            x.transpose(1, 2) for x in (dout, q, k, v, out, dq, dk, dv)
        )
        Backward()(
            dout, q, k, v, out, lse, mask, grad_q=dq, grad_k=dk, grad_v=dv, grad_lse=dlse,
            by_column=None if mask is None else mask.by_column(), is_causal=is_causal,
            scale=softmax_scale,
        )  # fmt: skip

    module = SimpleNamespace(_flash_attn_fwd=fwd, _flash_attn_bwd=bwd)
    lists = SimpleNamespace(BlockSparseTensorsTorch=lambda **fields: SimpleNamespace(**fields))
    for name in ("flash_attn", "flash_attn.cute"):
        monkeypatch.setitem(sys.modules, name, SimpleNamespace(__path__=[]))
    monkeypatch.setitem(sys.modules, "flash_attn.cute.interface", module)
    monkeypatch.setitem(sys.modules, "flash_attn.cute.block_sparsity", lists)
    monkeypatch.setattr(flash_attention_4, "causal_rule", lambda: "rule")
    both_compute(flash_attention_4, make(case, torch.float32), with_lse=True)


@pytest.mark.parametrize("case", ["square", "64, heads alike"])
def test_what_cudnn_bsa_is_given(case, monkeypatch):
    def mask_of(q, k, lists):
        side, keys = lists["sparse_block_size"], k.shape[2]
        assert lists["q2k_block_index"].is_contiguous() and lists["q2k_block_nums"].is_contiguous()
        ends = lists["block_sizes"]
        assert (ends is None) == (keys % side == 0)
        assert ends is None or (int(ends.sum()) == keys and ends.dtype == torch.int32)
        columns, counts = lists["q2k_block_index"], lists["q2k_block_nums"]
        assert columns.shape[:2] == counts.shape[:2] == q.shape[:2]
        return BlockMask.from_index_lists(columns, counts, side, (q.shape[2], keys))

    def fwd(q, k, v, *, softmax_scale, allow_empty_block_nums, **lists):
        assert allow_empty_block_nums
        results = {"out": torch.empty_like(q), "lse": torch.empty(q.shape[:3])}
        mask = mask_of(q, k, lists)
        Forward()(q, k, v, mask, **results, is_causal=False, scale=softmax_scale)
        return {"o_tensor": results["out"], "lse_tensor": results["lse"]}

    def bwd(do, q, k, v, out, lse, *, softmax_scale, dq_tensor, dk_tensor, dv_tensor, **lists):
        mask = mask_of(q, k, lists)
        Backward()(
            do, q, k, v, out, lse, mask, grad_q=dq_tensor, grad_k=dk_tensor, grad_v=dv_tensor,
            grad_lse=None, by_column=mask.by_column(), is_causal=False, scale=softmax_scale,
        )  # fmt: skip

    module = SimpleNamespace(
        block_sparse_attention_forward=fwd, block_sparse_attention_backward=bwd
    )
    monkeypatch.setitem(sys.modules, "cudnn", SimpleNamespace(__path__=[]))
    monkeypatch.setitem(sys.modules, "cudnn.block_sparse_attention", module)
    both_compute(cudnn_bsa, make(case, torch.float32), with_lse=False)


def both_compute(module, operands, with_lse):
    """What `register_variant` calls, on the CPU."""
    q, k, v, mask, is_causal = operands
    if mask is not None:
        form = mask.block_size, mask.lengths
        mask = BlockMask.from_blocks(mask.blocks(), *form, is_causal=is_causal)
    form = {"is_causal": is_causal, "scale": q.shape[-1] ** -0.5}
    out, lse = torch.empty_like(q), torch.empty(q.shape[:3])
    module._forward(q, k, v, mask, out=out, lse=lse, **form)
    expected = expected_attention(q, k, v, mask, is_causal)
    check(out, expected[0], "out")
    check(lse, expected[1], "lse")
    grad, grad_lse = torch.randn(out.shape), torch.randn(lse.shape) if with_lse else None
    grads = {f"grad_{name}": torch.empty_like(x) for name, x in zip("qkv", (q, k, v), strict=True)}
    columns = None if mask is None else mask.by_column()
    rest = {"grad_lse": grad_lse, "by_column": columns, **form}
    module._backward(grad, q, k, v, out, lse, mask, **grads, **rest)
    expected = expected_gradients(q, k, v, out, lse, grad, grad_lse, mask, is_causal)
    for (name, found), right in zip(grads.items(), expected, strict=True):
        check(found, right, name)


# On a GPU, where they are installed.


@pytest.fixture(scope="module")
def registered(request):
    """Registers the one of that name, once; gives the name."""
    try:
        importlib.import_module(MODULES[request.param])
    except ImportError as error:
        pytest.skip(str(error))
    if torch.cuda.get_device_capability()[0] != 9:
        pytest.skip("Hopper GPUs only")
    handles = REGISTER[request.param]()
    yield request.param
    for handle in handles:
        handle.unregister()


def legal(name, operands, is_causal, backward=False):
    q, k, v, mask = operands
    found = variants(q, k, v=v, mask=mask, is_causal=is_causal, backward=backward)
    return any(full.partition("/")[0] == name for full in found)


each = pytest.mark.parametrize("registered", REGISTER, indirect=True)
every_case = pytest.mark.parametrize(
    ("case", "dtype"),
    [(case, torch.bfloat16) for case in (*LARGE, *MORE)] + [("128", torch.float16)],
    ids=str,
)


@pytest.mark.gpu
@every_case
@each
def test_on_a_gpu(registered, case, dtype):
    host, operands, is_causal = on_gpu(case, dtype)
    if not legal(registered, operands, is_causal):
        with pytest.raises(ValueError, match="is not legal"):
            attention(*operands, is_causal=is_causal, variant=registered)
        return
    out, lse = attention(*operands, is_causal=is_causal, return_lse=True, variant=registered)
    expected = expected_attention(*host, is_causal)
    check(out.cpu(), expected[0], "out")
    check(lse.cpu(), expected[1], "lse")


@pytest.mark.gpu
@every_case
@each
def test_gradients_on_a_gpu(registered, case, dtype):
    host, operands, is_causal = on_gpu(case, dtype)
    name = f"{registered}_backward"
    *tensors, mask = operands
    leaves = [x.clone().requires_grad_() for x in tensors]
    # What anybody leaves.
    results = attention(
        *leaves, mask, is_causal=is_causal, return_lse=True, variant="attention_naive"
    )
    grads = [torch.randn(x.shape).to(x.dtype) for x in results]
    if registered == "cudnn_bsa":
        grads[1] = None
    given = [(x, grad.cuda()) for x, grad in zip(results, grads, strict=True) if grad is not None]
    is_legal = legal(name, operands, is_causal, backward=True)
    refused = nullcontext() if is_legal else pytest.raises(RuntimeError, match="is not legal")
    with settings.override(variant=name), refused:
        torch.autograd.backward(*zip(*given, strict=True))
    if not is_legal:
        return
    left = (x.detach().cpu() for x in results)
    expected = expected_gradients(*host[:3], *left, *grads, host[3], is_causal)
    for letter, leaf, right in zip("qkv", leaves, expected, strict=True):
        check(leaf.grad.cpu(), right, f"d{letter}")


@pytest.mark.gpu
@pytest.mark.parametrize("backward", [False, True], ids=["forward", "backward"])
@each
def test_races_and_captures(registered, backward, fresh_cache):
    _, (q, k, v, mask), _ = on_gpu("128, odd ends", torch.bfloat16)
    name = f"{registered}_backward" if backward else registered
    with settings.override(budget_s=5.0):
        report = tune(q, k, v=v, mask=mask, backward=backward)
    (found,) = [r for r in report.records if r.family == name]
    assert found.status in ("ok", "eliminated") and found.error <= 1 and found.captures

    if not backward:
        graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
        with torch.cuda.graph(graph, stream=stream):
            out = attention(q, k, v, mask, variant=name)
        out.zero_()
        graph.replay()
        assert torch.equal(out, attention(q, k, v, mask, variant=name))
