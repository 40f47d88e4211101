"""Where machine code comes from: this process, the user's cache, bundles, what packages ship, a compiler, in turn."""

import functools
import os
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import platformdirs
import torch

from opmux.plugin import Build, BuildDeferred, BuildFailed, CaptureRefused, builds_deferred, report_build
from opmux_jit.cache import bundles, shipped
from opmux_jit.cache.entry import Entry
from opmux_jit.cache.keys import entry_key, source_key
from opmux_jit.cache.reports import warn_once
from opmux_jit.cache.store import NotKept, Store
from opmux_jit.compilers import Compiler, choose, identity, likely_identity
from opmux_jit.compilers.choice import prebuild_command
from opmux_jit.compilers.source import Source
from opmux_jit.errors import CacheRefused, KernelMissing

FOLDER, NO_JIT = "OPMUX_CACHE", "OPMUX_NO_JIT"

_memory: dict[tuple[Source | str, str | None], Entry] = {}
_lock = threading.Lock()


def cache_root() -> Path:
    """The user's cache: the folder that ``OPMUX_CACHE`` names, else ``opmux/jit`` in the user's cache folder."""
    named = os.environ.get(FOLDER)
    return Path(named).expanduser().absolute() if named else platformdirs.user_cache_path("opmux") / "jit"


def compiling_forbidden() -> bool:
    """Whether ``OPMUX_NO_JIT`` is on."""
    return os.environ.get(NO_JIT, "").strip().lower() in ("1", "true", "on", "yes")


def machine_code(source: Source, compiler: str | None = None) -> Entry:
    """The machine code of a source: found or built.

    Args:
        source: what to compile, and for which arch.
        compiler: ``nvrtc``, ``nvcc``, ``hipcc``, ``clang`` or ``zig``; None takes the first that is installed and fits.

    Raises:
        CompilerMissing: where it must be compiled, and no compiler fits.
        CompileFailed: where the compiler refuses the source.
        KernelMissing: where it must be compiled, and ``OPMUX_NO_JIT`` forbids it.
        CaptureRefused: where it must be compiled, and a graph is being captured.
        BuildDeferred: where it must be compiled, and calls are not to wait for that (``build="background"``).
        InvalidArgument: where ``compiler`` is no compiler's name.
    """
    key = source_key(source)
    kept = _memory.get((key, compiler))
    if kept is not None:
        return kept
    found = _found(source, key, compiler) or _built(source, key, compiler)
    with _lock:
        _memory[key, compiler] = found
    return found


def kept(source: Source) -> Entry | None:
    """The machine code of a source that the cache or a bundle has, by whatever compiler; nothing is built.

    For where no compiler is installed that could build it.
    """
    key = source_key(source)
    store = Store(cache_root())
    found = _read(store, lambda: store.find_any(key))
    return found or _ahead(source, key)


def _ahead(source: Source, key: str) -> Entry | None:
    """What was built ahead: in bundles, then in what packages ship."""
    found = next((entry for bundle in bundles.layers() if (entry := bundle.find(key)) is not None), None)
    return found or shipped.find(source, key)


def kept_without_headers(source: Source) -> Entry | None:
    """An entry of a source with the same name, text, arch and ABI, whatever its headers and flags were.

    For where the headers are not installed that the source's key needs. Bundles are looked through first.
    """
    everything = (entry for bundle in bundles.layers() for entry in bundle.entries())
    wanted = _told_apart(source)
    found = next((entry for entry in everything if _told_apart(entry.source) == wanted), None)
    store = Store(cache_root())
    return found or _read(store, lambda: next((e for e in store.entries() if _told_apart(e.source) == wanted), None))


def _told_apart(source: Source) -> tuple[str, str, str, int]:
    return source.name, source.text, source.arch, source.abi


def _found(source: Source, key: str, compiler: str | None) -> Entry | None:
    store = Store(cache_root())
    if compiling_forbidden():
        found = _read(store, lambda: store.find_any(key))
    else:
        # First without loading the compiler, which takes longer than all the rest.
        likely = likely_identity(source, compiler)
        found = None if likely is None else _read(store, lambda: store.find(entry_key(key, likely)))
        found = found or _read(store, lambda: _by_installed(store, key, _installed(source, compiler)))
    return _ahead(source, key) if found is None else found


def _by_installed(store: Store, key: str, installed: Compiler | None) -> Entry | None:
    return store.find_any(key) if installed is None else store.find(entry_key(key, identity(installed)))


def _read(store: Store, find: Callable[[], Entry | None]) -> Entry | None:
    try:
        return find()
    except (CacheRefused, OSError) as error:
        warn_once((store.root, str(error)), "%s; kernels are kept in memory only", error)
        return None


def _installed(source: Source, compiler: str | None) -> Compiler | None:
    try:
        return choose(source, compiler)
    except BuildFailed:  # none fits: said where something must be built
        return None


def _built(source: Source, key: str, compiler: str | None) -> Entry:
    if compiling_forbidden():
        raise KernelMissing(_missing(source))
    if torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing():
        raise CaptureRefused(
            f"{source.name}: it is not compiled yet for {source.arch}, and a graph is being captured; run the call "
            "once before the capture"
        )
    chosen = choose(source, compiler)
    if builds_deferred():
        build = Build(f"kernel {source.name}", f"{key} {compiler}", f"{__name__}:machine_code", (source, compiler))
        raise BuildDeferred(build)
    name = entry_key(key, identity(chosen))
    compile_it = functools.partial(compile_entry, source, chosen, name)
    store = Store(cache_root())
    try:
        return store.built(name, compile_it)
    except NotKept as problem:
        _not_kept(store, problem)
        return problem.entry
    except (CacheRefused, OSError) as problem:
        _not_kept(store, problem)
    try:
        with tempfile.TemporaryDirectory(prefix="opmux-jit-") as folder:
            return compile_it(Path(folder))
    except OSError as problem:
        raise BuildFailed(f"{source.name}: there is no folder to compile in: {problem}") from problem


def _not_kept(store: Store, problem: Exception) -> None:
    said = f"the cache {store.root} cannot be written ({problem})"
    warn_once((store.root, str(problem)), "%s; kernels built by this process are not kept", said)


def compile_entry(source: Source, compiler: Compiler, name: str, folder: Path) -> Entry:
    """Compile a source in a folder, as an entry of this name.

    Raises:
        CompileFailed: where the compiler refuses it.
    """
    started = time.perf_counter()
    code = compiler.compile(source, folder)
    seconds = time.perf_counter() - started
    report_build(seconds)
    return Entry(name, source, identity(compiler), code, seconds=seconds)


def _missing(source: Source) -> str:
    known = [bundle.label for bundle in bundles.layers()]
    known += [refusal.removeprefix("bundle: ") for refusal in bundles.refusals()]
    where = f"bundles: {'; '.join(known)}" if known else f"no bundle is named by {bundles.VARIABLE}"
    where += "".join(f"\n  shipped:   {package.label}" for package in shipped.everything())
    return (
        f"{source.name}: no machine code for {source.arch}, and {NO_JIT} forbids compiling\n"
        f"  cache:     {cache_root()}\n  {where}\n  try:       {prebuild_command(source)}"
    )


def forget() -> None:
    """Keep nothing in memory any more."""
    with _lock:
        _memory.clear()
