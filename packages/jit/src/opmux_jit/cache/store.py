"""The user's cache: entries that appear by rename, one build per key over all processes.

Folders under the root::

    v1/AB/KEY/         an entry
    building/KEY-...   a build that is going on, or that was killed
    failed/KEY/        the source that a compiler refused, for whoever reads the error
    locks/KEY.lock     held while an entry is built; the system releases it when its process dies
    locks/KEY.builds   how often the entry was built
"""

import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import filelock

from opmux_jit.cache import entry as entries
from opmux_jit.cache import files
from opmux_jit.cache.entry import Damaged, Entry
from opmux_jit.cache.keys import FORMAT
from opmux_jit.cache.reports import logger, warn_once
from opmux_jit.errors import CacheRefused, CompileFailed

PATIENCE_S = 600.0
"""How long a process waits for another one that builds the same kernel before it builds for itself."""

Build = Callable[[Path], Entry]
"""Compiles in a folder of its own."""


class Store:
    """A folder of entries."""

    def __init__(self, root: Path) -> None:
        self.root = root

    @property
    def entries_folder(self) -> Path:
        return self.root / f"v{FORMAT}"

    def folder_of(self, key: str) -> Path:
        """Where the entry of a key is, or would be."""
        return self.entries_folder / key[:2] / key

    def refusal(self) -> str | None:
        """Why nothing is read from or written to this cache, or None."""
        return files.writable_by_others(self.root) or files.writable_by_others(self.entries_folder)

    def find(self, key: str) -> Entry | None:
        """The entry of a key, verified, or None; one that is damaged is reported.

        Raises:
            CacheRefused: where other users can write to the folder.
        """
        self._check_owner()
        folder = self.folder_of(key)
        try:
            return entries.read(folder)
        except FileNotFoundError:
            return None
        except Damaged as damage:
            warn_once((folder, str(damage)), "cache entry %s is damaged, and is built again: %s", folder, damage)
            return None

    def find_any(self, key: str) -> Entry | None:
        """An entry of a source's key by whatever compiler, verified, or None.

        Raises:
            CacheRefused: where other users can write to the folder.
        """
        for folder in sorted(self.folder_of(key).parent.glob(f"{key}-*")):
            found = self.find(folder.name)
            if found is not None:
                return found
        return None

    def _check_owner(self) -> None:
        reason = self.refusal()
        if reason is not None:
            raise CacheRefused(f"cache: nothing is read from {self.root}: {reason}")

    def built(self, key: str, build: Build, again: bool = False) -> Entry:
        """The entry of a key: found, or built by this process while others wait.

        Args:
            key: the entry's key.
            build: compiles it.
            again: build even where there is an entry.

        Raises:
            OSError: where the folder cannot be written, before or after the build.
            CacheRefused: where other users can write to the folder.
            CompileFailed: from the compiler; the source that the message names is kept.
        """
        self._check_owner()
        files.make_folder(self.root / "locks")
        with self._locked(key) as held:
            found = None if again else self.find(key)
            if found is not None:
                return found
            if held:
                self._clear_abandoned(key)
            folder = self.root / "building" / f"{key}-{os.getpid()}-{secrets.token_hex(4)}"
            files.make_folder(folder)
            try:
                return self._publish(key, folder, self._compiled(key, folder, build))
            finally:
                shutil.rmtree(folder, ignore_errors=True)

    @contextmanager
    def _locked(self, key: str) -> Iterator[bool]:
        """Wait for a key's lock; yields whether it is held, and so whether nobody else builds the key."""
        lock = filelock.FileLock(self.root / "locks" / f"{key}.lock", mode=0o600)
        try:
            lock.acquire(timeout=PATIENCE_S)
        except filelock.Timeout:
            logger.warning("kernel %s: another process has been building it for %.0f s; built here", key, PATIENCE_S)
            yield False
            return
        except NotImplementedError:  # a file system without locks: entries appear by rename all the same
            yield False
            return
        try:
            yield True
        finally:
            lock.release()

    def _clear_abandoned(self, key: str) -> None:
        """Remove what killed builders of this key left; the lock is held, so none is at work."""
        for left in (self.root / "building").glob(f"{key}-*"):
            shutil.rmtree(left, ignore_errors=True)

    def _compiled(self, key: str, folder: Path, build: Build) -> Entry:
        try:
            return build(folder)
        except CompileFailed as error:
            kept = self.root / "failed" / key
            shutil.rmtree(kept, ignore_errors=True)
            files.make_folder(kept.parent)
            folder.rename(kept)
            raise CompileFailed(str(error).replace(str(folder), str(kept))) from None

    def _publish(self, key: str, folder: Path, made: Entry) -> Entry:
        count = self.root / "locks" / f"{key}.builds"
        made = replace(made, builds=_number(count) + 1)
        whole = folder / "entry"
        try:
            whole.mkdir(mode=files.PRIVATE)
            entries.write(whole, made)
            files.write_file(count, str(made.builds).encode())
            target = self.folder_of(key)
            files.make_folder(target.parent)
            if target.exists():  # a damaged entry, or one that is built again
                target.rename(folder / "before")
            whole.rename(target)
        except OSError as error:
            raise NotKept(made, error) from error
        return replace(made, place=target)

    def folders(self) -> Iterator[Path]:
        """The folder of every entry, damaged ones too."""
        yield from sorted(p for p in self.entries_folder.glob("*/*") if p.is_dir())

    def entries(self) -> Iterator[Entry]:
        """Every entry that is whole.

        Raises:
            CacheRefused: where other users can write to the folder.
        """
        self._check_owner()
        for folder in self.folders():
            try:
                yield entries.read(folder)
            except (FileNotFoundError, Damaged):  # `opmux cache` lists those
                continue

    def prune(self, keep: Callable[[Path], bool]) -> list[Path]:
        """Remove entries that are not to be kept, and what killed and failed builds left.

        A build that is going on is left alone.

        Returns:
            What was removed.

        Raises:
            CacheRefused: where other users can write to the folder, or its file system has no locks, which would tell
                the builds that are going on.
        """
        self._check_owner()
        removed = []
        for folder in self.folders():
            with self._free(folder.name) as free:
                if free and not keep(folder):
                    shutil.rmtree(folder)
                    removed.append(folder)
        for left in sorted([*(self.root / "building").glob("*"), *(self.root / "failed").glob("*")]):
            key = "-".join(left.name.split("-")[:2])
            with self._free(key) as free:
                if free:
                    shutil.rmtree(left, ignore_errors=True)
                    removed.append(left)
        return removed

    @contextmanager
    def _free(self, key: str) -> Iterator[bool]:
        """Hold a key's lock, if nobody builds it."""
        files.make_folder(self.root / "locks")
        lock = filelock.FileLock(self.root / "locks" / f"{key}.lock", mode=0o600)
        try:
            lock.acquire(timeout=0)
        except filelock.Timeout:
            yield False
            return
        except NotImplementedError:
            raise CacheRefused(
                f"nothing is removed from {self.root}: its file system has no locks, so a build may be going on; stop "
                "the processes that use the cache and remove the folder"
            ) from None
        try:
            yield True
        finally:
            lock.release()


class NotKept(OSError):
    """An entry was built and could not be written; it serves this process.

    Attributes:
        entry: what was built.
    """

    def __init__(self, entry: Entry, error: OSError) -> None:
        super().__init__(error.errno, error.strerror)
        self.entry = entry


def _number(path: Path) -> int:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return 0


def age_days(folder: Path) -> float:
    """How long ago an entry was built, in days."""
    return (time.time() - folder.stat().st_mtime) / 86400
