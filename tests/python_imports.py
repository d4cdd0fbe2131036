"""What the modules of the package import, as their sources say; nothing is imported for it."""

import ast
import functools
import pathlib

import sparse_autotune

PACKAGE = pathlib.Path(sparse_autotune.__file__).parent


@functools.cache
def modules():
    """Names within the package and files; its own is ``__init__``, another's that of the folder."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        if parts[-1] == "__init__" and len(parts) > 1:
            parts = parts[:-1]
        found[".".join(parts)] = path
    return found


def _nodes(module):
    return list(ast.walk(ast.parse(modules()[module].read_text())))


def _folder_of(module):
    """The parts of the package's name that a dot in an import stands for."""
    return modules()[module].relative_to(PACKAGE).parent.parts


def imported_modules(module):
    """Those of the package that it names in imports, in functions and for types, too."""
    found = set()
    for node in _nodes(module):
        if isinstance(node, ast.Import):
            names = [name.name.split(".") for name in node.names]
            assert not [name for name in names if name[0] == "sparse_autotune"], module
        if not isinstance(node, ast.ImportFrom):
            continue
        if node.level == 0:
            assert node.module.split(".")[0] != "sparse_autotune", module
            continue
        folder = _folder_of(module)
        folder = folder[: len(folder) + 1 - node.level]
        source = ".".join((*folder, *(node.module or "").split("."))).strip(".")
        for name in node.names:
            inside = f"{source}.{name.name}".strip(".")
            known = inside in modules() or inside == "_tuner"
            found.add(inside if known else source or "__init__")
    return found - {module}


def private_names_of_torch(module):
    """Names of torch with an underscore in front of a part, imported or looked up."""
    bound, found = {}, set()  # what each name of the module means in torch
    for node in _nodes(module):
        if isinstance(node, ast.Import):
            for name in node.names:
                if name.name.split(".")[0] == "torch":
                    bound[name.asname or "torch"] = name.name if name.asname else "torch"
                    found.add(name.name)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            for name in node.names if node.module.split(".")[0] == "torch" else ():
                bound[name.asname or name.name] = f"{node.module}.{name.name}"
                found.add(f"{node.module}.{name.name}")
    for node in _nodes(module):
        if isinstance(node, ast.Attribute):
            parts = ast.unparse(node).split(".")
            if parts[0] in bound:
                found.add(".".join((bound[parts[0]], *parts[1:])))
    return {name for name in found if any(map(_is_private, name.split(".")))}


def _is_private(part):
    return part.startswith("_") and not part.startswith("__")
