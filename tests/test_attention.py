"""`attention`: every variant against fp64, gradients, masks, strides, and what is refused."""

import math

import pytest
import torch
from attention_reference import expected_attention, expected_gradients, lies_as_result_of

import sparse_autotune
from sparse_autotune import BlockMask, _tuner, attention
from sparse_autotune.block_attention import attention_legality
from sparse_autotune.tuning.questions import about_attention

FORWARD = [v["name"] for v in _tuner.variants() if v["op"] == "attention" and v["device"] == "cpu"]
BACKWARD = [
    v["name"] for v in _tuner.variants() if v["op"] == "attention_backward" and v["device"] == "cpu"
]
DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]

# (lengths, heads, kv_heads, dim, block, leading dimensions of the mask, is_causal)
CASES = {
    "square": ((64, 64), 2, 2, 16, (16, 16), (), False),
    "ragged": ((50, 71), 4, 2, 40, (16, 8), (4,), False),
    "causal": ((70, 45), 4, 1, 33, (8, 32), (2, 4), True),
    "odd": ((37, 29), 3, 3, 7, (5, 7), (2, 1), True),
    "one query": ((1, 90), 2, 1, 64, (1, 16), (), False),
    "no mask": ((33, 47), 4, 2, 24, None, (), False),
    "no mask, causal": ((47, 33), 2, 2, 24, None, (), True),
    "large blocks": ((200, 260), 1, 1, 64, (128, 128), (), True),
}
HEADS_FIRST = ("ragged", "no mask")


