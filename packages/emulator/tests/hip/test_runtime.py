"""HIP's calls by ctypes: what they do, and what each does with bad input."""

import ctypes
import json
import os
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from assembling import assemble_bytes

from opmux_emulator import EmulatorError
from opmux_emulator.hip import HipError, HipLibraryError, Runtime, library
from opmux_emulator.hip.library import settings

COPY = """
  s_load_dwordx4 s[4:7], s[0:1], 0x0
  v_lshlrev_b32 v1, 2, v0
  v_and_b32 v1, 0xffc, v1
  s_waitcnt lgkmcnt(0)
  global_load_dword v2, v1, s[4:5]
  s_waitcnt vmcnt(0)
  global_store_dword v1, v2, s[6:7]
"""
INVALID_VALUE, NO_DEVICE, INVALID_DEVICE, INVALID_IMAGE, NO_BINARY, INVALID_HANDLE, NOT_FOUND = (
    1,
    100,
    101,
    200,
    209,
    400,
    500,
)
INVALID_CONFIGURATION, ILLEGAL_ADDRESS, LAUNCH_FAILURE = 9, 700, 719


@pytest.fixture
def hip() -> Iterator[Runtime]:
    runtime = Runtime()
    runtime.call("opmuxHipPlay", settings("gfx942").encode())
    yield runtime
    runtime.lib.hipGetLastError()


@pytest.fixture
def copy(hip: Runtime) -> int:
    return hip.function(hip.load(assemble_bytes(COPY, "gfx942", arguments=2)), "k")


def test_a_launch(hip: Runtime, copy: int) -> None:
    x = np.arange(64, dtype="u4")
    source, target = hip.upload(x), hip.allocate(256)
    hip.launch(copy, (1,), (64,), struct.pack("<QQ", source, target))
    assert np.array_equal(hip.download(target, np.zeros(64, "u4")), x)
    hip.lib.opmuxHipReport.restype = ctypes.c_char_p
    report = json.loads(hip.lib.opmuxHipReport())
    assert (report["kernel"], report["arch"], report["counts"]["opcodes"]["global_load_dword"]) == ("k", "gfx942", 1)


def test_parameters_by_address(hip: Runtime, copy: int) -> None:
    x = np.arange(64, dtype="u4")
    pointers = [ctypes.c_void_p(hip.upload(x)), ctypes.c_void_p(hip.allocate(256))]
    addresses = (ctypes.c_void_p * 2)(*(ctypes.addressof(p) for p in pointers))
    hip.call("hipModuleLaunchKernel", ctypes.c_void_p(copy), 1, 1, 1, 64, 1, 1, 0, None, addresses, None)
    assert np.array_equal(hip.download(pointers[1].value, np.zeros(64, "u4")), x)
    hip.call(
        "hipExtModuleLaunchKernel",
        ctypes.c_void_p(copy),
        64,
        1,
        1,
        64,
        1,
        1,
        ctypes.c_size_t(0),
        None,
        addresses,
        None,
        None,
        None,
        0,
    )
    with pytest.raises(HipError, match=r"expected a grid of whole workgroups, got 100 threads in workgroups of 64"):
        hip.call(
            "hipExtModuleLaunchKernel",
            ctypes.c_void_p(copy),
            100,
            1,
            1,
            64,
            1,
            1,
            ctypes.c_size_t(0),
            None,
            addresses,
            None,
            None,
            None,
            0,
        )


def test_memory_that_nothing_wrote(hip: Runtime, copy: int) -> None:
    arguments = struct.pack("<QQ", hip.allocate(256), hip.allocate(256))
    with pytest.raises(
        HipError, match=r"hipErrorLaunchFailure \(719\): a kernel broke a rule: k: unwritten-memory: reads"
    ):
        hip.launch(copy, (1,), (64,), arguments)
    with pytest.raises(HipError, match="unwritten-memory"):  # once more: programs often look here only
        hip.synchronize()
    hip.synchronize()


def test_freed_memory(hip: Runtime, copy: int) -> None:
    source, target = hip.upload(np.zeros(64, "u4")), hip.allocate(256)
    hip.free(source)
    with pytest.raises(HipError, match=r"hipErrorIllegalAddress \(700\).*in no allocation"):
        hip.launch(copy, (1,), (64,), struct.pack("<QQ", source, target))
    with pytest.raises(HipError, match=r"hipMemcpy: `src`: 0x[0-9a-f]+ is in no allocation \(freed\?\)"):
        hip.download(source, np.zeros(4, "u4"))
    with pytest.raises(HipError, match=r"hipFree: `ptr`: expected the address that hipMalloc gave, got 0x"):
        hip.free(source)


