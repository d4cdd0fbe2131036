"""random_bsr: exact counts, the patterns' promises, the arguments' rules."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sparse_autotune import BsrTensor, random_bsr

SIZED = ("uniform", "banded", "power_law", "one_dense_row", "half_empty")


def blocks_of(a):
    """The bool mask of stored blocks, rebuilt by a plain loop."""
    rows, cols = (size // block for size, block in zip(a.shape, a.block_size, strict=True))
    mask = torch.zeros(rows, cols, dtype=torch.bool)
    crow, col = a.crow_indices.tolist(), a.col_indices.tolist()
    assert crow[0] == 0 and crow[-1] == len(col) == a.values.shape[0]
    for row in range(rows):
        in_row = col[crow[row] : crow[row + 1]]
        assert in_row == sorted(set(in_row))
        mask[row, in_row] = True
    return mask


@given(
    rows=st.integers(0, 12),
    cols=st.integers(0, 12),
    block=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    density=st.floats(0, 1),
    pattern=st.sampled_from(SIZED),
    seed=st.integers(0, 1000),
)
def test_exact_count_or_error(rows, cols, block, density, pattern, seed):
    total = rows * cols
    count = round(density * total)
    fits = {
        "one_dense_row": count >= min(rows, 1) * cols,
        "half_empty": count <= (rows - rows // 2) * cols,
    }.get(pattern, True)
    arguments = (rows * block[0], cols * block[1], block)
    generator = torch.Generator().manual_seed(seed)
    if not fits:
        with pytest.raises(ValueError, match=f"{pattern}.*{count}"):
            random_bsr(*arguments, density=density, pattern=pattern, generator=generator)
        return
    a = random_bsr(*arguments, density=density, pattern=pattern, generator=generator)
    mask = blocks_of(a)
    assert a.nnzb == int(mask.sum()) == count
    assert a.shape == arguments[:2]
    assert a.block_size == block
    assert a.density == (count / total if total else 0)


def test_sparsity_is_one_minus_density():
    assert random_bsr(80, 80, 8, sparsity=0.9).nnzb == 10


@pytest.mark.parametrize("density", [0.01, 0.3, 0.9])
def test_uniform_spreads_over_rows_and_columns(density):
    mask = blocks_of(random_bsr(100, 100, 1, density=density)).double()
    # Five standard deviations of a hypergeometric count.
    spread = 5 * (100 * density * (1 - density)) ** 0.5
    assert ((mask.sum(0) - 100 * density).abs() < spread).all()
    assert ((mask.sum(1) - 100 * density).abs() < spread).all()


@pytest.mark.parametrize("density", [0.0001, 0.7])
def test_uniform_on_a_grid_too_large_to_shuffle(density, monkeypatch):
    from sparse_autotune import generators

    monkeypatch.setattr(generators, "_MOST_KEYS", 1000)
    mask = blocks_of(random_bsr(300, 200, 1, density=density))
    assert int(mask.sum()) == round(density * 60000)
    for half in (mask[:150], mask[:, :100]):
        assert abs(int(half.sum()) - density * 30000) < 5 * (30000 * density) ** 0.5


def test_banded_takes_the_nearest_blocks():
    mask = blocks_of(random_bsr(40, 40, 2, density=0.2, pattern="banded"))
    row, col = torch.meshgrid(torch.arange(20), torch.arange(20), indexing="ij")
    distance = (row - col).abs()
    assert distance[mask].max() <= distance[~mask].min()


def test_banded_follows_the_diagonal_of_a_rectangle():
    mask = blocks_of(random_bsr(10, 40, 1, density=0.1, pattern="banded"))
    for row, columns in enumerate(mask):
        where = columns.nonzero()
        assert len(where) == 4
        assert abs(float(where.double().mean()) - (4 * row + 1.5)) < 1e-9


@pytest.mark.parametrize("density", [0.02, 0.1])
def test_power_law_is_skewed(density):
    lengths = blocks_of(random_bsr(512, 512, 1, density=density, pattern="power_law")).sum(1)
    mean = float(lengths.double().mean())
    longest = int(lengths.max())
    assert longest >= min(512, 49 * mean)
    ordered = lengths.sort(descending=True).values
    assert float(ordered[:51].sum()) > 0.2 * float(lengths.sum())  # a tenth of the rows
    assert not torch.equal(lengths, ordered)  # the long rows are not all at the top


def test_one_dense_row():
    lengths = blocks_of(random_bsr(64, 64, 4, density=0.2, pattern="one_dense_row")).sum(1)
    assert int(lengths.max()) == 16
    assert int((lengths == 16).sum()) == 1


def test_half_empty():
    lengths = blocks_of(random_bsr(64, 64, 4, density=0.4, pattern="half_empty")).sum(1)
    assert int((lengths == 0).sum()) >= 8
    full = blocks_of(random_bsr(64, 64, 4, density=0.5, pattern="half_empty")).sum(1)
    assert sorted(full.tolist()) == [0] * 8 + [16] * 8


@pytest.mark.parametrize(
    ("rows", "cols", "block", "nnzb"),
    [(8, 8, 2, 4), (8, 24, 2, 12), (24, 8, 2, 12), (6, 4, (3, 2), 2), (0, 8, 2, 0), (0, 0, 1, 0)],
)
def test_block_diagonal(rows, cols, block, nnzb):
    a = random_bsr(rows, cols, block, pattern="block_diagonal")
    mask = blocks_of(a)
    assert a.nnzb == nnzb
    if nnzb:
        assert mask.any(0).all() and mask.any(1).all()
        assert mask.sum(0).max() * mask.shape[1] == nnzb or mask.sum(0).max() == 1
    if rows == cols:
        assert torch.equal(mask, torch.eye(len(mask), dtype=torch.bool))


@pytest.mark.parametrize(
    ("rows", "cols", "block"), [(8, 8, (2, 2)), (8, 12, (2, 3)), (12, 8, (3, 2))]
)
def test_causal_keeps_what_tril_touches(rows, cols, block):
    mask = blocks_of(random_bsr(rows, cols, block, pattern="causal"))
    lower = torch.ones(rows, cols).tril()
    touched = lower.reshape(rows // block[0], block[0], cols // block[1], block[1]).sum((1, 3)) > 0
    assert torch.equal(mask, touched)


@pytest.mark.parametrize("pattern", [*SIZED, "causal"])
def test_seed_decides(pattern):
    def draw(seed):
        density = None if pattern == "causal" else 0.4
        generator = torch.Generator().manual_seed(seed)
        return random_bsr(24, 24, 2, density=density, pattern=pattern, generator=generator)

    first, again, other = draw(1), draw(1), draw(2)
    assert torch.equal(first.to_dense(), again.to_dense())
    assert not torch.equal(first.values, other.values)
    state = torch.random.get_rng_state()
    draw(3)
    assert torch.equal(state, torch.random.get_rng_state())


def test_global_seed_decides_without_a_generator():
    torch.manual_seed(5)
    first = random_bsr(24, 24, 2, density=0.4)
    torch.manual_seed(5)
    assert torch.equal(first.to_dense(), random_bsr(24, 24, 2, density=0.4).to_dense())


def test_values_are_normal():
    values = random_bsr(256, 256, 16, density=1).values
    assert abs(float(values.mean())) < 0.03
    assert abs(float(values.std()) - 1) < 0.03


@pytest.mark.parametrize(
    "dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str
)
def test_dtype(dtype):
    a = random_bsr(8, 8, 2, density=0.5, dtype=dtype)
    assert isinstance(a, BsrTensor)
    assert a.dtype == dtype
    assert (a.values != 0).any()


def test_defaults(monkeypatch):
    torch.set_default_dtype(torch.float64)
    try:
        a = random_bsr(8, 8, 2, density=0.5)
    finally:
        torch.set_default_dtype(torch.float32)
    assert a.dtype == torch.float32
    assert a.device == torch.device("cpu")
    torch.set_default_device("meta")
    try:
        a = random_bsr(8, 8, 2, density=0.5)
    finally:
        torch.set_default_device(None)
    assert a.device.type == a.crow_indices.device.type == a.col_indices.device.type == "meta"
    assert random_bsr(8, 8, 2, density=0.5, device="cpu").device.type == "cpu"


@pytest.mark.gpu
def test_gpu_matrix_equals_the_cpu_one():
    def draw(device, generator_device):
        generator = torch.Generator(generator_device).manual_seed(1)
        return random_bsr(32, 32, 4, density=0.5, device=device, generator=generator)

    cpu, cuda = draw("cpu", "cpu"), draw("cuda", "cpu")
    assert cuda.device.type == "cuda"
    assert torch.equal(cpu.to_dense(), cuda.to_dense().cpu())
    assert torch.equal(draw("cuda", "cuda").to_dense(), draw("cuda", "cuda").to_dense())
    torch.set_default_device("cuda")
    try:
        assert random_bsr(32, 32, 4, density=0.5).device.type == "cuda"
    finally:
        torch.set_default_device(None)


@pytest.mark.parametrize(
    ("error", "words", "arguments"),
    [
        (ValueError, "density or sparsity", {}),
        (ValueError, "density or sparsity", {"density": 0.5, "sparsity": 0.5}),
        (ValueError, r"density.*\[0, 1\].*1.5", {"density": 1.5}),
        (ValueError, r"sparsity.*\[0, 1\].*-0.5", {"sparsity": -0.5}),
        (ValueError, r"density.*\[0, 1\].*nan", {"density": float("nan")}),
        (ValueError, r"density.*\[0, 1\].*'half'", {"density": "half"}),
        (ValueError, "pattern.*uniform.*'unifrom'.*did you mean 'uniform'",
         {"density": 0.5, "pattern": "unifrom"}),
        (TypeError, "pattern must be a name, got builtins.list",
         {"density": 0.5, "pattern": ["uniform"]}),
        (ValueError, "'causal' sets its own density", {"density": 0.5, "pattern": "causal"}),
        (ValueError, "'block_diagonal' sets its own",
         {"sparsity": 0.5, "pattern": "block_diagonal"}),
        (ValueError, r"divide.*\(8, 8\).*\(3, 2\)", {"density": 0.5, "block_size": (3, 2)}),
        (ValueError, "block_size must be at least 1.*0", {"density": 0.5, "block_size": 0}),
        (ValueError, r"block_size must be at least 1.*\(2, 0\)",
         {"density": 0.5, "block_size": (2, 0)}),
        (TypeError, "block_size must be an int or a pair", {"density": 0.5, "block_size": 1.5}),
        (TypeError, "block_size must be an int or a pair", {"density": 0.5, "block_size": (1,)}),
        (TypeError, "dtype must be float16.*int32", {"density": 0.5, "dtype": torch.int32}),
        (TypeError, "complex64", {"density": 0.5, "dtype": torch.complex64}),
        (TypeError, "dtype must be a torch.dtype, got 'half'", {"density": 0.5, "dtype": "half"}),
        (ValueError, "m must not be negative, got -8", {"density": 0.5, "m": -8}),
        (TypeError, r"k must be an int, got 8\.0", {"density": 0.5, "k": 8.0}),
        (TypeError, "generator must be a torch.Generator, got builtins.int",
         {"density": 0.5, "generator": 1}),
    ],
)  # fmt: skip
def test_bad_arguments(error, words, arguments):
    with pytest.raises(error, match=words):
        random_bsr(**{"m": 8, "k": 8, "block_size": 2, **arguments})


def test_dtypes_round_the_same_values():
    """But for float64, whose values have all of their digits."""
    made = {
        dtype: random_bsr(
            8, 8, 2, density=0.5, dtype=dtype, generator=torch.Generator().manual_seed(1)
        ).values
        for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64)
    }
    for dtype in (torch.float16, torch.bfloat16):
        assert torch.equal(made[dtype], made[torch.float32].to(dtype))
    assert not torch.equal(made[torch.float64], made[torch.float64].float().double())


def test_numbers_of_numpy():
    a = random_bsr(np.int64(8), np.int32(8), np.int64(2), density=np.float32(0.5))
    assert a.shape == (8, 8) and a.nnzb == 8


def test_large_grid_is_fast_enough_to_use():
    """512 x 512 blocks; compared with nothing, but a quadratic loop would take minutes."""
    a = random_bsr(32768, 32768, 64, density=0.02, pattern="power_law", dtype=torch.bfloat16)
    assert a.nnzb == round(0.02 * 512 * 512)
    assert int(a.crow_indices.diff().max()) == 512
