"""A folder of entries: published by rename, built once, cleared of what killed builders left."""

from pathlib import Path

import pytest
from kernels import add

from opmux_jit.cache import entry as entries
from opmux_jit.cache.entry import Entry
from opmux_jit.cache.keys import entry_key
from opmux_jit.cache.store import NotKept, Store
from opmux_jit.errors import CacheRefused, CompileFailed

FIRST, SECOND = "nvrtc 13.0", "nvrtc 13.1"


def made(compiler: str = FIRST, code: bytes = b"cubin", base: str = "ab12") -> Entry:
    return Entry(entry_key(base, compiler), add(), compiler, code)


def put(store: Store, one: Entry, again: bool = False) -> Entry:
    return store.built(one.key, lambda folder: one, again=again)


def test_an_entry_is_published_and_found(cache: Path) -> None:
    store, one = Store(cache), made()
    assert store.find(one.key) is None
    kept = put(store, one)
    assert kept.place == store.folder_of(one.key) == cache / "v1" / "ab" / one.key
    assert store.find(one.key) == kept
    assert list(store.folders()) == [kept.place]
    assert list(store.entries()) == [kept]
    assert list((cache / "building").iterdir()) == []


def test_what_is_there_is_not_built_and_again_counts(cache: Path) -> None:
    store, one = Store(cache), made()
    put(store, one)

    def build(folder: Path) -> Entry:
        raise AssertionError("built")

    assert store.built(one.key, build).builds == 1
    assert put(store, made(code=b"newer"), again=True).builds == 2
    found = store.find(one.key)
    assert found is not None
    assert (found.code, found.builds) == (b"newer", 2)


def test_an_entry_by_any_compiler_is_found_if_it_is_whole(cache: Path) -> None:
    store = Store(cache)
    both = [put(store, made(compiler, compiler.encode())) for compiler in (FIRST, SECOND)]
    in_order = sorted(both, key=lambda one: one.key)
    assert store.find_any("ab12") == in_order[0]
    assert in_order[0].place is not None
    (in_order[0].place / entries.CODE).write_bytes(b"flipped")
    assert store.find_any("ab12") == in_order[1]
    assert list(store.entries()) == [in_order[1]]
    assert store.find_any("ab13") is None


def test_an_entry_under_another_key_is_not_served(cache: Path) -> None:
    store, one = Store(cache), made()
    kept = put(store, one)
    other = entry_key("ab12", SECOND)
    assert kept.place is not None
    kept.place.rename(store.folder_of(other))
    assert store.find(other) is None
    assert store.find(one.key) is None


def test_what_a_killed_builder_left_goes_with_the_next_build_of_its_key(cache: Path) -> None:
    store, one, other = Store(cache), made(), made(base="cd34")
    left = [cache / "building" / f"{key}-1-abcd" for key in (one.key, other.key)]
    for folder in left:
        folder.mkdir(parents=True)
    put(store, one)
    assert list((cache / "building").iterdir()) == [left[1]]


def test_a_source_that_a_compiler_refuses_is_kept_where_the_message_says(cache: Path) -> None:
    store, one = Store(cache), made()

    def build(folder: Path) -> Entry:
        (folder / "source.cu").write_text("broken")
        raise CompileFailed(f"{folder / 'source.cu'}(1): error")

    for _ in range(2):  # the second takes the place of the first
        with pytest.raises(CompileFailed) as refused:
            store.built(one.key, build)
        kept = cache / "failed" / one.key / "source.cu"
        assert str(refused.value) == f"{kept}(1): error"
        assert kept.read_text() == "broken"
    assert store.find(one.key) is None
    assert list((cache / "building").iterdir()) == []


def test_what_cannot_be_written_still_serves(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, one = Store(cache), made()

    def full(folder: Path, entry: Entry) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(entries, "write", full)
    with pytest.raises(NotKept) as refused:
        put(store, one)
    assert (refused.value.entry.code, refused.value.strerror) == (b"cubin", "No space left on device")
    assert store.find(one.key) is None
    assert list((cache / "building").iterdir()) == []


def test_pruning_keeps_what_it_is_told_to(cache: Path) -> None:
    store = Store(cache)
    kept, old = put(store, made()), put(store, made(base="cd34"))
    left = cache / "building" / f"{kept.key}-1-abcd"
    left.mkdir()
    assert store.prune(lambda folder: folder == kept.place) == [old.place, left]
    assert list(store.entries()) == [kept]


def test_nothing_is_read_or_written_where_others_can_write(cache: Path) -> None:
    store, one = Store(cache), made()
    put(store, one)
    cache.chmod(0o777)
    refusal = f"cache: nothing is read from {cache}: {cache} can be written by other users: chmod go-w {cache}"
    uses = (
        lambda: store.find(one.key), lambda: store.find_any("ab12"), lambda: put(store, one),
        lambda: list(store.entries()), lambda: store.prune(lambda folder: False),
    )  # fmt: skip
    for use in uses:
        with pytest.raises(CacheRefused) as refused:
            use()
        assert str(refused.value) == refusal
    cache.chmod(0o700)
    assert store.find(one.key) is not None
