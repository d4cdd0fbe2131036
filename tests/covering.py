"""A choice from cases × variants in which every variant still meets every pair of values.

Cases differ in blocks, layouts, types and so on, these are their axes. A case runs a third of the
variants: those of its turn. Turns are dealt so that every two values of two axes which three cases
share come up in all turns, and so before every variant. A case with a value that fewer cases have
runs all variants.
"""

import collections
import dataclasses
import itertools
import traceback
from collections.abc import Callable, Collection, Sequence

import pytest

TURNS = range(3)
# Sizes are as many as cases: those of a kind, which is an axis, differ on purpose.
_NO_AXES = ("name", "m", "k", "n", "density")


def values_of(case) -> list[tuple]:
    """What a case has of each axis; columns by their order of magnitude and whether 8 divides."""
    fields = [field.name for field in dataclasses.fields(case)]
    found = [(name, getattr(case, name)) for name in fields if name not in _NO_AXES]
    columns = case.n and (case.n.bit_length(), case.n % 8 == 0)
    return [*found, ("columns", columns), ("kind", case.name.partition("-")[0])]


def turns(cases: Sequence) -> dict:
    """The turns of each case: one, some, or where a value is rare all."""
    values = {case: values_of(case) for case in cases}
    pairs = {case: set(itertools.combinations(found, 2)) for case, found in values.items()}
    often = collections.Counter(value for found in values.values() for value in found)
    of_pair = collections.defaultdict(list)
    for case, found in values.items():
        for pair in itertools.combinations(found, 2):  # not a set's order, which differs by process
            of_pair[pair].append(case)
    met = {turn: set() for turn in TURNS}
    dealt = {}
    for case, found in pairs.items():
        rare = any(often[value] < len(TURNS) for value in values[case])
        # The turn that has met the fewest of its pairs.
        new = min(TURNS, key=lambda turn: (len(found & met[turn]), len(met[turn])))
        dealt[case] = set(TURNS) if rare else {new}
        for turn in dealt[case]:
            met[turn] |= found
    for turn in TURNS:
        for pair, having in of_pair.items():
            if len(having) >= len(TURNS) and pair not in met[turn]:
                case = min(having, key=lambda case: len(dealt[case]))
                dealt[case].add(turn)
                met[turn] |= pairs[case]
    return dealt


def each_covered(cases: Sequence, variants: Sequence, for_gpus: Collection = ()) -> list:
    """(case, device, variant) as parameters: every third variant, from the first of a case's turn.

    Args:
        cases: what a variant should get right.
        variants: (device, name) as parameters; the configurations of a family are neighbours.
        for_gpus: cases that variants of a CPU leave out.
    """
    dealt = {"cuda": turns(cases), "cpu": turns([case for case in cases if case not in for_gpus])}
    return [
        pytest.param(
            case, *variant.values, id=f"{case}-{'-'.join(variant.values)}", marks=variant.marks
        )
        for case in cases
        for i, variant in enumerate(variants)
        if i % len(TURNS) in dealt[variant.values[0]].get(case, ())
    ]


def by_family(combinations: Sequence) -> list:
    """The same as parameters (case, device, names): the variants of one family together.

    The first family of a case has "auto" besides, what is chosen without a race. With a test for
    each variant pytest took longer than the products.
    """
    families = {}
    for combination in combinations:
        case, device, variant = combination.values
        place = case, device, variant.partition("/")[0]
        families.setdefault(place, (combination.marks, []))[1].append(variant)
    begun = set()
    parameters = []
    for (case, device, family), (marks, names) in families.items():
        if (case, device) not in begun:
            begun.add((case, device))
            names.insert(0, "auto")
        id_ = f"{case}-{device}-{family}"
        parameters.append(pytest.param(case, device, names, id=id_, marks=marks))
    return parameters


def check_each(names: Sequence[str], check: Callable[[str], None]) -> None:
    """Calls `check` with every name, whatever it raises for others; fails with all of that."""
    failures = []
    for name in names:
        try:
            check(name)
        except (Exception, pytest.fail.Exception):
            failures.append(f"{name}:\n{traceback.format_exc()}")
    assert not failures, "\n".join(failures)