def test_rules_that_are_left_out(hip: Runtime, copy: int) -> None:
    hip.call("opmuxHipPlay", settings("gfx942", ignore=["unwritten-memory"]).encode())
    hip.launch(copy, (1,), (64,), struct.pack("<QQ", hip.allocate(256), hip.allocate(256)))


def test_copies_that_reach_too_far(hip: Runtime) -> None:
    address = hip.allocate(256)
    with pytest.raises(
        HipError, match=r"`dst`: 260 bytes at 0x[0-9a-f]+ reach past the end of allocation \d+ \(256 bytes\)"
    ):
        hip.copy(address, np.zeros(65, "u4").ctypes.data, 260, 1)
    with pytest.raises(HipError, match=r"`dst`: expected device memory, got host address"):
        hip.copy(np.zeros(4, "u4").ctypes.data, np.zeros(4, "u4").ctypes.data, 4, 1)


@pytest.mark.parametrize(("size", "message"), [
    (4, "k: its arguments have 16 bytes (16 with the hidden ones), got a buffer of 4"),
    (64, "k: its arguments have 16 bytes (16 with the hidden ones), got a buffer of 64"),
])  # fmt: skip
def test_kernarg_of_the_wrong_size(hip: Runtime, copy: int, size: int, message: str) -> None:
    with pytest.raises(HipError) as caught:
        hip.launch(copy, (1,), (64,), bytes(size))
    assert caught.value.code == INVALID_VALUE
    assert message in str(caught.value)


def test_sizes_that_do_not_fit(hip: Runtime, copy: int) -> None:
    with pytest.raises(HipError, match=r"\(9\).*k: `block`: expected at most 1024 threads, got 2048"):
        hip.launch(copy, (1,), (2048,), bytes(16))
    with pytest.raises(
        HipError, match=r"\(9\).*expected a grid and a block of at least 1 in each direction, got \(0, 1, 1\)"
    ):
        hip.launch(copy, (0,), (64,), bytes(16))
    with pytest.raises(
        HipError, match=r"`sharedMemBytes`: gfx942 has 65536 bytes of LDS, of which the kernel uses 0 itself"
    ):
        hip.launch(copy, (1,), (64,), bytes(16), shared=65540)


def test_handles_that_are_none(hip: Runtime) -> None:
    other = ctypes.c_void_p(hip.upload(np.zeros(4)))
    for call, arguments in (
        ("hipModuleLaunchKernel", (other, 1, 1, 1, 64, 1, 1, 0, None, None, None)),
        ("hipModuleUnload", (other,)),
        ("hipModuleGetFunction", (ctypes.byref(ctypes.c_void_p()), other, b"k")),
        ("hipStreamSynchronize", (other,)),
        ("hipEventSynchronize", (other,)),
        ("hipFuncGetAttribute", (ctypes.byref(ctypes.c_int()), 0, other)),
    ):
        with pytest.raises(
            HipError, match=r"hipErrorInvalidHandle \(400\): invalid handle: .*is no \w+ of this library"
        ):
            hip.call(call, *arguments)


def test_handles_of_what_is_gone(hip: Runtime) -> None:
    module = hip.load(assemble_bytes(COPY, "gfx942", arguments=2))
    function = hip.function(module, "k")
    hip.call("hipModuleUnload", ctypes.c_void_p(module))
    with pytest.raises(HipError, match="is no function of this library, or its module was unloaded"):
        hip.launch(function, (1,), (64,), bytes(16))
    with pytest.raises(HipError, match="is no module of this library, or was unloaded"):
        hip.function(module, "k")
    stream = ctypes.c_void_p()
    hip.call("hipStreamCreate", ctypes.byref(stream))
    hip.call("hipStreamDestroy", stream)
    with pytest.raises(HipError, match="is no stream of this library, or was destroyed"):
        hip.call("hipStreamSynchronize", stream)