def make(case, dtype, seed=0, batch=2):
    lengths, heads, kv_heads, dim, block, lead, is_causal = CASES[case]
    generator = torch.Generator().manual_seed(seed)

    def randn(length, heads):  # as a projection gives it
        x = torch.randn(batch, length, heads, dim, generator=generator)
        return x.to(dtype).transpose(1, 2)

    q, k, v = randn(lengths[0], heads), randn(lengths[1], kv_heads), randn(lengths[1], kv_heads)
    v = v.contiguous()  # each result lies as its own operand does
    if case in HEADS_FIRST:
        q = q.contiguous()
    mask = None
    if block is not None:
        grid = tuple(-(-n // side) for n, side in zip(lengths, block, strict=True))
        blocks = torch.rand(*lead, *grid, generator=generator) < 0.4
        if grid[0] > 1:
            blocks[..., 1, :] = False  # rows that see nothing
        blocks[..., 0, 0] = True
        mask = BlockMask.from_blocks(blocks, block, lengths)
    return q, k, v, mask, is_causal


def check(got, expected, what):
    value, allowed = expected
    assert got.shape == value.shape
    assert not got.isnan().any(), f"{what} has NaN"
    same = got.double() == value  # infinities
    off = (got.double() - value).abs()
    wrong = ~same & ~(off <= allowed)
    worst = (off / allowed)[~same].max() if (~same).any() else 0
    assert not wrong.any(), f"{what}: {int(wrong.sum())} elements are wrong, by up to {worst}"


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("variant", FORWARD)
def test_every_variant(variant, case, dtype):
    q, k, v, mask, is_causal = make(case, dtype)
    why = attention_legality(q, k, v, mask, is_causal, None)[variant]
    if why is not None:
        with pytest.raises(ValueError, match="is not legal for this attention"):
            attention(q, k, v, mask, is_causal=is_causal, variant=variant)
        pytest.skip(why)
    out, lse = attention(q, k, v, mask, is_causal=is_causal, return_lse=True, variant=variant)
    assert lies_as_result_of(q, out) and out.dtype == dtype
    assert lse.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    expected = expected_attention(q, k, v, mask, is_causal)
    check(out, expected[0], "out")
    check(lse, expected[1], "lse")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("with_lse", [False, True], ids=["", "lse"])
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("variant", BACKWARD)
def test_every_backward_variant(variant, case, with_lse, dtype):
    q, k, v, mask, is_causal = make(case, dtype)
    out, lse = attention(q, k, v, mask, is_causal=is_causal, return_lse=True)
    generator = torch.Generator().manual_seed(1)
    grad = torch.randn(out.shape, generator=generator).to(dtype)
    grad_lse = torch.randn(lse.shape, generator=generator).to(lse.dtype) if with_lse else None
    tensors = (None, None, None, None) if mask is None else (
        mask.crow_indices, mask.col_indices, *mask.by_column())  # fmt: skip
    block = (0, 0) if mask is None else mask.block_size
    arguments = (grad, grad_lse, q, k, v, out, lse, *tensors, *block)
    operators = torch.ops.sparse_autotune
    answer = operators.attention_backward_race(*arguments, is_causal=is_causal, dry_run=True)
    lines = [line.split("\t") for line in bytes(answer.tolist()).decode().splitlines()]
    (why,) = [rest[1:] for name, *rest in lines if name == variant]
    if why:
        pytest.skip(why[0])
    found = operators.attention_backward(*arguments, is_causal=is_causal, variant=variant)
    expected = expected_gradients(q, k, v, out, lse, grad, grad_lse, mask, is_causal)
    for name, operand, got, right in zip("qkv", (q, k, v), found, expected, strict=True):
        check(got, right, f"d{name}")
        assert lies_as_result_of(operand, got)


def test_every_operator_has_variants():
    families = {name.split("/")[0] for name in FORWARD + BACKWARD}
    assert {"cpu_attention_naive", "cpu_attention_tiled", "sdpa", "cpu_attention_naive_backward",
            "cpu_attention_tiled_backward", "sdpa_backward"} <= families  # fmt: skip


@pytest.mark.parametrize("case", ["ragged", "causal", "no mask", "one query"])
def test_gradcheck(case):
    """Through the readable variants, lse included."""
    q, k, v, mask, is_causal = make(case, torch.float64, batch=2)
    q, k, v = (x[..., :11, :3].clone().requires_grad_() for x in (q, k, v))
    if mask is not None:
        lengths = (q.shape[2], k.shape[2])
        block = (5, 4)
        grid = tuple(-(-n // side) for n, side in zip(lengths, block, strict=True))
        lead = mask.shape[:-2]
        blocks = torch.rand(*lead, *grid, generator=torch.Generator().manual_seed(2)) < 0.6
        mask = BlockMask.from_blocks(blocks, block, lengths)

    def function(q, k, v):
        with sparse_autotune.settings.override(variant="cpu_attention_naive_backward"):
            out, lse = attention(q, k, v, mask, is_causal=is_causal, return_lse=True, scale=0.7,
                                 variant="cpu_attention_naive")  # fmt: skip
        return out, lse.masked_fill(lse == -math.inf, 0)

    assert torch.autograd.gradcheck(function, (q, k, v))


def test_gradients_are_those_of_the_operator():
    q, k, v, mask, is_causal = make("causal", torch.float32)
    grad = torch.randn(q.shape)
    leaves = [x.clone().requires_grad_() for x in (q, k, v)]
    out, lse = attention(*leaves, mask, is_causal=is_causal, return_lse=True)
    out.backward(grad)
    expected = expected_gradients(q, k, v, out.detach(), lse.detach(), grad, None, mask, is_causal)
    for leaf, right in zip(leaves, expected, strict=True):
        check(leaf.grad, right, "a gradient")
    again = [x.clone().requires_grad_() for x in (q, k, v)]
    (first,) = torch.autograd.grad(
        attention(*again, mask, is_causal=is_causal).sum(), again[0], create_graph=True
    )
    with pytest.raises(RuntimeError, match="no second derivative"):
        torch.autograd.grad(first.sum(), again[0])


def test_the_mask_of_a_causal_generator_is_causal():
    q, k, v, _, _ = make("no mask", torch.float32)
    lengths = (q.shape[2], k.shape[2])
    with_mask = attention(q, k, v, BlockMask.causal(*lengths, 8))
    torch.testing.assert_close(with_mask, attention(q, k, v, is_causal=True))
    plain = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True,
                                                             enable_gqa=True)  # fmt: skip
    torch.testing.assert_close(with_mask, plain)


@pytest.mark.parametrize("scale", [-0.5, 0.0])
@pytest.mark.parametrize("case", ["causal", "no mask", "no mask, causal"])
def test_scales_that_are_not_positive(case, scale, device):
    """Of every variant, and of a choice among those that positive scales have."""
    dtype = {"cpu": torch.float32, "cuda": torch.bfloat16}[device]
    q, k, v, mask, is_causal = make(case, dtype)
    out, lse = expected_attention(q, k, v, mask, is_causal, scale)
    operands = [x if x is None else x.to(device) for x in (q, k, v, mask)]
    attention(*operands, is_causal=is_causal)
    legal = attention_legality(*operands, is_causal, scale)
    for variant in ("auto", *(name for name, why in legal.items() if why is None)):
        found = attention(*operands, is_causal=is_causal, scale=scale, return_lse=True,
                          variant=variant)  # fmt: skip
        check(found[0].cpu(), out, f"out of {variant}")
        check(found[1].cpu(), lse, f"lse of {variant}")
    torchs = {"cpu": "sdpa/flash", "cuda": "torch_sdpa/flash"}[device]
    assert (legal[torchs] is None) == (device == "cpu" and case != "no mask, causal")


@pytest.mark.parametrize("of_k", [0, slice(None)])
@pytest.mark.parametrize("variant", [v for v in FORWARD if not v.startswith("sdpa")])
def test_scores_of_minus_infinity_are_columns_that_nobody_sees(variant, of_k):
    q, k, v, _, _ = make("square", torch.float32)
    k[:, :, of_k] = -math.inf
    out, lse = attention(q.abs(), k, v, return_lse=True, variant=variant)
    left = slice(1, None) if of_k == 0 else slice(0)
    expected = attention(q.abs(), k[:, :, left], v[:, :, left], return_lse=True)
    torch.testing.assert_close((out, lse), expected)


@pytest.mark.parametrize("lengths", [(0, 8), (8, 0), (0, 0)])
@pytest.mark.parametrize("batch", [0, 2])
def test_nothing_has_gradients(batch, lengths):
    leaves = [torch.randn(batch, 2, n, 4, requires_grad=True) for n in (*lengths, lengths[1])]
    blocks = torch.ones(batch, 1, *(-(-n // 4) for n in lengths), dtype=torch.bool)
    for mask in (None, BlockMask.from_blocks(blocks, 4, lengths)):
        gradients = torch.autograd.grad(attention(*leaves, mask).sum(), leaves)
        for leaf, gradient in zip(leaves, gradients, strict=True):
            assert gradient.shape == leaf.shape and not gradient.any()


def test_without_elements():
    q, k = torch.randn(2, 3, 4, 8), torch.randn(2, 3, 0, 8)
    out, lse = attention(q, k, k, return_lse=True)
    assert (out == 0).all() and (lse == -math.inf).all()
    out = attention(q[:, :, :0], q, q)
    assert out.shape == (2, 3, 0, 8)
    q.requires_grad_()
    attention(q, k, k).sum().backward()
    assert (q.grad == 0).all()


def test_autocast_and_scale():
    q, k, v, mask, _ = make("square", torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        assert attention(q, k, v, mask).dtype == torch.bfloat16
        assert attention(q.double(), k.double(), v.double(), mask).dtype == torch.float64
    out, lse = attention(q, k, v, mask, scale=0.25, return_lse=True)
    expected = expected_attention(q, k, v, mask, False, scale=0.25)
    check(out, expected[0], "out")
    check(lse, expected[1], "lse")


def test_any_strides_and_offsets():
    buffer = torch.randn(2, 30, 3, 4, 17)  # batch, rows, qkv, heads, dim and more
    q, k, v = (buffer[:, :, i, :, :16].transpose(1, 2) for i in range(3))
    expected = expected_attention(q, k, v, None, False)
    check(attention(q, k, v), expected[0], "out")
    turned = q.transpose(2, 3).contiguous().transpose(2, 3)  # its last dimension is strided
    check(attention(turned, k, v), expected[0], "out")


LAYOUTS = {
    "rows first": lambda b, h, s, d: torch.randn(b, s, h, d).transpose(1, 2),
    "heads first": torch.randn,
    "packed": lambda b, h, s, d: torch.randn(b, s, 3, h, d)[:, :, 1].transpose(1, 2),
    "one for all heads": lambda b, h, s, d: torch.randn(b, 1, s, d).expand(b, h, s, d),
    "numbers apart": lambda b, h, s, d: torch.randn(b, s, d, h).permute(0, 3, 1, 2),
}


@pytest.mark.parametrize("heads", [1, 2])
@pytest.mark.parametrize("of_v", LAYOUTS)
@pytest.mark.parametrize("of_q", LAYOUTS)
def test_compilers_know_how_results_lie(of_q, of_v, heads, device):
    """As their operands do; whoever computed them, with or without the dispatcher."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    q, v = (LAYOUTS[kind](2, heads, 24, 16).to(device) for kind in (of_q, of_v))
    on = about_attention(q, v, v, None, False, False), about_attention(q, v, v, None, False, True)
    names, backward = (
        [None, *(name for name, why in about.legality().items() if why is None)] for about in on
    )
    operators = torch.ops.sparse_autotune
    with FakeTensorMode() as mode:
        fakes = [mode.from_tensor(x) for x in (q, v, v)]
        fake = operators.attention(*fakes)
        saved = (torch.empty_like(fake[0]), None, *fakes, *fake)
        fake_gradients = operators.attention_backward(*saved)
    grad = torch.randn(q.shape).to(device)
    leaves = [x.detach().requires_grad_() for x in (q, v, v)]
    for name in names:
        for _ in range(2):  # the second past the dispatcher
            found = attention(q, v, v, return_lse=True, variant=name or "auto")
            assert [x.stride() for x in found] == [x.stride() for x in fake], name
            assert lies_as_result_of(q, found[0])
    for name in backward:
        gradients = operators.attention_backward(grad, None, q, v, v, *found, variant=name)
        assert [x.stride() for x in gradients] == [x.stride() for x in fake_gradients], name
    for _ in range(2):
        gradients = torch.autograd.grad(attention(*leaves), leaves, grad)
        assert [x.stride() for x in gradients] == [x.stride() for x in fake_gradients]


@pytest.mark.parametrize("layout", ["rows first", "heads first"])
def test_results_of_torchs_kernels_are_handed_over(layout):
    """Not copied where they lie as ours do; that of lse does not."""
    q, k, v = (LAYOUTS[layout](2, 3, 40, 16) for _ in range(3))
    backward = torch.ops.sparse_autotune.attention_backward

    def copies(call):
        call()
        with torch.autograd.profiler.profile() as profile:
            found = call()
        return [e.name for e in profile.function_events].count("aten::copy_"), found

    count, (out, lse) = copies(lambda: attention(q, k, v, return_lse=True, variant="sdpa"))
    assert count == 1
    expected = expected_attention(q, k, v, None, False)
    check(out, expected[0], "out")
    check(lse, expected[1], "lse")
    grad = torch.randn(out.shape).transpose(1, 2).contiguous().transpose(1, 2)
    count, found = copies(lambda: backward(grad, None, q, k, v, out, lse, variant="sdpa_backward"))
    assert (count == 0) == (layout == "rows first")
    expected = expected_gradients(q, k, v, out, lse, grad, None, None, False)
    for got, right in zip(found, expected, strict=True):
        check(got, right, "a gradient")


def test_out_of_any_strides_has_gradients():
    """The backward operator takes what somebody made of `out`."""
    q, k, v, mask, is_causal = make("causal", torch.float32)
    out, lse = attention(q, k, v, mask, is_causal=is_causal, return_lse=True)
    tensors = (mask.crow_indices, mask.col_indices, *mask.by_column(), *mask.block_size)
    backward = torch.ops.sparse_autotune.attention_backward
    expected = backward(q, None, q, k, v, out, lse, *tensors, is_causal=is_causal)
    for other in (out.contiguous(), torch.cat([out, out], -1)[..., : out.shape[-1]]):
        assert other.stride() != out.stride()
        found = backward(q, None, q, k, v, other, lse, *tensors, is_causal=is_causal)
        assert all(map(torch.equal, found, expected))
    with pytest.raises(RuntimeError, match="share one dtype and device"):
        backward(q, None, q, k, v, out.contiguous().double(), lse, *tensors, is_causal=is_causal)


@pytest.mark.parametrize("dynamic", [False, True])
def test_compiles_as_one_graph(dynamic, fresh_dynamo):
    q, k, v, mask, is_causal = make("ragged", torch.float32)

    def function(q, k, v, mask):
        out, lse = attention(q, k, v, mask, is_causal=is_causal, return_lse=True)
        return out.sin(), lse

    compiled = torch.compile(function, fullgraph=True, dynamic=dynamic, backend="aot_eager")
    leaves = [[x.clone().requires_grad_() for x in (q, k, v)] for _ in range(2)]
    results = [f(*given, mask) for f, given in zip((function, compiled), leaves, strict=True)]
    for eager, traced in zip(*results, strict=True):
        torch.testing.assert_close(eager, traced)
    for out, _ in results:
        out.sum().backward()
    for eager, traced in zip(*leaves, strict=True):
        torch.testing.assert_close(eager.grad, traced.grad)


# Masks of a graph that is compiled once for all lengths.
MADE_INSIDE = {
    "causal": lambda length: BlockMask.causal(length, block_size=8),
    "window": lambda length: BlockMask.sliding_window(length, block_size=8, window=11),
    "strided": lambda length: BlockMask.strided(length, block_size=8, stride=3),
    "documents": lambda length: BlockMask.documents([8, 24], length, 8),
    "lengths": lambda length: BlockMask.documents(torch.tensor([8, 24]), length, 8),
    "blocks": lambda length: BlockMask.from_blocks(
        torch.ones(-(-length // 8), -(-length // 8)).tril(1).bool(), 8, (length, length)
    ),
}


@pytest.mark.parametrize("mask", MADE_INSIDE)
def test_lengths_are_symbols_in_one_graph(mask, fresh_dynamo):
    def function(q):
        return attention(q, q, q, MADE_INSIDE[mask](q.shape[2]))

    graphs = []
    compiled = torch.compile(function, fullgraph=True, dynamic=True,
                             backend=lambda graph, _: graphs.append(graph) or graph)  # fmt: skip
    for length in (40, 64, 77):
        q = torch.randn(1, 2, length, 8)
        torch.testing.assert_close(compiled(q), function(q))
    assert len(graphs) == 1


@pytest.mark.parametrize("strict", [True, False])
def test_exports_of_any_length(strict, fresh_dynamo):
    class Layer(torch.nn.Module):
        def forward(self, q):
            return attention(q, q, q, MADE_INSIDE["window"](q.shape[2]))

    length = torch.export.Dim("length", min=16, max=4096)
    program = torch.export.export(
        Layer(), (torch.randn(1, 2, 40, 8),), dynamic_shapes=({2: length},), strict=strict
    )
    for q in torch.randn(1, 2, 40, 8), torch.randn(1, 2, 77, 8):
        torch.testing.assert_close(program.module()(q), Layer()(q))


def test_exports(tmp_path):
    q, k, v, _, _ = make("square", torch.float32)

    class Layer(torch.nn.Module):
        def forward(self, q, k, v):
            return attention(q, k, v, BlockMask.causal(64, block_size=16)) + attention(q, k, v)

    program = torch.export.export(Layer(), (q, k, v))
    torch.export.save(program, tmp_path / "layer.pt2")
    loaded = torch.export.load(tmp_path / "layer.pt2").module()
    torch.testing.assert_close(loaded(q, k, v), Layer()(q, k, v))


def test_transforms():
    q, k, v, mask, _ = make("square", torch.float32)
    stacked = torch.stack([q, q + 1])
    mapped = torch.vmap(lambda q: attention(q, k, v, mask))(stacked)
    torch.testing.assert_close(mapped[1], attention(q + 1, k, v, mask))
    gradient = torch.func.grad(lambda q: attention(q, k, v, mask).sum())(q)
    leaf = q.clone().requires_grad_()
    attention(leaf, k, v, mask).sum().backward()
    torch.testing.assert_close(gradient, leaf.grad)
    with pytest.raises(RuntimeError, match="no forward-mode derivative"):
        torch.func.jvp(lambda q: attention(q, k, v, mask), (q,), (q,))


def test_opcheck():
    q, k, v, mask, _ = make("square", torch.float32)
    arguments = (q, k, v, mask.crow_indices, mask.col_indices, *mask.block_size)
    operators = torch.ops.sparse_autotune
    torch.library.opcheck(operators.attention.default, arguments)
    with torch.no_grad():
        out, lse = operators.attention(*arguments)
    saved = (torch.randn_like(out), None, q, k, v, out, lse)
    gradients = (*saved, mask.crow_indices, mask.col_indices, *mask.by_column(), *mask.block_size)
    torch.library.opcheck(operators.attention_backward.default, gradients)
    # Nothing is measured where only what is legal is asked for.
    torch.library.opcheck(operators.attention_race.default, arguments, {"dry_run": True})
    torch.library.opcheck(operators.attention_backward_race.default, gradients, {"dry_run": True})


@pytest.mark.parametrize("backward", [False, True])
def test_opcheck_of_a_race_of_a_problem(backward, tmp_path):
    q, k, v, mask, _ = make("square", torch.float32)
    record = tmp_path / "missed.jsonl"
    with sparse_autotune.settings.override(mode="record", record_path=record, cache_dir=tmp_path):
        attention(q.requires_grad_(backward), k, v, mask).sum()
        if backward:
            attention(q, k, v, mask).sum().backward()
        missed, _ = sparse_autotune.missed_products.read(record)
        columns = mask.by_column() if backward else (None, None)
        arguments = (mask.crow_indices[None, None], mask.col_indices, *columns)
        if backward:
            arguments = (*arguments[:2], columns[0][None, None], columns[1])
        # What a race measures differs from run to run, so results are not compared.
        tests = ("test_schema", "test_autograd_registration", "test_faketensor")
        torch.library.opcheck(
            torch.ops.sparse_autotune.attention_problem_race.default,
            (*arguments, missed[-1].problem_text(), "cpu_attention_naive" + "_backward" * backward),
            test_utils=tests,
        )


ON_META = BlockMask.sliding_window(64, block_size=16, window=20, device="meta")


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"q": 1}, TypeError, "q must be a dense torch.Tensor"),
        ({"q": torch.randn(3, 4)}, ValueError, r"q must have shape \(batch, heads, length, D\)"),
        ({"k": torch.randn(2, 2, 64, 16).double()}, TypeError, "k must have the dtype of q"),
        ({"v": torch.randn(2, 2, 60, 16)}, ValueError, "v must have the shape of k"),
        ({"q": torch.randn(2, 3, 64, 16)}, ValueError, "heads of q must be a multiple"),
        ({"q": torch.randn(1, 2, 64, 16)}, ValueError, "k must have the batch and the last"),
        ({"mask": torch.ones(64, 64)}, TypeError, "mask must be a BlockMask or None.*from_blocks"),
        ({"mask": BlockMask.causal(32)}, ValueError, r"mask must be of \(S, T\) = \(64, 64\)"),
        (
            {"mask": BlockMask.from_blocks(torch.ones(3, 4, 4).bool(), 16)},
            ValueError,
            "mask must be one for all, or one for each head",
        ),
        ({"scale": "a"}, TypeError, "scale must be None or a finite number"),
        ({"scale": math.nan}, TypeError, "scale must be None or a finite number, got nan"),
        ({"mask": ON_META}, RuntimeError, "mask must be on the device of q: q is on cpu"),
        ({"variant": "cpu_attention_tild"}, ValueError, "did you mean 'cpu_attention_tiled'"),
        ({"variant": "cpu_tiled"}, ValueError, "computes matmul, not attention"),
        ({"q": torch.randn(2, 2, 64, 16).int()}, TypeError, "q must be float16"),
    ],
)
def test_refusals(change, error, message):
    q, k, v, mask, _ = make("square", torch.float32)
    attention(q, k, v, mask)  # and that such a call was decided changes nothing
    arguments = {"q": q, "k": k, "v": v, "mask": mask, **change}
    with pytest.raises(error, match=message):
        attention(**arguments)


def test_a_wrong_mask_reads_no_memory():
    q, k, v, _, _ = make("square", torch.float32)
    crow, col = torch.tensor([0, 1, 2, 3, 4]).int(), torch.tensor([0, 1, 99, 3]).int()
    mask = BlockMask(crow, col, 16, (64, 64), check=False)
    with pytest.raises(RuntimeError, match="a mask's block is out of range"):
        attention(q, k, v, mask)


def test_the_choice_is_raced_and_remembered():
    q, k, v, mask, _ = make("square", torch.float32, seed=3)
    leaves = [x.clone().requires_grad_() for x in (q, k, v)]
    before = sparse_autotune.tuning_count()
    attention(*leaves, mask, scale=0.3).sum().backward()
    after = sparse_autotune.tuning_count()
    attention(*leaves, mask, scale=0.4).sum().backward()
    assert after - before in (0, 2) and sparse_autotune.tuning_count() == after


def test_variants_tune_and_benchmark():
    q, k, v, mask, _ = make("square", torch.float32)
    names = sparse_autotune.variants(q, k, v=v, mask=mask)
    assert "cpu_attention_naive/fp64" in names and "sdpa/flash" in names
    backward = sparse_autotune.variants(q, k, v=v, mask=mask, backward=True)
    assert "cpu_attention_naive_backward/fp64" in backward
    report = sparse_autotune.benchmark(
        q, k, v=v, mask=mask, variants=["cpu_attention_naive", "sdpa"], num_runs=1
    )
    assert {record.name for record in report.records} == {"cpu_attention_naive/fp64", "sdpa/flash"}
    assert all(record.status == "ok" and record.error <= 1 for record in report.records)
    report = sparse_autotune.tune(q, k, v=v, variant="cpu_attention_tiled")
    assert report.best is not None and report.best.family == "cpu_attention_tiled"
    with pytest.raises(ValueError, match="mask is of attention, which needs v"):
        sparse_autotune.benchmark(q, k, mask=mask)
    with pytest.raises(ValueError, match="linear is of a product, and v of attention"):
        sparse_autotune.benchmark(q, k, v=v, linear=True)
    with pytest.raises(ValueError, match="v must have the shape of k"):
        sparse_autotune.benchmark(q, k, v=v[:, :, :1])


def test_probabilities_of_long_rows_are_too_small_for_fp16():
    """And that is no error of who rounds them."""
    q, k, v = (torch.randn(1, 1, n, 16, dtype=torch.float16) for n in (16, 131072, 131072))
    (record,) = sparse_autotune.benchmark(
        q, k, v=v, backward=True, variants=["sdpa_backward"], num_runs=1
    ).records
    assert record.status == "ok" and record.error <= 1


def test_a_causal_mask_is_the_causal_rule(device):
    """It has the variants of attention without a mask, on every way there."""
    q, k, v = (torch.randn(2, 4, 96, 16, device=device) for _ in range(3))
    mask = BlockMask.causal(96, block_size=32, device=device)
    expected = attention(q, k, v, is_causal=True)
    legal = attention_legality(q, k, v, None, True, None)
    for same in (mask, mask.to(device)):
        torch.testing.assert_close(attention(q, k, v, same), expected)
        assert attention_legality(q, k, v, same, False, None) == legal
    q.requires_grad_()
    torch.testing.assert_close(attention(q, k, v, mask), expected)
    with pytest.raises(ValueError, match="mask"):
        attention(q[:, :, :64], k, v, mask)
