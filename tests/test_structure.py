"""The shape of the code and of what is built: who may use whom, what a library shows."""

import collections
import functools
import graphlib
import pathlib
import re
import shutil
import subprocess

import pytest
import python_imports

import sparse_autotune
from sparse_autotune import _tuner
from sparse_autotune.operators.library import LIBRARY

ROOT = pathlib.Path(__file__).parents[1]
CSRC = ROOT / "csrc"
SOURCES = sorted(p for p in CSRC.rglob("*") if p.suffix in (".h", ".cuh", ".cpp", ".cu"))
INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]', re.MULTILINE)
OF_TORCH = re.compile(r"(torch|ATen|c10|caffe2)/")

pytestmark = pytest.mark.skipif(not CSRC.is_dir(), reason="installed without its sources")


@functools.cache
def includes(path):
    return INCLUDE.findall(path.read_text())


@functools.cache
def reached(path):
    """The project's headers that a file includes, at any depth."""
    seen, waiting = set(), [path]
    while waiting:
        found = {name for name in includes(waiting.pop()) if (CSRC / name).is_file()} - seen
        seen |= found
        waiting += [CSRC / name for name in found]
    return seen


def wrongly_included(is_wrong):
    """By file one of its includes that is wrong, by the file's layer and the include's name."""
    return {
        str(path.relative_to(CSRC)): name
        for path in SOURCES
        for name in includes(path)
        if is_wrong(layer(path), name)
    }


def layer(path):
    return path.relative_to(CSRC).parts[0]


def test_there_is_something_to_look_at():
    assert len(SOURCES) > 50
    assert any("torch/csrc/stable/library.h" in includes(path) for path in SOURCES)


def test_only_operators_include_torch():
    assert not wrongly_included(lambda layer, name: layer != "ops" and OF_TORCH.match(name))


def test_operators_use_the_stable_abi_alone():
    """One build for every torch: no header whose symbols change from one to the next."""
    stable = ("torch/csrc/stable/", "torch/csrc/inductor/aoti_torch/c/", "torch/headeronly/")
    assert not wrongly_included(
        lambda _, name: OF_TORCH.match(name) and not name.startswith(stable)
    )


def test_python_stays_in_the_bindings():
    assert not wrongly_included(
        lambda layer, name: layer != "bindings" and ("pybind11" in name or name == "Python.h")
    )


# Which layers a layer may include, apart from itself and the headers that all share. "problems" are
# the headers of operators that kernels include, one for each: operators/NAME/NAME.h.
ALLOWED = {
    "kernels": {"kernels", "problems"},
    "libraries": {"libraries", "kernels", "problems"},
    "plan": {"plan", "kernels", "problems"},
    "autotune": {"autotune", "plan", "kernels"},
    "operators": {"operators", "problems", "autotune", "kernels"},
    "calls": {"calls", "operators", "problems", "autotune", "plan", "kernels"},
    "c_api": {"c_api", "calls", "autotune", "plan", "kernels", "problems"},
    "ops": {"ops", "calls", "autotune", "plan", "kernels", "libraries", "problems"},
    "bindings": {"bindings", "autotune", "calls", "ops", "plan", "operators", "problems"},
}
OPERATORS = sorted(path.name for path in (CSRC / "operators").glob("*") if path.is_dir())


def layer_of_header(name):
    parts = pathlib.PurePath(name).parts
    is_problem = parts[0] == "operators" and parts[2:] == (f"{parts[1]}.h",)
    return "problems" if is_problem else parts[0]


def test_layers():
    wrong = []
    for path in SOURCES:
        if path.parent == CSRC:
            continue
        for name in includes(path):
            if (CSRC / name).is_file() and "/" in name:
                allowed = ALLOWED[layer(path)]
                if layer(path) == "autotune" and path.stem == "api":
                    allowed = allowed | {"libraries"}  # it reports what each layer has found
                if layer_of_header(name) not in allowed:
                    wrong.append((str(path.relative_to(CSRC)), name))
    assert not wrong


def test_the_tuner_knows_no_operator():
    """Neither by its name nor by its types: nothing of an operator is reached from the tuner."""
    assert "product" in OPERATORS
    names = {v["op"] for v in _tuner.variants()} | set(OPERATORS)
    words = re.compile(rf"\b({'|'.join(names)}|Problem|Launch|Variant|Op)\b")
    plan = {"plan/decisions.h", "plan/validity.h"}
    for path in SOURCES:
        if layer(path) != "autotune":
            continue
        code = re.sub(r"//.*", "", path.read_text())
        assert not words.search(code), f"{path.name}: {words.search(code).group()}"
        if path.stem != "api":  # it reports what each layer has
            of_plan = {name for name in reached(path) if name.startswith("plan/")}
            assert not {n for n in reached(path) if n.startswith("operators/")}, path.name
            assert of_plan <= plan | {"plan/capture_mode.h", "plan/memory_pool.h"}, path.name


