"""Patterns that change between steps: what is kept, what moves along, what must notice."""

import pytest
import torch
import torch.nn.utils.prune
from reference import close

from sparse_autotune import (
    BsrTensor,
    PolynomialDensity,
    SparseLinear,
    prune_,
    prune_and_regrow_,
    regrow_,
    set_pattern_,
)

pytestmark = pytest.mark.usefixtures("no_races")


def stored(layer):
    ones = torch.ones(layer.nnzb, 1, 1)
    grid = BsrTensor(layer.crow_indices, layer.col_indices, ones, layer._grid())
    return grid.to_dense().bool()


def blocks(layer):
    (rows, cols), (block_m, block_k) = layer._grid(), layer.block_size
    dense = layer.weight.to_dense().detach()
    return dense.reshape(rows, block_m, cols, block_k).transpose(1, 2)


def assert_right(layer):
    x = torch.randn(3, layer.in_features)
    expected = torch.nn.functional.linear(x, layer.weight.to_dense(), layer.bias)
    close(layer(x), expected)


def test_set_pattern():
    layer = SparseLinear(24, 16, 4, 0.5)
    before, old = blocks(layer), stored(layer)
    assert_right(layer)
    keep = torch.rand(layer._grid()) < 0.6
    parameter = layer.values
    assert set_pattern_(layer, keep) is layer
    assert layer.values is parameter and torch.equal(stored(layer), keep)
    for indices in (layer.crow_indices, layer.col_indices):  # of no larger memory
        assert indices.untyped_storage().nbytes() == indices.nbytes
    assert torch.equal(blocks(layer), before * (keep & old)[:, :, None, None])
    BsrTensor(*layer.weight._parts[:3], (16, 24), check=True)
    assert_right(layer)


@pytest.mark.parametrize("optimizer_type", [torch.optim.AdamW, torch.optim.SGD])
def test_optimizer_state_moves_with_the_blocks(optimizer_type):
    layer = SparseLinear(24, 16, 4, 0.5)
    options = {"momentum": 0.9} if optimizer_type is torch.optim.SGD else {}
    optimizer = optimizer_type(layer.parameters(), lr=0.1, **options)

    def step():
        optimizer.zero_grad()
        layer(torch.randn(5, 24)).square().sum().backward()
        optimizer.step()

    step()
    name = "momentum_buffer" if options else "exp_avg"
    old, momentum = stored(layer), optimizer.state[layer.values][name].clone()
    grid = torch.zeros(*layer._grid(), 4, 4)
    grid[old] = momentum
    assert momentum.abs().sum() > 0
    keep = old.clone()
    keep[0], keep[1] = True, False
    set_pattern_(layer, keep, optimizer)
    assert torch.equal(optimizer.state[layer.values][name], grid[keep])
    step()
    assert_right(layer)


def test_factored_optimizer_state_moves_with_the_blocks():
    layer = SparseLinear(16, 16, (4, 8), 0.5)
    optimizer = torch.optim.Adafactor(layer.parameters(), lr=0.1)
    layer(torch.randn(3, 16)).square().sum().backward()
    optimizer.step()
    before = optimizer.state[layer.values]["row_var"].clone()
    optimizer.state[layer.values]["note"] = None  # as SGD's momentum_buffer may be
    prune_(layer, 0.25, lambda weight: torch.arange(weight.nnzb), optimizer=optimizer)
    assert torch.equal(optimizer.state[layer.values]["row_var"], before[2:])
    layer(torch.randn(3, 16)).square().sum().backward()
    optimizer.step()


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("keep", [lambda old: old.roll(1, 0), lambda old: old.fill_(True)])
def test_a_graph_of_the_old_pattern_raises(first, keep):
    """A first layer's graph, whose input wants no gradient, saves no values."""
    layer = SparseLinear(24, 16, 4, 0.5)
    result = layer(torch.randn(3, 24, requires_grad=not first))
    set_pattern_(layer, keep(stored(layer)))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        result.sum().backward()


