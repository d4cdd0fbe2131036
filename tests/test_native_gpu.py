"""The C interface on a GPU: device memory, streams, CUDA graphs, and entries shared with Python."""

import ctypes
import pathlib
import re

import native_build
import numpy as np
import pytest
import torch
from native_build import CORE, HARNESS, came_from_the_cache, races_in_python
from native_header import struct
from parallel import run_threads
from plans import captured
from test_native import Matrix, create_pattern, library, message, must

import sparse_autotune

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("no_races")]

DTYPES = {torch.float16: 0, torch.bfloat16: 1, torch.float32: 2, torch.float64: 3}
INVALID, UNSUPPORTED, TOO_SMALL = 1, 3, 5


@pytest.fixture
def context():
    made = ctypes.c_void_p()
    options = struct("context_options", device_type=1)
    must(library.sparse_autotune_context_create(ctypes.byref(options), ctypes.byref(made)))
    yield made
    library.sparse_autotune_context_destroy(made)


@pytest.fixture
def matrix(context):
    made = Matrix(context, 256, 384, (64, 64))
    yield made
    library.sparse_autotune_pattern_destroy(made.handle)


def random(*shape, dtype=torch.float32, seed=1):
    generator = torch.Generator("cuda").manual_seed(seed)
    return torch.randn(shape, device="cuda", generator=generator).to(dtype)


def values_of(matrix, dtype=torch.float32, seed=2):
    return random(len(matrix.col), *matrix.block, dtype=dtype, seed=seed)


def dense_of(matrix, values):
    """In fp64, where the values are."""
    return torch.from_numpy(matrix.dense(values.double().cpu().numpy())).to(values.device)


def view(tensor):
    """Of a matrix or a batch of them."""
    strides = tensor.stride()
    batch = (tensor.shape[0], strides[0]) if tensor.dim() == 3 else (0, 0)
    return struct("dense", data=tensor.data_ptr(), rows=tensor.shape[-2], cols=tensor.shape[-1],
                  row_stride=strides[-2], col_stride=strides[-1], batch=batch[0],
                  batch_stride=batch[1])  # fmt: skip


def product_of(values, dense, result, **more):
    """On the current stream."""
    return struct("product", values=values.data_ptr(), dtype=DTYPES[values.dtype],
                  dense=view(dense), result=view(result),
                  stream=torch.cuda.current_stream().cuda_stream, **more)  # fmt: skip


def multiply(matrix, values, dense, result, **more):
    product = product_of(values, dense, result, **more)
    must(library.sparse_autotune_matmul(matrix.handle, ctypes.byref(product)))
    return result


def nan(*shape, dtype=torch.float32):
    return torch.full(shape, float("nan"), device="cuda", dtype=dtype)


def check(result, expected, magnitude, length):
    """Element-wise; NaN fails. Half types accumulate in fp32."""
    unit = torch.finfo(result.dtype).eps / 2
    accumulator = min(unit, 2.0**-24)
    allowed = 2 * unit * expected.abs() + accumulator * (8 + 4 * length**0.5) * magnitude
    assert ((result.double() - expected).abs() <= allowed + 1e-7 * unit).all()


def check_product(matrix, values, dense, result):
    a, b = dense_of(matrix, values), dense.double()
    check(result, a @ b, a.abs() @ b.abs(), a.shape[1])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("right", [0, 1])
@pytest.mark.parametrize("transpose", [0, 1])
def test_product(matrix, dtype, right, transpose):
    """A batch with a bias and GELU; operands are column-major, the result has room between rows."""
    values = values_of(matrix, dtype)
    a = dense_of(matrix, values)
    op = a.T if transpose else a
    inner, outer = op.shape if right else reversed(op.shape)
    shape, out_shape = ((24, inner), (24, outer)) if right else ((inner, 24), (outer, 24))
    dense = random(3, *reversed(shape), dtype=dtype, seed=3).mT
    room = nan(3, out_shape[0], out_shape[1] + 8, dtype=dtype)
    result = room[:, :, : out_shape[1]]
    bias = random(outer, dtype=dtype, seed=4)
    multiply(matrix, values, dense, result, bias=bias.data_ptr(), activation=2,
             sparse_right=right, transpose=transpose)  # fmt: skip
    wide, column = dense.double(), bias.double() if right else bias.double()[:, None]
    expected = (wide @ op if right else op @ wide) + column
    size = (wide.abs() @ op.abs() if right else op.abs() @ wide.abs()) + column.abs()
    check(result, torch.nn.functional.gelu(expected), size * 1.13, inner)
    assert room[:, :, out_shape[1] :].isnan().all()