def test_code_objects_that_cannot_be_loaded(hip: Runtime) -> None:
    whole = assemble_bytes(COPY, "gfx942", arguments=2)
    with pytest.raises(
        HipError, match=r"hipErrorInvalidImage \(200\).*expected a code object \(ELF\) or a bundle, got bytes 68 65 6c"
    ):
        hip.load(b"hello, world" * 10)
    with pytest.raises(
        HipError, match=r"hipErrorNoBinaryForGpu \(209\).*the device plays gfx942; this code object is for gfx950"
    ):
        hip.load(assemble_bytes(COPY, "gfx950", arguments=2))
    foreign = bytearray(whole)
    foreign[18:20] = (62).to_bytes(2, "little")
    with pytest.raises(HipError, match=r"expected ELF machine 224 \(AMD GPU\), got 62"):
        hip.load(bytes(foreign))
    with pytest.raises(HipError, match=r"hipErrorNotFound \(500\).*it has no kernel 'other'; it has k"):
        hip.function(hip.load(whole), "other")
    with pytest.raises(HipError, match=r"hipErrorFileNotFound \(301\).*/nowhere.co cannot be read"):
        hip.call("hipModuleLoad", ctypes.byref(ctypes.c_void_p()), b"/nowhere.co")


def test_a_kernel_of_the_arch_that_was_played_before(hip: Runtime, copy: int) -> None:
    hip.call("opmuxHipPlay", settings("gfx950").encode())
    assert hip.arch == "gfx950:sramecc+:xnack-"
    with pytest.raises(HipError, match="k: the device plays gfx950; the kernel is for gfx942"):
        hip.launch(copy, (1,), (64,), bytes(16))


def test_compressed_bundles(hip: Runtime) -> None:
    import zlib

    from hip_compiler import bundle

    plain = bundle({"gfx942": assemble_bytes(COPY, "gfx942", arguments=2)})
    packed = zlib.compress(plain)
    head = b"CCOB" + struct.pack("<HHII", 2, 0, 24 + len(packed), len(plain)) + bytes(8)
    assert hip.function(hip.load(head + packed), "k")
    with pytest.raises(HipError, match=r"a compressed bundle that cannot be unpacked: Error -3"):
        hip.load(head + b"garbage" + packed)
    with pytest.raises(HipError, match=r"a bundle that is compressed by method 7; known are 0 \(zlib\) and 1 \(zstd\)"):
        hip.load(b"CCOB" + struct.pack("<HHII", 2, 7, 64, len(plain)) + bytes(48))
    with pytest.raises(HipError, match=r"bundle that is compressed with zstd|cannot be unpacked"):
        hip.load(b"CCOB" + struct.pack("<HHII", 2, 1, 64, len(plain)) + bytes(48))


def test_the_best_block_is_within_the_limit(hip: Runtime, copy: int) -> None:
    grid, block = ctypes.c_int(), ctypes.c_int()
    for limit, best in ((32, 32), (64, 64), (100, 64)):
        hip.call(
            "hipModuleOccupancyMaxPotentialBlockSize", ctypes.byref(grid), ctypes.byref(block), ctypes.c_void_p(copy),
            ctypes.c_size_t(0), limit,
        )  # fmt: skip
        assert block.value == best
        assert grid.value > 0


def test_a_registration_that_is_not_of_hip(hip: Runtime) -> None:
    class FatBinary(ctypes.Structure):
        _fields_ = [("magic", ctypes.c_uint32), ("version", ctypes.c_uint32), ("data", ctypes.c_void_p * 2)]

    binary, host = FatBinary(0x466243B1, 1), ctypes.c_char(b"k")
    hip.lib.__hipRegisterFatBinary.restype = ctypes.c_void_p
    handle = ctypes.c_void_p(hip.lib.__hipRegisterFatBinary(ctypes.byref(binary)))
    hip.lib.__hipRegisterFunction(handle, ctypes.byref(host), b"k", b"k", -1, None, None, None, None, None)
    with pytest.raises(HipError, match="is not HIP's: expected magic 48495046, got 466243b1"):
        hip.call("hipGetFuncBySymbol", ctypes.byref(ctypes.c_void_p()), ctypes.byref(host))
    hip.lib.__hipUnregisterFatBinary(handle)


def test_the_service_forgets_the_kernels_of_an_unloaded_module() -> None:
    from opmux_emulator.hip.service import Fields, Service, blob

    service, code = Service(), blob(assemble_bytes(COPY, "gfx942", arguments=2))
    for module in (1, 2):
        service.load(Fields(code))
        service.kernel(Fields(struct.pack("<I", module) + blob(b"k")))
    service.unload(Fields(struct.pack("<I", 1)))
    assert (list(service.programs), list(service.kernels)) == ([2], [2])
    assert service.tables(Fields(struct.pack("<I", 2)))


