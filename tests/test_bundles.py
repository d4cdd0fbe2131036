"""`cache.export` and `cache.load`: entries in one file, taken as a whole or refused."""

import pytest
from test_cache import _quick, check, entry_file, problem  # noqa: F401  _quick is a fixture

from sparse_autotune import _tuner, cache, settings, tune


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
        lambda text: text.replace("sparse_autotune_race 3", "sparse_autotune_race 4", 1),
        lambda text: text.replace("seconds ", "seconds x", 1),
        lambda text: text.replace("signature matmul", "signature ../../matmul", 1),
        lambda text: text.replace("device_class ", "device_class /tmp/", 1),
        lambda text: text.replace("signature matmul", "signature .matmul", 1),
        lambda text: text * (1 + (65 << 20) // len(text)),
    ],
    ids=[
        *("truncated", "something before", "something after", "another version", "no number"),
        *("climbs out", "absolute", "hidden", "too large"),
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
    monkeypatch.setattr(cache, "_MAX_BUNDLE_BYTES", size)
    assert cache.export(tmp_path / "bundle") == cache.load(tmp_path / "bundle") == 1
    monkeypatch.setattr(cache, "_MAX_BUNDLE_BYTES", size - 1)
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