def test_an_operator_includes_no_other():
    wrong = [
        (str(path.relative_to(CSRC)), name)
        for path in SOURCES
        if layer(path) == "operators"
        for name in includes(path)
        if name.startswith("operators/")
        and path.parent != CSRC / "operators"
        and name.count("/") > 1
        and (CSRC / name).parent != path.parent
    ]
    assert not wrong


def test_bindings_include_no_torch_at_any_depth():
    """One build of them serves every torch."""
    bindings = [path for path in SOURCES if layer(path) == "bindings"]
    seen = set().union(*map(reached, bindings))
    for path in [*bindings, *(CSRC / name for name in seen)]:
        for name in includes(path):
            assert not OF_TORCH.match(name), path
    assert "variant.h" in seen


# Kernels lie in rooms, the folders of kernels/cpu and kernels/cuda. A room includes headers of its
# own and of these; each of these includes only itself and those before it.
SERVICES = {
    "kernels/cpu": ["microkernels", "shared", "convert"],
    "kernels/cuda": ["device", "host", "convert"],
}
# A header in one of these has several users.
COMMON = {"kernels/cpu/shared", "kernels/cuda/device", "kernels/cuda/host"}


def room(path):
    """A folder of kernels for one device, else a layer."""
    parts = path.relative_to(CSRC).parts
    return "/".join(parts[:-1]) if parts[0] == "kernels" else parts[0]


def test_every_kernel_is_in_a_room():
    rooms = {room(path) for path in SOURCES if layer(path) == "kernels"}
    assert not rooms & set(SERVICES), "files beside the rooms"
    services = {f"{device}/{name}" for device, names in SERVICES.items() for name in names}
    assert services | COMMON <= rooms
    assert len(rooms - services) > 5


def test_rooms_include_their_own_headers_and_common_ones():
    """A header that two rooms want lies in one that serves them."""
    wrong = []
    for path in SOURCES:
        own = room(path)
        for name in includes(path):
            device = "/".join(name.split("/")[:2])
            if device not in SERVICES or room(CSRC / name) == own:
                continue
            allowed = [f"{device}/{service}" for service in SERVICES[device]]
            if own in allowed:
                allowed = allowed[: allowed.index(own)]
            elif own.startswith("kernels/") and not own.startswith(f"{device}/"):
                allowed = []
            if room(CSRC / name) not in allowed:
                wrong.append((str(path.relative_to(CSRC)), name))
    assert not wrong


def test_common_headers_have_several_users():
    """A header that one room alone uses belongs there. Its own implementation is no user."""
    users = {str(p.relative_to(CSRC)): set() for p in SOURCES if room(p) in COMMON}
    users = {name: found for name, found in users.items() if name.endswith((".h", ".cuh"))}
    for path in SOURCES:
        if path.suffix in (".cpp", ".cu"):
            for name in users.keys() & reached(path):
                if pathlib.Path(name).stem != path.stem.removesuffix("_cuda"):
                    users[name].add(room(path))
    # What only a layer above uses is an interface of all kernels.
    wrong = {
        name: found
        for name, found in users.items()
        if not found or (len(found) == 1 and min(found).startswith("kernels/"))
    }
    assert not wrong


def test_every_folder_of_kernels_says_what_is_in_it():
    """Its README names the families that its files register, and no file that is not there."""
    folders = {path.parent for path in SOURCES if layer(path) == "kernels"}
    for folder in folders:
        text = (folder / "README.md").read_text()
        code = "".join(path.read_text() for path in sorted(folder.glob("*.c*")))
        families = set(re.findall(r'"(\w+)/\w+"', code))
        missing = families - set(re.findall(r"`(\w+)`", text))
        assert not missing, f"{folder.relative_to(CSRC)}/README.md does not name {missing}"
        for name in re.findall(r"`([\w./]+\.(?:h|cuh|cpp|cu))`", text):
            base = ROOT if name.startswith("csrc/") else folder
            assert (base / name).is_file(), f"{folder.relative_to(CSRC)}/README.md names {name}"


# csrc/row_groups.h says what they are, csrc/plan/row_groups.h makes them.
ALIKE = {"row_groups.h"}


def test_headers_have_names_of_their_own():
    """But for what exists once for the CPU and once for CUDA."""
    found = collections.defaultdict(list)
    for path in SOURCES:
        if path.suffix in (".h", ".cuh"):
            parts = path.relative_to(CSRC).parts
            device = parts[1] if parts[0] == "kernels" and len(parts) > 2 else ""
            found[path.name].append(device)
    alike = {
        name
        for name, devices in found.items()
        if len(devices) > 1 and sorted(devices) != ["cpu", "cuda"]
    }
    assert alike == ALIKE


