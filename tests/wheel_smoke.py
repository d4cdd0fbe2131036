"""Does an installed wheel work? Run with the interpreter it is installed in, no pytest needed.

Every variant that is legal for a few ragged problems is forced once, on the CPU and, where there is
one, on the GPU; then a tuned call must be right and its repetition must not tune again.
"""

import os
import tempfile

_cache = tempfile.TemporaryDirectory(prefix="sparse_autotune_smoke_")
os.environ["SPARSE_AUTOTUNE_CACHE_DIR"] = _cache.name

import torch  # noqa: E402

import sparse_autotune  # noqa: E402


def check(c, a, b, label):
    """Raises unless c is a @ b, element-wise, within what the dtype's rounding allows."""
    dense, b64 = a.to_dense().cpu().double(), b.cpu().double()
    expected = dense @ b64
    eps = torch.finfo(c.dtype).eps
    accumulation = torch.finfo(torch.float32 if c.dtype.itemsize == 2 else c.dtype).eps
    bound = eps * expected.abs() + accumulation * a.shape[1] * (dense.abs() @ b64.abs()) + 1e-30
    error = (c.cpu().double() - expected).abs()
    if not bool((error <= bound).all()):
        raise SystemExit(f"{label}: wrong by up to {(error / bound).max().item():.1f} tolerances")


def main():
    sparse_autotune.show_config()
    devices = ["cpu"] + (["cuda"] if torch.cuda.is_available() else [])
    launched = set()
    for device in devices:
        for dtype in (torch.float32, torch.bfloat16, torch.float64):
            for block in (32, (16, 48)):
                a = sparse_autotune.random_bsr(
                    192, 288, block, density=0.3, dtype=dtype, device=device
                )
                b = torch.randn(288, 37, device=device).to(dtype)
                for name in sparse_autotune.variants(a, b):
                    c = sparse_autotune.matmul(a, b, variant=name)
                    check(c, a, b, f"{name} {dtype} {device}")
                    launched.add(name)
        before = sparse_autotune.tuning_count()
        check(sparse_autotune.matmul(a, b), a, b, f"tuned, {device}")
        tuned = sparse_autotune.tuning_count()
        check(sparse_autotune.matmul(a, b), a, b, f"cached, {device}")
        if tuned != before + 1 or sparse_autotune.tuning_count() != tuned:
            raise SystemExit(
                f"{device}: tunings {before}, {tuned}, {sparse_autotune.tuning_count()} before, "
                "after the first and after the second call"
            )
    print(
        f"ok: torch {torch.__version__}, devices {', '.join(devices)}, "
        f"{len(launched)} of {len(sparse_autotune.variants())} variants launched: "
        f"{', '.join(sorted({name.split('/')[0] for name in launched}))}"
    )


if __name__ == "__main__":
    main()
