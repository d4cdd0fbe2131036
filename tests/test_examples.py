"""The scripts and the notebook in `examples/`, run at small sizes."""

import json
import pathlib
import re
import runpy
import sys

import pytest

EXAMPLES = pathlib.Path(__file__).parents[1] / "examples"
# Script: what it needs beside torch, and a small size.
SCRIPTS = {
    "llama": ("transformers", "--hidden 256 --layers 1 --tokens 64 --block 32 --density 0.25"),
    "finetune": ("torch", "--width 64 --steps 4 --block 16"),
    "finite_elements": ("skfem", "--cells 3"),
    "graph_layer": ("torch", "--nodes 60 --degree 4 --width 4"),
    "register_variant": ("torch", "--size 256"),
    "scipy_matrix": ("scipy", "--points 4"),
}


def test_every_script_is_here():
    others = {"demo"}  # `make demo` runs it
    assert {path.stem for path in EXAMPLES.glob("*.py")} == set(SCRIPTS) | others
    for name in SCRIPTS:
        assert len((EXAMPLES / f"{name}.py").read_text().splitlines()) <= 120


@pytest.fixture
def run_script(monkeypatch, capsys):
    """Runs a script with these arguments, each time that it measures but once."""
    from torch.utils.benchmark import Timer

    def once(self, min_run_time):
        return self.timeit(1)

    monkeypatch.setattr(Timer, "blocked_autorange", once)

    def run(name, arguments):
        path = str(EXAMPLES / f"{name}.py")
        monkeypatch.setattr(sys, "argv", [path, *arguments.split()])
        runpy.run_path(path, run_name="__main__")
        return capsys.readouterr().out

    return run


def form(output):
    """An output without what differs between machines and sizes."""
    lines = re.sub(r"\d+(\.\d+)?(e[+-]\d+)?", "#", re.sub(r"\b(cpu|cuda(:0)?)\b", "@", output))
    return [line.split() for line in lines.splitlines()]


@pytest.mark.parametrize("name", SCRIPTS)
def test_script(run_script, name):
    """Each compares its results with those of another way, and exits if they disagree.

    It prints what the documentation shows, but for figures.
    """
    requirement, arguments = SCRIPTS[name]
    pytest.importorskip(requirement, reason=f"{requirement} (group examples) is not installed")
    page = (EXAMPLES.parent / "docs/examples.md").read_text()
    section = page.partition(f"[`examples/{name}.py`]")[2]
    shown = section.partition("```text\n")[2].partition("```")[0]
    assert form(run_script(name, arguments)) == form(shown)


@pytest.mark.parametrize("name", [n for n, (needs, _) in SCRIPTS.items() if needs != "torch"])
def test_what_is_missing_is_said_in_a_sentence(run_script, monkeypatch, name):
    monkeypatch.setitem(sys.modules, SCRIPTS[name][0], None)
    for module in [m for m in sys.modules if m.startswith("scipy.")]:
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(SystemExit, match=r"^This example needs [\w-]+: pip install [\w -]+$"):
        run_script(name, "")


def test_notebook(capsys):
    """Its cells as one program, small on a CPU; the committed outputs tell of no error."""
    pyplot = pytest.importorskip("matplotlib.pyplot", reason="matplotlib is not installed")
    pyplot.switch_backend("agg")
    notebook = json.loads((EXAMPLES / "quickstart.ipynb").read_text())
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    kinds = [{output["output_type"] for output in cell["outputs"]} for cell in cells]
    assert "error" not in set().union(*kinds)
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    sources = ["".join(cell["source"]) for cell in cells]
    on_a_cpu = "(1024, 256, 32)"
    assert on_a_cpu in sources[0]
    sources[0] = sources[0].replace(on_a_cpu, "(256, 64, 32)")
    names = {}
    for number, source in enumerate(sources, 1):
        exec(compile(source, f"quickstart.ipynb, cell {number}", "exec"), names)
    pyplot.close("all")
    assert names["error"] < 1e-2 and names["replaced"] == ["0", "2"]
    assert "races for the second product: 0\n" in capsys.readouterr().out
