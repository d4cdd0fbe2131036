"""The C interface, called as any program would: results, refusals, threads, what is remembered."""

import ctypes
import json
import re
import shlex
import shutil
import subprocess
import sys
from functools import partial

import native_build
import native_header
import numpy as np
import pytest
import torch
from native_build import CORE, HARNESS, came_from_the_cache, races_in_python
from native_header import struct
from parallel import run_threads
from records import won_by

import sparse_autotune

INVALID, PATTERN, UNSUPPORTED, TOO_SMALL, NO_DEVICE, IO = 1, 2, 3, 5, 6, 7
NUMPY = {0: np.float16, 2: np.float32, 3: np.float64}
library = native_header.load(CORE)


@pytest.fixture(autouse=True)
def guessed():
    """Nothing races here unless a test wants it."""
    with sparse_autotune.settings.override(mode="off", verbosity=0):
        yield


def message():
    return library.sparse_autotune_error_message().decode()


def must(status):
    assert status == 0, message()


@pytest.fixture
def context():
    made = ctypes.c_void_p()
    options = struct("context_options", threads=2)
    must(library.sparse_autotune_context_create(ctypes.byref(options), ctypes.byref(made)))
    yield made
    library.sparse_autotune_context_destroy(made)


def create_pattern(context, description, handle):
    return library.sparse_autotune_pattern_create(
        context, ctypes.byref(description), ctypes.byref(handle)
    )


