"""What one process has learnt serves the next."""

import ast

from interpreters import run_python

# Products of many kinds; prints races and winners.
PRODUCTS = """
import logging, torch, sparse_autotune as sa
generator = torch.Generator().manual_seed(5)
def products():
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16):
        for pattern in ("uniform", "power_law", "banded"):
            a = sa.random_bsr(96, 128, 16, density=0.3, pattern=pattern, dtype=dtype,
                              generator=generator)
            b = torch.randn(128, 40, generator=generator).to(dtype)
            bias = torch.randn(96, generator=generator).to(dtype)
            yield lambda: sa.matmul(a, b)
            yield lambda: sa.matmul(a, b[:, 0])
            yield lambda: sa.matmul(a, b.T.contiguous().T, bias=bias, activation="gelu")
            yield lambda: sa.matmul(a, b.expand(3, 128, 40))
            yield lambda: sa.linear(b.T.contiguous(), a, bias)
            yield lambda: sa.matmul(a.freeze(), b)
            yield lambda: sa.matmul(a.thaw(), b, out=torch.empty(40, 96, dtype=dtype).T)
    a = sa.random_bsr(64, 64, (8, 32), density=0.5, generator=generator)
    yield lambda: sa.matmul(a, torch.ones(64, 9), variant="cpu_tiled")
count = 0
for product in products():
    product()
    count += 1
print(repr((sa.tuning_count(), count,
            {entry.signature: entry.winner for entry in sa.cache.entries()})))
"""


def run(cache, **environment):
    return ast.literal_eval(run_python(PRODUCTS, cache, **environment).splitlines()[-1])


def files_of(directory):
    return {path: path.stat().st_mtime_ns for path in directory.rglob("*") if path.is_file()}


def test_the_second_process_tunes_nothing(tmp_path):
    """Whatever the operation, dtype, layout, epilogue or pattern."""
    races, products, winners = run(tmp_path)
    assert 0 < races <= products
    assert races == len(winners), "a race for each signature, and no more"
    before = files_of(tmp_path)
    assert len(before) == len(winners)
    assert run(tmp_path) == (0, products, winners)
    assert run(tmp_path, mode="readonly") == (0, products, winners)
    assert files_of(tmp_path) == before


def test_modes_that_never_race(tmp_path):
    for mode in ("off", "readonly", "record"):
        races, _, winners = run(tmp_path, mode=mode)
        assert (races, winners) == (0, {})
    assert not files_of(tmp_path)


def test_a_forced_variant_needs_no_race(tmp_path):
    races, _, winners = run(tmp_path, variant="reference")
    assert (races, winners) == (0, {})


def test_an_interpreter_ends_while_threads_still_multiply(tmp_path):
    """The host is gone by then; races and products go on without it, or end."""
    code = """
import threading, torch, sparse_autotune as sa
a = sa.random_bsr(64, 64, 16, density=0.5)
def work():
    n = 1
    while True:
        sa.matmul(a, torch.ones(64, n))
        n = n % 4000 + 7
for _ in range(4):
    threading.Thread(target=work, daemon=True).start()
sa.matmul(a, torch.ones(64, 5))
print("end")
"""
    for _ in range(3):
        assert run_python(code, tmp_path, budget_s="0.01", verbose="1").split() == ["end"]
