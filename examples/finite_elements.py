"""Linear elasticity in fp64: scikit-fem assembles, conjugate gradients here and in SciPy solve.

    python examples/finite_elements.py

A beam of hexahedra, clamped at one end, bends under its weight. A node has three unknowns, so the
stiffness matrix consists of blocks of 3x3. Needs scikit-fem, which brings SciPy.
"""

import argparse
import time

import numpy
import torch

import sparse_autotune as sa

try:
    import scipy.sparse.linalg
    import skfem
    from skfem.models.elasticity import lame_parameters, linear_elasticity
except ImportError:
    raise SystemExit("This example needs scikit-fem: pip install scikit-fem scipy") from None


def assembled(cells: int):
    """The stiffness matrix in CSR and the load of a beam of 4 x 1 x 1, without clamped unknowns."""
    across, along = numpy.linspace(0, 1, cells + 1), numpy.linspace(0, 4, 4 * cells + 1)
    mesh = skfem.MeshHex.init_tensor(along, across, across)
    basis = skfem.Basis(mesh, skfem.ElementVector(skfem.ElementHex1()), intorder=2)
    stiffness = linear_elasticity(*lame_parameters(1e3, 0.3)).assemble(basis)
    weight = skfem.LinearForm(lambda v, w: -v[2]).assemble(basis)
    clamped = basis.get_dofs(lambda x: x[0] == 0.0)
    matrix, load, _, _ = skfem.condense(stiffness, weight, D=clamped)
    return matrix.tocsr(), load


def conjugate_gradients(multiply, load, inverse_diagonal, tolerance):
    """Solves A x = load, with the diagonal as preconditioner; returns x and the iterations."""
    x = torch.zeros_like(load)
    r = load.clone()
    z = inverse_diagonal * r
    p, rz = z.clone(), r @ z
    limit = tolerance * load.norm()
    for iteration in range(1, 10 * len(load)):
        q = multiply(p)
        step = rz / (p @ q)
        x += step * p
        r -= step * q
        if r.norm() <= limit:
            return x, iteration
        z = inverse_diagonal * r
        last, rz = rz, r @ z
        p = z + (rz / last) * p
    raise SystemExit("conjugate gradients did not converge")


def main() -> None:
    """Solves twice, and compares the solutions and the times."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--cells", type=int, default=20, help="across the beam; along it 4 times")
    parser.add_argument("--tolerance", type=float, default=1e-8, help="of the residual, relative")
    options = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"

    csr, load = assembled(options.cells)
    a = sa.BsrTensor.from_scipy(csr.tobsr((3, 3))).to(device)
    print(repr(a))
    b = torch.from_numpy(load).to(device)
    inverse_diagonal = torch.from_numpy(1 / csr.diagonal()).to(device)
    a @ b  # the first product races; the solver finds the winner

    begin = time.perf_counter()
    x, iterations = conjugate_gradients(a.matmul, b, inverse_diagonal, options.tolerance)
    solution = x.cpu().numpy()
    ours = time.perf_counter() - begin

    count = [0]
    begin = time.perf_counter()
    reference, failed = scipy.sparse.linalg.cg(
        csr,
        load,
        rtol=options.tolerance,
        M=scipy.sparse.diags_array(1 / csr.diagonal()),
        callback=lambda _: count.__setitem__(0, count[0] + 1),
    )
    theirs = time.perf_counter() - begin

    residual = numpy.linalg.norm(load - csr @ solution) / numpy.linalg.norm(load)
    difference = numpy.linalg.norm(solution - reference) / numpy.linalg.norm(reference)
    print(f"here ({device})  {iterations} iterations, {ours:.2f} s")
    print(f"SciPy, CSR  {count[0]} iterations, {theirs:.2f} s, {theirs / ours:.2f} times as long")
    print(f"relative residual {residual:.1e}, the solutions differ by {difference:.1e}")
    print(f"the free end sinks by {-solution[2::3].min():.4f}")
    if failed or not (residual < 10 * options.tolerance and difference < 1e-4):
        raise SystemExit("the solutions disagree")


if __name__ == "__main__":
    main()
