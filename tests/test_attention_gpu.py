"""Attention on a GPU: every variant against fp64, masks that nobody waits for, capture."""

import pytest
import torch
from attention_reference import expected_attention, expected_gradients, lies_as_result_of
from test_attention import CASES, check, make

import sparse_autotune
from sparse_autotune import BlockMask, _tuner, attention
from sparse_autotune.block_attention import attention_legality
from sparse_autotune.tuning.questions import about_attention

pytestmark = pytest.mark.gpu

DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]
ON_GPU = [v for v in _tuner.variants() if v["device"] == "cuda"]
FORWARD = [v["name"] for v in ON_GPU if v["op"] == "attention"]
BACKWARD = [v["name"] for v in ON_GPU if v["op"] == "attention_backward"]

# As those of `test_attention`, of sizes that kernels for tensor cores take.
LARGE = {
    "128": ((512, 640), 4, 2, 128, (128, 128), (4,), False),
    "128, causal": ((600, 600), 2, 2, 128, (128, 128), (), True),
    "64": ((448, 330), 4, 1, 64, (64, 64), (2, 4), False),
    "64, causal": ((512, 512), 2, 2, 128, (64, 64), (), True),
    "32": ((256, 288), 4, 4, 128, (32, 32), (4,), False),
    "16": ((256, 272), 4, 2, 64, (16, 16), (), True),
    "128 by 32": ((384, 288), 4, 2, 128, (128, 32), (4,), False),
    "16, ragged": ((405, 697), 4, 2, 128, (16, 16), (2, 4), False),
    "16, wide, causal": ((450, 515), 2, 1, 128, (16, 64), (2,), True),
    "32, causal": ((620, 620), 2, 2, 64, (32, 32), (2,), True),
    "128, many tiles of columns": ((200, 1300), 14, 14, 128, (128, 128), (14,), False),
    "dense": ((384, 384), 4, 4, 128, None, (), False),
    "dense, causal": ((512, 512), 4, 4, 64, None, (), True),
}
ALL = {**CASES, **LARGE}


@pytest.fixture(autouse=True)
def larger_cases(monkeypatch):
    for name, case in LARGE.items():
        monkeypatch.setitem(CASES, name, case)


def on_gpu(case, dtype):
    q, k, v, mask, is_causal = make(case, dtype)
    moved = [x.transpose(1, 2).cuda().transpose(1, 2) for x in (q, k, v)]
    return (q, k, v, mask), (*moved, None if mask is None else mask.to("cuda")), is_causal


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("case", ALL)
@pytest.mark.parametrize("variant", FORWARD)
def test_every_variant(variant, case, dtype):
    host, operands, is_causal = on_gpu(case, dtype)
    why = attention_legality(*operands, is_causal, None)[variant]
    if why is not None:
        pytest.skip(why)
    out, lse = attention(*operands, is_causal=is_causal, return_lse=True, variant=variant)
    assert lies_as_result_of(operands[0], out) and lse.is_contiguous()
    expected = expected_attention(*host, is_causal)
    check(out.cpu(), expected[0], "out")
    check(lse.cpu(), expected[1], "lse")