CASES = [(torch.bfloat16, 64, 128), (torch.float32, 4, 24), (torch.float64, 3, 8)]


@pytest.mark.parametrize("name", [v["name"] for v in sparse_autotune._tuner.variants()
                                  if v["device"] == "cuda" and v["op"] == "matmul"])  # fmt: skip
def test_each_variant_by_name(context, name):
    for dtype, block, n in CASES:
        matrix = Matrix(context, 4 * 48 * block // 16, 6 * 48 * block // 16, (block, block))
        values, dense = values_of(matrix, dtype), random(matrix.shape[1], n, dtype=dtype)
        result = nan(matrix.shape[0], n, dtype=dtype)
        product = product_of(values, dense, result, variant=name.encode())
        status = library.sparse_autotune_matmul(matrix.handle, ctypes.byref(product))
        if status == UNSUPPORTED:
            assert name in message() and result.isnan().all()
        else:
            must(status)
            check_product(matrix, values, dense, result)
        library.sparse_autotune_pattern_destroy(matrix.handle)


@pytest.mark.parametrize("dtype", DTYPES)
def test_sampled_product(matrix, dtype):
    x, y = random(256, 40, dtype=dtype), random(40, 384, dtype=dtype, seed=5)
    values = nan(len(matrix.col), *matrix.block, dtype=dtype)
    product = struct("sampled_product", values=values.data_ptr(), dtype=DTYPES[dtype], x=view(x),
                     y=view(y), stream=torch.cuda.current_stream().cuda_stream)  # fmt: skip
    must(library.sparse_autotune_sampled_matmul(matrix.handle, ctypes.byref(product)))

    def blocks(dense):
        grid = dense.reshape(256 // 64, 64, 384 // 64, 64).swapaxes(1, 2)
        return grid[torch.from_numpy(matrix.mask).cuda()]

    x, y = x.double(), y.double()
    check(values, blocks(x @ y), blocks(x.abs() @ y.abs()), 40)


@pytest.mark.parametrize("index", [np.int32, np.int64])
def test_indices_of_the_device(context, index):
    """They are copied, from where they are, in the order of their stream."""
    matrix = Matrix(context, 256, 384, (64, 64), index=index)
    stream = torch.cuda.Stream()
    crow, col = (torch.empty(len(x), device="cuda", dtype=torch.from_numpy(x).dtype)
                 for x in (matrix.crow, matrix.col))  # fmt: skip
    handle = ctypes.c_void_p()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(10_000_000)
        crow.copy_(torch.from_numpy(matrix.crow))
        col.copy_(torch.from_numpy(matrix.col))
        description = matrix.description(crow_indices=crow.data_ptr(), col_indices=col.data_ptr(),
                                         stream=stream.cuda_stream)  # fmt: skip
        must(create_pattern(context, description, handle))
    crow.fill_(-1)
    col.fill_(99)
    library.sparse_autotune_pattern_destroy(matrix.handle)
    matrix.handle = handle
    values, dense = values_of(matrix), random(384, 16)
    check_product(matrix, values, dense, multiply(matrix, values, dense, nan(256, 16)))
    library.sparse_autotune_pattern_destroy(handle)


def test_indices_of_the_device_are_checked(context, matrix):
    col = torch.from_numpy(matrix.col).cuda()
    col[3] = 1 << 40
    handle = ctypes.c_void_p()
    description = matrix.description(col_indices=col.data_ptr())
    status = create_pattern(context, description, handle)
    assert status == 2 and message().startswith("description: col_indices must"), message()


def test_streams(matrix):
    """A product waits for what its stream was given, and a pattern's end for its products."""
    stream = torch.cuda.Stream()
    values, dense, result = values_of(matrix), nan(384, 32), nan(256, 32)
    later = random(384, 32)
    multiply(matrix, values, later, result)  # kernels are loaded, which waits
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)
        dense.copy_(later)
        multiply(matrix, values, dense, result)
        assert not stream.query()
    library.sparse_autotune_pattern_destroy(matrix.handle)
    matrix.handle = None
    stream.synchronize()
    check_product(matrix, values, later, result)


@pytest.mark.parametrize("met", [True, False], ids=["met_before", "never_met"])
@pytest.mark.parametrize("own_workspace", [True, False])
def test_graphs(matrix, met, own_workspace):
    """Nothing is measured during a capture; replays read what the operands are then."""
    values, dense, result = values_of(matrix), random(384, 32), nan(256, 32)
    workspace = torch.empty(1 << 22, device="cuda", dtype=torch.uint8)
    more = {"workspace": workspace.data_ptr(), "workspace_bytes": 1 << 22} if own_workspace else {}
    transposed = nan(384, 32)
    other = random(256, 32, seed=7)
    sparse_autotune.settings.mode = "on" if not met else "off"

    def call():
        multiply(matrix, values, dense, result, **more)
        multiply(matrix, values, other, transposed, transpose=1, **more)

    if met:
        call()
    races = library.sparse_autotune_tuning_count()
    graph, _ = captured(call)
    for seed in (8, 9):
        dense.copy_(random(384, 32, seed=seed))
        values.copy_(values_of(matrix, seed=seed))
        result.fill_(float("nan"))
        transposed.fill_(float("nan"))
        graph.replay()
        check_product(matrix, values, dense, result)
        a = dense_of(matrix, values).T
        check(transposed, a @ other.double(), a.abs() @ other.double().abs(), 256)
    assert library.sparse_autotune_tuning_count() == races


def test_no_pattern_is_made_in_a_capture(context, matrix):
    handle = ctypes.c_void_p()
    found = []

    def call():
        stream = torch.cuda.current_stream().cuda_stream
        description = matrix.description(stream=stream)
        found.append(create_pattern(context, description, handle))
        found.append(message())

    captured(call)
    assert found == [INVALID, "description.stream must not be captured into a CUDA graph"]


def test_workspace(matrix):
    values, dense, result = values_of(matrix), random(384, 64), nan(256, 64)
    needed = {}
    for v in sparse_autotune._tuner.variants():
        if v["device"] != "cuda" or v["op"] != "matmul":
            continue
        product = product_of(values, dense, result, variant=v["name"].encode())
        size = ctypes.c_int64(-1)
        status = library.sparse_autotune_matmul_workspace(
            matrix.handle, ctypes.byref(product), ctypes.byref(size)
        )
        if status == 0 and size.value > 0:
            needed[v["name"]] = size.value
    assert needed
    for name, size in needed.items():
        memory = torch.full((size + 256,), 255, device="cuda", dtype=torch.uint8)
        more = {"variant": name.encode(), "workspace": memory.data_ptr()}
        product = product_of(values, dense, result.fill_(float("nan")), workspace_bytes=size - 1,
                             **more)  # fmt: skip
        assert library.sparse_autotune_matmul(matrix.handle, ctypes.byref(product)) == TOO_SMALL
        multiply(matrix, values, dense, result, workspace_bytes=size, **more)
        check_product(matrix, values, dense, result)
        assert (memory[size:] == 255).all()


def test_frozen_values(matrix):
    values, dense, result = values_of(matrix, torch.bfloat16), random(384, 64).bfloat16(), None
    for seed in (2, 3):
        values.copy_(values_of(matrix, torch.bfloat16, seed))
        for v in sparse_autotune._tuner.variants():
            if v["device"] != "cuda" or v["op"] != "matmul":
                continue
            result = nan(256, 64, dtype=torch.bfloat16)
            product = product_of(values, dense, result, frozen=1, variant=v["name"].encode())
            status = library.sparse_autotune_matmul(matrix.handle, ctypes.byref(product))
            if status != UNSUPPORTED:
                must(status)
                check_product(matrix, values, dense, result)
        must(library.sparse_autotune_pattern_thaw(matrix.handle, values.data_ptr()))


def test_threads(matrix):
    """Each with a stream and operands of its own, on one pattern."""

    def work(seed):
        def run():
            with torch.cuda.stream(torch.cuda.Stream()):
                values = values_of(matrix, seed=seed)
                for n in (1, 8, 40, 128):
                    dense = random(384, n, seed=seed)
                    result = multiply(matrix, values, dense, nan(256, n))
                    check_product(matrix, values, dense, result)

        return run

    run_threads(*(work(seed) for seed in range(4)))


def test_race(matrix, monkeypatch):
    monkeypatch.setattr(sparse_autotune.settings, "mode", "on")
    values, dense, result = values_of(matrix), random(384, 32), nan(256, 32)
    races = library.sparse_autotune_tuning_count()
    multiply(matrix, values, dense, result)
    check_product(matrix, values, dense, result)
    multiply(matrix, values, dense, result)
    assert library.sparse_autotune_tuning_count() == races + 1
    product, record = product_of(values, dense, result), ctypes.c_void_p()
    status = library.sparse_autotune_find_record(
        matrix.handle, ctypes.byref(product), ctypes.byref(record)
    )
    must(status)
    info = struct("record_info")
    must(library.sparse_autotune_record_describe(record, ctypes.byref(info)))
    assert info.limit_us > 0 and info.entrants > 5 and b"/" in info.winner
    library.sparse_autotune_record_destroy(record)


# The harness, the examples and device_calls, which `make native CUDA=ON` builds


def folder_of_loaded(library_name):
    """Where this process has it from: the harness is to load the same."""
    maps = pathlib.Path("/proc/self/maps").read_text()
    found = re.search(rf"(/\S+)/{library_name}\.so", maps)
    return found.group(1) if found else ""


@pytest.fixture
def run(tmp_path):
    """As in `native_build`, with PyTorch's own CUDA libraries and one cache."""
    torch.ones(2, 2, device="cuda") @ torch.ones(2, 2, device="cuda")
    folders = (str(CORE.parent), folder_of_loaded("libcusparse"), folder_of_loaded("libcublas"))
    environment = {
        "LD_LIBRARY_PATH": ":".join(filter(None, folders)),
        "SPARSE_AUTOTUNE_CACHE_DIR": str(tmp_path),
    }
    return lambda program, *flags: native_build.run(program, *flags, **environment)


# A pattern that both make alike.
FLAGS = ("--device", "cuda", "--m", "512", "--k", "512", "--n", "64", "--block", "64", "--pattern",
         "causal", "--dtype", "bf16", "--budget", "0.1", "--no-dense", "--torch-version",
         torch.__version__)  # fmt: skip
IN_PYTHON = """
import torch, sparse_autotune
sparse_autotune.settings.budget_s = 0.1
options = {"device": "cuda", "dtype": torch.bfloat16}
a = sparse_autotune.random_bsr(512, 512, 64, pattern="causal", **options)
c = a @ torch.ones(512, 64, **options)
"""


def test_an_entry_of_the_harness_is_a_hit_in_python(run, tmp_path):
    assert not came_from_the_cache(run(HARNESS, *FLAGS))
    assert came_from_the_cache(run(HARNESS, *FLAGS))
    assert races_in_python(IN_PYTHON, tmp_path) == 0


def test_an_entry_of_python_is_a_hit_in_the_harness(run, tmp_path):
    assert races_in_python(IN_PYTHON, tmp_path) == 1
    assert came_from_the_cache(run(HARNESS, *FLAGS))


@pytest.mark.parametrize(
    ("program", "flags", "says"),
    [
        ("native/example/mlp", ("64", "512", "cuda"), r"largest error [\d.e-]+: ok\n.* as fast\n"),
        ("rust/debug/examples/cuda", (), r"NVIDIA .* agrees with "),
        (
            "native/device_calls",
            ("2", "chosen", "captured", "threads"),
            r"results checked: all right\n",
        ),
    ],
)
def test_programs(run, program, flags, says):
    done = run(program, *flags)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(says, done.stdout), done.stdout
