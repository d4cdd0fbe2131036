"""include/sparse_autotune.h as data: its structs for ctypes, its ABI as text, Rust's declarations.

``python tests/native_header.py abi|rust`` prints what is kept in tests/native/ and in
rust/sparse-autotune-sys/.
"""

import ctypes
import pathlib
import re
import sys
from typing import NamedTuple

ROOT = pathlib.Path(__file__).resolve().parents[1]
HEADER = ROOT / "include" / "sparse_autotune.h"
PREFIX = "sparse_autotune_"

_PLAIN = {
    "size_t": (ctypes.c_size_t, "usize"),
    "int64_t": (ctypes.c_int64, "i64"),
    "int32_t": (ctypes.c_int32, "i32"),
    "uint32_t": (ctypes.c_uint32, "u32"),
    "double": (ctypes.c_double, "f64"),
}


class Function(NamedTuple):
    name: str
    result: str
    arguments: list[tuple[str, str]]  # type and name


def _text():
    return re.sub(r"/\*.*?\*/", "", HEADER.read_text(), flags=re.DOTALL)


def _declared(text):
    """(type, name) of ``const char* a`` or, of members, ``int64_t rows, cols``."""
    match = re.fullmatch(r"(.*?[\s*])(\w+(?:\s*,\s*\w+)*)", text.strip(), re.DOTALL)
    kind = re.sub(r"\s*\*", "*", " ".join(match.group(1).split()))
    return [(kind, name) for name in re.split(r"\s*,\s*", match.group(2))]


def _all(texts):
    return [one for text in texts for one in _declared(text)]


def abi_version():
    return int(re.search(r"#define SPARSE_AUTOTUNE_ABI_VERSION (\d+)", _text()).group(1))


def constants():
    """Name, value and the typedef that stands before the enumeration."""
    found = []
    for kind, body in re.findall(r"typedef int32_t (\w+);\s*enum \{(.*?)\};", _text(), re.DOTALL):
        found += [(n, int(v), kind) for n, v in re.findall(r"(\w+) = (\d+)", body)]
    return found


def structs():
    """Members as (type, name), by the struct's name."""
    found = re.findall(r"typedef struct (\w+) \{(.*?)\} \1;", _text(), re.DOTALL)
    split = {name: [m for m in body.split(";") if m.strip()] for name, body in found}
    return {name: _all(members) for name, members in split.items()}


def handles():
    return re.findall(r"typedef struct (\w+) \1;", _text())


def functions():
    found = []
    pattern = r"SPARSE_AUTOTUNE_EXPORT\s+([\w\s*]+?[\s*])(\w+)\(([^)]*)\);"
    for result, name, arguments in re.findall(pattern, _text()):
        listed = [] if arguments == "void" else _all(arguments.split(","))
        found.append(Function(name, re.sub(r"\s*\*", "*", result.strip()), listed))
    return found


def ctypes_of(kind):
    if kind.endswith("*"):
        return ctypes.c_char_p if kind == "const char*" else ctypes.c_void_p
    if kind in _PLAIN:
        return _PLAIN[kind][0]
    return _CLASSES.get(kind, ctypes.c_int32)


_CLASSES = {}
for _name, _members in structs().items():
    _fields = [(name, ctypes_of(kind)) for kind, name in _members]
    _CLASSES[_name] = type(_name, (ctypes.Structure,), {"_fields_": _fields})


def struct(name, **values):
    """One with its struct_size set, and these members."""
    kind = _CLASSES[PREFIX + name]
    made = kind(**values)
    if hasattr(made, "struct_size"):
        made.struct_size = ctypes.sizeof(kind)
    return made


def load(path):
    """The library, with what its functions take and return."""
    library = ctypes.CDLL(str(path))
    for f in functions():
        function = getattr(library, f.name)
        function.restype = None if f.result == "void" else ctypes_of(f.result)
        function.argtypes = [ctypes_of(kind) for kind, _ in f.arguments]
    return library


def abi():
    """Everything that a compiled program relies on."""
    lines = [f"version {abi_version()}"]
    lines += [f"constant {name} {value} {kind}" for name, value, kind in constants()]
    for name, members in structs().items():
        lines.append(f"struct {name} {ctypes.sizeof(_CLASSES[name])}")
        for kind, member in members:
            lines.append(f"  {getattr(_CLASSES[name], member).offset} {kind} {member}")
    for f in functions():
        arguments = ", ".join(f"{kind} {name}" for kind, name in f.arguments)
        lines.append(f"function {f.result} {f.name}({arguments})")
    return "\n".join(lines) + "\n"


def _rust_type(kind):
    if kind == "const char*":
        return "*const c_char"
    if kind.endswith("*"):
        mutable = "*const " if kind.startswith("const ") else "*mut "
        inner = kind.removeprefix("const ").removesuffix("*").strip()
        return mutable + ("c_void" if inner == "void" else _rust_type(inner))
    if kind in _PLAIN:
        return _PLAIN[kind][1]
    known = kind in _CLASSES or kind in handles()
    return _rust_name(kind) if known else "i32"


def _rust_name(kind):
    return "".join(word.capitalize() for word in kind.removeprefix(PREFIX).split("_"))


def rust():
    """rust/sparse-autotune-sys/src/bindings.rs."""
    lines = [
        "// Written by tests/native_header.py from include/sparse_autotune.h; a test compares.",
        "use std::ffi::{c_char, c_void};",
        "",
        "/// Of the header that these declarations are of.",
        f"pub const ABI_VERSION: u32 = {abi_version()};",
    ]
    for name, value, _ in constants():
        lines.append(f"pub const {name.removeprefix('SPARSE_AUTOTUNE_')}: i32 = {value};")
    for name in handles():
        lines += ["", "#[repr(C)]", f"pub struct {_rust_name(name)} {{", "    _opaque: [u8; 0],"]
        lines.append("}")
    for name, members in structs().items():
        lines += ["", "#[repr(C)]", "#[derive(Clone, Copy)]", f"pub struct {_rust_name(name)} {{"]
        lines += [f"    pub {member}: {_rust_type(kind)}," for kind, member in members]
        lines.append("}")
    lines += ["", "/// The size of each struct, by its name in C."]
    lines.append("pub const SIZES: &[(&str, usize)] = &[")
    for name in structs():
        lines.append(f'    ("{name}", std::mem::size_of::<{_rust_name(name)}>()),')
    lines += ["];", "", "declare! {"]
    for f in functions():
        arguments = ", ".join(f"{name}: {_rust_type(kind)}" for kind, name in f.arguments)
        result = "" if f.result == "void" else f" -> {_rust_type(f.result)}"
        lines.append(f"    {f.name}: fn({arguments}){result};")
    return "\n".join([*lines, "}", ""])


if __name__ == "__main__":
    sys.stdout.write({"abi": abi, "rust": rust}[sys.argv[1]]())
