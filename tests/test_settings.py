"""`settings`: documented, checked, from the environment, and obeyed."""

import inspect
import os
import re
import threading

import pytest
import torch
from interpreters import run_python
from records import make_winner

import sparse_autotune
from sparse_autotune import _tuner, cache, matmul, random_bsr, settings, tuning_count

TABLE = inspect.getdoc(settings)  # what help(settings) shows
ROWS = {
    name: (variable, default)
    for name, variable, default in re.findall(r"^(\w+) +(SPARSE_\w+) +(\S+) ", TABLE, re.MULTILINE)
}
CORE = set(_tuner.get_settings())
# For each setting: values that an attribute takes, the same as an environment variable's text.
GOOD = {
    "mode": [("readonly", "readonly"), ("on", "on")],
    "verbosity": [(0, "0"), (1, "1")],
    "budget_s": [(0.25, "0.25"), (3, "3")],
    "timing": [("warm", "warm"), ("cold", "cold")],
    "buckets": [("exact", "exact"), ("geometric", "geometric")],
    "min_speedup": [(1.0, "1"), (1.5, "1.5")],
    "cache_dir": [("/tmp/somewhere", "/tmp/somewhere")],
    "record_path": [("/tmp/some/file", "/tmp/some/file")],
    "cache_bytes": [(0, "0"), (2**40, str(2**40))],
    "plan_bytes": [(0, "0"), (2**40, str(2**40))],
    "frozen_bytes": [(12345, "12345")],
    "tuning_bytes": [(2**63 - 1, str(2**63 - 1))],
    "exact_nonfinite": [(True, "1"), (False, "0")],
    "variant": [("reference", "reference"), ("reference/fp64", "reference/fp64")],
}
BAD = {
    "mode": ["On", "", "auto", None, 1, ["on"]],
    "verbosity": [2, -1, True, 0.5, "loud", None],
    "budget_s": [0, -1.0, float("nan"), float("inf"), "soon", None, True, 10**400],
    "timing": ["hot", None, 0],
    "buckets": ["fine", None, 32],
    "min_speedup": [0.99, float("nan"), float("inf"), "much", None, True],
    "cache_dir": [5, b"/tmp", "a\0b"],
    "record_path": [5, b"/tmp", "a\0b"],
    "cache_bytes": [-1, 2**63, 0.5, "1 GiB", None, True],
    "plan_bytes": [-1, 2**63, 10**400, 0.5, float("nan"), "4 GiB", None, True],
    "frozen_bytes": [-1],
    "tuning_bytes": ["lots"],
    "exact_nonfinite": [1, 0, "yes", None],
    "variant": ["reference/", "fastest", 3, ["reference"], "Reference"],
}


@pytest.fixture(autouse=True)
def _restored():
    before = {name: getattr(settings, name) for name in GOOD}
    yield
    for name, value in before.items():
        setattr(settings, name, value)


def problem(n=8):
    return random_bsr(32, 32, 16, density=0.5), torch.randn(32, n)


def test_the_table_lists_every_setting_and_its_default(monkeypatch):
    for variable in [name for name in os.environ if name.startswith("SPARSE_AUTOTUNE")]:
        monkeypatch.delenv(variable)
    _tuner.set_settings(
        mode="on",
        budget_s=1.0,
        timing="cold",
        buckets="geometric",
        min_speedup=1.02,
        plan_bytes=2**30,
        frozen_bytes=2**33,
        tuning_bytes=2**32,
        exact_nonfinite=False,
        variant=None,
    )
    defaults = type(settings)()
    assert set(ROWS) == set(GOOD) == set(BAD)
    assert set(ROWS) - {"verbosity", "cache_dir", "record_path", "cache_bytes"} == CORE
    for name, (variable, default) in ROWS.items():
        special = {
            "mode": "SPARSE_AUTOTUNE",
            "verbosity": "SPARSE_AUTOTUNE_VERBOSE",
            "record_path": "SPARSE_AUTOTUNE_RECORD",
        }
        assert variable == special.get(name, f"SPARSE_AUTOTUNE_{name.upper()}")
        assert getattr(defaults, name) == eval(default), name


@pytest.mark.parametrize(("name", "value"), [(n, v) for n, pairs in GOOD.items() for v, _ in pairs])
def test_assignment_reaches_the_core(name, value):
    setattr(settings, name, value)
    assert getattr(settings, name) == value
    if name in CORE:
        assert _tuner.get_settings()[name] == value
    assert f"{name}={getattr(settings, name)!r}" in repr(settings)


