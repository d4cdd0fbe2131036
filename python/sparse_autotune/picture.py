"""What a notebook shows of a block-sparse matrix: its pattern as an inline SVG, and its facts."""

from __future__ import annotations

import math
from html import escape
from itertools import groupby

import torch
from torch import Tensor

_Pair = tuple[int, int]  # down and to the right

_SIDE = 256  # pixels of the longer side, roughly
_LEAST_SIDE = 24
# Of the longer side. The worst pattern takes some 70 kB.
_MOST_BLOCKS = 128
_MOST_CELLS = 96
_LARGEST_CELL = 32  # pixels of its shorter side
_SHADES = 8
_COLOUR = "#2580d0"  # contrast 4 to 5 with white as with black
_FONT_SIZE = 11
_DIGIT_WIDTH = 7
_MARGIN = 16  # for a line of text


def html(
    crow_indices: Tensor,
    col_indices: Tensor,
    block_rows: int,
    block_cols: int,
    block_size: tuple[int, int],
    facts: str,
    *,
    transposed: bool = False,
) -> str:
    """A self-contained, well-formed fragment of HTML; the facts alone where indices have no data.

    More than 128 blocks a side are drawn in cells of several blocks. The opacity of a cell grows
    with the square root of the share of its blocks that are stored, which shows one in a hundred as
    well as all. Indices on a GPU are counted there. Never raises: wrong indices are drawn as far as
    they are in range.

    Args:
        crow_indices: of the matrix as stored; int32 or int64, on any device.
        col_indices: likewise.
        block_rows: of the matrix as stored.
        block_cols: likewise.
        block_size: ``(block_m, block_k)``, likewise.
        facts: text to show below the picture.
        transposed: draw the transpose of the matrix as stored.
    """
    blocks = (block_rows, block_cols)
    try:
        drawn = _picture(crow_indices, col_indices, blocks, block_size, transposed)
    except Exception:  # of a fake tensor, a broken device: whoever looks still wants the facts
        drawn = ""
    return f"<div>{drawn}{_text(facts)}</div>"


def _text(text: str) -> str:
    return f'<pre style="margin:0;white-space:pre-wrap">{escape(text)}</pre>'


def _picture(
    crow_indices: Tensor, col_indices: Tensor, blocks: _Pair, size: _Pair, transposed: bool
) -> str:
    """The SVG, and a legend if a cell is more than a block."""
    bins = _bins(blocks, size)
    shades = _shades(_counted(crow_indices, col_indices, blocks, bins), blocks, bins)
    if transposed:
        shades, blocks, size, bins = shades.T, blocks[::-1], size[::-1], bins[::-1]
    drawn = _svg(shades.tolist(), blocks, size, bins)
    if bins != (1, 1):
        legend = f"each cell {bins[0]}x{bins[1]} blocks, the stronger the more of them are stored"
        drawn += _text(legend)
    return drawn