def test_pruning_by_magnitude():
    layer = SparseLinear(32, 32, 4, 0.75)
    norms = blocks(layer).square().sum((2, 3))
    threshold = norms.flatten().sort(descending=True).values[15]
    assert prune_(layer, 0.25) == 32
    assert layer.density == 0.25
    assert torch.equal(stored(layer), norms >= threshold)
    assert prune_(layer, 0.5) == 0
    assert_right(layer)
    assert prune_(layer, 0.0) == 16
    assert_right(layer)


def test_pruning_by_a_score():
    layer = SparseLinear(8, 8, 4, 1.0)
    prune_(layer, 0.5, lambda weight: torch.tensor([0, 3, 2, 1]) * (weight.nnzb == 4))
    assert stored(layer).tolist() == [[False, True], [True, False]]


def test_regrowing():
    layer = SparseLinear(32, 32, 4, 0.25)
    before, old = blocks(layer), stored(layer)
    assert regrow_(layer, 0.5) == 16
    assert layer.density == 0.5 and bool((stored(layer) | ~old).all())
    assert torch.equal(blocks(layer), before)
    regrow_(layer, 0.75, lambda weight: torch.arange(64).reshape(8, 8).flip(0, 1))
    assert layer.density == 0.75
    layer(torch.randn(3, 32)).sum().backward()
    assert layer.values.grad.shape == layer.values.shape
    indices = layer.col_indices
    assert regrow_(layer, 0.5) == regrow_(layer, 0.75) == 0 and layer.col_indices is indices
    assert regrow_(layer, 49 / 64) == prune_(layer, 48 / 64) == 1
    assert regrow_(layer, 1.0) == 16 and bool(stored(layer).all())
    assert_right(layer)


def test_moving_blocks():
    layer = SparseLinear(32, 32, 4, 0.5)
    norms, old = blocks(layer).square().sum((2, 3)), stored(layer)
    weakest = old & (norms <= norms[old].sort().values[7])
    assert prune_and_regrow_(layer, 0.25) == 8
    new = stored(layer)
    assert layer.nnzb == 32 and torch.equal(old & ~new, weakest)
    assert int((new & ~old).sum()) == 8
    assert_right(layer)
    full = SparseLinear(8, 8, 4, 1.0)
    assert prune_and_regrow_(full, 0.5) == 0


def test_the_schedule():
    schedule = PolynomialDensity(1.0, 0.1, begin=10, end=20)
    assert schedule(0) == schedule(10) == 1.0 and schedule(20) == schedule(99) == 0.1
    assert schedule(15) == pytest.approx(0.1 + 0.9 / 8)
    densities = [schedule(step) for step in range(10, 21)]
    assert densities == sorted(densities, reverse=True)