def test_the_tuner_knows_no_variant_by_name():
    families = {v["family"] for v in _tuner.variants()}
    wrong = {
        (str(path.relative_to(CSRC)), family)
        for path in SOURCES
        if layer(path) in ("autotune", "plan")
        for family in families - {"reference", "dense"}  # words of prose too
        if re.search(rf"\b{family}\b", path.read_text())
    }
    assert not wrong


def test_every_variant_file_is_in_the_registry():
    """Each file with a variant registers its family, named after the file, and nobody else does."""
    cuda = _tuner.build_info()["cuda"]
    families = {}
    for path in SOURCES:
        named = {name.split("/")[0] for name in re.findall(r'"(\w+/\w+)"', path.read_text())}
        if not named or layer(path) not in ("kernels", "libraries", "ops"):
            continue
        relative = path.relative_to(CSRC)
        for_cuda = path.suffix == ".cu" or path.stem.endswith("_cuda") or layer(path) == "libraries"
        if for_cuda and not cuda:
            continue
        stem = path.stem.removesuffix("_cuda") if path.suffix == ".cpp" else path.stem
        family = f"cpu_{stem}" if relative.parts[:2] == ("kernels", "cpu") else stem
        assert len(named) == 1, f"{relative} names the families {sorted(named)}"
        assert named <= {family, stem}, f"{relative} holds the family {named}"
        families[named.pop()] = "cuda" if for_cuda else "cpu"
    assert families == {v["family"]: v["device"] for v in _tuner.variants()}


def test_names_of_variants():
    names = [v["name"] for v in _tuner.variants()]
    assert names == sorted(set(names)) == sparse_autotune.variants()
    for name in names:
        assert re.fullmatch(r"[a-z][a-z0-9_]*/[a-z0-9_]+", name), name
    for v in _tuner.variants():
        assert v["name"].split("/")[0] == v["family"]


# The Python package

# Each module may import those of the lines above its own, and of its own as long as no circle
# closes. A package stands for all modules in it.
LAYERS = (
    "_built _tuner choices user_warnings picture private_files pruning",
    "_torch",
    "settings bundles cache checks missed_products ranks",
    "conversions mask_forms",
    "reblocking",
    "operators",
    "plan_owner",
    "bsr_tensor",
    "operands pytrees generators",
    "masks",
    "errors",
    "functional block_attention",
    "torch_functions override",
    "nn tuning",
    "configuration",
    "__init__",
    "cli",
    "__main__",
)

# Names of torch that begin with an underscore and are used outside of _torch.
PRIVATE_BUT = {
    "torch._check",  # documented, and without another name
}


def layer_of(module):
    for number, line in enumerate(LAYERS):
        if module in line.split() or module.split(".")[0] in line.split():
            return number
    raise AssertionError(f"{module} is in no layer")


def test_layers_of_the_package():
    modules = python_imports.modules()
    assert len(modules) > 30
    named = {name for line in LAYERS for name in line.split()} - {"_tuner"}
    assert named == {module.split(".")[0] for module in modules}
    imported = {module: python_imports.imported_modules(module) for module in modules}
    wrong = [
        (module, other)
        for module, others in imported.items()
        for other in others
        if layer_of(other) > layer_of(module)
    ]
    assert not wrong
    # Raises CycleError with the circle. Imports inside functions count: they hide one, at best.
    graphlib.TopologicalSorter(imported).prepare()


def test_private_torch_stays_in_one_package():
    """What a new version of torch may break is found in one place."""
    wrong = {
        module: names
        for module in python_imports.modules()
        if module.split(".")[0] != "_torch"
        and (names := python_imports.private_names_of_torch(module) - PRIVATE_BUT)
    }
    assert not wrong
    assert python_imports.private_names_of_torch("_torch.direct")


def test_the_package_shows_what_it_documents():
    """To whoever asks for its names: not what it imports to work."""
    shown = {name for name in dir(sparse_autotune) if not name.startswith("__")}
    assert shown == set(sparse_autotune.__all__)
    assert "__version__" in dir(sparse_autotune)
    assert all(hasattr(sparse_autotune, name) for name in dir(sparse_autotune))


def test_every_folder_of_the_package_is_packed():
    listed = re.search(
        r"^packages = \[(.*?)\]", (ROOT / "pyproject.toml").read_text(), re.MULTILINE | re.DOTALL
    )
    folders = {path.parent for path in python_imports.modules().values()}
    names = {".".join(path.relative_to(python_imports.PACKAGE.parent).parts) for path in folders}
    assert set(re.findall(r'"([\w.]+)"', listed.group(1))) == names