def test_registered_memory(hip: Runtime, copy: int) -> None:
    x, out = np.arange(64, dtype="u4"), np.zeros(64, "u4")
    for array in (x, out):
        hip.call("hipHostRegister", ctypes.c_void_p(array.ctypes.data), ctypes.c_size_t(array.nbytes), 0)
    hip.launch(copy, (1,), (64,), struct.pack("<QQ", x.ctypes.data, out.ctypes.data))
    assert np.array_equal(out, x)
    with pytest.raises(HipError, match="hipErrorHostMemoryAlreadyRegistered"):
        hip.call("hipHostRegister", ctypes.c_void_p(x.ctypes.data), ctypes.c_size_t(4), 0)
    for array in (x, out):
        hip.call("hipHostUnregister", ctypes.c_void_p(array.ctypes.data))
    with pytest.raises(HipError, match="is not registered"):
        hip.call("hipHostUnregister", ctypes.c_void_p(x.ctypes.data))


def test_devices(hip: Runtime) -> None:
    count, value = ctypes.c_int(), ctypes.c_int()
    hip.call("hipGetDeviceCount", ctypes.byref(count))
    assert count.value == 1
    hip.call("hipDeviceGetAttribute", ctypes.byref(value), 87, 0)
    assert value.value == 64
    with pytest.raises(HipError, match=r"hipErrorInvalidDevice \(101\).*the emulator has device 0 only, got 1"):
        hip.call("hipSetDevice", 1)
    with pytest.raises(HipError, match=r"opmuxHipPlay: expected gfx90a, gfx942 or gfx950, .* got sm_90"):
        hip.call("opmuxHipPlay", b"sm_90")


def test_what_the_settings_refuse() -> None:
    with pytest.raises(EmulatorError, match="`arch`: expected one of gfx90a, gfx942, gfx950, got 'sm_90'"):
        settings("sm_90")
    with pytest.raises(EmulatorError, match="`ignore`: no rule 'races'; the rules are outstanding, "):
        settings(ignore=["races"])
    with pytest.raises(EmulatorError, match="expected paths without spaces, got 'report=/a b'"):
        settings(report="/a b")


def test_a_library_that_is_absent() -> None:
    with pytest.raises(HipLibraryError, match=r"HIP: /nowhere/libamdhip64.so cannot be opened: "):
        Runtime("/nowhere/libamdhip64.so")


@pytest.mark.parametrize(("source", "message"), [
    ("int other(void) { return 0; }", r"has no hipRuntimeGetVersion: expected libamdhip64.so of HIP 6.0 or newer"),
    ("old", r"is version 5.2: expected 6.0 or newer"),
])  # fmt: skip
def test_a_library_that_is_no_hip_or_too_old(tmp_path: Path, source: str, message: str) -> None:
    from opmux_emulator.hip.runtime import NEEDED

    if source == "old":
        rest = "".join(f"int {name}(void) {{ return 0; }}\n" for name in NEEDED[1:])
        source = f"int hipRuntimeGetVersion(int* out) {{ *out = 50221153; return 0; }}\n{rest}"
    (tmp_path / "old.c").write_text(source)
    made = tmp_path / "libamdhip64.so"
    subprocess.run(["cc", "-shared", "-fPIC", str(tmp_path / "old.c"), "-o", str(made)], check=True)
    with pytest.raises(HipLibraryError, match=message):
        Runtime(made)


def test_a_fork_has_a_service_of_its_own() -> None:
    script = (
        "import os, sys, ctypes\n"
        "from opmux_emulator.hip import Runtime\n"
        "hip = Runtime(); code = open(sys.argv[1], 'rb').read(); hip.load(code)\n"
        "child = os.fork()\n"
        "if not child: hip.load(code); os._exit(7)\n"
        "status = os.waitpid(child, 0)[1]; hip.load(code); print(os.waitstatus_to_exitcode(status))\n"
    )
    import tempfile

    with tempfile.NamedTemporaryFile() as file:
        file.write(assemble_bytes(COPY, "gfx942", arguments=2))
        file.flush()
        variables = {**os.environ, "OPMUX_HIP": settings()}
        done = subprocess.run(
            [sys.executable, "-c", script, file.name], env=variables, capture_output=True, text=True, check=False
        )
    assert (done.stdout, done.stderr) == ("7\n", "")


def test_every_name_of_the_library() -> None:
    assert sorted(p.name for p in library().parent.iterdir() if not p.name.startswith(".")) == [
        "libamdhip64.so", "libamdhip64.so.5", "libamdhip64.so.6", "libamdhip64.so.7",
    ]  # fmt: skip
