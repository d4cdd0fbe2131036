"""What the documents show and name is there: code blocks run, tables match, references lead on."""

import json
import os
import pathlib
import re
import socket
import textwrap
import urllib.parse

import pytest
import torch

import sparse_autotune
from sparse_autotune import _tuner, settings

ROOT = pathlib.Path(__file__).parents[1]
README = ROOT / "README.md"
PAGES = sorted((ROOT / "docs").rglob("*.md"))
DOCUMENTS = [
    README,
    ROOT / "CONTRIBUTING.md",
    ROOT / "examples/aoti/README.md",
    *PAGES,
    *sorted((ROOT / "csrc").rglob("*.md")),
    *sorted((ROOT / "benchmarks").glob("*.md")),
]
NOTEBOOK = ROOT / "examples/quickstart.ipynb"
FENCED = re.compile(r"^ *```(\S*)\n(.*?)^ *```$", re.DOTALL | re.MULTILINE)
# Blocks that show what runs elsewhere, or what is printed.
SHOWN = {"", "text", "sh", "c", "cpp", "{toctree}", "{eval-rst}", "{literalinclude}", "{include}"}


def name_of(document):
    return str(document.relative_to(ROOT))


def blocks(document, language):
    found = FENCED.findall(document.read_text())
    return [textwrap.dedent(code) for marked, code in found if marked == language]


WITH_CODE = [document for document in DOCUMENTS if blocks(document, "python")]


def test_there_is_code():
    languages = {lang for document in DOCUMENTS for lang, _ in FENCED.findall(document.read_text())}
    named = {language.split()[0] if language else "" for language in languages}
    assert named - SHOWN == {"python"}
    assert {README, *(ROOT / "docs" / f"{n}.md" for n in ("models", "serving"))} <= set(WITH_CODE)


@pytest.fixture
def as_one_of_torchrun(monkeypatch):
    """A process alone, for programs that run under torchrun."""
    with socket.socket() as listener:
        listener.bind(("localhost", 0))
        port = listener.getsockname()[1]
    values = {"RANK": 0, "WORLD_SIZE": 1, "MASTER_ADDR": "localhost", "MASTER_PORT": port}
    for name, value in values.items():
        monkeypatch.setenv(name, str(value))


@pytest.mark.filterwarnings("ignore:.*Sparse BSR tensor support is in beta")
@pytest.mark.parametrize("document", WITH_CODE, ids=name_of)
def test_code_blocks_run(document, as_one_of_torchrun, fresh_dynamo, tmp_path, monkeypatch, capsys):
    """Those of a document in their order, as one program, on smaller matrices."""
    for needed, sign in (("scipy", "scipy"), ("pandas", "to_pandas"), ("matplotlib", ".plot()")):
        if sign in "".join(blocks(document, "python")):
            pytest.importorskip(needed, reason=f"{needed} is not installed")
    monkeypatch.chdir(tmp_path)  # some write files
    names = {}
    with settings.override(mode=settings.mode, record_path=settings.record_path):
        for number, code in enumerate(blocks(document, "python"), 1):
            where = f"{name_of(document)}, block {number}"
            exec(compile(code.replace("4096", "512"), where, "exec"), names)
    printed = capsys.readouterr().out
    if document == README:
        assert names["c"].shape == (512, 512) and names["names"] == ["0"]
        expected = names["a"].to_dense() @ names["b"]
        torch.testing.assert_close(names["c"], expected, rtol=1e-3, atol=1e-3)
        # The last line of the output that README shows, but for its figures.
        shown = blocks(README, "text")[0].splitlines()[-1]
        assert re.sub(r"[\d.]+", "#", printed) == re.sub(r"[\d.]+", "#", shown) + "\n"
    if document.stem == "measuring":  # the columns of the tables that it shows
        report, frame = (output.splitlines() for output in blocks(document, "text"))
        rows = [line.split() for line in printed.splitlines()]
        assert report[1].split() in rows and frame[0].split() in rows


def test_the_skeleton_of_a_variant_is_in_its_source():
    """Line by line, but for the comments."""

    def code(text):
        return re.sub(r"\s", "", re.sub(r"//.*", "", text))

    (skeleton,) = blocks(ROOT / "docs/adding_a_variant.md", "cpp")
    source = code((ROOT / "csrc/kernels/cpu/product/reference.cpp").read_text())
    assert [line for line in skeleton.splitlines() if code(line) not in source] == []


def test_no_row_of_a_variant_is_stale():
    """Missing ones are no failure: a new variant is one file until it is documented."""
    text = (ROOT / "docs/variants.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| (CUDA|CPU) \|", text, re.MULTILINE)
    families = {v["family"]: v["device"].upper() for v in _tuner.variants()}
    if not _tuner.build_info()["cuda"]:
        rows = [row for row in rows if row[1] == "CPU"]
    assert len(set(rows)) == len(rows) > 5
    assert set(rows) <= set(families.items())


