"""Sizes and offsets that a program has wrong, or that a damaged file claims: errors, whatever sums they would wrap."""

import ctypes
import struct
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from assembling import assemble_bytes
from hip_compiler import bundle

from opmux_emulator.hip import HipError, Runtime
from opmux_emulator.hip.library import settings

MOST = 2**64 - 1
INVALID_VALUE, INVALID_IMAGE = 1, 200


@pytest.fixture
def hip() -> Iterator[Runtime]:
    runtime = Runtime()
    runtime.call("opmuxHipPlay", settings("gfx942").encode())
    yield runtime
    runtime.lib.hipGetLastError()


def size(value: int) -> ctypes.c_size_t:
    return ctypes.c_size_t(value)


def refused(hip: Runtime, call: str, *arguments: object) -> str:
    with pytest.raises(HipError) as caught:
        hip.call(call, *arguments)
    assert caught.value.code == INVALID_VALUE
    return str(caught.value)


def test_copies_and_fills_whose_end_would_wrap(hip: Runtime) -> None:
    address, host = hip.upload(np.arange(64, dtype="u4")), np.zeros(64, "u4")
    device, array = ctypes.c_void_p(address), ctypes.c_void_p(host.ctypes.data)
    past = rf"`dst`: {MOST} bytes at {address:#x} reach past the end of allocation "
    assert past in refused(hip, "hipMemcpy", device, array, size(MOST), 1)
    assert past in refused(hip, "hipMemset", device, 1, size(MOST))
    assert "are more than a process can have" in refused(hip, "hipMemcpy", array, array, size(MOST), 0)
    message = refused(hip, "hipMemsetD32", device, 1, size(1 << 62))
    assert f"hipMemsetD32: `count`: {1 << 62} times 4 bytes are more than 64 bits can count" in message
    assert np.array_equal(hip.download(address, host), np.arange(64))


def test_rows_whose_extent_would_wrap_or_reaches_too_far(hip: Runtime) -> None:
    address, host = hip.upload(np.arange(64, dtype="u4")), np.zeros(64, "u4")
    device, array = ctypes.c_void_p(address), ctypes.c_void_p(host.ctypes.data)
    rows = (size(1 << 32), size(4), size((1 << 32) + 1))
    assert "hipMemset2D: `height`: " in refused(hip, "hipMemset2D", device, rows[0], 1, *rows[1:])
    message = refused(hip, "hipMemcpy2D", device, rows[0], array, rows[0], *rows[1:], 1)
    assert f"hipMemcpy2D: `height`: {1 << 32} times {1 << 32} bytes are more than 64 bits can count" in message
    message = refused(hip, "hipMemset2D", device, size(64), 255, size(64), size(5))
    assert f"hipMemset2D: `dst`: 320 bytes at {address:#x} reach past the end of allocation " in message
    assert np.array_equal(hip.download(address, host), np.arange(64))  # no row was written
    hip.call("hipMemset2D", device, size(64), 0, size(0), size(MOST))  # nothing to do, at once
    hip.call("hipMemset2D", device, size(64), 0, size(4), size(4))
    assert list(np.flatnonzero(hip.download(address, host) == 0)) == [0, 16, 32, 48]


def test_pitches_that_would_wrap(hip: Runtime) -> None:
    out, pitch = ctypes.c_void_p(), ctypes.c_size_t()
    message = refused(hip, "hipMallocPitch", ctypes.byref(out), ctypes.byref(pitch), size(1), size(1 << 60))
    assert f"hipMallocPitch: `height`: {1 << 60} times 256 bytes are more than 64 bits can count" in message
    message = refused(hip, "hipMallocPitch", ctypes.byref(out), ctypes.byref(pitch), size(MOST), size(1))
    assert f"hipMallocPitch: `width`: {MOST} bytes are too many for a row" in message
    assert "`pitch`: expected an address, got null" in refused(
        hip, "hipMallocPitch", ctypes.byref(out), None, size(1), size(1)
    )
    for wanted in (MOST, 1 << 62, (1 << 44) + 1):
        with pytest.raises(HipError, match=rf"hipMalloc: `size`: {wanted} bytes do not fit into this machine's memory"):
            hip.allocate(wanted)


