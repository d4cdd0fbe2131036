"""The tests in several processes side by side, with one summary: `pytest --jobs N`.

Every process collects the same list and takes piece after piece of it that none has taken before.
The first process starts the others and tells the terminal, the cache and all other plugins what
they report, as if it had run their tests itself.
"""

import hashlib
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
import warnings

import pytest

# A module in pieces: a fixture for the whole module is made once where it is short.
LONG_MODULE = 300
PIECE = 60
# Exit statuses of a process that came to its end.
_ENDED = (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.NO_TESTS_COLLECTED)


def pieces(items):
    """Lists of neighbours: a short module, or some of a long one; cases are not cut, because the
    variants of a case share what it is made of."""
    modules = {}
    for item in items:
        modules.setdefault(item.nodeid.partition("::")[0], []).append(item)
    for module in modules.values():
        piece, before = [], None
        for item in module:
            case = item.callspec.params.get("case") if hasattr(item, "callspec") else None
            cut = len(module) > LONG_MODULE and len(piece) >= PIECE
            if cut and (case is None or case is not before):
                yield piece
                piece = []
            piece.append(item)
            before = case
        yield piece


class Process:
    """One process of those that share the tests out; they meet in ``folder``."""

    def __init__(self, folder):
        self._folder = folder

    def _claim(self, name):
        """Whether no other process has: only one can make a file."""
        try:
            (self._folder / name).touch(exist_ok=False)
        except FileExistsError:
            return False
        return True

    def _mine(self, items):
        for piece in pieces(items):
            # By its content: were the lists not the same, a test would run twice, but never not.
            names = "\n".join(item.nodeid for item in piece)
            if self._claim(hashlib.sha1(names.encode()).hexdigest()):
                yield from piece

    def run(self, session, between=lambda: None):
        """Runs the tests of the pieces that this process gets."""
        mine = self._mine(session.items)
        item = next(mine, None)
        while item is not None and not self.stopped():
            # Fetched before this one ends: what fixtures keep is kept for the next test.
            following = next(mine, None)
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            item = following
            between()
            if session.shouldfail:
                raise session.Failed(session.shouldfail)
            if session.shouldstop:
                raise session.Interrupted(session.shouldstop)

    def stopped(self):
        """Whether what is left of the tests is not wanted any more."""
        return (self._folder / "stop").exists()


class Helper(Process):
    """A process that the first one started: writes what happens into a file."""

    def __init__(self, config, folder):
        super().__init__(folder)
        self._config = config
        self._first = os.getppid()
        self._file = (folder / f"{os.getpid()}.json").open("w")
        # By which plugins know that they are not the ones to write to the cache and the like.
        config.workerinput = {}

    def stopped(self):
        return super().stopped() or os.getppid() != self._first

    def pytest_runtestloop(self, session):
        if not session.testsfailed:  # the first process tells of what could not be collected
            self.run(session)
        return True

    def _write(self, kind, content):
        self._file.write(json.dumps([kind, content]) + "\n")
        self._file.flush()

    def pytest_runtest_logstart(self, nodeid):
        self._write("started", nodeid)

    def pytest_runtest_logreport(self, report):
        hook = self._config.hook.pytest_report_to_serializable
        self._write("report", hook(config=self._config, report=report))

    def pytest_warning_recorded(self, warning_message, when, nodeid, location):
        w = warning_message
        said = [str(w.message), w.category.__name__, w.filename, w.lineno]
        self._write("warning", [said, when, nodeid, location])


class First(Process):
    """The process at the terminal."""

    def __init__(self, config, jobs):
        self._temporary = tempfile.TemporaryDirectory(prefix="sparse_autotune_jobs_")
        super().__init__(pathlib.Path(self._temporary.name))
        self._config = config
        self._jobs = jobs
        self._helpers = []  # [process, file of what it writes or None, test that it is at]

    def pytest_sessionstart(self):
        invocation = self._config.invocation_params
        command = [sys.executable, "-m", "pytest", *invocation.args]
        for i in range(1, self._jobs):
            with (self._folder / f"log_{i}").open("w") as log:
                process = subprocess.Popen(
                    [*command, f"--helper-in={self._folder}"],
                    cwd=invocation.dir,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                )
            self._helpers.append([process, None, None])

    def pytest_runtestloop(self, session):
        if session.testsfailed:
            return None  # pytest's own loop says that not all could be collected
        self.run(session, self._listen)
        while any(process.poll() is None for process, *_ in self._helpers):
            time.sleep(0.1)
            self._listen()
            if session.shouldfail or session.shouldstop:
                break
        self._listen()
        self._look_for_the_dead(session)
        if session.shouldfail:
            raise session.Failed(session.shouldfail)
        return True

    def pytest_unconfigure(self):
        self._claim("stop")
        for process, file, _ in self._helpers:
            process.wait()
            if file is not None:
                file.close()
        self._temporary.cleanup()

    def _listen(self):
        """Hands on what the others have written by now."""
        hook = self._config.hook
        for helper in self._helpers:
            process, file, _ = helper
            if file is None:
                path = self._folder / f"{process.pid}.json"
                if not path.exists():
                    continue
                helper[1] = file = path.open("rb")
            while True:
                begin = file.tell()
                line = file.readline()
                if not line.endswith(b"\n"):  # the rest is still to come
                    file.seek(begin)
                    break
                kind, content = json.loads(line)
                if kind == "started":
                    helper[2] = content
                elif kind == "report":
                    if isinstance(content["longrepr"], list):  # why a test is skipped
                        content["longrepr"] = tuple(content["longrepr"])
                    report = hook.pytest_report_from_serializable(config=self._config, data=content)
                    hook.pytest_runtest_logreport(report=report)
                else:
                    (text, category, *place), when, nodeid, location = content
                    kind_of = type(category, (Warning,), {})
                    message = warnings.WarningMessage(kind_of(text), kind_of, *place)
                    hook.pytest_warning_recorded.call_historic(
                        kwargs={
                            "warning_message": message,
                            "when": when,
                            "nodeid": nodeid,
                            "location": location and tuple(location),
                        }
                    )

    def _look_for_the_dead(self, session):
        for i, (process, _, test) in enumerate(self._helpers, 1):
            if process.poll() in (None, *_ENDED):
                continue
            log = (self._folder / f"log_{i}").read_text()
            print("\n" + log[max(log.rfind("Fatal Python error"), len(log) - 5000) :])
            session.shouldfail = f"a process died ({process.returncode}) in {test}"


def add_options(parser):
    """The options of this module."""
    parser.addoption(
        "--jobs",
        default="1",
        help="run the tests in so many processes side by side; `auto`: as many as there are cores",
    )
    parser.addoption("--helper-in", type=pathlib.Path, help="what `--jobs` gives its processes")


def configure(config):
    """Makes this process one of several, where the options say so; returns how many there are."""
    helper, jobs = config.getoption("--helper-in"), config.getoption("--jobs")
    jobs = min(len(os.sched_getaffinity(0)), 16) if jobs == "auto" else int(jobs)
    if jobs <= 1 or config.option.usepdb or config.option.collectonly:
        return 1
    plugin = First(config, jobs) if helper is None else Helper(config, helper)
    config.pluginmanager.register(plugin, "side_by_side")
    return jobs