def test_the_reference_has_every_public_name():
    pages = ("products", "attention", "tensor", "layers", "tuning")
    described = " ".join((ROOT / "docs/api").joinpath(f"{page}.md").read_text() for page in pages)
    listed = (ROOT / "docs/api/index.md").read_text()
    for name in sparse_autotune.__all__:
        assert re.search(rf"^   {name}$|`{name}`", listed, re.MULTILINE), name
        what = {"cache": "sparse_autotune.cache", "settings": "sparse_autotune.settings.Settings"}
        assert re.search(rf":: {re.escape(what.get(name, name))}$", described, re.MULTILINE), name


def test_limits_names_the_variants_that_multiply_padding():
    text = (ROOT / "docs/limits.md").read_text()
    paragraph = text.partition("## Infinities and NaN")[2].partition("\n## ")[0]
    named = set(re.findall(r"`(\w+)`", paragraph.partition("(")[2].partition(")")[0]))
    every = {v["family"] for v in _tuner.variants()}
    families = {v["family"] for v in _tuner.variants() if v["multiplies_padding"]}
    assert len(named) > 1 and named & every <= families


def test_pages_name_settings_as_they_are():
    text = (ROOT / "docs/settings.md").read_text()
    rows = dict(re.findall(r"^\| `(\w+)` \| `(SPARSE_AUTOTUNE\w*)` \|", text, re.MULTILINE))
    for name, variable in rows.items():
        assert hasattr(settings, name) and variable in type(settings).__doc__
    assert set(re.findall(r"(\w+)=", repr(settings))) == set(rows)


def test_messages_are_quoted_as_they_are_raised():
    files = [*ROOT.glob("python/**/*.py"), *ROOT.glob("csrc/**/*.cpp")]
    code = re.sub(r'"\s*f?"', "", "".join(path.read_text() for path in files))  # parts of a literal
    code += "one of the variables needed for gradient computation has been modified by an inplace "
    code += "operation; Could not find schema for sparse_autotune::bsr_matmul"  # torch's
    text = (ROOT / "docs/troubleshooting.md").read_text()
    quoted = re.findall(r'^\*\*(?:"|`ImportError: )(.+?)["`]\*\*', text, re.MULTILINE)
    assert len(quoted) > 8
    assert [q for q in quoted if not all(part.strip() in code for part in q.split("…"))] == []


def anchors(path):
    headings = re.findall(r"^#+ (.*)$", FENCED.sub("", path.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings}


def text_of(document):
    if document != NOTEBOOK:
        return document.read_text()
    cells = json.loads(document.read_text())["cells"]
    return "\n\n".join("".join(c["source"]) for c in cells if c["cell_type"] == "markdown")


@pytest.mark.parametrize("document", [*DOCUMENTS, NOTEBOOK], ids=name_of)
def test_references(document):
    """Links, pictures, files, targets of make and suites."""
    text = text_of(document)
    prose = FENCED.sub("", text)
    for link in re.findall(r"\]\(([^)]+)\)", prose):
        url = urllib.parse.urlsplit(link)
        if url.scheme:
            assert url.scheme == "https" and "." in url.netloc, link
            assert re.fullmatch(r"[!-~]+", link), link
        else:
            target = pathlib.Path(os.path.normpath(document.parent / url.path))
            target = target if url.path else document
            assert target.exists(), link
            assert not url.fragment or url.fragment in anchors(target), link
    paths = r"`((?:csrc|tests|benchmarks|python|examples|docs)/[\w/.-]*)`"
    for path in re.findall(paths, prose):
        assert (ROOT / path).exists(), path
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    commands = re.findall(r"(?:^|`)(?:\w+=\S+ )*make ([a-z-]+)", text, re.MULTILINE)
    assert set(commands) <= targets
    for suite in re.findall(r"\bSUITE=([a-z]\w*)", text):
        assert (ROOT / "benchmarks" / "suites" / f"{suite}.py").is_file(), suite
    for family in re.findall(r"`(\w+_sm[89]0)(?:/\w+)?`", prose):
        known = {v["family"] for v in _tuner.variants()}
        assert not _tuner.build_info()["cuda"] or family in known, family


def test_kernel_pages_open_with_a_summary():
    for page in (ROOT / "docs/kernels").glob("*.md"):
        if page.stem != "index":
            assert re.match(r"# .+\n\n(- .+\n(?:  .+\n)*){5}\n", page.read_text()), page.name
