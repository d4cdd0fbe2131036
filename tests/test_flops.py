"""FlopCounterMode counts what the stored blocks need, forward and backward, eager and compiled."""

import pytest
import torch
from interpreters import run_python

from sparse_autotune import (
    BlockMask,
    BsrTensor,
    SparseLinear,
    attention,
    linear,
    matmul,
    random_bsr,
    sampled_matmul,
)

flop_counter = pytest.importorskip("torch.utils.flop_counter")
pytestmark = [
    pytest.mark.usefixtures("no_races"),
    pytest.mark.filterwarnings("ignore:.*Sparse BSR tensor support is in beta"),
]


def counted(call):
    with flop_counter.FlopCounterMode(display=False) as mode:
        call()
    return mode.get_total_flops()


@pytest.fixture
def a(device):
    return random_bsr(48, 64, (16, 8), density=0.3, device=device)


def stored(a):
    return 2 * a.values.numel()


def test_products(a, device):
    b = torch.randn(64, 5, device=device)
    out = torch.empty(48, 5, device=device)
    many = torch.randn(3, 64, 5, device=device)
    assert counted(lambda: matmul(a, b)) == 5 * stored(a)
    assert counted(lambda: matmul(a, b, out=out, activation="relu")) == 5 * stored(a)
    assert counted(lambda: matmul(a, b[:, 0])) == stored(a)
    assert counted(lambda: matmul(a, many)) == 15 * stored(a)
    assert counted(lambda: matmul(a.t(), torch.randn(48, 7, device=device))) == 7 * stored(a)
    assert counted(lambda: matmul(torch.randn(7, 48, device=device), a)) == 7 * stored(a)
    assert counted(lambda: linear(torch.randn(2, 3, 64, device=device), a)) == 6 * stored(a)
    batch = BsrTensor(a.crow_indices, a.col_indices, torch.stack([a.values] * 3), a.shape)
    assert counted(lambda: matmul(batch, many)) == 15 * stored(a)


def test_what_is_direct_without_a_counter(a, device):
    """A counter is a mode: while there is one, every call goes to the operator."""
    b, x = torch.randn(64, 5, device=device), torch.randn(48, 5, device=device)
    y = torch.randn(5, 64, device=device)
    for _ in range(2):
        matmul(a, b), sampled_matmul(x, y, a), matmul(a.to_torch(), b)
    assert counted(lambda: matmul(a, b)) == 5 * stored(a)
    assert counted(lambda: matmul(a.to_torch(), b)) == 5 * stored(a)
    assert counted(lambda: sampled_matmul(x, y, a)) == 5 * stored(a)


def test_sampled_products(a, device):
    x, y = torch.randn(2, 48, 5, device=device), torch.randn(2, 5, 64, device=device)
    assert counted(lambda: sampled_matmul(x[0], y[0], a)) == 5 * stored(a)
    assert counted(lambda: sampled_matmul(x, y, a)) == 10 * stored(a)
    assert counted(lambda: sampled_matmul(y[0].T, x[0].T, a.t())) == 5 * stored(a)


def test_training(device):
    layer = SparseLinear(64, 48, (16, 8), density=0.3, device=device)
    x = torch.randn(6, 64, device=device, requires_grad=True)
    each = 6 * 2 * layer.values.numel()
    assert counted(lambda: layer(x).sum().backward()) == 3 * each
    assert counted(lambda: layer(x.detach()).sum().backward()) == 2 * each


def operands(device, heads=4, kv_heads=2, queries=48, keys=40):
    q = torch.randn(2, heads, queries, 8, device=device, requires_grad=True)
    k, v = torch.randn(2, 2, kv_heads, keys, 8, device=device)
    return q, k, v


@pytest.mark.parametrize("is_causal", [False, True])
def test_attention_without_a_mask_counts_as_torchs(is_causal, device):
    q, k, v = operands(device)

    shapes = q.shape, (2, 4, 40, 8), (2, 4, 40, 8)
    forward = flop_counter.sdpa_flop_count(*shapes)
    backward = flop_counter.sdpa_backward_flop_count(q.shape, *shapes)
    assert counted(lambda: attention(q, k, v, is_causal=is_causal)) == forward
    both = counted(lambda: attention(q, k, v, is_causal=is_causal).sum().backward())
    assert both == forward + backward == 3.5 * forward


