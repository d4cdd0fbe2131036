"""What one process has learnt serves the next."""

import ast

import torch
from interpreters import run_python
from reference import close

import sparse_autotune
from sparse_autotune import _tuner, matmul, random_bsr
from sparse_autotune.tuning import announcements

# Products of many kinds; prints races and winners.
PRODUCTS = """
import torch, sparse_autotune as sa
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
count = 0
for product in products():
    product()
    count += 1
print(repr((sa.tuning_count(), count,
            {entry.signature: entry.winner for entry in sa.cache.entries()})))
"""


def run(cache):
    return ast.literal_eval(run_python(PRODUCTS, cache).splitlines()[-1])


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
    assert files_of(tmp_path) == before


CALLS = """
import sparse_autotune as sa, torch, warnings
torch.manual_seed(0)  # one pattern, one signature, in every process
a, b = sa.random_bsr(64, 64, 16, density=0.5), torch.randn(64, 1)
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    for n in (32, 32, 256, 1):
        c = sa.matmul(a, b.expand(64, n).contiguous())
        assert torch.allclose(c, a.to_dense() @ b.expand(64, n), atol=1e-4)
ours = [str(w.message) for w in caught if "sparse_autotune" in str(w.message)]
print(repr((sa.tuning_count(), ours)))
"""


def call(cache):
    return ast.literal_eval(run_python(CALLS, cache).splitlines()[-1])


def test_corrupt_files(tmp_path):
    """One warning a process, whatever is wrong with how many; then they are replaced."""
    assert call(tmp_path) == (3, [])
    contents = (b"", b"\xff\x00garbage", b"sparse_autotune_race 999\n")
    damaged = sorted(files_of(tmp_path))
    for file, content in zip(damaged, contents, strict=True):
        file.write_bytes(content)
    races, warned = call(tmp_path)
    assert races == 3 and len(warned) == 1, warned
    assert all(file.read_bytes() not in contents for file in damaged)
    assert call(tmp_path) == (0, [])


def test_unwritable_directory(tmp_path):
    """One warning, then the cache is in memory: the second call with n = 32 does not race."""
    file = tmp_path / "file"
    file.write_text("not a directory")
    races, warned = call(file / "cache")
    assert races == 3 and len(warned) == 1 and str(file) in warned[0], warned
    assert file.read_text() == "not a directory"


def test_without_the_python_half(fresh_cache):
    """As after the interpreter's end, or in a program without one: winners are kept in memory."""
    a, b = random_bsr(64, 64, 16, density=0.5), torch.randn(64, 20)
    races = sparse_autotune.tuning_count()
    _tuner.remove_host()
    try:
        for _ in range(2):
            close(matmul(a, b), a.to_dense() @ b)
    finally:
        announcements.install()
    assert sparse_autotune.tuning_count() == races + 1
    assert not fresh_cache.exists()
