"""`cache.export` and `cache.load`: entries in one file, taken as a whole or refused."""

import json
import re

import pytest
from test_cache import _quick, check, entry_file, problem  # noqa: F401  _quick is a fixture

from sparse_autotune import _tuner, bundles, cache, settings, tune, tuning_count


def test_export_and_load(monkeypatch, tmp_path):
    bundle = tmp_path / "bundle"
    assert (check(8), check(40)) == (1, 1)
    before = {(entry.signature, entry.winner, entry.median_us) for entry in cache.entries()}
    assert cache.export(bundle) == 2
    assert [p.name for p in tmp_path.iterdir() if p.name.endswith(".tmp")] == []
    monkeypatch.setattr(settings, "cache_dir", str(tmp_path / "new"))
    assert cache.entries() == []
    assert cache.load(str(bundle)) == 2
    assert {(entry.signature, entry.winner, entry.median_us) for entry in cache.entries()} == before
    assert (check(8), check(40)) == (0, 0)


def test_load_takes_effect_at_once(tmp_path):
    """It replaces what is remembered, in memory too."""
    check()
    bundle = tmp_path / "bundle"
    cache.export(bundle)
    tune(*problem())
    assert entry_file().read_text() != bundle.read_text()
    assert cache.load(bundle) == 1
    assert entry_file().read_text() == bundle.read_text()
    assert check() == 0
    known = [text for _, text in _tuner.known() if "matmul_32x32_bs16x16_n8_" in text]
    assert known == [bundle.read_text()]


def test_an_empty_bundle(tmp_path):
    assert cache.export(tmp_path / "bundle") == 0
    assert cache.load(tmp_path / "bundle") == 0


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[:-1],
        lambda text: "hello\n" + text,
        lambda text: text + "hello",
        lambda text: text.replace("sparse_autotune_race 4", "sparse_autotune_race 5", 1),
        lambda text: text.replace("seconds ", "seconds x", 1),
        lambda text: text.replace("signature matmul", "signature ../../matmul", 1),
        lambda text: text.replace("device_class ", "device_class /tmp/", 1),
        lambda text: text.replace("signature matmul", "signature .matmul", 1),
        lambda text: text.replace("environment ", "environment ../", 1),
        lambda text: text * (1 + (65 << 20) // len(text)),
    ],
    ids=[
        *("truncated", "something before", "something after", "another version", "no number"),
        *("climbs out", "absolute", "hidden", "another place", "too large"),
    ],
)
def test_load_refuses_what_is_no_bundle(damage, tmp_path):
    """The second record is bad: nothing of the first is added either."""
    check(8)
    check(40)
    bundle = tmp_path / "bundle"
    cache.export(bundle)
    first, second = bundle.read_text().split("sparse_autotune_race ")[1:]
    first, second = (f"sparse_autotune_race {text}" for text in (first, second))
    cache.clear()
    bundle.write_text(first + damage(second))
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(ValueError, match=f"path: {bundle} is not a bundle: "):
        cache.load(bundle)
    assert sorted(tmp_path.rglob("*")) == before
    assert cache.entries() == []


def test_files_that_cannot_be_opened_raise(tmp_path):
    with pytest.raises(FileNotFoundError):
        cache.load(tmp_path / "missing")
    for bundle in (tmp_path / "missing" / "bundle", tmp_path):
        with pytest.raises(OSError, match=f"'{bundle}'$"):
            cache.export(bundle)
    assert list(tmp_path.iterdir()) == []


def test_export_refuses_what_load_would(monkeypatch, tmp_path):
    check()
    size = len(entry_file().read_text())
    monkeypatch.setattr(bundles, "MAX_BYTES", size)
    assert cache.export(tmp_path / "bundle") == cache.load(tmp_path / "bundle") == 1
    monkeypatch.setattr(bundles, "MAX_BYTES", size - 1)
    with pytest.raises(ValueError, match=f"may have {size - 1} bytes; the entries have {size}"):
        cache.export(tmp_path / "more")
    assert not (tmp_path / "more").exists()
    with pytest.raises(ValueError, match=f"it has more than {size - 1} bytes"):
        cache.load(tmp_path / "bundle")