def test_a_registration_that_would_wrap(hip: Runtime) -> None:
    host = np.zeros(64, "u4")
    message = refused(hip, "hipHostRegister", ctypes.c_void_p(host.ctypes.data), size(MOST), 0)
    assert f"hipHostRegister: {MOST} bytes at {host.ctypes.data:#x} are more than a process can have" in message


def entry(
    offset: int, length: int, name: bytes = b"hipv4-amdgcn-amd-amdhsa--gfx942", named: int | None = None
) -> bytes:
    return struct.pack("<QQQ", offset, length, len(name) if named is None else named) + name


HEAD = b"__CLANG_OFFLOAD_BUNDLE__"


@pytest.mark.parametrize(("data", "message"), [
    (b"", "expected a code object or a bundle, got 0 bytes"),
    (HEAD, "expected a code object or a bundle, got 24 bytes"),
    (HEAD + struct.pack("<Q", 1 << 63) + bytes(64), f"a damaged bundle: it claims {1 << 63} entries"),
    (HEAD + struct.pack("<Q", 3) + entry(0, 0, b"host" * 4), "a damaged bundle: it ends at byte 72, in entry 2 of 3"),
    (HEAD + struct.pack("<Q", 1) + entry(0, 0, named=1 << 63),
     "a damaged bundle: it ends at byte 87, in the name of entry 1 of 1"),
    (HEAD + struct.pack("<Q", 1) + entry(64, 1 << 63),
     f"a damaged bundle: entry 1 of 1 has {1 << 63} bytes at 64; the bundle has 87"),
    (HEAD + struct.pack("<Q", 1) + entry(MOST, 2),
     f"a damaged bundle: entry 1 of 1 has 2 bytes at {MOST}; the bundle has 87"),
    (b"CCOB" + struct.pack("<HH", 2, 0) + bytes(80), "a compressed bundle that cannot be unpacked: Error -3"),
])  # fmt: skip
def test_damaged_files(hip: Runtime, tmp_path: Path, data: bytes, message: str) -> None:
    (tmp_path / "code").write_bytes(data)
    with pytest.raises(HipError) as caught:
        hip.call("hipModuleLoad", ctypes.byref(ctypes.c_void_p()), str(tmp_path / "code").encode())
    assert caught.value.code == INVALID_IMAGE
    assert message in str(caught.value)


def test_a_truncated_bundle(hip: Runtime, tmp_path: Path) -> None:
    whole = bundle({"gfx942": assemble_bytes("", "gfx942")})
    (tmp_path / "code").write_bytes(whole[:5000])
    with pytest.raises(HipError, match=r"a damaged bundle: entry 2 of 2 has \d+ bytes at 4096; the bundle has 5000"):
        hip.call("hipModuleLoad", ctypes.byref(ctypes.c_void_p()), str(tmp_path / "code").encode())
    assert hip.function(hip.load(whole), "k")


@pytest.mark.parametrize(("data", "message"), [
    (HEAD + struct.pack("<Q", 1) + entry(64, 1 << 63), f"a damaged bundle: entry 1 of 1 has {1 << 63} bytes at 64;"),
    (b"CCOB" + struct.pack("<HHQ", 3, 0, 1 << 63) + bytes(64), "a damaged compressed bundle: it claims 9223372036854"),
    (b"\x7fELF\2\1" + bytes(26) + struct.pack("<QQ", 1 << 60, 1 << 62) + bytes(6) + struct.pack("<HHHH", 56, 9, 64, 9),
     "a damaged code object: its headers, segments or sections lie outside readable memory"),
])  # fmt: skip
def test_damaged_images_whose_size_is_not_given(hip: Runtime, data: bytes, message: str) -> None:
    with pytest.raises(HipError) as caught:
        hip.load(data)
    assert caught.value.code == INVALID_IMAGE
    assert message in str(caught.value)
