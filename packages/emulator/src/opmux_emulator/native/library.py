"""The interpreter as Python sees it: loaded once, built first where no wheel brought it."""

import ctypes
import functools
import os
import stat
from pathlib import Path

from opmux_emulator.native import build


class Launch(ctypes.Structure):
    """``Launch`` of ``interface.h``."""

    _fields_ = [
        ("grid", ctypes.c_uint64 * 3), ("groups", ctypes.c_uint64 * 3), ("workgroup", ctypes.c_uint32 * 3),
        ("waves", ctypes.c_uint32), ("lds_size", ctypes.c_uint32), ("arch", ctypes.c_uint32),
        ("vgprs", ctypes.c_uint32), ("sgprs", ctypes.c_uint32), ("mode", ctypes.c_uint32),
        ("workitem_id", ctypes.c_uint32),
        ("scratch_per_lane", ctypes.c_uint64), ("limit", ctypes.c_uint64), ("code_base", ctypes.c_uint64),
        ("enabled", ctypes.c_uint64), ("user_sgprs", ctypes.c_uint32), ("packed_ids", ctypes.c_uint32),
        ("group_id", ctypes.c_uint32 * 3), ("group_info", ctypes.c_uint32), ("private_offset", ctypes.c_uint32),
        ("max_findings", ctypes.c_uint32), ("accum_offset", ctypes.c_int32), ("first_group", ctypes.c_uint32),
        ("group_count", ctypes.c_uint32), ("entry", ctypes.c_uint32),
        ("late", ctypes.c_uint32), ("backwards", ctypes.c_uint32), ("quantum", ctypes.c_uint32),
        ("trace_limit", ctypes.c_uint32), ("trace", ctypes.c_void_p), ("trace_lengths", ctypes.c_void_p),
    ]  # fmt: skip


class Allocation(ctypes.Structure):
    """``Allocation`` of ``machine.h``: a stretch of device memory, where it lies, and its shadows."""

    _fields_ = [
        ("base", ctypes.c_uint64), ("size", ctypes.c_uint64), ("host", ctypes.c_void_p), ("unwritten", ctypes.c_void_p),
        ("writer", ctypes.c_void_p), ("reader", ctypes.c_void_p), ("writable", ctypes.c_uint32),
        ("pad", ctypes.c_uint32),
    ]  # fmt: skip


class Finding(ctypes.Structure):
    """``Finding`` of ``machine.h``."""

    _fields_ = [
        ("rule", ctypes.c_int32), ("instruction", ctypes.c_int32), ("wave", ctypes.c_int32), ("group", ctypes.c_int32),
        ("lane", ctypes.c_int32), ("detail", ctypes.c_int32), ("address", ctypes.c_uint64),
    ]  # fmt: skip


class Counts(ctypes.Structure):
    """``Counts`` of ``machine.h``."""

    _fields_ = [
        ("instructions", ctypes.c_uint64 * 16), ("opcodes", ctypes.c_uint64 * 2048), ("lds_accesses", ctypes.c_uint64),
        ("lds_conflict_cycles", ctypes.c_uint64), ("lds_cycles", ctypes.c_uint64), ("vmem_requests", ctypes.c_uint64),
        ("vmem_bytes", ctypes.c_uint64), ("vmem_lines", ctypes.c_uint64), ("barriers", ctypes.c_uint64),
        ("mfma_passes", ctypes.c_uint64), ("flops", ctypes.c_uint64),
    ]  # fmt: skip


def cache_folder() -> Path:
    """Where a library that no wheel brought is kept: made if it is absent, for its owner alone.

    Raises:
        build.BuildError: it cannot be made, or others could put their own library there.
    """
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return private_folder(Path(base) / "opmux" / "emulator")


def private_folder(folder: Path) -> Path:
    """The folder; it and its parents are made with mode 0700 where they are absent.

    Raises:
        build.BuildError: it cannot be made, belongs to another user, or others can write to it.
    """
    try:
        for path in reversed([folder, *folder.parents]):
            path.mkdir(mode=0o700, exist_ok=True)
        state = folder.stat()
    except OSError as error:
        raise build.BuildError(f"opmux-emulator: its libraries cannot be kept in {folder}: {error.strerror}") from None
    if state.st_uid not in (os.geteuid(), 0):
        fault = f"belongs to another user (uid {state.st_uid}): set XDG_CACHE_HOME to a folder of your own"
    elif state.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        fault = f"can be written by other users: chmod go-w {folder}"
    else:
        return folder
    raise build.BuildError(f"opmux-emulator: its libraries cannot be kept: {folder} {fault}")


def path_of_library(library: build.Library = build.INTERPRETER) -> Path:
    """A library: the wheel's where it was built from these very sources, else one built here and kept.

    Raises:
        build.BuildError: it is to be built and cannot be.
    """
    name = f"{build.digest(library)}-{library.name}"
    brought = build.SOURCES / name
    if brought.exists():
        return brought
    kept = cache_folder() / name
    return kept if kept.exists() else build.build(kept, library)


@functools.cache
def library() -> ctypes.CDLL:
    """The loaded interpreter."""
    lib = ctypes.CDLL(str(path_of_library()))
    lib.emulator_op_name.restype = ctypes.c_char_p
    for size, structure in (
        (lib.emulator_launch_size(), Launch),
        (lib.emulator_finding_size(), Finding),
        (lib.emulator_counts_size(), Counts),
        (lib.emulator_allocation_size(), Allocation),
    ):
        if size != ctypes.sizeof(structure):
            raise build.BuildError(
                f"{structure.__name__}: the library has {size} bytes, Python {ctypes.sizeof(structure)}"
            )
    return lib


@functools.cache
def operations() -> dict[str, int]:
    """Which mnemonics have semantics, and their number in the interpreter."""
    lib = library()
    return {lib.emulator_op_name(k).decode(): k for k in range(lib.emulator_op_count())}
