"""What `opmux cache` does: listing, verifying, pruning and rebuilding entries."""

import functools
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from opmux.plugin import BuildFailed, InvalidArgument
from opmux_jit.cache import bundles
from opmux_jit.cache import entry as entries
from opmux_jit.cache.entry import Damaged, Entry
from opmux_jit.cache.keys import entry_key, source_key
from opmux_jit.cache.layers import cache_root, compile_entry
from opmux_jit.cache.store import Store, age_days
from opmux_jit.compilers import choose, identity
from opmux_jit.errors import CacheRefused


@dataclass
class Done:
    """What a command did, and what is wrong."""

    lines: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def _read(folder: Path) -> Entry | str:
    """An entry, or what is wrong with it."""
    try:
        return entries.read(folder)
    except (Damaged, FileNotFoundError) as damage:
        return str(damage)


def listed() -> list[dict[str, Any]]:
    """Every entry of the user's cache as data; of a damaged one its key and what is wrong."""
    rows = []
    for folder in Store(cache_root()).folders():
        found = _read(folder)
        whole = found if isinstance(found, Entry) else None
        rows.append({
            "name": whole and whole.source.name,
            "arch": whole and whole.source.arch,
            "compiler": whole and whole.compiler,
            "bytes": whole and len(whole.code),
            "builds": whole and whole.builds,
            "seconds": whole and whole.seconds,
            "key": folder.name,
            "damage": None if whole else found,
        })  # fmt: skip
    return rows


def verify() -> Done:
    """Check every file of the user's cache and of the bundles that are named."""
    store, done = Store(cache_root()), Done()
    refusal = store.refusal()
    if refusal is not None:
        done.problems.append(f"cache: nothing is read from {store.root}: {refusal}")
    folders = list(store.folders())
    for folder in folders:
        found = _read(folder)
        if isinstance(found, str):
            done.problems.append(f"{folder}: {found}")
    done.lines.append(f"{len(folders)} entries in {store.root}")
    done.problems += bundles.refusals()
    for bundle in bundles.layers():
        done.lines.append(f"bundle {bundle.label}")
        done.problems += bundle.damages()
    return done


def prune(older_than: float | None, everything: bool) -> Done:
    """Remove entries that are damaged, or older than some days, or all; and what builds left behind."""

    def keep(folder: Path) -> bool:
        old = older_than is not None and age_days(folder) > older_than
        return not (everything or old or isinstance(_read(folder), str))

    try:
        return Done([f"removed {path}" for path in Store(cache_root()).prune(keep)])
    except (CacheRefused, OSError) as error:
        return Done(problems=[f"cache: {error}"])


def rebuild(everything: bool, only: str | None = None) -> Done:
    """Compile entries again: those whose compiler has another version now, damaged ones, or all.

    Of a damaged entry nothing is known that can be trusted: it is removed, and built when it is next wanted.

    Args:
        everything: whether those are compiled too that are as they should be.
        only: no others than the entries of this name, or whose key begins so; these are compiled in any case.

    Raises:
        InvalidArgument: where ``only`` means no entry.
    """
    store, done = Store(cache_root()), Done()
    chosen = {folder for folder in store.folders() if only is None or _is_meant(folder, only)}
    if only is not None and not chosen:
        raise InvalidArgument(
            f"cache: `--only` expected the name of an entry or the beginning of its key, got {only!r}; "
            "see `opmux cache list`"
        )
    try:
        removed = store.prune(lambda folder: folder not in chosen or isinstance(_read(folder), Entry))
    except (CacheRefused, OSError) as error:
        return Done(problems=[f"cache: {error}"])
    done.lines += [f"removed {path}: it will be built when it is next wanted" for path in removed]
    wanted: dict[str, Entry] = {}
    for folder in store.folders():
        found = _read(folder)
        if folder in chosen and isinstance(found, Entry):
            wanted.setdefault(found.key.partition("-")[0], found)  # of entries by several versions of a compiler, one
    for found in wanted.values():
        try:
            _rebuild_one(store, found, everything or only is not None, done)
        except (BuildFailed, OSError) as error:
            done.problems.append(f"{found.place}: {error}")
    return done


def _is_meant(folder: Path, name: str) -> bool:
    found = _read(folder)
    return folder.name.startswith(name) or (isinstance(found, Entry) and found.source.name == name)


def _rebuild_one(store: Store, found: Entry, everything: bool, done: Done) -> None:
    source = found.source
    compiler = choose(source, found.compiler.partition(" ")[0])
    key = source_key(source)
    if key != found.key.partition("-")[0]:
        done.lines.append(f"left {found.place}: the headers of {source.name} have changed or are gone")
        return
    name = entry_key(key, identity(compiler))
    if not everything and store.find(name) is not None:
        return
    made = store.built(name, functools.partial(compile_entry, source, compiler, name), again=True)
    done.lines.append(f"built {made.place}: {source.name} for {source.arch} by {made.compiler}")
