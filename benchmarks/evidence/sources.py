"""Which source files a family of products' GPU variants consists of, by names and includes."""

from __future__ import annotations

import re
from functools import cached_property
from pathlib import Path

_INCLUDE = re.compile(r'^\s*#\s*include\s*"([^"]+)"', re.MULTILINE)
_NAME = re.compile(r'"([a-z]\w*)/\w+"')
_KERNELS = "kernels/cuda"
# Its families race in suites of their own, `gpu_attention` and its like.
_OTHER_OPERATOR = "kernels/cuda/attention/"
# Folders with code that defines variants of vendors' routines.
_VENDORS = ("libraries", "ops")


class Sources:
    """The C++ and CUDA files below a folder, by their paths in it."""

    def __init__(self, root: Path) -> None:
        self._texts = {
            path.relative_to(root).as_posix(): path.read_text()
            for path in sorted(root.rglob("*"))
            if path.suffix in (".h", ".cuh", ".cpp", ".cu")
        }
        self._includes = {
            name: {other for other in _INCLUDE.findall(text) if other in self._texts}
            for name, text in self._texts.items()
        }

    def _units(self) -> list[str]:
        return [name for name in self._texts if name.endswith((".cpp", ".cu"))]

    def _reached(self, names: set[str]) -> set[str]:
        """These files and what they include, at any depth."""
        seen: set[str] = set()
        waiting = set(names)
        while waiting:
            seen |= waiting
            waiting = {other for name in waiting for other in self._includes[name]} - seen
        return seen

    def _defined(self, *folders: str) -> dict[str, set[str]]:
        """The files that name variants, by family."""
        found: dict[str, set[str]] = {}
        for name in self._units():
            if name.startswith(_OTHER_OPERATOR):
                continue
            if name.startswith(tuple(f"{folder}/" for folder in folders)):
                for family in _NAME.findall(_INCLUDE.sub("", self._texts[name])):
                    found.setdefault(family, set()).add(name)
        return found

    @cached_property
    def vendors(self) -> set[str]:
        """The families of vendors' routines."""
        return set(self._defined(*_VENDORS))

    @cached_property
    def files(self) -> dict[str, set[str]]:
        """Of each family of ours on GPUs its files.

        Those that name its variants, what they include, and code without variants of its own if
        all headers that it includes of its own folder are among them.
        """
        defined = self._defined(_KERNELS)
        variants = set().union(*defined.values())
        found = {family: self._reached(names) for family, names in defined.items()}
        others = {}
        for unit in self._units():
            own = {
                name
                for name in self._includes[unit]
                if Path(name).parent == Path(unit).parent and unit.startswith(f"{_KERNELS}/")
            }
            if unit not in variants and own:
                others[unit] = own
        for files in found.values():
            before = 0
            while before != len(files):
                before = len(files)
                for unit, own in others.items():
                    if own <= files:
                        files |= self._reached({unit})
        return found

    def own_lines(self, family: str) -> int:
        """Lines of kernel code that no other family uses, nor anything else of the project."""
        every = set().union(*self.files.values())
        outside = self._reached({unit for unit in self._units() if unit not in every})
        for other, files in self.files.items():
            if other != family:
                outside |= files
        own = {name for name in self.files[family] - outside if name.startswith(f"{_KERNELS}/")}
        return sum(self._texts[name].count("\n") for name in own)
