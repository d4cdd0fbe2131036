"""The picture of a pattern: its cells are the stored blocks, it stays small, it never raises."""

import math
import re
import xml.etree.ElementTree as ET

import pytest
import torch
from torch._subclasses import FakeTensorMode

from sparse_autotune import BsrTensor, picture, random_bsr


def html(a):
    blocks = a.shape[0] // a.block_size[0], a.shape[1] // a.block_size[1]
    return picture.html(a.crow_indices, a.col_indices, *blocks, a.block_size, "facts")


def of_mask(mask, block_size=(16, 16), index_type=torch.int64, device="cpu", **keywords):
    """The picture of a pattern that is given as a bool matrix."""
    crow = torch.cat([torch.zeros(1, dtype=torch.int64), mask.sum(1).cumsum(0)])
    indices = (t.to(device, index_type) for t in (crow, mask.nonzero()[:, 1]))
    return picture.html(*indices, *mask.shape, block_size, "facts", **keywords)


def svg(page):
    return ET.fromstring(page).find("svg")


def cells(page):
    """The opacity of each cell that is drawn, by line and position."""
    found = {}
    for path in svg(page).iterfind("g/path"):
        runs = re.findall(r"M(\d+) (\d+)h(\d+)", path.get("d"))
        assert "".join(f"M{x} {y}h{length}" for x, y, length in runs) == path.get("d")
        for x, y, length in (map(int, run) for run in runs):
            for i in range(length):
                assert found.setdefault((y, x + i), float(path.get("stroke-opacity")))
    return found


def size(page):
    """Height and width of the frame's inside, and of a cell."""
    frame = svg(page).find("rect")
    scale = re.search(r"scale\((\S+) (\S+)\)", svg(page).find("g").get("transform"))
    height, width = float(frame.get("height")) - 1, float(frame.get("width")) - 1
    return height, width, float(scale[2]), float(scale[1])


def numbers(page):
    return [text.text for text in svg(page).iterfind("text")]


# What is drawn


@pytest.mark.parametrize("index_type", [torch.int32, torch.int64])
@pytest.mark.parametrize("shape", [(1, 1), (1, 12), (12, 1), (9, 30), (128, 128)])
def test_a_cell_for_each_stored_block(shape, index_type, device):
    mask = torch.rand(shape) < 0.4
    mask[0, 0] = True
    page = of_mask(mask, index_type=index_type, device=device)
    assert cells(page) == dict.fromkeys(map(tuple, mask.nonzero().tolist()), 1.0)
    assert numbers(page) == [str(16 * shape[1]), str(16 * shape[0])]
    assert "each cell" not in page


def test_large_patterns_are_binned(device):
    """1024 x 520 blocks: cells of 16 x 16, of which the last ones span 8 columns."""
    mask = torch.zeros(1024, 520, dtype=torch.bool)
    mask[:16, :16] = True  # all of a cell
    mask[16:32, 16:20] = True  # a fourth
    mask[40, 40] = True  # one block
    mask[:16, 512:] = True  # all of an edge's cell
    page = of_mask(mask, device=device)
    found = cells(page)
    assert set(found) == {(0, 0), (1, 1), (2, 2), (0, 32)}
    assert found[0, 0] == found[0, 32] == 1 > found[1, 1] > found[2, 2] >= 0.2
    assert found[1, 1] == pytest.approx(5 / 9, abs=1e-2)  # the fourth of eight shades
    assert "each cell 16x16 blocks" in page
    assert numbers(page) == ["8320", "16384"]


def test_transposes():
    mask = torch.rand(40, 300) < 0.1
    page, turned = of_mask(mask, (4, 8)), of_mask(mask, (4, 8), transposed=True)
    assert cells(turned) == {(x, y): opacity for (y, x), opacity in cells(page).items()}
    assert numbers(turned) == numbers(page)[::-1] == ["160", "2400"]
    assert size(turned) == tuple(size(page)[i] for i in (1, 0, 3, 2))
    assert "each cell 8x4 blocks" in page and "each cell 4x8 blocks" in turned


def test_a_batch_has_one_pattern():
    a = random_bsr(64, 96, 16, density=0.5)
    batch = BsrTensor(
        a.crow_indices, a.col_indices, a.values.expand(3, -1, -1, -1).clone(), (64, 96)
    )
    assert picture.html(batch.crow_indices, batch.col_indices, 4, 6, (16, 16), "facts") == html(a)


@pytest.mark.parametrize("shape", [(0, 0), (0, 64), (64, 0), (64, 64)])
def test_nothing_is_stored(shape):
    page = html(random_bsr(*shape, 16, density=0))
    assert cells(page) == {}
    assert numbers(page) == [str(shape[1]), str(shape[0])]
    assert min(size(page)[:2]) >= 24


def test_what_a_notebook_shows(device):
    """The matrix and its transpose as they multiply, above the line that print() shows."""
    a = random_bsr(48, 96, (16, 8), density=0.3, device=device)
    stored = a._with_values(torch.ones_like(a.values)).to_dense()[::16, ::8]
    stored = {tuple(place) for place in stored.nonzero().tolist()}
    batch = a._with_values(torch.stack([a.values] * 2))
    for matrix in (a, a.t(), batch, batch.t(), a.clone().freeze()):
        page = matrix._repr_html_()
        assert ET.fromstring(page).find("pre").text == repr(matrix)
        turned = {(col, row) for row, col in stored}
        assert set(cells(page)) == (turned if matrix.is_transposed else stored)
        assert numbers(page) == [str(size) for size in matrix.shape[:-3:-1]]
    page = a.to("meta")._repr_html_()
    assert "svg" not in page and ET.fromstring(page).find("pre").text == repr(a.to("meta"))


# Its form