def test_assignments_of_two_threads_both_reach_the_core(monkeypatch):
    apply = _tuner.set_settings

    def late(**values):
        monkeypatch.setattr(_tuner, "set_settings", apply)
        other = threading.Thread(target=setattr, args=(settings, "budget_s", 0.25))
        other.start()
        other.join()
        apply(**values)

    monkeypatch.setattr(_tuner, "set_settings", late)
    settings.min_speedup = 1.5
    assert (settings.budget_s, settings.min_speedup) == (0.25, 1.5)
    found = _tuner.get_settings()
    assert (found["budget_s"], found["min_speedup"]) == (0.25, 1.5)


@pytest.mark.parametrize(
    ("name", "value", "text"), [(n, v, t) for n, pairs in GOOD.items() for v, t in pairs]
)
def test_environment_variable(name, value, text, monkeypatch):
    monkeypatch.setenv(ROWS[name][0], text)
    assert getattr(type(settings)(), name) == value
    if name in CORE:
        assert _tuner.get_settings()[name] == value


def test_an_empty_environment_variable_counts_as_unset(monkeypatch):
    before = repr(settings)
    for variable, _ in ROWS.values():
        monkeypatch.setenv(variable, "")
    assert repr(type(settings)()) == re.sub(
        r"verbosity=\d", "verbosity=1", re.sub(r"cache_dir='.*?'", "cache_dir=None", before)
    )


@pytest.mark.parametrize(
    ("variable", "meant"),
    [
        ("SPARSE_AUTOTUNE_MODE", "; is SPARSE_AUTOTUNE meant?"),
        ("SPARSE_AUTOTUNE_VERBOSITY", "; is SPARSE_AUTOTUNE_VERBOSE meant?"),
        ("SPARSE_AUTOTUNE_BUDGET", "; is SPARSE_AUTOTUNE_BUDGET_S meant?"),
        ("SPARSE_AUTOTUNE_XYZ", ""),
    ],
)
def test_an_unknown_environment_variable_is_warned_of(variable, meant, monkeypatch):
    monkeypatch.setenv(variable, "1")
    with pytest.warns(UserWarning, match=f"variable {variable} is none of .*autotune's") as warned:
        type(settings)()
    assert str(warned[0].message).endswith(meant or "'s") and len(warned) == 1
    assert warned[0].filename == __file__


@pytest.mark.parametrize(
    "way", ["import sparse_autotune", "__import__('importlib').import_module('sparse_autotune')"]
)
def test_the_warning_of_an_import_points_at_it(way, tmp_path):
    """Between the two lie this package's frames and those of the import system."""
    importer = tmp_path / "importer.py"
    importer.write_text(f"import torch\n\n{way}\n")
    code = (
        "import runpy, sys, warnings\n"
        "with warnings.catch_warnings(record=True) as caught:\n"
        "    warnings.simplefilter('always')\n"
        "    runpy.run_path(sys.argv[1])\n"
        "print([(w.filename, w.lineno) for w in caught if 'XYZ' in str(w.message)])\n"
    )
    assert run_python(code, tmp_path, importer, xyz="1") == f"[({str(importer)!r}, 3)]\n"


@pytest.mark.parametrize("variable", ["SPARSE_AUTOTUNE_CUDA", "SPARSE_AUTOTUNE_BUNDLE"])
def test_other_variables_of_the_package_are_known(variable, monkeypatch, recwarn):
    monkeypatch.setenv(variable, "")
    type(settings)()
    assert not recwarn.list


@pytest.mark.parametrize(("name", "value"), [(n, v) for n, values in BAD.items() for v in values])
def test_bad_value(name, value):
    before, core = repr(settings), _tuner.get_settings()
    rule = rf"settings\.{name} must be .*; got {re.escape(repr(value))}"
    with pytest.raises(ValueError, match=rule):
        setattr(settings, name, value)
    assert repr(settings) == before
    assert _tuner.get_settings() == core


@pytest.mark.parametrize(
    ("name", "text"),
    [(n, v) for n, values in BAD.items() for v in values if type(v) is str and v and "\0" not in v],
)
def test_bad_environment_variable(name, text, monkeypatch):
    core = _tuner.get_settings()
    monkeypatch.setenv(ROWS[name][0], text)
    rule = rf"^{ROWS[name][0]} must be .*; got {re.escape(repr(text))}"
    with pytest.raises(ValueError, match=rule):
        type(settings)()
    assert _tuner.get_settings() == core


def test_a_setting_cannot_be_deleted():
    with pytest.raises(AttributeError, match=r"settings\.mode cannot be deleted"):
        del settings.mode
    assert "mode=" in repr(settings)


def test_unknown_setting():
    with pytest.raises(AttributeError, match=r"settings has no 'budget'; it has mode, .*budget_s"):
        settings.budget = 1


