"""What a build runs, and when it runs it again; carried out by ninja, or by make without ninja."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from string import Template


def run(command: list[str]) -> subprocess.CompletedProcess[str]:
    """What `command` said and how it ended, whatever that is."""
    return subprocess.run(command, capture_output=True, text=True, check=False)


class Commands:
    """Steps that each make one file from others, run when their inputs or their words change."""

    def __init__(self) -> None:
        self.rules: dict[str, tuple[str, str, float]] = {}
        self.steps: list[tuple[Path, str, list[Path], list[Path], str]] = []

    def rule(self, name: str, command: str, description: str, seconds: float) -> None:
        """Adds a kind of step; both texts may hold $in, $out and $flags.

        A command that mentions $out.d writes there, as compilers do, what else it read. The first
        word of a description is the rule's own; `seconds` is what a step takes of a core's time.
        """
        self.rules[name] = command, description, seconds

    def add(
        self,
        out: Path,
        rule: str,
        inputs: list[Path],
        flags: list[str],
        made_before: Path | None = None,
    ) -> None:
        """One step; `made_before` is an input that $in does not name."""
        unnamed = [made_before] if made_before else []
        self.steps.append((out, rule, inputs, unnamed, shlex.join(flags)))

    def run(self, work: Path) -> int:
        """Carries out what is out of date, keeping its books in `work`; returns the exit status."""
        ninja = shutil.which("ninja")
        if ninja is not None or find_spec("ninja") is not None:
            command = [ninja] if ninja is not None else [sys.executable, "-m", "ninja"]
            file, text = work / "build.ninja", self._for_ninja(work)
        elif shutil.which("make") is not None:
            if " " in str(work):
                sys.exit(f"make cannot build in a path with spaces, {work}: pip install ninja")
            command, file, text = ["make"], work / "makefile", self._for_make()
        else:
            sys.exit("neither ninja nor make is installed: pip install ninja")
        jobs = os.environ.get("MAX_JOBS") or str(_cores())
        if not jobs.isdecimal() or int(jobs) == 0:
            sys.exit(f"MAX_JOBS must be a whole number, 1 or more; got {jobs!r}")
        write(file, text)
        command += ["-f", str(file), "-j", jobs]
        # Without flags and level of a make that may have called this: its jobs are not ours.
        mine = ("MAKEFLAGS", "MFLAGS", "MAKELEVEL")
        environment = {k: v for k, v in os.environ.items() if k not in mine}
        environment["NINJA_STATUS"] = "[%f/%t] "
        some = self._say_how_long([*command, "-n"], environment, int(jobs))
        begin = time.monotonic()
        if sys.stdout.isatty():
            status = subprocess.run(command, env=environment, check=False).returncode
        else:
            status = _run_in_pipe(command, environment)
        if status == 0 and some:
            print(f"sparse_autotune: built in {duration(time.monotonic() - begin)}", flush=True)
        return status

    def _say_how_long(self, dry_run: list[str], environment: dict[str, str], jobs: int) -> bool:
        """Whether there is anything to do, which is said only then."""
        said = subprocess.run(dry_run, env=environment, capture_output=True, text=True, check=False)
        kinds = Counter(re.findall(r"\[\d+/\d+\] (\S+) ", said.stdout))
        costs = {description.split()[0]: cost for _, description, cost in self.rules.values()}
        seconds = sum(costs[kind] * count for kind, count in kinds.items()) / jobs
        if kinds:
            print(
                f"sparse_autotune: files to make: {sum(kinds.values())}, {jobs} at a time; about "
                f"{duration(seconds)} if as many cores are free",
                flush=True,
            )
        return bool(kinds)

    def _for_ninja(self, work: Path) -> str:
        def escape(path: Path) -> str:
            return str(path).replace("$", "$$").replace(" ", "$ ").replace(":", "$:")

        lines = [f"builddir = {escape(work)}"]
        for name, (command, description, _) in self.rules.items():
            lines += [f"rule {name}", f"  command = {command}", f"  description = {description}"]
            lines += ["  depfile = $out.d", "  deps = gcc"] if "$out.d" in command else []
        for out, rule, inputs, unnamed, flags in self.steps:
            read = [*map(escape, inputs), *(f"| {escape(path)}" for path in unnamed)]
            lines.append(f"build {escape(out)}: {rule} {' '.join(read)}")
            lines.append("  flags = " + flags.replace("$", "$$"))
        return "\n".join(lines) + "\n"

    def _for_make(self) -> str:
        lines = ["SHELL := /bin/bash", ".DELETE_ON_ERROR:"]
        lines.append(f"all: {' '.join(str(out) for out, *_ in self.steps)}")
        for i, (out, rule, inputs, unnamed, flags) in enumerate(self.steps, 1):
            words = {"in": " ".join(map(str, inputs)), "out": str(out), "flags": flags}
            command, description = (
                Template(text).substitute(words) for text in self.rules[rule][:2]
            )
            # make does not notice by itself that a step's words changed: they are an input, too.
            said = out.with_name(out.name + ".command")
            write(said, command)
            lines.append(f"{out}: {' '.join(map(str, [*inputs, *unnamed, said]))}")
            lines.append(f"\t@echo '[{i}/{len(self.steps)}] {description}'")
            lines.append("\t@" + command.replace("$", "$$"))
            lines.append(f"-include {out}.d")
        return "\n".join(lines) + "\n"


@contextlib.contextmanager
def alone(work: Path) -> Iterator[None]:
    """Holds the build folder: `make demo` beside `make test` would write the same objects."""
    work.mkdir(parents=True, exist_ok=True)
    with (work / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"sparse_autotune: waiting for another build in {work}", flush=True)
            fcntl.flock(lock, fcntl.LOCK_EX)
        except OSError as error:  # some network file systems have no locks
            print(f"sparse_autotune: building without a lock ({error.strerror}): one at a time")
        yield


def write(path: Path, text: str) -> None:
    """Leaves the file's time alone where it says that already."""
    if not path.is_file() or path.read_text() != text:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def duration(seconds: float) -> str:
    """To the second below two minutes, else to the minute."""
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


def _run_in_pipe(command: list[str], environment: dict[str, str]) -> int:
    """Hands on what is said; of the lines that count steps, those at which another tenth begins."""
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout is not None
        tenths = 0
        for line in process.stdout:
            count = re.match(r"\[(\d+)/(\d+)\] ", line)
            if count and 10 * int(count[1]) // int(count[2]) <= tenths:
                continue
            if count:
                tenths = 10 * int(count[1]) // int(count[2])
            print(line, end="", flush=True)
    return process.returncode


def _cores() -> int:
    return len(os.sched_getaffinity(0))