@pytest.mark.parametrize("block_size", [(16, 16), (1, 64), (64, 1), (3, 5)])
@pytest.mark.parametrize(
    "blocks", [(1, 1), (1, 5), (1, 63), (2, 3000), (64, 64), (97, 40), (129, 129), (1000, 70)]
)
def test_proportions_within_bounds(blocks, block_size):
    """Those of the matrix, up to 1 to 10; even cells where they are square."""
    height, width, down, right = size(of_mask(torch.ones(blocks, dtype=torch.bool), block_size))
    expected = blocks[0] * block_size[0] / (blocks[1] * block_size[1])
    expected = min(max(expected, 24 / 256), 256 / 24)
    assert abs(math.log(height / width / expected)) < 0.35 or min(height, width) == 24
    assert 24 <= min(height, width) <= max(height, width) <= 300
    assert max(height, width) > 150 or max(blocks) < 6
    assert min(down, right) >= 1.5
    if blocks[0] == blocks[1] and block_size == (16, 16):
        assert down == right == int(down)


@pytest.mark.parametrize(
    "mask",
    [
        (torch.arange(128)[:, None] + torch.arange(128)) % 2 == 0,
        torch.rand(96 * 32, 96 * 32)
        < torch.rand(96, 96).repeat_interleave(32, 0).repeat_interleave(32, 1),
        torch.rand(128 * 8, 128) < torch.rand(128, 128).repeat_interleave(8, 0),
    ],
    ids=["chequered", "all shades", "one side binned"],
)
def test_the_worst_patterns_are_bounded(mask):
    page = of_mask(mask, (128, 128 * mask.shape[0] // mask.shape[1]))
    assert 10_000 < len(page) < 100_000
    assert len(svg(page).findall("g/path")) <= 8


def test_it_fits_any_page():
    """Nothing runs, is fetched or styles something else; lines and text have the page's colour."""
    page = of_mask(torch.eye(200, dtype=torch.bool))
    tags = {element.tag for element in ET.fromstring(page).iter()}
    assert tags == {"div", "svg", "text", "g", "path", "rect", "pre"}
    attributes = {name for element in ET.fromstring(page).iter() for name in element.attrib}
    assert not attributes & {"id", "class", "href", "src", "onload"}
    assert "url" not in page and "http" not in page
    assert all(text.get("fill") == "currentColor" for text in svg(page).iterfind("text"))
    assert svg(page).find("rect").get("stroke") == "currentColor"


def contrast(one, other):
    """As WCAG defines it."""
    lights = []
    for colour in (one, other):
        channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
        lights.append(
            0.05 + sum(w * c for w, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))
        )
    return max(lights) / min(lights)


@pytest.mark.parametrize("background", ["#ffffff", "#000000", "#111111", "#1e1e1e"])
def test_stored_blocks_stand_out(background):
    colour = svg(of_mask(torch.ones(2, 2, dtype=torch.bool))).find("g").get("stroke")
    assert contrast(colour, background) >= 4


def test_text_is_escaped():
    text = "a <b> & \"c\" 'd'"
    page = picture.html(torch.tensor([0, 1]), torch.tensor([0]), 1, 1, (4, 4), text)
    assert "&lt;b&gt; &amp;" in page
    assert ET.fromstring(page).find("pre").text == text


# Never raises


def test_what_has_no_data_has_facts_alone():
    a = random_bsr(32, 32, 16, density=1)
    with FakeTensorMode() as mode:
        fake = [mode.from_tensor(t) for t in (a.crow_indices, a.col_indices)]
        under_the_mode = picture.html(*fake, 2, 2, (16, 16), "<facts>")
    meta = [t.to("meta") for t in (a.crow_indices, a.col_indices)]
    for indices in (fake, meta, [None, None]):
        page = picture.html(*indices, 2, 2, (16, 16), "<facts>")
        assert page == under_the_mode and "svg" not in page
        assert ET.fromstring(page).find("pre").text == "<facts>"


@pytest.mark.parametrize(
    ("crow", "col", "drawn"),
    [
        ([0, 1, 3], [5, -1, 0], {(1, 0)}),  # columns out of range
        ([0, 9, 9], [0, 1], {(0, 0), (0, 1)}),  # more blocks than there are
        ([1, 1, 2], [0, 1, 1], {(1, 1)}),  # blocks before the first row and behind the last one
        ([0, 2, 2], [1, 1], {(0, 1)}),  # twice the same
        ([0, 1], [0], {(0, 0)}),  # too few rows
        ([0, 1, 1, 2], [0, 1], {(0, 0)}),  # too many
        ([], [0], set()),
        ([2, -1, 1], [0, 1], None),
        ([-(2**63), 2**63 - 1, 0], [2**63 - 1, -(2**63)], None),
    ],
)
def test_wrong_indices_are_drawn_as_far_as_they_are_in_range(crow, col, drawn):
    page = picture.html(torch.tensor(crow, dtype=torch.int64), torch.tensor(col), 2, 2, (8, 8), "")
    found = set(cells(page))
    assert found <= {(y, x) for y in range(2) for x in range(2)}
    assert drawn is None or found == drawn


def test_views_and_other_modes_of_torch(recwarn):
    """Indices with gaps, a default device, inference mode, deterministic algorithms."""
    a = random_bsr(96, 96, 16, density=0.5)
    gaps = [torch.stack([t, t], 1)[:, 0] for t in (a.crow_indices, a.col_indices)]
    torch.use_deterministic_algorithms(True)
    try:
        with torch.inference_mode(), torch.device("meta"):
            assert picture.html(*gaps, 6, 6, (16, 16), "facts") == html(a)
    finally:
        torch.use_deterministic_algorithms(False)
    assert not recwarn.list