def test_attention_counts_stored_blocks(device):
    q, k, v = operands(device)
    each = 4 * 2 * 4 * 8 * 16 * 8  # of a block, in every head and batch entry
    one = torch.zeros(3, 5, device=device).bool()
    one[1, :4] = True
    mask = BlockMask.from_blocks(one, (16, 8))
    assert counted(lambda: attention(q, k, v, mask)) == 4 * each
    assert counted(lambda: attention(q, k, v, mask).sum().backward()) == 3.5 * 4 * each
    of_each = torch.zeros(4, 3, 5, device=device).bool()
    of_each[0], of_each[2, 1, 2] = True, True
    masked = BlockMask.from_blocks(of_each, (16, 8))
    assert counted(lambda: attention(q, k, v, masked)) == 16 * each / 4
    lower = torch.ones(2, 2, device=device).bool().tril()
    ragged = BlockMask.from_blocks(lower, (32, 32), (48, 40), is_causal=True)
    assert counted(lambda: attention(q, k, v, ragged)) == 3 * 4 * 2 * 4 * 48 * 40 * 8 // 4
    # No mask to the operator, and so counted as torch does.
    causal = BlockMask.causal(48, 40, (32, 32), device=device)
    assert counted(lambda: attention(q, k, v, causal)) == 4 * 2 * 4 * 48 * 40 * 8
    none = BlockMask.from_blocks(torch.zeros(3, 5, device=device).bool(), (16, 8))
    assert counted(lambda: attention(q, k, v, none)) == 0


def test_attention_of_fake_tensors_counts_what_there_is_room_for():
    """Nobody can read such a mask; a number of blocks that is known is counted."""
    from torch._subclasses import FakeTensorMode

    call = torch.ops.sparse_autotune.attention
    with FakeTensorMode():
        q, k, v = operands("cpu")
        crow, col = torch.empty(4, dtype=torch.int32), torch.empty(15, dtype=torch.int32)
        whole = 4 * 2 * 4 * 48 * 40 * 8
        with torch.no_grad():
            assert counted(lambda: call(q, k, v, crow, col, 16, 8)) == whole
            assert counted(lambda: call(q, k, v, crow, col, 16, 8, nnzb=5)) == whole / 3


def test_compiled(fresh_dynamo):
    """The graph of a backward computes both gradients."""
    layer = SparseLinear(64, 48, (16, 8), density=0.3)
    x = torch.randn(6, 64, requires_grad=True)
    each = 6 * 2 * layer.values.numel()
    counts = []

    def backend(graph, inputs):
        counts.append(counted(lambda: graph(*inputs)))
        return graph

    def aot(graph, inputs):
        from functorch.compile import make_boxed_func
        from torch._functorch.aot_autograd import aot_module_simplified

        return aot_module_simplified(
            graph, inputs, lambda graph, inputs: make_boxed_func(backend(graph, inputs))
        )

    torch.compile(layer, backend=aot, fullgraph=True)(x).sum().backward()
    assert counts == [each, 2 * each]


ORDER = """
import importlib.util, sys
if sys.argv[1] == "before":
    from torch.utils.flop_counter import FlopCounterMode
import torch, sparse_autotune as sa
assert sys.argv[1] == "before" or "torch.utils.flop_counter" not in sys.modules
assert importlib.util.find_spec("torch.utils.flop_counter") is not None
from torch.utils.flop_counter import FlopCounterMode
a = sa.random_bsr(32, 32, 16, density=1)
with FlopCounterMode(display=False) as mode:
    sa.matmul(a, torch.randn(32, 4))
print(mode.get_total_flops(), sum(type(f).__module__.startswith("sparse_autotune")
                                  for f in sys.meta_path))
"""


@pytest.mark.parametrize("imported", ["before", "after"])
def test_whoever_is_imported_first(imported, tmp_path):
    assert run_python(ORDER, tmp_path, imported, mode="off").split() == ["8192", "0"]
