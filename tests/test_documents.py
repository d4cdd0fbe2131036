"""What the documents show and name is there: code blocks run, tables match, references lead on."""

import os
import pathlib
import re
import textwrap

import pytest
import torch

import sparse_autotune
from sparse_autotune import _tuner

ROOT = pathlib.Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
DOCUMENTS = [
    ROOT / name
    for name in ("README.md", "CONTRIBUTING.md", "VARIANTS.md", "examples/aoti/README.md")
] + sorted((ROOT / "benchmarks").glob("*.md"))  # fmt: skip
FENCED = re.compile(r"^ *```(\w*)\n(.*?)^ *```$", re.DOTALL | re.MULTILINE)


def python_blocks(document):
    return [
        textwrap.dedent(code)
        for language, code in FENCED.findall((ROOT / document).read_text())
        if language == "python"
    ]


@pytest.mark.parametrize("document, count", [("README.md", 3), ("CONTRIBUTING.md", 1)])
def test_code_blocks_run(document, count, capsys):
    """In order, as one program, on smaller matrices."""
    blocks = python_blocks(document)
    assert len(blocks) == count
    names = {}
    for code in blocks:
        exec(compile(code.replace("4096", "512"), document, "exec"), names)
    assert "TFLOP/s (nnz)" in capsys.readouterr().out
    if document == "README.md":
        assert names["c"].shape == (512, 512) and names["names"] == ["0"]
        matrix, y = names["matrix"], names["y"]
        assert y.dtype == torch.float64 and y.shape == (matrix.shape[0],)


def test_no_row_of_a_variant_is_stale():
    """Missing ones are no failure: a new variant is one file until it is documented."""
    rows = re.findall(
        r"^\| `(\w+)` \| (CUDA|CPU) \|", (ROOT / "VARIANTS.md").read_text(), re.MULTILINE
    )
    families = {v["family"]: v["device"].upper() for v in _tuner.variants()}
    if not _tuner.build_info()["cuda"]:
        rows = [row for row in rows if row[1] == "CPU"]
    assert len(set(rows)) == len(rows) > 5
    assert set(rows) <= set(families.items())


def test_readme_has_every_public_name():
    code = " ".join(re.findall(r"`([^`\n]+)`", README))
    missing = [n for n in sparse_autotune.__all__ if not re.search(rf"\b{n}\b", code)]
    assert not missing


def test_readme_names_the_variants_that_multiply_padding():
    paragraph = README.partition("### Infinities and NaN")[2].partition("\n## ")[0]
    named = set(re.findall(r"`(\w+)`", paragraph.partition("(")[2].partition(")")[0]))
    every = {v["family"] for v in _tuner.variants()}
    families = {v["family"] for v in _tuner.variants() if v["multiplies_padding"]}
    assert len(named) > 1 and named & every <= families


def anchors(path):
    headings = re.findall(r"^#+ (.*)$", FENCED.sub("", path.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda d: str(d.relative_to(ROOT)))
def test_references(document):
    """Links, files, targets of make and suites."""
    text = document.read_text()
    prose = FENCED.sub("", text)
    for link in re.findall(r"\]\(([^)\s]+)\)", prose):
        if not link.startswith("http"):
            path, _, anchor = link.partition("#")
            target = pathlib.Path(os.path.normpath(document.parent / path)) if path else document
            assert target.exists(), link
            assert not anchor or anchor in anchors(target), link
    for path in re.findall(r"`((?:csrc|tests|benchmarks|python|examples)/[\w/.-]*)`", prose):
        assert (ROOT / path).exists(), path
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    commands = re.findall(r"(?:^|`)(?:\w+=\S+ )*make ([a-z-]+)", text, re.MULTILINE)
    assert set(commands) <= targets
    for suite in re.findall(r"\bSUITE=([a-z]\w*)", text):
        assert (ROOT / "benchmarks" / "suites" / f"{suite}.py").is_file(), suite
