"""A cache that cannot be written or read costs one warning and nothing else."""

import os
import subprocess
import sys
import warnings

import pytest
import torch
from refusals import K, N, matrix

from sparse_autotune import matmul

CALL = """
import sparse_autotune, torch, warnings
torch.manual_seed(0)  # one pattern, one signature, in every process
a = sparse_autotune.random_bsr(64, 64, 16, density=0.5)
b = torch.randn(64, 32)
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    for n in (32, 32, 256):
        c = sparse_autotune.matmul(a, b[:, :1].expand(64, n).contiguous())
        assert torch.allclose(c, a.to_dense() @ b[:, :1].expand(64, n), atol=1e-4)
ours = [str(w.message) for w in caught if "sparse_autotune" in str(w.message)]
print(len(ours), sparse_autotune.tuning_count(), *ours, sep="|")
"""


def call_with_cache(directory):
    environment = {
        **os.environ,
        "SPARSE_AUTOTUNE_CACHE_DIR": str(directory),
        "SPARSE_AUTOTUNE_BUDGET_S": "0.05",
    }
    done = subprocess.run(
        [sys.executable, "-c", CALL], env=environment, capture_output=True, text=True, check=True
    )
    warned, tuned, *texts = done.stdout.strip().splitlines()[-1].split("|")
    return int(warned), int(tuned), texts


def test_unwritable_cache_directory(tmp_path):
    """One warning, then the cache is in memory: the second call with n = 32 is not raced again."""
    file = tmp_path / "file"
    file.write_text("not a directory")
    warned, tuned, texts = call_with_cache(file / "cache")
    assert warned == 1, texts
    assert str(file) in texts[0]
    assert tuned == 2
    assert file.read_text() == "not a directory"


@pytest.mark.parametrize("content", [b"", b"\xff\x00garbage", b"{}", b"sparse_autotune 999\n"])
def test_corrupt_cache_files(tmp_path, content):
    """One warning a process, then they are replaced."""
    directory = tmp_path / "cache"
    assert call_with_cache(directory) == (0, 2, [])
    assert call_with_cache(directory) == (0, 0, [])
    files = [path for path in directory.rglob("*") if path.is_file()]
    good = {path: path.read_bytes() for path in files}
    assert len(files) >= 2
    for path in files:
        path.write_bytes(content)
    warned, tuned, texts = call_with_cache(directory)
    assert (warned, tuned) == (1, 2), texts
    assert all(path.read_bytes() != content for path in good)
    assert call_with_cache(directory) == (0, 0, [])


def test_no_warning_otherwise():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        matmul(matrix(), torch.ones(K, N))