def test_files_that_are_no_entries_are_neither_listed_nor_exported(tmp_path):
    check()
    file = entry_file()
    file.with_name("binary.txt").write_bytes(b"\xff")
    file.with_name("prose.txt").write_text("hello")
    file.with_name("directory.txt").mkdir()
    assert [entry.path for entry in cache.entries()] == [file]
    assert cache.export(tmp_path / "bundle") == 1
    assert (tmp_path / "bundle").read_text() == file.read_text()


def test_a_bundle_has_all_times_and_names_its_environment(tmp_path):
    check()
    cache.export(tmp_path / "bundle")
    (record,) = bundles.read(tmp_path / "bundle")
    assert record.place.environment == cache.environment()
    assert sum(entrant["median_us"] > 0 for entrant in record.facts["entrants"]) > 1
    assert record.winner_us > 0


def of_another_environment(text):
    return re.sub(r"^environment .*$", "environment 0123456789ab", text, flags=re.MULTILINE)


def test_entries_of_another_environment_are_misses(monkeypatch, tmp_path, fresh_cache):
    """They are kept: two versions may share a cache."""
    check()
    bundle = tmp_path / "bundle"
    cache.export(bundle)
    cache.clear()
    bundle.write_text(of_another_environment(bundle.read_text()))
    assert cache.load(bundle) == 1
    assert cache.entries() == []
    assert check() == 1
    (directory,) = fresh_cache.glob("*-0123456789ab")
    assert len(list(directory.iterdir())) == 1
    monkeypatch.setattr(settings, "cache_dir", str(bundle / "in memory only"))
    with pytest.warns(RuntimeWarning):
        assert cache.load(bundle) == 1
    assert cache.entries() == []
    monkeypatch.setattr(settings, "cache_dir", str(fresh_cache))
    monkeypatch.setattr(cache, "environment", lambda: "0123456789ab")
    _tuner.forget()
    assert check() == 0
    assert len(cache.entries()) == 1


def test_a_bundle_of_no_environment_is_taken_for_ours(tmp_path):
    """As programs without Python write records."""
    check()
    bundle = tmp_path / "bundle"
    cache.export(bundle)
    cache.clear()
    bundle.write_text(re.sub(r"^environment .*\n", "", bundle.read_text(), flags=re.MULTILINE))
    assert cache.load(bundle) == 1
    assert check() == 0


# Merging and comparing


def variation(text, winner=None, when=None):
    """The same entry with another winner, which is given the first one's time."""
    if when is not None:
        text = re.sub(r"^when .*$", f"when {when}", text, flags=re.MULTILINE)
    if winner is not None:
        text = re.sub(r"^winner .*$", f"winner {winner}", text, flags=re.MULTILINE)
        line = f"entrant {winner}\\tok\\t1\\t7.5\\t0\\t1\\t0\\t0\\t0\\tcaptured\\t"
        text = re.sub(rf"^entrant {winner}\t.*$", line, text, flags=re.MULTILINE)
    return text


@pytest.fixture
def entry(tmp_path):
    """The text of an entry, and a family's winner other than its own."""
    check()
    text = entry_file().read_text()
    facts = _tuner.parse_record(text)
    other = next(e["name"] for e in facts["entrants"] if e["name"] != facts["winner"])
    cache.clear()
    return text, facts, other


def write(path, *texts):
    path.write_text("".join(texts))
    return path


