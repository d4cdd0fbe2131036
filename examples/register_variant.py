"""A kernel of somebody else's in the races: PyTorch's Triton kernel on a GPU, its bmm on a CPU.

python examples/register_variant.py
"""

import argparse

import torch

import sparse_autotune as sa
from sparse_autotune.configuration import why_no_gpu


def triton_bsr(crow_indices, col_indices, values, b, *, out, **_):
    """PyTorch's own Triton kernel, with the knobs that it chooses."""
    from torch.sparse._triton_ops import bsr_dense_addmm

    a = torch.sparse_bsr_tensor(crow_indices, col_indices, values, (out.shape[0], b.shape[0]))
    bsr_dense_addmm(out, a, b, beta=0, alpha=1, out=out)


def for_triton(problem):
    """True, or why the Triton kernel does not compute a problem."""
    if problem.transpose or problem.bias or problem.activation is not None:
        return "plain products only"
    if problem.dtype not in (torch.float16, torch.bfloat16):
        return "half types only"
    if any(size < 16 or size & (size - 1) for size in (problem.block_m, problem.block_k)):
        return "needs blocks of 16, 32, 64, …"
    return problem.n % 128 == 0 or "needs a multiple of 128 columns"


def gathered(crow_indices, col_indices, values, b, *, out, **_):
    """A batch of small dense products, each added to its block row."""
    _, block_m, block_k = values.shape
    rows = torch.arange(out.shape[0] // block_m).repeat_interleave(crow_indices.diff())
    products = values @ b.unflatten(0, (-1, block_k))[col_indices]
    out.unflatten(0, (-1, block_m)).zero_().index_add_(0, rows, products)


def for_gathered(problem):
    """True, or why it does not compute a problem."""
    if problem.transpose or problem.bias or problem.activation is not None:
        return "plain products only"
    return problem.dtype in (torch.float32, torch.float64) or "float32 and float64 only"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=2048)
    size = parser.parse_args().size
    if why_no_gpu() is None:
        device, dtype = "cuda", torch.bfloat16
        handle = sa.register_variant("triton_bsr", triton_bsr, supports=for_triton, captures=True)
    else:
        device, dtype = "cpu", torch.float32
        handle = sa.register_variant("gathered", gathered, supports=for_gathered, device="cpu")
    a = sa.random_bsr(size, size, 32, density=0.1, dtype=dtype, device=device)
    b = torch.randn(size, 256, device=device).to(dtype)
    report = sa.benchmark(a, b)
    print(f"{size} x {size} in blocks of 32, times 256 columns, {device}: microseconds")
    name = "triton_bsr" if device == "cuda" else "gathered"
    (record,) = [record for record in report.records if record.family == name]
    if record.status != "ok":
        raise SystemExit(f"{record.name}: {record.status}, {record.reason}")
    dense_name = "cublas_dense" if device == "cuda" else "dense"
    for what, family in (("registered", name), ("the dense product", dense_name)):
        timed = (r.median_us for r in report.records if r.family == family and r.median_us)
        print(f"{what:20}{min(timed):10.1f}")
    print(f"{'the fastest':20}{report.best.median_us:10.1f}")
    product, dense = sa.matmul(a, b, variant=name), a.to_dense() @ b
    torch.testing.assert_close(product, dense, rtol=0.02, atol=0.02 * dense.abs().max().item())
    print("the registered kernel and the dense product agree")
    handle.unregister()


if __name__ == "__main__":
    main()
