"""Products with so many columns that kernels take them panel by panel."""

import pytest
import torch
from machine import built

from sparse_autotune import matmul, random_bsr
from sparse_autotune.errors import legality

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("no_races")]

WGMMA = [n for n in built("cuda") if n.startswith(("wgmma_sm90/", "wgmma_ragged_sm90/"))]
PAIRS = [n for n in built("cuda") if n.startswith("wgmma_pairs_sm90/")]
STRIPS = [n for n in built("cuda") if n.startswith("column_strips/")]

# A B and a C that L2 does not keep; a last panel that is narrower than the others, and whose last
# tile of C is cut off.
M, K, N = 12288, 5120, 3576


@pytest.fixture(scope="module")
def product(request):
    """A sparse and a dense matrix, what their product must be, and how far from it."""
    generator = torch.Generator("cuda").manual_seed(0)
    a = random_bsr(
        M, K, request.param, density=0.1, dtype=torch.bfloat16, device="cuda", generator=generator
    )
    b = torch.randn((K, N), generator=generator, device="cuda", dtype=torch.bfloat16)
    dense = a.to_dense().double()
    expected, magnitude = dense @ b.double(), dense.abs() @ b.abs().double()
    tolerance = expected.abs() / 128 + magnitude * (K * 2.0**-23)
    return a, b, expected, tolerance


@pytest.mark.parametrize("column_major", [False, True])
@pytest.mark.parametrize(
    ("product", "variant"),
    [(128, variant) for variant in WGMMA] + [(64, variant) for variant in PAIRS],
    indirect=["product"],
)
def test_every_tile_of_every_panel(product, variant, column_major):
    a, b, expected, tolerance = product
    # The ragged ones serve what TMA refuses.
    n = N - 3 if variant.startswith("wgmma_ragged") else N
    b = b[:, :n].mT.contiguous().mT if column_major else b[:, :n].contiguous()
    why = legality(a, b)[variant]
    if why is not None:
        assert variant.startswith(("wgmma_ragged", "wgmma_pairs")) or variant.endswith("_x2")
        assert column_major, why
        pytest.skip(f"{variant} is not legal: {why}")
    out = torch.full((M, n), torch.nan, device="cuda", dtype=b.dtype)
    out = out.mT.contiguous().mT if column_major else out
    matmul(a, b, out=out, variant=variant)
    error = (out.double() - expected[:, :n]).abs()
    assert bool((error <= tolerance[:, :n]).all()), float((error - tolerance[:, :n]).max())


@pytest.mark.parametrize("pattern", ["uniform", "one_dense_row"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("variant", STRIPS)
def test_every_strip_of_every_panel(variant, dtype, pattern):
    """Parts of a row that is cut stand before the rows of each panel."""
    generator = torch.Generator("cuda").manual_seed(1)
    a = random_bsr(150, 12000, 3, density=0.03, pattern=pattern, dtype=dtype, device="cuda",
                   generator=generator)  # fmt: skip
    b = torch.randn((12000, 1001), generator=generator, device="cuda", dtype=dtype)
    why = legality(a, b)[variant]
    if why is not None:
        assert dtype != torch.float64, why
        pytest.skip(f"{variant} is not legal: {why}")
    dense = a.to_dense().double()
    expected, magnitude = dense @ b.double(), dense.abs() @ b.abs().double()
    out = torch.full((150, 1001), torch.nan, device="cuda", dtype=dtype)
    matmul(a, b, out=out, variant=variant)
    roundoff = torch.finfo(dtype).eps
    error = (out.double() - expected).abs()
    assert bool((error <= expected.abs() * roundoff + magnitude * (12000 * roundoff)).all())
