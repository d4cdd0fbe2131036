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


def only_entry(of=""):
    """The only one that has `of` in its signature."""
    (entry,) = [entry for entry in cache.entries() if of in entry.signature]
    return entry


def entrants():
    """What the race of the only entry found of each by its name, the fastest first."""
    found = _tuner.parse_record(only_entry().path.read_text())["entrants"]
    return {entrant["name"]: entrant for entrant in found}


def make_winner(eager, in_graphs="", of=""):
    """Of `only_entry`."""
    entry = only_entry(of)
    entry.path.write_text(won_by(entry.path.read_text(), eager, in_graphs))
    _tuner.forget()