@pytest.mark.parametrize("order", [1, -1])
def test_merge_keeps_the_newest(order, entry, tmp_path):
    text, facts, other = entry
    old = write(tmp_path / "old", variation(text, when="2026-01-31T12:34:56Z"))
    new = write(tmp_path / "new", variation(text, other, "2026-02-01T00:00:00Z"))
    report = cache.merge(*[old, new][::order], into=tmp_path / "both")
    assert (tmp_path / "both").read_text() == new.read_text()
    place = {name: facts[name] for name in ("environment", "device_class", "signature")}
    assert report.entries == 1
    assert json.loads(json.dumps(report.to_dict()))["conflicts"] == [
        {**place, "kept": other, "dropped": [facts["winner"]]}
    ]


def test_merge_of_equally_old_races_keeps_the_first(entry, tmp_path):
    text, facts, other = entry
    first, second = write(tmp_path / "a", text), write(tmp_path / "b", variation(text, other))
    assert cache.merge(first, second, into=tmp_path / "c").conflicts[0].kept == facts["winner"]
    assert (tmp_path / "c").read_text() == text


def test_merge_of_environments_and_entries_that_agree(entry, tmp_path):
    text, _, _ = entry
    newer = variation(text, when="2099-01-01T00:00:00Z")
    a = write(tmp_path / "a", text, of_another_environment(text))
    b = write(tmp_path / "b", newer)
    report = cache.merge(a, b, into=a)
    assert (report.entries, report.conflicts) == (2, [])
    assert sorted(r.text for r in bundles.read(a)) == sorted([newer, of_another_environment(text)])
    assert cache.load(a) == 2
    assert check() == 0


def test_merge_takes_bundles_only(entry, tmp_path):
    good = write(tmp_path / "good", entry[0])
    bad = write(tmp_path / "bad", "hello")
    with pytest.raises(ValueError, match=f"path: {bad} is not a bundle"):
        cache.merge(good, bad, into=tmp_path / "into")
    with pytest.raises(FileNotFoundError):
        cache.merge(good, tmp_path / "missing", into=tmp_path / "into")
    with pytest.raises(TypeError, match="needs the path of a bundle"):
        cache.merge(into=tmp_path / "into")
    assert not (tmp_path / "into").exists()


def test_merge_refuses_what_load_would(entry, tmp_path, monkeypatch):
    text = entry[0]
    a, b = write(tmp_path / "a", text), write(tmp_path / "b", of_another_environment(text))
    monkeypatch.setattr(bundles, "MAX_BYTES", len(text))
    with pytest.raises(ValueError, match=f"may have {len(text)} bytes; the entries have"):
        cache.merge(a, b, into=tmp_path / "into")
    assert not (tmp_path / "into").exists()


def test_diff(entry, tmp_path):
    text, facts, other = entry
    changed = variation(text, other)
    a = write(tmp_path / "a", text, of_another_environment(text))
    b = write(tmp_path / "b", changed, text.replace("_n8_", "_n16_"))
    found = cache.diff(a, b)
    assert [place.environment for place in found.only_a] == ["0123456789ab"]
    assert [place.signature for place in found.only_b] == [
        facts["signature"].replace("_n8_", "_n16_")
    ]
    (change,) = found.changed
    assert (change.winner_a, change.winner_b, change.us_b) == (facts["winner"], other, 7.5)
    assert found.alike == 0
    assert str(found).splitlines()[2] == (
        f"~ {facts['signature']}: {facts['winner']} {change.us_a:.4g} µs, now {other} 7.5 µs"
    )
    assert json.loads(json.dumps(found.to_dict()))["changed"][0]["winner_b"] == other
    same = cache.diff(a, a)
    assert (same.only_a, same.only_b, same.changed, same.alike) == ([], [], [], 2)
    assert str(same) == "2 alike"


def test_merged_winners_serve(entry, tmp_path):
    text, _, other = entry
    merged = tmp_path / "merged"
    cache.merge(write(tmp_path / "a", variation(text, other)), into=merged)
    cache.load(merged)
    before = tuning_count()
    assert check() == 0 and tuning_count() == before
    assert cache.entries()[0].winner == other