# What is built

CORE = LIBRARY.with_name("libsparse_autotune_core.so")


def binutils(tool, *arguments):
    if shutil.which(tool) is None:
        pytest.skip(f"{tool} is not installed")
    return subprocess.run(
        [tool, *map(str, arguments)], capture_output=True, text=True, check=True
    ).stdout


def symbols(library, *options):
    """(kind, demangled name) of a library's dynamic symbols."""
    lines = binutils("nm", "-D", "-C", "--without-symbol-versions", *options, library).splitlines()
    split = [re.match(r"(?:[0-9a-f]+)?\s+(\w) (.*)", line) for line in lines]
    return [match.groups() for match in split if match]


def defined(library):
    return {name for kind, name in symbols(library, "--defined-only") if kind in "TDBRG"}


def undefined(*libraries):
    return {name for library in libraries for _, name in symbols(library, "--undefined-only")}


def header_functions():
    header = (ROOT / "include" / "sparse_autotune.h").read_text()
    return set(re.findall(r"\b(sparse_autotune_\w+)\(", header))


def test_exported_symbols():
    """Only what others need: two copies of anything else might meet in a process."""
    assert defined(CORE) <= undefined(LIBRARY, _tuner.__file__) | header_functions()
    assert header_functions() <= defined(CORE)
    assert defined(LIBRARY) and defined(LIBRARY) <= undefined(_tuner.__file__)


@pytest.mark.parametrize("library", [CORE, LIBRARY], ids=lambda path: path.stem)
def test_exported_templates(library):
    """Those of the standard library, which its headers make visible."""
    shared = [name for kind, name in symbols(library, "--defined-only") if kind not in "TDBRG"]
    standard = re.compile(r"\b(std|__gnu_cxx)::")
    assert not [name for name in shared if not standard.search(name)]
    assert not [name for name in shared if "sparse_autotune" in name]


def test_undefined_symbols():
    """Nothing of Python, of the CUDA runtime and driver, or of the unstable part of torch."""
    assert any(name.startswith("aoti_torch_") for name in undefined(LIBRARY))
    wrong = re.compile(r"_?Py[A-Z_]|cuda[A-Z]|cu[A-Z]|cublas|cusparse|at::|c10::|torch::")
    assert not [name for name in undefined(LIBRARY, CORE) if wrong.match(name)]
    assert not [name for name in undefined(CORE) if "torch" in name]


def needed_by(library):
    """What it needs beyond the compiler's and the system's libraries, and where it looks."""
    text = binutils("readelf", "-d", library)
    needed = set(re.findall(r"NEEDED.*\[(.+)\]", text))
    system = {"libstdc++.so.6", "libm.so.6", "libgcc_s.so.1", "libc.so.6", "libdl.so.2",
              "librt.so.1", "libpthread.so.0"}  # fmt: skip
    paths = re.findall(r"(?:RPATH|RUNPATH).*\[(.+)\]", text)
    return {name for name in needed - system if not name.startswith("ld-linux")}, paths


def test_needed_libraries():
    """Vendor libraries, CUDA and an OpenMP of our own are not among them."""
    assert needed_by(CORE) == (set(), [])
    assert needed_by(LIBRARY) == (
        {"libtorch_cpu.so", "libc10.so", "libsparse_autotune_core.so"},
        ["$ORIGIN"],
    )


def test_the_python_module_needs_no_torch():
    text = binutils("readelf", "-d", _tuner.__file__)
    needed = set(re.findall(r"NEEDED.*\[(.+)\]", text))
    assert not [name for name in needed if "torch" in name or "c10" in name or "cu" in name]
    assert "libsparse_autotune.so" in needed
    assert re.findall(r"(?:RPATH|RUNPATH).*\[(.+)\]", text) == ["$ORIGIN"]


def test_one_version():
    match = re.search(r'^version = "(.+)"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert match is not None
    assert _tuner.build_info()["version"] == match.group(1)
    newest = re.search(r"^## \[?([0-9][\w.]*)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert newest is not None and newest.group(1) == match.group(1)


def test_public_names():
    """Those of the documented interface, each with a docstring."""
    documented = {"matmul", "linear", "sampled_matmul", "BsrTensor", "random_bsr", "benchmark",
                  "BenchmarkReport", "variants", "tune", "cache", "tuning_count", "settings",
                  "show_config"}  # fmt: skip
    assert documented <= set(sparse_autotune.__all__)
    for name in sparse_autotune.__all__:
        assert getattr(sparse_autotune, name).__doc__, name
    assert (pathlib.Path(sparse_autotune.__file__).parent / "py.typed").is_file()