@pytest.mark.parametrize("variant", [v for v in FORWARD if "warps" in v or "merged" in v])
def test_block_rows_that_are_far_from_an_even_pace(variant):
    """Each of two neighbours has long lists of its own, in another part of the columns."""
    draw = torch.Generator().manual_seed(0)
    q, k, v = (
        torch.randn((1, 2, length, 64), generator=draw).bfloat16() for length in (200, 19200, 19200)
    )
    block = 32 if variant.endswith(("/p32", "/32x8")) else 16
    blocks = torch.zeros((-(-200 // block), 19200 // block), dtype=torch.bool)
    for row, columns in enumerate(blocks):
        columns[row * 1280 // block : (row * 1280 + 3840) // block] = True
    mask = BlockMask.from_blocks(blocks, block, (200, 19200))
    operands = [x.cuda() for x in (q, k, v)]
    out, lse = attention(*operands, mask.to("cuda"), return_lse=True, variant=variant)
    expected = expected_attention(q, k, v, mask, False)
    check(out.cpu(), expected[0], "out")
    check(lse.cpu(), expected[1], "lse")


@pytest.mark.parametrize("dim", [64, 128])
@pytest.mark.parametrize("block", [None, 16, 32, 64, 128])
@pytest.mark.parametrize("variant", FORWARD)
def test_few_rows_along_many_columns(variant, block, dim):
    """What splits its work along the columns adds up the same parts whenever they come."""
    draw = torch.Generator().manual_seed(0)
    q, k, v = (
        torch.randn((1, 3, length, dim), generator=draw).bfloat16() for length in (300, 8100, 8100)
    )
    mask = None
    if block is not None:
        stored = torch.rand((-(-300 // block), -(-8100 // block)), generator=draw) < 0.4
        stored[1] = False  # a block row without columns
        stored[2, 3000 // block :] = False  # all its blocks may lie in one part
        mask = BlockMask.from_blocks(stored, block, (300, 8100))
    operands = (*(x.cuda() for x in (q, k, v)), None if mask is None else mask.to("cuda"))
    why = attention_legality(*operands, False, None)[variant]
    if why is not None:
        pytest.skip(why)

    def call():
        return attention(*operands, return_lse=True, variant=variant)

    out, lse = call()
    expected = expected_attention(q, k, v, mask, False)
    check(out.cpu(), expected[0], "out")
    check(lse.cpu(), expected[1], "lse")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = call()
    for _ in range(3):
        for x in captured:
            x.fill_(torch.nan)
        graph.replay()
        for left, right in zip((out, lse), captured, strict=True):
            assert torch.equal(left, right)
        for left, right in zip((out, lse), call(), strict=True):
            assert torch.equal(left, right)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("with_lse", [False, True], ids=["", "lse"])
@pytest.mark.parametrize("case", ALL)
@pytest.mark.parametrize("variant", BACKWARD)
def test_every_backward_variant(variant, case, with_lse, dtype):
    (q, k, v, mask), operands, is_causal = on_gpu(case, dtype)
    # What anybody leaves: the readable kernel's on the CPU.
    left = attention(q, k, v, mask, is_causal=is_causal, return_lse=True,
                     variant="cpu_attention_naive")  # fmt: skip
    out, lse = (x.cuda() for x in left)
    generator = torch.Generator().manual_seed(1)
    grad = torch.randn(out.shape, generator=generator).to(dtype)
    grad_lse = torch.randn(lse.shape, generator=generator).to(lse.dtype) if with_lse else None
    on_device = operands[3]
    tensors = (None, None, None, None) if mask is None else (
        on_device.crow_indices, on_device.col_indices, *on_device.by_column())  # fmt: skip
    block = (0, 0) if mask is None else mask.block_size
    grads = (grad.cuda(), None if grad_lse is None else grad_lse.cuda())
    arguments = (*grads, *operands[:3], out, lse, *tensors, *block)
    operators = torch.ops.sparse_autotune
    answer = operators.attention_backward_race(*arguments, is_causal=is_causal, dry_run=True)
    lines = [line.split("\t") for line in bytes(answer.tolist()).decode().splitlines()]
    (why,) = [rest[1:] for name, *rest in lines if name == variant]
    if why:
        pytest.skip(why[0])
    found = operators.attention_backward(*arguments, is_causal=is_causal, variant=variant)
    expected = expected_gradients(q, k, v, *left, grad, grad_lse, mask, is_causal)
    for name, like, got, right in zip("qkv", operands[:3], found, expected, strict=True):
        check(got.cpu(), right, f"d{name}")
        assert lies_as_result_of(like, got)


TORCHS = [v for v in FORWARD + BACKWARD if v.startswith("torch_sdpa")]


@pytest.mark.parametrize("case", ["dense, causal", "64"])
@pytest.mark.parametrize("variant", TORCHS)
def test_graphs_hold_torchs_kernels(variant, case):
    """And their results, where they hand them over, which later work must not overwrite."""
    host, (q, k, v, mask), is_causal = on_gpu(case, torch.bfloat16)
    backward = variant in BACKWARD
    legality = about_attention(q, k, v, mask, is_causal, backward).legality()
    if legality[variant] is not None:
        pytest.skip(legality[variant])
    saved = attention(q, k, v, mask, is_causal=is_causal, return_lse=True)
    draw = torch.Generator("cuda").manual_seed(0)
    grad = torch.randn(q.shape, generator=draw, device="cuda").to(q.dtype)

    def call():
        if not backward:
            return attention(q, k, v, mask, is_causal=is_causal, return_lse=True, variant=variant)
        return torch.ops.sparse_autotune.attention_backward(
            grad, None, q, k, v, *saved, is_causal=is_causal, variant=variant
        )

    call()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = call()
        after = [torch.full_like(x, float("nan")) for x in found]
    for seed in range(2):
        q.copy_(torch.randn(q.shape, generator=torch.Generator().manual_seed(seed)))
        for x in saved if backward else ():
            x.fill_(0.5)
        graph.replay()
        expected = call()
        for got, right in zip(found, expected, strict=True):
            torch.testing.assert_close(got, right, atol=1e-2, rtol=1e-2)
    del host, after


def test_cudnn_does_the_same_for_torch_after_us():
    """torch keeps what cuDNN built for a problem, whoever came first."""
    draw = torch.Generator("cuda").manual_seed(0)
    q, k, v, grad = (
        torch.randn((1, 384, 2, 64), generator=draw, device="cuda", dtype=torch.bfloat16).transpose(
            1, 2
        )
        for _ in range(4)
    )

    def of_torch(backend, dtype):
        leaves = [x.to(dtype).detach().requires_grad_() for x in (q, k, v)]
        with torch.nn.attention.sdpa_kernel(backend):
            out = torch.nn.functional.scaled_dot_product_attention(*leaves, is_causal=True)
        return torch.autograd.grad(out, leaves, grad.to(dtype))

    attention(q, k, v, is_causal=True, variant="torch_sdpa/cudnn")
    backends = torch.nn.attention.SDPBackend
    found = of_torch(backends.CUDNN_ATTENTION, torch.bfloat16)
    for got, right in zip(found, of_torch(backends.MATH, torch.float32), strict=True):
        torch.testing.assert_close(got.float(), right, atol=0.03, rtol=0.03)


def test_every_variant_took_part():
    """A race of each, whose verification is the tuner's own."""
    assert {"torch_sdpa", "torch_sdpa_backward"} <= {n.split("/")[0] for n in FORWARD + BACKWARD}
    _, (q, k, v, mask), is_causal = on_gpu("dense, causal", torch.bfloat16)
    for backward in (False, True):
        question = about_attention(q, k, v, mask, is_causal, backward)
        legal = [name for name, why in question.legality().items() if why is None]
        report = sparse_autotune.benchmark(
            q, k, v=v, mask=mask, is_causal=is_causal, backward=backward
        )
        failed = [r for r in report.records if r.name in legal and r.status == "failed"]
        assert not failed and report.best is not None


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
@pytest.mark.parametrize("case", ["128, causal", "16"])
def test_second_gpu(case):
    """While the first is the current one, and stays it."""
    (q, k, v, mask), _, is_causal = on_gpu(case, torch.bfloat16)
    q, k, v = (x.to("cuda:1").requires_grad_() for x in (q, k, v))
    out = attention(q, k, v, mask.to("cuda:1"), is_causal=is_causal)
    assert torch.cuda.current_device() == 0
    out.square().sum().backward()
    assert torch.cuda.current_device() == 0
    assert out.device == q.grad.device == torch.device("cuda:1")
    # Every gradient of a race was verified on that device; here the whole way is looked at.
    expected, _ = expected_attention(*(x.detach().cpu() for x in (q, k, v)), mask, is_causal)
    check(out.detach().cpu(), expected, "out")
    assert all(bool(x.grad.isfinite().all()) for x in (q, k, v))


def test_masks_of_the_device_wait_for_nobody():
    blocks = torch.rand(4, 8, 8, device="cuda") < 0.5
    lengths = torch.tensor([[128, 384], [256, 256]], device="cuda")
    torch.cuda.set_sync_debug_mode("error")
    try:
        mask = BlockMask.from_blocks(blocks, 64)
        BlockMask.from_index_lists(*mask.index_lists(), 64, (512, 512)).by_column()
        BlockMask.documents(lengths, 512, 64)
        BlockMask.sliding_window(512, block_size=64, window=128, device="cuda")
        mask.to_flex_attention()
        mask.to_fa4()
        mask.to_flashinfer()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert torch.equal(mask.blocks(), blocks)


def test_a_new_mask_in_every_call():
    """All share one race, as nobody has counted their blocks."""
    (q, k, v, _), operands, _ = on_gpu("64", torch.bfloat16)
    *tensors, _ = operands
    counts = []
    for seed in range(3):
        draw = torch.Generator().manual_seed(seed)
        blocks = torch.rand(7, 6, generator=draw) < 0.2 + 0.3 * seed
        mask = BlockMask.from_blocks(blocks, 64, (448, 330))
        out = attention(*tensors, BlockMask.from_blocks(blocks.cuda(), 64, (448, 330)))
        check(out.cpu(), expected_attention(q, k, v, mask, False)[0], "out")
        counts.append(sparse_autotune.tuning_count())
    assert counts[0] == counts[2]


def test_densities_that_are_known_have_races_of_their_own(fresh_cache):
    """Without a wait: of a rule the host counts, and of chosen blocks the caller says it."""
    q = torch.randn(1, 4, 1024, 64, device="cuda", dtype=torch.bfloat16)
    torch.cuda.set_sync_debug_mode("error")
    try:
        masks = [
            BlockMask.sliding_window(1024, block_size=64, window=64, device="cuda"),
            BlockMask.sliding_window(1024, block_size=64, window=512, device="cuda"),
        ]
        for density in (0.1, 0.5):
            blocks = torch.rand(4, 16, 16, device="cuda") < density
            masks.append(BlockMask.from_blocks(blocks, 64, density=density))
    finally:
        torch.cuda.set_sync_debug_mode("default")
    for mask in masks:
        before = sparse_autotune.tuning_count()
        attention(q, q, q, mask)
        assert sparse_autotune.tuning_count() == before + 1
        mask.nnzb  # noqa: B018  asking changes nothing
        attention(q, q, q, mask)
        assert sparse_autotune.tuning_count() == before + 1
    assert masks[0].nnzb == masks[0].to("cpu").nnzb == masks[0]._counted


def test_recorded_attention_is_raced_from_a_file(fresh_cache):
    """Of masks whose blocks nobody counted, too."""
    record = fresh_cache / "missed.jsonl"

    def calls():
        for case in ("64", "128, causal", "dense, causal"):
            _, (q, k, v, mask), is_causal = on_gpu(case, torch.bfloat16)
            for seen in [mask] if mask is None else [
                mask, BlockMask.from_blocks(mask.blocks(), mask.block_size, mask.lengths)
            ]:  # fmt: skip
                leaf = q.clone().requires_grad_()
                attention(leaf, k, v, seen, is_causal=is_causal).sum().backward()

    with sparse_autotune.settings.override(mode="record", record_path=record, verbosity=0):
        calls()
    report = sparse_autotune.tune_file(record, progress=False)
    assert not report.skipped and all(race.best is not None for race in report.races)
    assert len(report.races) == 10
    assert sparse_autotune.tune_file(record, progress=False).known == 10
    before = sparse_autotune.tuning_count()
    calls()
    assert sparse_autotune.tuning_count() == before


@pytest.mark.parametrize("case", ["128", "64, causal", "dense", "dense, causal"])
def test_flex_attention(case, fresh_cache):
    """Compiled, in races and forced."""
    pytest.importorskip("triton")
    handle = sparse_autotune.register_flex_attention()
    try:
        host, operands, is_causal = on_gpu(case, torch.bfloat16)
        out, lse = attention(
            *operands, is_causal=is_causal, return_lse=True, variant="flex_attention"
        )
        expected = expected_attention(*host, is_causal)
        check(out.cpu(), expected[0], "out")
        check(lse.cpu(), expected[1], "lse")
        q, k, v, mask = operands
        with sparse_autotune.settings.override(budget_s=5.0):  # it is the slowest by far
            report = sparse_autotune.tune(q, k, v=v, mask=mask, is_causal=is_causal)
        (found,) = [r for r in report.records if r.family == "flex_attention"]
        assert found.status in ("ok", "eliminated") and found.error <= 1 and not found.captures
    finally:
        handle.unregister()
