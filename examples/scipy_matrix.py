"""An existing SciPy BSR matrix: products with it here, and back to SciPy.

    python examples/scipy_matrix.py

Needs SciPy.
"""

import argparse

import torch
from torch.utils.benchmark import Timer

import sparse_autotune as sa

try:
    import scipy.sparse
except ImportError:
    raise SystemExit("This example needs SciPy: pip install scipy") from None


def grid(points: int) -> scipy.sparse.bsr_array:
    """Three unknowns at each point of a periodic cubic grid, coupled with all 27 neighbours."""
    ring = scipy.sparse.diags_array([1.0] * 5, offsets=[-points + 1, -1, 0, 1, points - 1],
                                    shape=(points, points))  # fmt: skip
    graph = scipy.sparse.kron(scipy.sparse.kron(ring, ring), ring)
    matrix = scipy.sparse.bsr_array(scipy.sparse.kron(graph, [[1.0] * 3] * 3, format="bsr"))
    generator = torch.Generator().manual_seed(0)
    matrix.data = torch.randn(matrix.data.shape, generator=generator, dtype=torch.float64).numpy()
    return matrix


def milliseconds(call) -> float:
    """The median time of a call, after one that is not timed."""
    call()
    timer = Timer("call()", globals={"call": call}, num_threads=torch.get_num_threads())
    return timer.blocked_autorange(min_run_time=0.5).median * 1e3


def main() -> None:
    """Prints the times of SciPy and of this package."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--points", type=int, default=40, help="along a side of the grid")
    options = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"

    matrix = grid(options.points)
    csr = matrix.tocsr()
    a = sa.BsrTensor.from_scipy(matrix).to(device)
    print(f"{a!r}")
    print(f"{'milliseconds':24}{'SciPy BSR':>12}{'SciPy CSR':>12}{'here':>12}")
    for name, sparse, n in (("A @ x", a, 1), ("A @ X, 16 columns", a, 16), ("A.T @ x", a.t(), 1)):
        x = torch.randn(a.shape[0], n, dtype=torch.float64, device=device).squeeze(1)
        theirs, other, array = matrix, csr, x.cpu().numpy()
        if sparse is not a:
            theirs, other = matrix.T, csr.T
        y = sparse @ x  # the first call races
        torch.testing.assert_close(y.cpu(), torch.from_numpy(theirs @ array))
        times = [
            milliseconds(lambda theirs=theirs, array=array: theirs @ array),
            milliseconds(lambda other=other, array=array: other @ array),
            milliseconds(lambda sparse=sparse, x=x: sparse @ x),
        ]
        print(f"{name:24}" + "".join(f"{time:12.2f}" for time in times))
    back = (a * 2).to_scipy()
    print(f"and back: {type(back).__name__} of {back.shape}, blocks of {back.blocksize}")


if __name__ == "__main__":
    main()