def test_override_restores_whatever_happens():
    before = repr(settings)
    with settings.override(budget_s=0.5, mode="off") as inside:
        assert inside is settings
        assert (settings.budget_s, settings.mode) == (0.5, "off")
    assert repr(settings) == before
    with pytest.raises(KeyError), settings.override(timing="warm"):
        raise KeyError
    assert repr(settings) == before
    with pytest.raises(ValueError, match="budget_s"), settings.override(mode="off", budget_s=-1):
        pass
    assert repr(settings) == before
    unknown = pytest.raises(AttributeError, match="settings has no 'nonsense'; it has mode, ")
    with unknown, settings.override(mode="off", nonsense=1):
        pass
    assert repr(settings) == before


def test_cache_dir_is_absolute_from_the_start(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    settings.cache_dir = "here"
    monkeypatch.chdir("/")
    assert cache.path() == tmp_path / "here"
    monkeypatch.setenv("HOME", str(tmp_path))
    settings.cache_dir = "~/there"
    assert cache.path() == tmp_path / "there"
    settings.cache_dir = tmp_path
    assert settings.cache_dir == str(tmp_path)


# What the settings do


def test_off_and_readonly_never_race_or_write(fresh_cache):
    a, b = problem()
    for mode in ("off", "readonly"):
        with settings.override(mode=mode, budget_s=0.02):
            before = tuning_count()
            assert torch.allclose(matmul(a, b), a.to_dense() @ b, atol=1e-4)
            assert tuning_count() == before, mode
            assert not fresh_cache.exists()


@pytest.mark.parametrize("mode", ["readonly", "record"])
def test_readonly_uses_the_cache(mode, fresh_cache, monkeypatch):
    """The remembered winner runs even where the heuristic would choose another."""
    a, b = problem()
    with settings.override(budget_s=1.0):
        matmul(a, b)
    winner = "reference/fp64"
    make_winner(winner)
    expected = matmul(a, b, variant=winner)
    others = [v for v in sparse_autotune.variants(a, b) if not v.startswith("reference/")]
    assert all(not torch.equal(matmul(a, b, variant=v), expected) for v in others), "not telling"
    with settings.override(mode=mode):
        assert torch.equal(matmul(a, b), expected)
    with settings.override(mode="off"):
        assert not torch.equal(matmul(a, b), expected)


def test_record_logs_what_it_missed(fresh_cache, caplog):
    a, b = problem(24)
    with settings.override(mode="record", verbosity=1), caplog.at_level("INFO", "sparse_autotune"):
        matmul(a, b)
        matmul(a.clone(), b)  # another plan, the same signature
    assert len(caplog.messages) == 1, caplog.messages
    assert "32x32x24 bs16 density 0.5 f32" in caplog.messages[0]
    assert "matmul_32x32_bs16x16_n" in caplog.messages[0]


@pytest.mark.parametrize("family", ["reference", "dense"])
def test_variant_forces_one_everywhere(family, fresh_cache):
    a, b = problem()
    (name,) = [v for v in sparse_autotune.variants(a, b) if v.startswith(f"{family}/")]
    for forced in (family, name):
        before = tuning_count()
        with settings.override(variant=forced):
            assert torch.equal(matmul(a, b), matmul(a, b, variant=name))
        assert tuning_count() == before


def test_a_forced_variant_that_is_not_legal():
    a, b = problem()
    with settings.override(variant="cpu_turned"):  # b is row-major
        for product in (lambda: matmul(a, b), lambda: a @ b):
            with pytest.raises(
                ValueError, match=r"settings.variant 'cpu_turned' is not legal .*B is row-major"
            ):
                product()
        assert sparse_autotune.variants(a, b)
        with pytest.raises(ValueError, match="columns of a"):
            matmul(a, b[1:])
    with settings.override(variant="sampled_reference"):
        matmul(a, b)  # is about another operation


def test_exact_nonfinite_keeps_variants_out_that_multiply_padding():
    a, b = problem()
    padding = {v["name"] for v in _tuner.variants() if v["multiplies_padding"]}
    assert padding & set(sparse_autotune.variants(a, b))
    with settings.override(exact_nonfinite=True):
        assert not padding & set(sparse_autotune.variants(a, b))


def test_changing_the_cache_directory_changes_the_memory_too(tmp_path):
    a, b = problem()
    with settings.override(cache_dir=tmp_path / "one", budget_s=0.02):
        before = tuning_count()
        matmul(a, b)
        assert tuning_count() == before + 1
        settings.cache_dir = tmp_path / "two"
        matmul(a, b)
        assert tuning_count() == before + 2
        settings.cache_dir = tmp_path / "one"
        matmul(a, b)
        assert tuning_count() == before + 2
        known = _tuner.known()
        settings.cache_dir, settings.verbosity = tmp_path / "one", settings.verbosity
        assert _tuner.known() == known and known, "only another directory has other entries"
