"""Records of races with another winner than the race's."""

import re

from sparse_autotune import _tuner, cache


def won_by(text, eager, in_graphs=""):
    """As if nothing had been faster, in CUDA graphs `in_graphs` if it is given."""
    text = re.sub(r"^captured_winner .*\n", "", text, flags=re.M)
    winners = f"winner {eager}" + f"\ncaptured_winner {in_graphs}" * bool(in_graphs)
    text = re.sub(r"^winner .*$", winners, text, flags=re.M)
    for name in filter(None, (eager, in_graphs)):
        text = re.sub(rf"^(entrant {name}\t)\w+(\t\S+\t)\S+", r"\1ok\g<2>0.001", text, flags=re.M)
    return text


def make_winner(eager, in_graphs="", of=""):
    """Of the only entry that has `of` in its signature."""
    (entry,) = [entry for entry in cache.entries() if of in entry.signature]
    entry.path.write_text(won_by(entry.path.read_text(), eager, in_graphs))
    _tuner.forget()
