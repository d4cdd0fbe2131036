"""The choice of cases for each variant leaves out no pair of values."""

import collections
import itertools

import covering
import pytest
from problems import CASES
from sampled_problems import SAMPLED_CASES

NAMES = [f"family/{i}" for i in range(7)]
VARIANTS = [pytest.param("cpu", name) for name in NAMES]


@pytest.mark.parametrize("cases", [CASES, SAMPLED_CASES], ids=["products", "sampled"])
def test_every_variant_meets_every_pair_of_values(cases):
    chosen = [parameter.values for parameter in covering.each_covered(cases, VARIANTS)]
    assert len(set(chosen)) == len(chosen) < 0.6 * len(cases) * len(NAMES)
    met = {name: set() for name in NAMES}
    often = collections.Counter()
    for case in cases:
        often.update(itertools.combinations(covering.values_of(case), 2))
    for case, _, name in chosen:
        met[name].update(itertools.combinations(covering.values_of(case), 2))
    wanted = {pair for pair, count in often.items() if count >= 3}
    assert wanted
    for name in NAMES:
        assert wanted <= met[name]


@pytest.mark.parametrize("cases", [CASES, SAMPLED_CASES], ids=["products", "sampled"])
def test_rare_values_meet_every_variant(cases):
    often = collections.Counter(value for case in cases for value in covering.values_of(case))
    rare = {c for c in cases if min(often[value] for value in covering.values_of(c)) < 3}
    assert rare
    ran = collections.Counter(p.values[0] for p in covering.each_covered(cases, VARIANTS))
    assert all(ran[case] == len(NAMES) for case in rare)
    assert all(ran[case] >= len(NAMES) // 3 for case in cases)
