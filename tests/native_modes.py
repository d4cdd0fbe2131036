"""Modes, records and bundles of a process that has the C interface alone.

python tests/native_modes.py LIBRARY FOLDER
"""

import ctypes
import pathlib
import sys

import native_header
import numpy as np
from native_header import struct

ON, OFF, READONLY, RECORD = range(4)
library = native_header.load(sys.argv[1])
folder = pathlib.Path(sys.argv[2])


def must(status):
    assert status == 0, library.sparse_autotune_error_message().decode()


def set_mode(mode, cache):
    settings = struct("settings", mode=mode, budget_s=0.02, cache_directory=str(cache).encode())
    must(library.sparse_autotune_set_settings(ctypes.byref(settings)))


def made(function, *given):
    handle = ctypes.c_void_p()
    must(function(*given, ctypes.byref(handle)))
    return handle


context = made(library.sparse_autotune_context_create, None)
crow, col = np.array([0, 1, 2]), np.array([1, 0])
description = struct("pattern_description", rows=32, cols=32, block_rows=16, block_cols=16, nnzb=2,
                     crow_indices=crow.ctypes.data, col_indices=col.ctypes.data,
                     index_type=1)  # fmt: skip
pattern = made(library.sparse_autotune_pattern_create, context, ctypes.byref(description))
values = np.random.default_rng(1).standard_normal((2, 16, 16)).astype("f")


def product(n):
    """Of the whole matrix with one of n columns; 1 where a record decided or decides it."""
    b = np.random.default_rng(n).standard_normal((32, n)).astype("f")
    c = np.full((32, n), np.nan, np.float32)
    p = struct("product", values=values.ctypes.data, dtype=2)
    p.dense = struct("dense", data=b.ctypes.data, rows=32, cols=n)
    p.result = struct("dense", data=c.ctypes.data, rows=32, cols=n)
    must(library.sparse_autotune_matmul(pattern, ctypes.byref(p)))
    expected = np.concatenate([values[0] @ b[16:], values[1] @ b[:16]])
    np.testing.assert_allclose(c, expected, rtol=1e-4, atol=1e-5)
    record = made(library.sparse_autotune_find_record, pattern, ctypes.byref(p))
    library.sparse_autotune_record_destroy(record)
    return int(record.value is not None)


def races(call, *given):
    before = library.sparse_autotune_tuning_count()
    return call(*given), library.sparse_autotune_tuning_count() - before


def entries(cache):
    return len(list(cache.glob("*/*.txt")))


first, second = folder / "first", folder / "second"
for mode in (OFF, READONLY, RECORD):
    set_mode(mode, first)
    assert races(product, 8) == (0, 0), mode
    assert entries(first) == 0, mode
set_mode(ON, first)
assert races(product, 8) == (1, 1) and entries(first) == 1
assert races(product, 8) == (1, 0)
bundle, count = str(folder / "bundle").encode(), ctypes.c_int64(-1)
must(library.sparse_autotune_bundle_export(bundle, ctypes.byref(count)))
assert count.value == 1
set_mode(READONLY, second)
assert races(product, 8) == (0, 0) and entries(second) == 0
must(library.sparse_autotune_bundle_load(bundle, ctypes.byref(count)))
assert count.value == 1 and entries(second) == 1
assert races(product, 8) == (1, 0)
set_mode(ON, "")  # in memory only
assert races(product, 5) == (1, 1)
assert entries(first) == entries(second) == 1