def test_training_with_a_schedule():
    """The loss falls while blocks go, and products stay right at every density."""
    torch.manual_seed(0)
    layer = SparseLinear(32, 32, 4, 1.0)
    target = SparseLinear(32, 32, 4, 0.25).requires_grad_(False)
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.02)
    schedule = PolynomialDensity(1.0, 0.25, begin=40, end=160)
    losses = []
    for step in range(300):
        x = torch.randn(64, 32)
        loss = (layer(x) - target(x)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
        if step % 20 == 0:
            prune_(layer, schedule(step), optimizer=optimizer)
            assert_right(layer)
    assert layer.density == 0.25
    assert losses[-1] < 0.01 * losses[0]
    assert torch.equal(stored(layer), stored(target))


BAD = {
    "layer": (TypeError, "layer must be a SparseLinear", lambda _: prune_(torch.nn.ReLU(), 0.5)),
    "layer to grow": (TypeError, "layer must be a SparseLinear, got torch.nn",
                      lambda _: regrow_(torch.nn.ReLU(), 0.5)),
    "layer to change": (TypeError, "layer must be a SparseLinear, got torch.nn",
                        lambda _: prune_and_regrow_(torch.nn.ReLU(), 0.5)),
    "layer and mask": (TypeError, "layer must be a SparseLinear, got torch.nn",
                       lambda _: set_pattern_(torch.nn.ReLU(), torch.ones(4, 6).bool())),
    "frozen mask": (RuntimeError, r"frozen layer must not change: call thaw\(\)",
                    lambda layer: set_pattern_(
                        layer.requires_grad_(False).freeze(), torch.ones(4, 6).bool())),
    "density": (ValueError, r"density must lie in \[0, 1\], got 2", lambda layer: prune_(layer, 2)),
    "fraction": (ValueError, r"fraction must lie in \[0, 1\], got -1",
                 lambda layer: prune_and_regrow_(layer, -1)),
    "criterion": (TypeError, "criterion must be 'magnitude' or a callable, got 'size'",
                  lambda layer: prune_(layer, 0.1, "size")),
    "growth": (TypeError, "criterion must be 'random' or a callable, got 'gradient'",
               lambda layer: regrow_(layer, 0.9, "gradient")),
    "what to prune": (TypeError, "prune must be 'magnitude' or a callable, got 'size'",
                      lambda layer: prune_and_regrow_(layer, 0.5, prune="size")),
    "where to regrow": (TypeError, "regrow must be 'random' or a callable, got 3",
                        lambda layer: prune_and_regrow_(layer, 0.5, regrow=3)),
    "scores to prune": (ValueError, r"prune must return one score per stored block, shape \(\d+,\)",
                        lambda layer: prune_and_regrow_(layer, 0.5, prune=lambda w: w.values)),
    "scores to regrow": (ValueError, "regrow returned NaN as a score",
                         lambda layer: prune_and_regrow_(
                             layer, 0.5, regrow=lambda w: torch.full((4, 6), float("nan")))),
    "mask for scores": (TypeError, "got torch.bool; a bool mask .* is passed to set_pattern_",
                        lambda layer: regrow_(layer, 0.9, lambda w: torch.ones(4, 6).bool())),
    "device of the mask": (RuntimeError, "keep must be on the device of layer, cpu; got meta",
                           lambda layer: set_pattern_(layer, torch.ones(4, 6).bool().to("meta"))),
    "scores": (ValueError, r"per stored block, shape \(\d+,\); got \(3,\)",
               lambda layer: prune_(layer, 0.1, lambda weight: torch.ones(3))),
    "mask": (TypeError, "keep must be a bool mask",
             lambda layer: set_pattern_(layer, torch.ones(4, 6))),
    "mask shape": (ValueError, r"shape \(4, 6\); got \(6, 4\)",
                   lambda layer: set_pattern_(layer, torch.ones(6, 4).bool())),
    "optimizer": (TypeError, "optimizer must be a torch.optim.Optimizer, got builtins.str",
                  lambda layer: prune_(layer, 0.1, optimizer="adam")),
    "frozen": (RuntimeError, r"frozen layer must not change: call thaw\(\)",
               lambda layer: prune_(layer.requires_grad_(False).freeze(), 0.1)),
}  # fmt: skip


@pytest.mark.parametrize("kind", BAD)
def test_bad_requests(kind):
    error, words, request = BAD[kind]
    layer = SparseLinear(24, 16, 4, 0.5)
    before, old = blocks(layer), stored(layer)
    with pytest.raises(error, match=words):
        request(layer)
    assert torch.equal(blocks(layer), before) and torch.equal(stored(layer), old)


def test_values_that_are_computed():
    layer = SparseLinear(24, 16, 4, 0.5)
    torch.nn.utils.prune.l1_unstructured(layer, "values", 0.5)
    with pytest.raises(RuntimeError, match=r"values is a Tensor, .*computed from others"):
        prune_(layer, 0.1)


@pytest.mark.parametrize(
    ("words", "arguments"),
    [
        (r"initial must lie in \[0, 1\], got 1.5", (1.5, 0.1, 0, 10)),
        (r"final must lie in \[0, 1\], got -0.1", (1.0, -0.1, 0, 10)),
        ("end must be after begin", (1.0, 0.1, 10, 10)),
        ("power must be positive", (1.0, 0.1, 0, 10, 0.0)),
    ],
)
def test_bad_schedules(words, arguments):
    with pytest.raises(ValueError, match=words):
        PolynomialDensity(*arguments)
