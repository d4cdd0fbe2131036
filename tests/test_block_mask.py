"""`BlockMask`: its forms, common patterns, and other libraries' forms, element by element."""

import pytest
import torch
from torch.nn.attention import flex_attention as flex

from sparse_autotune import BlockMask, random_bsr
from sparse_autotune.masks import patterns
from sparse_autotune.operators.mask_lists import (
    mask_columns,
    mask_of_lists,
    mask_of_rule,
    mask_rows,
)

BLOCKS = [(4, 4), (3, 5), (8, 2)]
LENGTHS = [(16, 16), (17, 23), (5, 40), (31, 7)]


def grid_shape(block, lengths):
    return tuple(-(-length // side) for length, side in zip(lengths, block, strict=True))


def random_blocks(block, lengths, lead=(), density=0.4, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(*lead, *grid_shape(block, lengths), generator=generator) < density


def seen_by_loops(blocks, block, lengths, is_causal):
    """(..., S, T) by the definition of what a mask shows."""
    out = torch.zeros(*blocks.shape[:-2], *lengths, dtype=torch.bool)
    for i in range(lengths[0]):
        for j in range(lengths[1]):
            if not is_causal or j <= i:
                out[..., i, j] = blocks[..., i // block[0], j // block[1]]
    return out


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("lead", [(), (3,), (2, 3), (2, 1), (1, 3)])
@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("block", BLOCKS)
def test_from_blocks_and_back(block, lengths, lead, is_causal):
    blocks = random_blocks(block, lengths, lead)
    mask = BlockMask.from_blocks(blocks, block, lengths, is_causal=is_causal)
    assert torch.equal(mask.blocks(), blocks)
    assert torch.equal(mask.to_dense(), seen_by_loops(blocks, block, lengths, is_causal))
    assert mask.shape == (*lead, *lengths) and mask.block_size == block
    assert mask.nnzb == int(blocks.sum())
    assert mask.density == pytest.approx(float(blocks.double().mean()))
    assert mask.crow_indices.dtype == mask.col_indices.dtype == torch.int32
    again = BlockMask(mask.crow_indices, mask.col_indices, block, lengths)  # checks the contents
    assert torch.equal(again.blocks(), blocks)


def test_compressed_rows_are_as_documented():
    blocks = random_blocks((4, 4), (16, 20), (2, 3))
    mask = BlockMask.from_blocks(blocks, 4)
    crow, col = mask.crow_indices, mask.col_indices
    for b in range(2):
        for h in range(3):
            for r in range(4):
                columns = col[crow[b, h, r] : crow[b, h, r + 1]].tolist()
                assert columns == blocks[b, h, r].nonzero().flatten().tolist()


def test_by_column():
    blocks = random_blocks((4, 4), (16, 20), (3,))
    ccol, rows = BlockMask.from_blocks(blocks, 4).by_column()
    for h in range(3):
        for c in range(5):
            listed = rows[ccol[h, c] : ccol[h, c + 1]].tolist()
            assert listed == blocks[h, :, c].nonzero().flatten().tolist()


@pytest.mark.parametrize("index", [torch.int32, torch.int64])
def test_from_index_lists(index):
    """In any order, doubles, and whatever lies behind the counts."""
    lists = torch.tensor([[2, 0, 2, 99], [7, 99, 99, 99], [1, -5, 99, 0]], dtype=index)
    counts = torch.tensor([3, 0, 1], dtype=index)
    mask = BlockMask.from_index_lists(lists, counts, 4, (12, 12))
    expected = torch.tensor([[1, 0, 1], [0, 0, 0], [0, 1, 0]], dtype=torch.bool)
    assert torch.equal(mask.blocks(), expected)
    again, number = mask.index_lists()
    assert number.tolist() == [2, 0, 1]
    assert again[0, :2].tolist() == [0, 2] and again[2, :1].tolist() == [1]
    whole = BlockMask.from_index_lists(torch.tensor([[0, 1], [1, 0]]), None, 4, (8, 8))
    assert whole.blocks().all()
    for wrong in (3, 4, -1):
        with pytest.raises((RuntimeError, IndexError)):
            BlockMask.from_index_lists(torch.tensor([[wrong]] * 3), None, 4, (12, 12))


@pytest.mark.parametrize("index", [torch.int32, torch.int64])
def test_from_bsr(index):
    a = random_bsr(24, 40, (4, 8), density=0.4)
    a = type(a)(a.crow_indices.to(index), a.col_indices.to(index), a.values, a.shape)
    stored = a.to_dense() != 0
    for pattern, dense in ((a, stored), (a.to_torch(), stored), (a.t(), stored.mT)):
        mask = BlockMask.from_bsr(pattern)
        assert torch.equal(mask.to_dense(), dense)
    assert mask.block_size == (8, 4)


@pytest.mark.parametrize("lengths", [(40, 40), (37, 37), (20, 45), (45, 20)])
@pytest.mark.parametrize("block", [(4, 4), (8, 4), (3, 5)])
def test_causal(block, lengths):
    mask = BlockMask.causal(*lengths, block)
    assert mask.is_causal
    assert torch.equal(mask.to_dense(), torch.ones(lengths, dtype=torch.bool).tril())
    needed = mask.to_dense().nonzero()
    used = torch.zeros(grid_shape(block, lengths), dtype=torch.bool)
    used[needed[:, 0] // block[0], needed[:, 1] // block[1]] = True
    assert torch.equal(mask.blocks(), used)  # and no block that shows nothing


@pytest.mark.parametrize("is_causal", [True, False])
@pytest.mark.parametrize("sinks", [0, 1, 6])
@pytest.mark.parametrize("window", [1, 4, 9, 100])
@pytest.mark.parametrize("lengths", [(40, 40), (21, 45)])
@pytest.mark.parametrize("block", [(4, 4), (3, 5)])
def test_sliding_window(block, lengths, window, sinks, is_causal):
    i, j = torch.arange(lengths[0])[:, None], torch.arange(lengths[1])
    rule = ((i - j).abs() < window) | (j < sinks)
    if is_causal:
        rule &= j <= i
    used = torch.zeros(grid_shape(block, lengths), dtype=torch.bool)
    needed = rule.nonzero()
    used[needed[:, 0] // block[0], needed[:, 1] // block[1]] = True
    mask = BlockMask.sliding_window(*lengths, block, window=window, sinks=sinks,
                                    is_causal=is_causal)  # fmt: skip
    assert torch.equal(mask.blocks(), used)
    assert bool((mask.to_dense() | ~rule).all())


def test_strided():
    mask = BlockMask.strided(24, block_size=4, stride=3, local=2)
    expected = [[c <= r and (r - c < 2 or c in (2, 5)) for c in range(6)] for r in range(6)]
    assert mask.blocks().tolist() == expected and mask.is_causal
    around = BlockMask.strided(24, block_size=4, stride=3, local=2, is_causal=False)
    expected = [[abs(r - c) < 2 or c in (2, 5) for c in range(6)] for r in range(6)]
    assert around.blocks().tolist() == expected


@pytest.mark.parametrize("is_causal", [True, False])
@pytest.mark.parametrize("total", [None, 40])
def test_documents(total, is_causal):
    lengths = [8, 4, 0, 12, 7]
    length = total or sum(lengths)
    document = torch.full((length,), -1)
    document[: sum(lengths)] = torch.repeat_interleave(torch.arange(5), torch.tensor(lengths))
    rule = (document[:, None] == document) & (document >= 0)
    if is_causal:
        rule = rule.tril()
    for given in (lengths, torch.tensor(lengths), torch.tensor(lengths, dtype=torch.int32)):
        mask = BlockMask.documents(given, total, 4, is_causal=is_causal)
        dense = mask.to_dense()
        # The last document may end inside of a block: tokens behind it are seen with it.
        assert torch.equal(
            dense[:, : sum(lengths)][: sum(lengths)], rule[: sum(lengths), : sum(lengths)]
        )
        assert not dense[32:].any()
    batch = BlockMask.documents([[8, 4, 20], [16, 16, 0]], 32, 4)
    assert batch.shape == (2, 1, 32, 32)
    for b, one in enumerate([[8, 4, 20], [16, 16, 0]]):
        assert torch.equal(batch.to_dense()[b, 0], BlockMask.documents(one, 32, 4).to_dense())


# FlexAttention's


def causal_rule(b, h, q_idx, kv_idx):
    return q_idx >= kv_idx


@pytest.mark.parametrize("lengths", [(64, 64), (50, 70)])
def test_from_flex_attention(lengths):
    made = flex.create_block_mask(causal_rule, None, None, *lengths, "cpu", BLOCK_SIZE=16)
    mask = BlockMask.from_flex_attention(made)
    assert mask.is_causal
    assert torch.equal(mask.to_dense()[0, 0], torch.ones(lengths, dtype=torch.bool).tril())
    assert torch.equal(BlockMask.from_flex_attention(made, check=False).to_dense(), mask.to_dense())

    whole = flex.create_block_mask(lambda b, h, q, k: q >= -1, 2, 3, *lengths, "cpu", BLOCK_SIZE=16)
    mask = BlockMask.from_flex_attention(whole)
    assert not mask.is_causal and mask.to_dense().all() and mask.shape == (2, 3, *lengths)


@pytest.mark.parametrize(
    "rule",
    [
        lambda b, h, q, k: (q >= k) & (q - k < 20),
        lambda b, h, q, k: q > k,
        lambda b, h, q, k: q <= k,
        lambda b, h, q, k: (q + k) % 2 == 0,
    ],
)
def test_from_flex_attention_refuses_other_rules(rule):
    made = flex.create_block_mask(rule, None, None, 64, 64, "cpu", BLOCK_SIZE=16)
    with pytest.raises(TypeError, match=r"neither the causal rule .*sliding_window"):
        BlockMask.from_flex_attention(made)


def test_from_flex_attention_refuses_full_blocks_above_a_causal_rule():
    """Its rule for partial blocks alone: the operator would cut the full ones, too."""
    partial = torch.tensor([[[1, 0]]], dtype=torch.int32), torch.zeros(1, 1, 2, 2).int()
    full = torch.tensor([[[1, 2]]], dtype=torch.int32), torch.tensor([[[[1, 0], [0, 1]]]]).int()
    made = flex.BlockMask.from_kv_blocks(*partial, *full, BLOCK_SIZE=16, mask_mod=causal_rule)
    with pytest.raises(TypeError, match="neither the causal rule"):
        BlockMask.from_flex_attention(made)


def test_from_flex_attention_without_a_rule():
    blocks = random_blocks((16, 16), (64, 48), (2, 3))
    columns, counts = BlockMask.from_blocks(blocks, 16).index_lists()
    made = flex.BlockMask.from_kv_blocks(counts, columns, BLOCK_SIZE=16)
    mask = BlockMask.from_flex_attention(made)
    assert torch.equal(mask.blocks(), blocks) and not mask.is_causal


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("lead", [(), (3,), (2, 1)])
@pytest.mark.parametrize("lengths", [(64, 64), (50, 70)])
def test_to_flex_attention(lengths, lead, is_causal):
    block = (16, 8)
    blocks = random_blocks(block, lengths, lead)
    mask = BlockMask.from_blocks(blocks, block, lengths, is_causal=is_causal)
    made = mask.to_flex_attention()
    assert made.seq_lengths == lengths and tuple(made.BLOCK_SIZE) == block
    batch, heads = 2, 3
    dense = flex.create_mask(made.mask_mod, batch, heads, *lengths, "cpu")
    expected = mask.to_dense().view(*[1] * (2 - len(lead)), *mask.shape).expand(2, 3, -1, -1)
    assert torch.equal(dense, expected)
    # The blocks, of which compiled code reads nothing else, show the same.
    whole = torch.zeros(2, *made.kv_num_blocks.shape, grid_shape(block, lengths)[1])
    for place, columns in ((0, (made.kv_num_blocks, made.kv_indices)),
                           (1, (made.full_kv_num_blocks, made.full_kv_indices))):  # fmt: skip
        for index in torch.cartesian_prod(*map(torch.arange, columns[0].shape)).tolist():
            index = tuple(index)
            whole[place][index][columns[1][index][: columns[0][index]].long()] = 1
    elements = whole.repeat_interleave(block[0], -2).repeat_interleave(block[1], -1) > 0
    partial, full = elements[..., : lengths[0], : lengths[1]]
    rule = torch.ones(lengths, dtype=torch.bool).tril() if is_causal else True
    assert torch.equal(((partial & rule) | full).expand(2, 3, -1, -1), expected)
    assert not (partial & full).any()


def test_to_fa4():
    mask = BlockMask.causal(64, block_size=16)
    given = mask.to_fa4()
    assert given["block_size"] == (16, 16)
    assert given["mask_block_cnt"].tolist() == [[[1, 1, 1, 1]]]
    assert given["mask_block_idx"][0, 0, :, 0].tolist() == [0, 1, 2, 3]
    assert given["full_block_cnt"].tolist() == [[[0, 1, 2, 3]]]
    assert given["full_block_idx"][0, 0, 3, :3].tolist() == [0, 1, 2]
    given = mask.to_fa4(gradients=True)
    assert given["full_block_cnt"].tolist() == [[[3, 2, 1, 0]]]
    assert given["full_block_idx"][0, 0, 1, :2].tolist() == [2, 3]
    assert given["mask_block_cnt"].tolist() == [[[1, 1, 1, 1]]]
    plain = BlockMask.from_blocks(torch.eye(4, dtype=torch.bool), 16).to_fa4()
    assert plain["mask_block_cnt"].sum() == 0 and plain["full_block_cnt"].sum() == 4


def test_to_flashinfer():
    blocks = random_blocks((16, 8), (64, 64))
    given = BlockMask.from_blocks(blocks, (16, 8)).to_flashinfer()
    assert (given["M"], given["N"], given["R"], given["C"]) == (64, 64, 16, 8)
    indices = given["indices"][: given["indptr"][-1]]
    assert indices.tolist() == blocks.nonzero()[:, 1].tolist()
    heads = random_blocks((16, 8), (60, 62), (3,))
    given = BlockMask.from_blocks(heads, (16, 8), (60, 62)).to_flashinfer()
    assert torch.equal(given["block_mask_map"], heads)
    assert given["block_row_sz"].tolist() == [[16, 16, 16, 12]] * 3
    assert given["block_col_sz"].sum(-1).tolist() == [62] * 3
    for wrong, message in (
        (BlockMask.causal(64), "must not be causal"),
        (BlockMask.from_blocks(random_blocks((16, 8), (64, 64), (2, 3)), (16, 8)), "one for all"),
        (BlockMask.from_blocks(random_blocks((16, 8), (60, 64)), (16, 8), (60, 64)), "divide"),
    ):
        with pytest.raises(ValueError, match=message):
            wrong.to_flashinfer()


# What is refused

CROW, COL = torch.tensor([0, 1, 2], dtype=torch.int32), torch.tensor([0, 1], dtype=torch.int32)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (([0, 1, 2], COL, 4, (8, 8)), TypeError, "crow_indices must be a dense"),
        ((CROW.long(), COL, 4, (8, 8)), TypeError, "crow_indices must be int32, got torch.int64"),
        ((CROW, COL.float(), 4, (8, 8)), TypeError, "col_indices must be int32"),
        ((CROW, COL[None], 4, (8, 8)), ValueError, "col_indices must be 1-dimensional"),
        ((CROW, COL, 4, (12, 8)), ValueError, r"block rows \+ 1 = 4 entries"),
        ((CROW, COL, 0, (8, 8)), ValueError, "block_size must be at least 1"),
        ((CROW, COL, "a", (8, 8)), TypeError, "block_size must be an int"),
        ((CROW, COL, 4, 8), TypeError, r"lengths must be \(S, T\)"),
        ((CROW, COL, 4, (-1, 8)), ValueError, "S must not be negative"),
        ((CROW.flip(0), COL, 4, (8, 8)), ValueError, "must not decrease"),
        ((CROW + 1, COL, 4, (8, 8)), ValueError, r"must lie in \[0, 2\]"),
        ((CROW, COL + 1, 4, (8, 8)), ValueError, r"col_indices must lie in \[0, 2\)"),
        ((CROW * 2 - CROW[1:].sum() * 0, COL[:1].repeat(4), 4, (8, 8)), ValueError, "distinct"),
        ((CROW.view(1, 1, 1, 3), COL, 4, (8, 8)), ValueError, r"\(batch, heads, block rows \+ 1\)"),
    ],
)
def test_the_constructor_refuses(arguments, error, message):
    with pytest.raises(error, match=message):
        BlockMask(*arguments)


def test_others_refuse():
    blocks = torch.ones(2, 2, dtype=torch.bool)
    with pytest.raises(TypeError, match=r"blocks must be a bool tensor, got torch\.float32"):
        BlockMask.from_blocks(blocks.float(), 4)
    with pytest.raises(ValueError, match=r"one element per block, shape \(\.\.\., 3, 2\)"):
        BlockMask.from_blocks(blocks, 4, (9, 8))
    with pytest.raises(TypeError, match="is_causal must be True or False, got 1"):
        BlockMask.from_blocks(blocks, 4, is_causal=1)
    with pytest.raises(TypeError, match=r"pattern must be a BsrTensor .*from_blocks"):
        BlockMask.from_bsr(blocks)
    with pytest.raises(TypeError, match="q2k_block_index must be a dense"):
        BlockMask.from_index_lists([[0, 1]], None, 4, (4, 8))
    with pytest.raises(TypeError, match="q2k_block_index must be int32 or int64"):
        BlockMask.from_index_lists(blocks, None, 4, (8, 8))
    with pytest.raises(ValueError, match="a list for each of 3 block rows"):
        BlockMask.from_index_lists(torch.zeros(2, 2).int(), None, 4, (12, 8))
    with pytest.raises(ValueError, match=r"counts must have shape \(2,\)"):
        BlockMask.from_index_lists(torch.zeros(2, 2).int(), torch.zeros(3).int(), 4, (8, 8))
    with pytest.raises(TypeError, match="must be a BlockMask of torch"):
        BlockMask.from_flex_attention(blocks)
    with pytest.raises(ValueError, match="window must be at least 1"):
        BlockMask.sliding_window(64, window=0)
    with pytest.raises(ValueError, match="must begin at a block, a multiple of 4 tokens"):
        BlockMask.documents([6, 6], None, 4)
    with pytest.raises(ValueError, match="more than S = 8, got 12"):
        BlockMask.documents([4, 8], 8, 4)
    with pytest.raises(TypeError, match="lengths must be int32 or int64"):
        BlockMask.documents([4.0], 8, 4)
    with pytest.raises(TypeError, match="lengths must be ints"):
        BlockMask.documents((4 for _ in range(2)), 8, 4)
    with pytest.raises(ValueError, match="S must be given for lengths on meta"):
        BlockMask.documents(torch.ones(2, dtype=torch.int64, device="meta"), None, 4)


def test_torchs_default_device_changes_no_mask():
    with torch.device("meta"):
        mask = BlockMask(CROW, COL, 4, (8, 8), is_causal=True)
        made = mask.to_flex_attention()
        again = BlockMask.from_flex_attention(made)
        lists = mask.index_lists()
    assert mask.nnzb == 2 and torch.equal(again.to_dense()[0, 0], mask.to_dense())
    assert lists[1].tolist() == [1, 1]


def test_without_elements():
    mask = BlockMask.causal(0, block_size=4)
    assert mask.nnzb == 0 and mask.density == 0 and mask.to_dense().shape == (0, 0)
    mask = BlockMask.from_blocks(torch.zeros(3, 0, dtype=torch.bool), 4, (12, 0))
    assert mask.to_dense().shape == (12, 0) and mask.index_lists()[1].tolist() == [0, 0, 0]
    assert repr(BlockMask.causal(8, 12, 4)) == "BlockMask(8x12, block 4x4, causal, cpu)"


def test_nothing_depends_on_data():
    """Of fake tensors no element can be read: so nothing waits for a GPU."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        blocks = torch.empty(2, 3, 4, 4, dtype=torch.bool)
        mask = BlockMask.from_blocks(blocks, 16, is_causal=True)
        lists = mask.index_lists()
        again = BlockMask.from_index_lists(*lists, 16, (64, 64))
        again.by_column()
        again.to_dense()
        mask.to_fa4()
        mask.to_flex_attention()
        BlockMask.documents(torch.empty(2, 5, dtype=torch.int64, device="cuda"), 64, 16)
        BlockMask.sliding_window(64, block_size=16, window=8, device="cuda")
        assert mask.col_indices.shape == (2 * 3 * 16,)


# The operators that list blocks


def test_lists_are_those_of_the_blocks(device):
    """Of any strides, with none or all blocks, and more rows than a thread block takes."""
    draw = torch.Generator().manual_seed(0)
    for lead in ((), (3,), (2, 2)):
        for rows, columns, density in ((1, 1, 1.0), (7, 130, 0.3), (130, 65, 0.5), (33, 40, 0.0)):
            blocks = (torch.rand(*lead, rows, columns, generator=draw) < density).to(device)
            room = rows * columns
            for grid in (blocks, blocks.mT.contiguous().mT):
                crow, col = mask_rows(grid)
                assert crow.shape == (*lead, rows + 1) and col.shape == (blocks.numel(),)
                patterns = zip(crow.view(-1, rows + 1), blocks.view(-1, rows, columns), strict=True)
                for i, (begins, own) in enumerate(patterns):
                    assert begins[0] == i * room
                    assert torch.equal(begins.diff(), own.sum(-1).int())
                    stored = col[begins[0] : begins[-1]].long()
                    assert torch.equal(stored, own.nonzero()[:, 1])
                    assert not col[begins[-1] : (i + 1) * room].any()
            for given in ((crow, col), (crow.long(), col.long())):
                turned = mask_columns(*given, columns)
                for one, other in zip(turned, mask_rows(blocks.mT), strict=True):
                    assert torch.equal(one, other)


@pytest.mark.parametrize("shape", [(64, 64), (600, 37), (31, 608), (700, 530), (4, 90, 96)])
@pytest.mark.parametrize("index", [torch.int32, torch.int64])
def test_lists_of_all_sizes_are_alike_in_both_directions(device, shape, index):
    """Also of more blocks than a thread block has bits for, which takes more kernels."""
    draw = torch.Generator().manual_seed(1)
    blocks = (torch.rand(shape, generator=draw) < 0.2).to(device)
    listed = blocks.nonzero()[:, -1]
    counts = blocks.sum(-1)
    lists = torch.zeros(shape, dtype=torch.int64, device=device)
    lists[torch.arange(shape[-1], device=device) < counts[..., None]] = listed
    crow, col = mask_rows(blocks)
    assert torch.equal(crow.diff().long(), counts)
    places = torch.arange(col.numel(), device=device).view(crow[..., 0].numel(), -1)
    stored = places < crow.view(-1, crow.shape[-1])[:, -1:]
    assert torch.equal(col[stored.flatten()].long(), listed) and not col[~stored.flatten()].any()
    of_lists = mask_of_lists(lists.to(index), counts.to(index), shape[-1])
    turned = mask_columns(crow.to(index), col.to(index), shape[-1])
    back = mask_columns(*turned, shape[-2])
    for made in (of_lists, back):
        assert torch.equal(made[0], crow) and torch.equal(made[1], col)


def test_wrong_lists_are_refused_and_read_no_memory(device):
    crow, col = (
        torch.tensor(t, dtype=torch.int32, device=device) for t in ([0, 2, 4], [0, 9, 1, 2])
    )
    if device == "cuda":  # nobody waits to see it: what is out of range is left out
        begins, rows = mask_columns(crow, col, 3)
        assert begins.tolist() == [0, 1, 2, 3] and rows[:3].tolist() == [0, 1, 1]
        assert mask_columns(crow - 1, col, 3)[0].tolist() == [0, 1, 2, 2]
    else:
        for begins in (crow, crow - 1, crow + 1):
            with pytest.raises(RuntimeError, match="a mask's block is out of range"):
                mask_columns(begins, col, 3)
    with pytest.raises(RuntimeError, match=r"both int32 or int64"):
        mask_columns(crow.long(), col, 3)
    with pytest.raises(RuntimeError, match="a grid must be bools"):
        mask_rows(crow)


def test_opcheck(device):
    blocks = torch.rand(2, 5, 9, device=device) < 0.5
    torch.library.opcheck(mask_rows, (blocks,))
    lists = mask_rows(blocks)
    torch.library.opcheck(mask_columns, (*lists, 9))
    for counts in (None, torch.ones(2, 5, dtype=torch.int64, device=device)):
        torch.library.opcheck(mask_of_lists, (blocks.long(), counts, 9))
    for ends in (None, torch.tensor([[8, 16, 40]]), torch.tensor([[8, 16, 40]], device=device)):
        rule = (40, 48, 8, 16, 20, 0, 0, 0, True)
        torch.library.opcheck(mask_of_rule, (torch.empty(0, device=device), ends, *rule))
    mapped = torch.vmap(mask_rows)(torch.stack([blocks, ~blocks]))
    for i, own in enumerate((blocks, ~blocks)):
        assert torch.equal(mapped[0][i], mask_rows(own)[0])


# What races may go by without waiting for a GPU. "meta" stands for one: nobody can look there.

GENERATED = {
    "causal": lambda device: BlockMask.causal(70, 90, (8, 16), device=device),
    "window": lambda device: BlockMask.sliding_window(
        70, 90, (8, 16), window=11, sinks=3, device=device
    ),
    "both sides": lambda device: BlockMask.sliding_window(
        70, block_size=4, window=11, is_causal=False, device=device
    ),
    "strided": lambda device: BlockMask.strided(70, block_size=8, stride=3, local=2, device=device),
    "documents": lambda device: BlockMask.documents([16, 40, 24], block_size=8, device=device),
    "sides": lambda device: BlockMask.documents([32, 48, 0, 21], 128, (8, 16), device=device),
    "high": lambda device: BlockMask.documents([32, 48, 21], 101, (16, 8), device=device),
    "whole": lambda device: BlockMask.documents(
        [32, 48, 21], 128, (16, 8), is_causal=False, device=device
    ),
    "none": lambda device: BlockMask.documents([], 64, 8, device=device),
    "packed": lambda device: BlockMask.documents(
        torch.tensor([[16, 64], [40, 40]]), block_size=8, device=device
    ),
    "from a CPU": lambda device: BlockMask.from_blocks(
        random_blocks((4, 8), (30, 60), (2, 3)), (4, 8), (30, 60)
    ).to(device),
    "empty": lambda device: BlockMask.causal(0, 5, 4, device=device),
}


@pytest.mark.parametrize("kind", GENERATED)
def test_what_the_host_knows_of_masks_elsewhere(kind):
    there, here = GENERATED[kind]("meta"), GENERATED[kind]("cpu")
    assert there._counted == there.nnzb == here.nnzb
    assert there.to("meta")._counted == here.nnzb


@pytest.mark.gpu
@pytest.mark.parametrize("kind", GENERATED)
def test_the_same_on_a_gpu(kind):
    there, here = GENERATED[kind]("cuda"), GENERATED[kind]("cpu")
    assert there._counted == here.nnzb
    assert torch.equal(there.crow_indices.cpu(), here.crow_indices)
    assert torch.equal(there.col_indices.cpu(), here.col_indices)  # and zeros behind them


@pytest.mark.gpu
def test_many_documents_on_a_gpu():
    """Lengths of the host, more than a kernel's parameters hold, and those of a GPU."""
    lengths = [8, 0, 24] * 400
    here = BlockMask.documents(lengths, block_size=8)
    on_gpu = torch.tensor(lengths).cuda()
    torch.cuda.set_sync_debug_mode("error")
    try:
        made = [BlockMask.documents(lengths, block_size=8, device="cuda"),
                BlockMask.documents(on_gpu, here.lengths[0], 8)]  # fmt: skip
    finally:
        torch.cuda.set_sync_debug_mode("default")
    for there in made:
        assert torch.equal(there.crow_indices.cpu(), here.crow_indices)
        assert torch.equal(there.col_indices.cpu(), here.col_indices)


@pytest.mark.gpu
@pytest.mark.parametrize("index", [torch.int32, torch.int64])
@pytest.mark.parametrize("counted", [True, False])
def test_index_lists_on_a_gpu(index, counted):
    draw = torch.Generator().manual_seed(0)
    lists = torch.randint(0, 70, (2, 33, 50), generator=draw).to(index)
    counts = torch.randint(0, 60, (2, 33), generator=draw).to(index) if counted else None
    made = [
        BlockMask.from_index_lists(
            lists.to(device), None if counts is None else counts.to(device), 4, (132, 280)
        )
        for device in ("cpu", "cuda")
    ]
    assert torch.equal(made[0].crow_indices, made[1].crow_indices.cpu())
    assert torch.equal(made[0].col_indices, made[1].col_indices.cpu())


def test_long_masks_are_counted_by_some_of_their_rows():
    for make in (
        lambda device: BlockMask.causal(40_000, block_size=16, device=device),
        lambda device: BlockMask.sliding_window(
            65_536, block_size=64, window=4096, sinks=128, device=device
        ),
    ):
        there, here = make("meta"), make("cpu")
        assert there._nnzb is None, "it is not exact"
        assert there._counted == pytest.approx(here.nnzb, rel=0.08)


def test_what_the_caller_says_of_density():
    blocks = torch.ones(3, 10, 20, dtype=torch.bool, device="meta")
    assert BlockMask.from_blocks(blocks, 8)._counted == -1
    assert BlockMask.from_blocks(blocks, 8, density=0.25)._counted == 150
    lists = torch.zeros(3, 10, 4, dtype=torch.int32, device="meta")
    counts = torch.zeros(3, 10, dtype=torch.int32, device="meta")
    assert BlockMask.from_index_lists(lists, None, 8, (80, 160))._counted == 120
    assert BlockMask.from_index_lists(lists, counts, 8, (80, 160))._counted == -1
    known = BlockMask.from_index_lists(lists, counts, 8, (80, 160), density=0.1)
    assert known._counted == 60
    for density, error in ((1.5, ValueError), ("a", TypeError), (True, TypeError)):
        with pytest.raises(error, match="density must be"):
            BlockMask.from_blocks(blocks, 8, density=density)


def test_counting_later_is_no_reason_for_another_race():
    mask = BlockMask.from_blocks(random_blocks((8, 8), (64, 64)), 8, density=0.5)
    assert mask._counted == 32 and mask.nnzb != 32
    assert mask._counted == 32
    unsaid = BlockMask.from_blocks(random_blocks((8, 8), (64, 64)), 8)
    assert unsaid._counted == -1 and unsaid.nnzb == unsaid._counted


def test_what_is_known_of_matrices_and_checked_masks():
    a = random_bsr(64, 48, (16, 8), density=0.4)
    for pattern in (a, a.t(), a.to_torch()):
        assert BlockMask.from_bsr(pattern)._counted == a.nnzb
    mask = BlockMask.from_bsr(a)
    checked = BlockMask(mask.crow_indices, mask.col_indices, (16, 8), (64, 48))
    assert checked._counted == a.nnzb
    trusted = BlockMask(mask.crow_indices, mask.col_indices, (16, 8), (64, 48), check=False)
    assert trusted._counted == -1


@pytest.mark.gpu
def test_rules_on_a_gpu_pass_the_dispatcher_by(monkeypatch):
    """With the lists and the number of blocks that the host makes."""
    documents = [16] * 3 + [48, 32, 0, 20]

    def made(device):
        return [
            BlockMask.causal(150, 130, (16, 8), device=device),
            BlockMask.sliding_window(2000, block_size=16, window=70, sinks=9, device=device),
            BlockMask.strided(300, block_size=16, stride=3, local=2, device=device),
            BlockMask.documents(documents, block_size=16, device=device),
            BlockMask.documents(documents, 400, 16, is_causal=False, device=device),
            BlockMask.documents(torch.tensor(documents), block_size=16, device=device),
            BlockMask.documents([16] * 448, block_size=16, device=device),
            BlockMask.documents([], 40, 16, device=device),
        ]

    torch.cuda.init()
    monkeypatch.setattr(patterns, "mask_of_rule", None)
    direct = [made(device) for device in ("cuda", "cuda:0", torch.device("cuda"))]
    monkeypatch.undo()
    for expected, *others in zip(made("cpu"), *direct, strict=True):
        for mask in others:
            assert mask.crow_indices.is_cuda
            for name in ("crow_indices", "col_indices"):
                assert torch.equal(getattr(mask, name).cpu(), getattr(expected, name))
            stored = len(expected.blocks().nonzero())
            assert abs(mask._counted - stored) <= 0.05 * stored
            assert mask._nnzb in (None, stored)