class Matrix:
    """A pattern with its handle, and values to go with it."""

    def __init__(self, context, rows=96, cols=144, block=(16, 24), seed=1, index=np.int64):
        random = np.random.default_rng(seed)
        self.mask = random.random((rows // block[0], cols // block[1])) < 0.4
        self.crow = np.concatenate([[0], self.mask.sum(1).cumsum()]).astype(index)
        self.col = np.nonzero(self.mask)[1].astype(index)
        self.shape, self.block = (rows, cols), block
        self.handle = ctypes.c_void_p()
        must(create_pattern(context, self.description(), self.handle))

    def description(self, **changes):
        values = {
            "rows": self.shape[0],
            "cols": self.shape[1],
            "block_rows": self.block[0],
            "block_cols": self.block[1],
            "nnzb": len(self.col),
            "crow_indices": self.crow.ctypes.data,
            "col_indices": self.col.ctypes.data,
            "index_type": int(self.crow.dtype == np.int64),
        }
        return struct("pattern_description", **(values | changes))

    def values(self, dtype=np.float32, seed=2):
        random = np.random.default_rng(seed)
        return random.standard_normal((len(self.col), *self.block)).astype(dtype)

    def dense(self, values):
        (rows, cols), (block_m, block_k) = self.shape, self.block
        blocks = np.zeros((rows // block_m, cols // block_k, block_m, block_k))
        blocks[self.mask] = values.astype(np.float64)
        return blocks.swapaxes(1, 2).reshape(rows, cols)


@pytest.fixture
def matrix(context):
    made = Matrix(context)
    yield made
    library.sparse_autotune_pattern_destroy(made.handle)


def view(array):
    """Of a matrix or a batch of them, with numpy's strides."""
    item = array.itemsize
    strides = [s // item for s in array.strides]
    batch = (array.shape[0], strides[0]) if array.ndim == 3 else (0, 0)
    return struct("dense", data=array.ctypes.data, rows=array.shape[-2], cols=array.shape[-1],
                  row_stride=strides[-2], col_stride=strides[-1], batch=batch[0],
                  batch_stride=batch[1])  # fmt: skip


def product_of(values, dense, result, dtype=2, **more):
    return struct("product", values=values.ctypes.data, dtype=dtype, dense=view(dense),
                  result=view(result), **more)  # fmt: skip


def multiply(matrix, product):
    return library.sparse_autotune_matmul(matrix.handle, ctypes.byref(product))


def check(result, expected, magnitude, dtype, length):
    """Element-wise; NaN fails."""
    unit = np.finfo(dtype).eps / 2
    accumulator = min(unit, 2.0**-24)
    allowed = 2 * unit * np.abs(expected) + accumulator * (8 + 4 * length**0.5) * magnitude
    assert (np.abs(result.astype(np.float64) - expected) <= allowed + 1e-7 * unit).all()


def check_product(matrix, values, dense, result):
    a = matrix.dense(values)
    check(result, a @ dense.astype(float), np.abs(a) @ np.abs(dense), np.float32, 144)


def gelu(x):
    return torch.nn.functional.gelu(torch.from_numpy(x)).numpy()


def small_product(matrix, **more):
    """A product, and the arrays that it reads and writes."""
    arrays = matrix.values(), np.ones((144, 8), np.float32), np.full((96, 8), np.nan, np.float32)
    return product_of(*arrays, **more), arrays


@pytest.mark.parametrize("dtype", NUMPY)
@pytest.mark.parametrize("right", [0, 1])
@pytest.mark.parametrize("transpose", [0, 1])
def test_product(context, matrix, dtype, right, transpose):
    """A batch with a bias and GELU; operands are column-major, the result has room between rows."""
    kind = NUMPY[dtype]
    values = matrix.values(kind)
    a = matrix.dense(values)
    op = a.T if transpose else a
    random = np.random.default_rng(3)
    inner = op.shape[0] if right else op.shape[1]
    shape = (3, 20, inner) if right else (3, inner, 20)
    dense = random.standard_normal((3, shape[2], shape[1])).astype(kind).swapaxes(1, 2)
    outer = op.shape[1] if right else op.shape[0]
    out_shape = (20, outer) if right else (outer, 20)
    room = np.full((3, out_shape[0], out_shape[1] + 5), np.nan, kind)
    result = room[:, :, : out_shape[1]]
    bias = random.standard_normal(outer).astype(kind)
    product = product_of(values, dense, result, dtype, bias=bias.ctypes.data, activation=2,
                         sparse_right=right, transpose=transpose)  # fmt: skip
    must(multiply(matrix, product))
    wide = dense.astype(np.float64)
    column = bias.astype(np.float64) if right else bias.astype(np.float64)[:, None]
    expected = (wide @ op if right else op @ wide) + column
    size = (np.abs(wide) @ np.abs(op) if right else np.abs(op) @ np.abs(wide)) + np.abs(column)
    check(result, gelu(expected), size * 1.13, kind, inner)
    assert np.isnan(room[:, :, out_shape[1] :]).all()


@pytest.mark.parametrize("name", [v["name"] for v in sparse_autotune._tuner.variants()
                                  if v["device"] == "cpu" and v["op"] == "matmul"])  # fmt: skip
def test_each_variant_by_name(matrix, name):
    values, dense = matrix.values(), np.random.default_rng(5).standard_normal((144, 32)).astype("f")
    result = np.full((96, 32), np.nan, np.float32)
    product = product_of(values, dense, result, variant=name.encode())
    status = multiply(matrix, product)
    if status == UNSUPPORTED:
        assert name in message() and np.isnan(result).all()
        return
    must(status)
    check_product(matrix, values, dense, result)


@pytest.mark.parametrize("dtype", NUMPY)
def test_sampled_product(matrix, dtype):
    kind = NUMPY[dtype]
    random = np.random.default_rng(4)
    batch = 1 if kind == np.float16 else 2
    x = random.standard_normal((batch, 96, 40)).astype(kind)
    y = random.standard_normal((batch, 40, 144)).astype(kind)
    values = np.full((len(matrix.col), *matrix.block), np.nan, kind)
    product = struct("sampled_product", values=values.ctypes.data, dtype=dtype, x=view(x),
                     y=view(y))  # fmt: skip
    must(library.sparse_autotune_sampled_matmul(matrix.handle, ctypes.byref(product)))
    wide = (x.astype(float) @ y.astype(float)).sum(0)
    size = (np.abs(x).astype(float) @ np.abs(y)).sum(0)

    def blocks(dense):
        grid = dense.reshape(96 // 16, 16, 144 // 24, 24).swapaxes(1, 2)
        return grid[matrix.mask]

    check(values, blocks(wide), blocks(size), kind, 40 * batch)


def test_a_batch_of_columns(matrix):
    """Each is strided, so that together they are no matrix; a batch without columns is empty."""
    values, room = matrix.values(), np.full((3, 96, 2), np.nan, np.float32)
    dense = np.random.default_rng(6).standard_normal((3, 144, 2)).astype("f")
    # numpy gives a single column any stride; C's rule asks for 1 there.
    product = product_of(values, dense[:, :, :1], room[:, :, :1])
    product.dense.col_stride = product.result.col_stride = 1
    must(multiply(matrix, product))
    check_product(matrix, values, dense[:, :, :1], room[:, :, :1])
    assert np.isnan(room[:, :, 1]).all()
    product = product_of(values, dense[:, :, :0], room[:, :, :0])
    product.result.batch_stride = 0
    must(multiply(matrix, product))


def test_without_blocks(context):
    """Zeros, or the activated bias."""
    empty = Matrix(context)
    empty.mask[:], empty.crow[:], empty.col = False, 0, empty.col[:0]
    handle = ctypes.c_void_p()
    must(create_pattern(context, empty.description(nnzb=0), handle))
    dense, result = np.ones((144, 8), np.float32), np.full((96, 8), np.nan, np.float32)
    bias = np.linspace(-1, 1, 96, dtype=np.float32)
    product = product_of(empty.values(), dense, result, bias=bias.ctypes.data, activation=1)
    must(library.sparse_autotune_matmul(handle, ctypes.byref(product)))
    assert (result == np.maximum(bias, 0)[:, None]).all()
    library.sparse_autotune_pattern_destroy(handle)


def test_indices_are_copied(matrix):
    values, dense = matrix.values(), np.ones((144, 8), np.float32)
    matrix.crow[:], matrix.col[:] = 1 << 40, -7
    result = np.full((96, 8), np.nan, np.float32)
    must(multiply(matrix, product_of(values, dense, result)))
    check_product(matrix, values, dense, result)


# What breaks a rule


@pytest.mark.parametrize(
    ("changes", "status", "words"),
    [
        ({"rows": -16}, INVALID, "description.rows must not be negative, got -16"),
        ({"rows": 97}, INVALID, "description.rows must be a multiple of block_rows, got 97"),
        ({"block_cols": 0}, INVALID, "description.block_cols must be positive, got 0"),
        ({"rows": 1 << 62, "cols": 1 << 62}, INVALID, "description.cols must be a multiple"),
        ({"rows": 1 << 60}, INVALID, "description has more than 2^48 elements"),
        (
            {"nnzb": 37},
            INVALID,
            "description.nnzb must be 0 to the 36 blocks of the matrix, got 37",
        ),
        (
            {"nnzb": -1},
            INVALID,
            "description.nnzb must be 0 to the 36 blocks of the matrix, got -1",
        ),
        ({"crow_indices": None}, INVALID, "description.crow_indices must not be null"),
        ({"index_type": 7}, INVALID, "description.index_type must be SPARSE_AUTOTUNE_INT32 or"),
        ({"reserved": 1}, INVALID, "description.reserved must be 0, got 1"),
        ({"nnzb": 3}, PATTERN, "description: crow_indices must end at nnzb"),
    ],
)
def test_patterns_refused(context, matrix, changes, status, words):
    handle = ctypes.c_void_p(1)
    found = create_pattern(context, matrix.description(**changes), handle)
    assert (found, message()[: len(words)]) == (status, words)
    assert handle.value == 1


@pytest.mark.parametrize("where", ["crow", "col"])
@pytest.mark.parametrize("value", [-1, 6, 1 << 40])
def test_indices_refused(context, matrix, where, value):
    """Those of an array that the library may read, whatever they are."""
    getattr(matrix, where)[2] = value
    status = create_pattern(context, matrix.description(), ctypes.c_void_p())
    assert status == PATTERN and message().startswith("description: ")
    assert "_indices must" in message()


@pytest.mark.parametrize(
    ("member", "value", "words"),
    [
        ("struct_size", 0, "product.struct_size must be what SPARSE_AUTOTUNE"),
        ("dtype", 9, "product.dtype must be one of "),
        ("activation", -1, "product.activation must be one of "),
        ("transpose", 2, "product.transpose must be 0 or 1, got 2"),
        ("values", None, "product.values must not be null where"),
        ("values", lambda p: p.values + 1, "product.values must be aligned to 4 bytes"),
        ("dense.rows", 145, "product.dense.rows must be the 144 columns of op"),
        ("result.cols", 7, "product.result.cols must be the 8 columns of prod"),
        ("dense.batch", 2, "product.result.batch must be the 2 matrices of "),
        ("dense.batch", -2, "product.dense.batch must not be negative, got -2"),
        ("dense.row_stride", 7, "product.dense.row_stride and col_stride must"),
        ("dense.row_stride", -8, "product.dense.row_stride must be positive"),
        ("dense.row_stride", 1 << 60, "product.dense has more than 2^48 elem"),
        ("dense.data", None, "product.dense.data must not be null"),
        ("result.data", lambda p: p.dense.data, "product breaks a rule: out must not over"),
        ("workspace_bytes", -1, "product.workspace_bytes must not be negative"),
        ("workspace", 8, "product.workspace must be aligned to 256 bytes"),
        ("variant", b"", "product.variant must be a name or null, got ''"),
    ],
)  # fmt: skip
def test_products_refused(matrix, member, value, words):
    product, arrays = small_product(matrix)
    owner, _, name = member.rpartition(".")
    changed = getattr(product, owner) if owner else product
    setattr(changed, name, value(product) if callable(value) else value)
    assert multiply(matrix, product) == INVALID
    assert message()[: len(words)] == words
    assert np.isnan(arrays[-1]).all()


def test_null_is_refused(context, matrix):
    assert library.sparse_autotune_matmul(None, None) == INVALID
    assert message() == "pattern must not be null"
    assert library.sparse_autotune_matmul(matrix.handle, None) == INVALID
    assert message() == "product must not be null"
    assert library.sparse_autotune_context_create(None, None) == INVALID
    library.sparse_autotune_context_destroy(None)
    library.sparse_autotune_pattern_destroy(None)
    library.sparse_autotune_record_destroy(None)


def test_structs_of_other_versions(matrix):
    """A newer program's members are taken if they are zero."""
    product, _arrays = small_product(matrix)
    size = product.struct_size
    longer = (ctypes.c_char * (size + 16))()
    product.struct_size = size + 16
    ctypes.memmove(longer, ctypes.byref(product), size)
    must(library.sparse_autotune_matmul(matrix.handle, longer))
    longer[size + 3] = b"\x01"
    assert library.sparse_autotune_matmul(matrix.handle, longer) == INVALID
    assert message().startswith("product has members that this version, ")


def test_a_variant_that_is_none(matrix):
    product, _arrays = small_product(matrix, variant=b"nobody")
    assert multiply(matrix, product) == UNSUPPORTED
    assert "'nobody'" in message()


def test_no_cuda_device():
    if torch.cuda.is_available():
        pytest.skip("there is one")
    made = ctypes.c_void_p()
    options = struct("context_options", device_type=1)
    status = library.sparse_autotune_context_create(ctypes.byref(options), ctypes.byref(made))
    assert status == NO_DEVICE and message().startswith("options.ordinal 0 is not usable: ")


def test_messages_belong_to_their_thread(matrix):
    assert library.sparse_autotune_matmul(None, None) == INVALID
    others = []
    run_threads(lambda: others.append(message()))
    assert others == [""] and message() == "pattern must not be null"


# Workspace, threads, races


def test_workspace(matrix):
    dense = np.random.default_rng(1).standard_normal((144, 64)).astype("f")
    values, result = matrix.values(), np.full((96, 64), np.nan, np.float32)
    names = [v["name"] for v in sparse_autotune._tuner.variants() if v["device"] == "cpu"]
    needed = {}
    for name in names:
        product = product_of(values, dense, result, variant=name.encode())
        bytes_ = ctypes.c_int64(-1)
        status = library.sparse_autotune_matmul_workspace(
            matrix.handle, ctypes.byref(product), ctypes.byref(bytes_)
        )
        if status == 0 and bytes_.value > 0:
            needed[name] = bytes_.value
    assert needed
    for name, size in needed.items():
        memory = np.zeros(size + 256, np.uint8)
        at = memory.ctypes.data + -memory.ctypes.data % 256
        product = product_of(values, dense, result, variant=name.encode(), workspace=at,
                             workspace_bytes=size - 1)  # fmt: skip
        status = multiply(matrix, product)
        assert status == TOO_SMALL
        assert message().startswith(f"product.workspace_bytes must be at least {size} for {name}")
        product.workspace_bytes = size
        must(multiply(matrix, product))
        check_product(matrix, values, dense, result)


def test_threads(context, matrix):
    """Many at once on one pattern, each with operands of its own."""

    def work(seed):
        random = np.random.default_rng(seed)
        values = matrix.values(seed=seed)
        for n in (1, 8, 40, 128):
            dense = random.standard_normal((144, n)).astype("f")
            result = np.full((96, n), np.nan, np.float32)
            must(multiply(matrix, product_of(values, dense, result)))
            check_product(matrix, values, dense, result)

    run_threads(*(partial(work, seed) for seed in range(6)))


def compiled(source, program, *flags):
    """By the C compiler, with warnings as errors."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler")
    include = f"-I{native_header.HEADER.parent}"
    command = [compiler, "-std=c11", "-Wall", "-Werror", include, str(source), "-o", str(program)]
    done = subprocess.run([*command, *flags], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_forks_while_other_threads_are_inside(tmp_path):
    """No lock that they held is held in a child, which may go on with the parent's handles."""
    program = tmp_path / "forks"
    library_flags = (str(CORE), f"-Wl,-rpath,{CORE.parent}", "-pthread", "-lm")
    source = native_header.ROOT / "tests" / "native" / "forks.c"
    compiled(source, program, "-D_GNU_SOURCE", *library_flags)
    command = [str(program), "100", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


def entrants(record):
    info = struct("record_info")
    must(library.sparse_autotune_record_describe(record, ctypes.byref(info)))
    found = []
    for index in range(info.entrants):
        entrant = struct("entrant")
        must(library.sparse_autotune_record_entrant(record, index, ctypes.byref(entrant)))
        found.append((entrant.name.decode(), entrant.outcome, entrant.median_us))
    return info, found


def test_race(matrix):
    values, dense = matrix.values(), np.ones((144, 32), np.float32)
    result = np.full((96, 32), np.nan, np.float32)
    product, record = product_of(values, dense, result), ctypes.c_void_p()
    options = struct("race_options", variants=b"cpu_tiled,reference", rounds=2)
    status = library.sparse_autotune_race_matmul(
        matrix.handle, ctypes.byref(product), ctypes.byref(options), ctypes.byref(record)
    )
    must(status)
    info, found = entrants(record)
    assert {name.split("/")[0] for name, _, _ in found} == {"cpu_tiled", "reference"}
    assert info.winner.decode() in [name for name, outcome, us in found if outcome == 0 and us > 0]
    assert np.isnan(result).all()
    entrant = struct("entrant")
    status = library.sparse_autotune_record_entrant(record, len(found), ctypes.byref(entrant))
    assert status == INVALID and message().startswith("index must be 0 to ")
    library.sparse_autotune_record_destroy(record)


def test_bundles(tmp_path):
    missing = str(tmp_path / "none").encode()
    assert library.sparse_autotune_bundle_load(missing, None) == IO
    assert message().startswith("path: cannot be read: No such file")
    (tmp_path / "none").write_text("hello\n")
    assert library.sparse_autotune_bundle_load(missing, None) == IO
    assert "is not a bundle" in message()


def test_modes_of_a_process_without_python(tmp_path):
    """They are the process's: here Python keeps records and settings."""
    script = native_header.ROOT / "tests" / "native_modes.py"
    command = [sys.executable, str(script), str(CORE), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout == done.stderr == ""  # nothing is printed unless it is asked for


# What a compiled program relies on


def test_the_abi_is_that_of_its_version():
    """A change of it raises SPARSE_AUTOTUNE_ABI_VERSION and adds a file; no old file changes."""
    file = native_header.ROOT / "tests" / "native" / f"abi_{native_header.abi_version()}.txt"
    assert file.read_text() == native_header.abi()
    assert library.sparse_autotune_abi_version() == native_header.abi_version()
    assert library.sparse_autotune_version().decode() == sparse_autotune.__version__


def test_the_header_is_c_and_has_this_layout(tmp_path):
    lines = ["#include <stddef.h>", '#include "sparse_autotune.h"']
    for name, members in native_header.structs().items():
        kind = native_header._CLASSES[name]
        lines.append(f'_Static_assert(sizeof({name}) == {ctypes.sizeof(kind)}, "{name}");')
        for _, member in members:
            offset = getattr(kind, member).offset
            lines.append(f'_Static_assert(offsetof({name}, {member}) == {offset}, "{member}");')
    lines.append(
        "static sparse_autotune_product p = SPARSE_AUTOTUNE_INIT(sparse_autotune_product);"
    )
    lines.append("size_t size(void) { return p.struct_size; }")
    (tmp_path / "layout.c").write_text("\n".join(lines) + "\n")
    compiled(tmp_path / "layout.c", tmp_path / "layout.o", "-pedantic-errors", "-c")


def test_the_program_of_the_page_is_c(tmp_path):
    page = (native_header.ROOT / "docs" / "native.md").read_text()
    (shown,) = re.findall(r"^```c\n(.*?)^```", page, re.DOTALL | re.M)
    given = (
        "int64_t nnzb, const int64_t* crow, const int64_t* col, float* values, float* b, float* c"
    )
    program = f"#include <sparse_autotune.h>\n#include <stdio.h>\nvoid f({given}) {{\n{shown}}}\n"
    (tmp_path / "page.c").write_text(program)
    compiled(tmp_path / "page.c", tmp_path / "page.o", "-c")


def test_declarations_of_rust():
    file = native_header.ROOT / "rust" / "sparse-autotune-sys" / "src" / "bindings.rs"
    assert file.read_text() == native_header.rust()


# The harness, which `make native` builds


def harness(*flags, cache="", preload=""):
    return native_build.run(
        HARNESS,
        *("--device", "cpu", "--budget", "0.1", *flags),
        SPARSE_AUTOTUNE_CACHE_DIR=str(cache),
        LD_PRELOAD=str(preload),
    )


# A pattern that both make alike.
FLAGS = ("--m", "160", "--k", "160", "--n", "32", "--block", "32", "--pattern", "causal",
         "--threads", "2", "--no-dense", "--torch-version", torch.__version__)  # fmt: skip
IN_PYTHON = """
import torch, sparse_autotune
torch.set_num_threads(2)
sparse_autotune.settings.budget_s = 0.1
a = sparse_autotune.random_bsr(160, 160, 32, pattern="causal")
c = a @ torch.ones(160, 32)
"""


def in_python(cache):
    return races_in_python(IN_PYTHON, cache)


def in_the_harness(cache):
    return came_from_the_cache(harness(*FLAGS, cache=cache))


def test_an_entry_of_the_harness_is_a_hit_in_python(tmp_path):
    assert not in_the_harness(tmp_path)
    assert in_the_harness(tmp_path)
    assert in_python(tmp_path) == 0
    assert len(list(tmp_path.glob("*/*"))) == 1


def test_an_entry_of_the_harness_is_like_those_of_python(tmp_path):
    ours, theirs = tmp_path / "harness", tmp_path / "python"
    in_the_harness(ours)
    in_python(theirs)
    (mine,), (other,) = list(ours.glob("*/*")), list(theirs.glob("*/*"))
    assert mine.relative_to(ours) == other.relative_to(theirs)
    for path in (mine, mine.parent, ours):
        assert path.stat().st_mode & 0o077 == 0, path
    heads = [[line for line in file.read_text().splitlines() if line.startswith(
        ("sparse_autotune_race ", "signature ", "device_class ", "environment "))]
        for file in (mine, other)]  # fmt: skip
    assert heads[0] == heads[1] and len(heads[0]) == 4


def test_the_harness_does_not_follow_links(tmp_path):
    in_the_harness(tmp_path / "a")
    (entry,) = list((tmp_path / "a").glob("*/*"))
    folder = tmp_path / "b" / entry.parent.name
    folder.mkdir(parents=True)
    (folder / entry.name).symlink_to(entry)
    before = entry.read_bytes()
    done = harness(*FLAGS, cache=tmp_path / "b")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].endswith("raced now")
    assert entry.read_bytes() == before and not (folder / entry.name).is_symlink()


def test_an_entry_of_python_is_a_hit_in_the_harness(tmp_path):
    assert in_python(tmp_path) == 1
    assert in_the_harness(tmp_path)
    assert len(list(tmp_path.glob("*/*"))) == 1


def test_where_pytorch_won_the_fastest_of_the_others_serves(tmp_path):
    assert in_python(tmp_path) == 1
    (entry,) = tmp_path.glob("*/*")
    entry.write_text(won_by(entry.read_text(), "aten_bsr/mkl"))
    done = harness(*FLAGS, "--json", cache=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(done.stdout)
    times = {v["name"]: v["median_us"] for v in report["variants"] if v["median_us"] > 0}
    assert report["cached"] and times[report["winner"]] == min(times.values())


def test_what_the_harness_prints(tmp_path):
    flags = ("--m", "64", "--k", "128", "--n", "16", "--block", "16,32", "--sparsity", "0.5",
             "--grid", "--json", "--dtype", "fp32,bf16")  # fmt: skip
    done = harness(*flags, cache=tmp_path)
    assert done.returncode == 0, done.stderr
    reports = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(r["block"], r["dtype"]) for r in reports] == [
        (16, "fp32"), (16, "bf16"), (32, "fp32"), (32, "bf16"),
    ]  # fmt: skip
    for report in reports:
        assert report["right"] and report["density"] == 0.5 and report["dense_us"] > 0
        legal = [v for v in report["variants"] if v["legal"]]
        assert len(legal) > 3 and all(v["error"] <= 1 for v in legal)
        assert all(v["reason"] for v in report["variants"] if not v["legal"])
        (winner,) = [v for v in legal if v["name"] == report["winner"]]
        assert winner["median_us"] > 0


A_WRONG_KERNEL = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <sparse_autotune.h>
#include <string.h>

sparse_autotune_status sparse_autotune_matmul(sparse_autotune_pattern* pattern,
                                              const sparse_autotune_product* product) {
  sparse_autotune_status (*real)(sparse_autotune_pattern*, const sparse_autotune_product*) =
      dlsym(RTLD_NEXT, "sparse_autotune_matmul");
  sparse_autotune_status status = real(pattern, product);
  if (product->variant && !strcmp(product->variant, "reference/fp64")) {
    ((float*)product->result.data)[77] += 0.01f;
  }
  return status;
}
"""


@pytest.mark.parametrize("form", [[], ["--json"], ["--grid"]], ids=["table", "json", "grid"])
def test_a_wrong_result_is_told(tmp_path, form):
    """Of a product that returns something else for one variant, in one element."""
    (tmp_path / "wrong.c").write_text(A_WRONG_KERNEL)
    compiled(tmp_path / "wrong.c", tmp_path / "wrong.so", "-shared", "-fPIC", "-ldl")
    flags = ["--m", "64", "--k", "64", "--n", "16", "--block", "16", "--sparsity", "0.5"]
    flags += ["--no-dense", *form]
    assert harness(*flags, cache=tmp_path).returncode == 0
    done = harness(*flags, cache=tmp_path, preload=tmp_path / "wrong.so")
    assert done.returncode == 1 and done.stderr == ""
    if form == ["--json"]:
        report = json.loads(done.stdout)
        wrong = [v["name"] for v in report["variants"] if v["legal"] and v["error"] > 1]
        assert not report["right"] and wrong == ["reference/fp64"]
    else:
        assert "WRONG" in done.stdout
        assert form or "WRONG: reference/fp64 is off by " in done.stdout


def test_the_harness_refuses():
    for flags, words in (
        (["--m", "100", "--block", "64"], "--m must be a multiple of --block 64, got 100"),
        (["--dtype", "int8"], "--dtype must be fp16, bf16, fp32 or fp64, got 'int8'"),
        (["--sparsity", "1.5"], "--sparsity must be a number from 0 to 1, got '1.5'"),
        (["--sparsity", "1"], "--sparsity leaves no block stored"),
        (["--pattern", "stripes"], "--pattern must be one of "),
        (["--n", "8,16"], "--n takes several values only with --grid"),
        (["--m"], "--m needs a value"),
        (["--mm", "1"], "there is no flag --mm"),
        (["64"], "'64' is no flag"),
        (["--json=1"], "--json takes no value, got '1'"),
        (["--variants", "nobody"], "--variants names no variant of this build"),
        (["--device", "cuda:1023"], "--device cuda:1023 is not usable: "),
        (["--device", "gpu"], "--device must be cpu, cuda or cuda:1, got 'gpu'"),
    ):
        done = harness(*flags)
        assert done.returncode == 2 and done.stdout == ""
        assert done.stderr.startswith(f"sparse_autotune: {words}"), done.stderr
        assert done.stderr.count("\n") == 1


# What else `make native` builds


@pytest.mark.parametrize(
    ("program", "says"),
    [
        ("native/example/mlp", r"largest error [\d.e-]+: ok\n.* times as fast\n"),
        ("rust/debug/examples/mlp", r"right; one block in eight stored "),
        ("rust/debug/examples/simple", r"BsrMatrix\(1024 x 1024, 64 blocks of .*: c\[0\] = "),
        ("rust/debug/examples/bench", r"winner: \w+/\w+, [\d.]+ TFLOP/s on stored blocks\n"),
    ],
)
def test_examples(program, says, tmp_path):
    done = native_build.run(program, SPARSE_AUTOTUNE_CACHE_DIR=str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert re.search(says, done.stdout), done.stdout
    assert done.stderr == ""  # nothing is printed unless it is asked for


def test_hostile_calls():
    """A few seconds of them; `make fuzz` has sanitizers look on."""
    done = native_build.run("native/fuzz", "1", "4")
    assert done.returncode == 0 and done.stdout.endswith(": no fault\n"), done.stdout + done.stderr


def commands_in(file, flags):
    """What a build.ninja compiles each source of the core with, but macros and include folders."""
    root = re.escape(str(native_header.ROOT / "csrc"))
    steps = rf"^build \S+\.o: \w+ {root}/(\S+).*\n((?: .*\n)+)"
    found = {}
    for source, lines in re.findall(steps, file.read_text(), re.M):
        words = shlex.split(re.search(rf"^  {flags} = (.*)", lines, re.M).group(1))
        found[source] = {word for word in words if not word.startswith(("-I", "-D", "-isystem"))}
    return found


@pytest.mark.skipif(not (shutil.which("cmake") and shutil.which("ninja")), reason="without them")
def test_cmake_and_setup_compile_alike(tmp_path):
    """The same files with the same flags: so `make native` may link the objects that setup made."""
    command = ["cmake", "-S", str(native_header.ROOT), "-B", str(tmp_path), "-G", "Ninja",
               "-DSPARSE_AUTOTUNE_CUDA=OFF", f"-DPython3_EXECUTABLE={sys.executable}"]  # fmt: skip
    subprocess.run(command, check=True, capture_output=True)
    by_cmake = commands_in(tmp_path / "build.ninja", "FLAGS")
    sys.path.insert(0, str(native_header.ROOT))
    import build_sources

    expected = filter(build_sources.is_of_core, build_sources.library_sources(False, False))
    assert set(by_cmake) == {str(path.relative_to(build_sources.CSRC)) for path in expected}
    one = "CMakeFiles/core.dir/csrc/c_api/status.cpp.o"
    subprocess.run(["ninja", "-C", str(tmp_path), one], check=True, capture_output=True)
    builds = list((native_header.ROOT / "build").glob("*-cp*/build.ninja"))
    if not builds:
        pytest.skip("setup.py has built nothing here")
    for build in builds:
        by_setup = commands_in(build, "flags")
        assert {source: by_setup[source] for source in by_cmake} == by_cmake