def _cells(blocks: _Pair, bins: _Pair) -> _Pair:
    return -(-blocks[0] // bins[0]), -(-blocks[1] // bins[1])


def _bins(blocks: _Pair, size: _Pair) -> _Pair:
    """How many blocks a cell spans: a power of two, as most dimensions have such a factor."""
    extents = blocks[0] * size[0], blocks[1] * size[1]

    def spanned(side: int) -> int:
        length = max(_LEAST_SIDE / _SIDE, extents[side] / max(1, *extents))
        if blocks[side] <= _MOST_BLOCKS * length:
            return 1
        return 1 << math.ceil(math.log2(blocks[side] / (_MOST_CELLS * length)))

    return spanned(0), spanned(1)


def _counted(crow_indices: Tensor, col_indices: Tensor, blocks: _Pair, bins: _Pair) -> Tensor:
    """How many blocks each cell stores, on the CPU: all that leaves the device."""
    down, right = _cells(blocks, bins)
    crow, device = crow_indices.contiguous(), crow_indices.device
    positions = torch.arange(len(col_indices), dtype=crow.dtype, device=device)
    rows = torch.searchsorted(crow, positions, right=True) - 1
    in_range = (rows >= 0) & (rows < blocks[0]) & (col_indices >= 0) & (col_indices < blocks[1])
    cells = rows // bins[0] * right + col_indices // bins[1]
    # What is out of range is counted behind the last cell.
    counts = torch.bincount(torch.where(in_range, cells, down * right), minlength=down * right + 1)
    return counts[:-1].view(down, right).cpu()


def _shades(counts: Tensor, blocks: _Pair, bins: _Pair) -> Tensor:
    """Of each cell, 0 to _SHADES; the cells at the lower and right edge may have fewer blocks."""
    rows, cols = (
        (count - torch.arange(0, count, step, device="cpu")).clamp(max=step)
        for count, step in zip(blocks, bins, strict=True)
    )
    shares = counts.double() / (rows[:, None] * cols)
    return (_SHADES * shares.sqrt()).ceil().clamp(max=_SHADES).int()


def _svg(shades: list[list[int]], blocks: _Pair, size: _Pair, bins: _Pair) -> str:
    cells = _cells(blocks, bins)
    height, width = _pixels(cells, (bins[0] * size[0], bins[1] * size[1]))
    rows, cols = str(blocks[0] * size[0]), str(blocks[1] * size[1])
    # Room for the numbers of rows, turned, and of columns, where the picture is smaller than they.
    tall, wide = max(height, _DIGIT_WIDTH * len(rows)), max(width, _DIGIT_WIDTH * len(cols))
    x, y = _MARGIN + (wide - width) // 2, _MARGIN + (tall - height) // 2
    number = f'fill="currentColor" font-family="sans-serif" font-size="{_FONT_SIZE}"'
    number += ' text-anchor="middle"'
    left = f"translate({x - 5} {y + height / 2}) rotate(-90)"
    scale = f"scale({width / max(1, cells[1]):.6g} {height / max(1, cells[0]):.6g})"
    return (
        '<svg role="img" aria-label="the pattern of the stored blocks" style="display:block"'
        f' width="{_MARGIN + wide + 1}" height="{_MARGIN + tall + 1}">'
        f'<text x="{x + width / 2}" y="{y - 5}" {number}>{cols}</text>'
        f'<text transform="{left}" {number}>{rows}</text>'
        # A run of cells is a line along its middle, as thick as a cell.
        f'<g transform="translate({x} {y}) {scale} translate(0 .5)" stroke="{_COLOUR}"'
        f' shape-rendering="crispEdges">{_paths(shades)}</g>'
        f'<rect x="{x - 0.5}" y="{y - 0.5}" width="{width + 1}" height="{height + 1}" fill="none"'
        ' stroke="currentColor" stroke-opacity=".6"/></svg>'
    )


def _pixels(cells: _Pair, cell_size: _Pair) -> _Pair:
    """Height and width in the matrix's proportions, within bounds; square cells are even ones."""
    extents = cells[0] * cell_size[0], cells[1] * cell_size[1]
    longer = extents.index(max(extents))
    largest = _LARGEST_CELL * cell_size[longer] // min(cell_size)
    cell = min(largest, round(_SIDE / max(1, cells[longer])))
    height, width = (
        max(_LEAST_SIDE, round(cell / cell_size[longer] * extent)) for extent in extents
    )
    return height, width


def _paths(shades: list[list[int]]) -> str:
    """One for each shade, of the runs of that shade in all lines; the faintest is still seen."""
    runs: dict[int, list[str]] = {}
    for y, line in enumerate(shades):
        x = 0
        for shade, run in groupby(line):
            length = sum(1 for _ in run)
            if shade:
                runs.setdefault(shade, []).append(f"M{x} {y}h{length}")
            x += length
    return "".join(
        f'<path stroke-opacity="{(shade + 1) / (_SHADES + 1):.3g}" d="{"".join(d)}"/>'
        for shade, d in sorted(runs.items())
    )
