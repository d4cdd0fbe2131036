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


@pytest.mark.parametrize("cases", [CASES, SAMPLED_CASES], ids=["products", "sampled"])
def test_families_together_are_all_of_it_and_the_choice_without_a_race(cases):
    variants = [pytest.param("cpu", f"family{i // 3}/{i}") for i in range(7)]
    flat = covering.each_covered(cases, variants)
    run = collections.Counter()
    for parameter in covering.by_family(flat):
        case, device, names = parameter.values
        run.update((case, device, name) for name in names)
    every = [parameter.values for parameter in flat]
    assert run == collections.Counter([*every, *((case, "cpu", "auto") for case in cases)])


def test_each_is_checked_and_every_failure_told():
    seen = []

    def check(name):
        seen.append(name)
        if name == "b/1":
            with pytest.raises(ValueError):
                pass
        assert name != "a/1", "wrong"

    with pytest.raises(AssertionError) as failed:
        covering.check_each(["a/1", "b/1", "c/1"], check)
    assert seen == ["a/1", "b/1", "c/1"]
    assert "a/1:" in str(failed.value) and "wrong" in str(failed.value)
    assert "b/1:" in str(failed.value) and "c/1:" not in str(failed.value)
