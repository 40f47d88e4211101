"""What the library writes lies where HIP's own headers put it."""

import ctypes
import subprocess
from pathlib import Path

from hip_compiler import AMD

from opmux_emulator.hip import Runtime, environment, library
from opmux_emulator.hip.library import settings


def test_properties_and_attributes(tmp_path: Path) -> None:
    made = tmp_path / "show"
    words = [
        "c++",
        "-std=c++17",
        "-D__HIP_PLATFORM_AMD__",
        f"-I{AMD / 'include'}",
        str(Path(__file__).with_name("layout.cpp")),
    ]
    subprocess.run([*words, f"-L{library().parent}", "-lamdhip64", "-o", str(made)], check=True, capture_output=True)
    done = subprocess.run([str(made)], env=environment("gfx950"), capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [
        "opmux emulator (gfx950) gfx950:sramecc+:xnack-",
        "sharedMemPerBlock 163840", "warpSize 64", "maxThreadsPerBlock 1024", "maxThreadsDim[2] 1024", "major 9",
        "minor 5",
        "multiProcessorCount 256", "maxThreadsPerMultiProcessor 2048", "sharedMemPerMultiprocessor 163840",
        "regsPerMultiprocessor 131072", "cooperativeLaunch 1", "hostRegisterSupported 1",
        "maxSharedMemoryPerMultiProcessor 163840", "arch.hasDoubles 1", "arch.hasDynamicParallelism 0",
        "memoryBusWidth 8192", "l2CacheSize 4194304", "unifiedAddressing 1",
        "64 256 163840 1024 5 256 8 512 1 ",
    ]  # fmt: skip


def test_the_layout_of_hip_5() -> None:
    hip = Runtime()
    hip.call("opmuxHipPlay", settings("gfx90a").encode())
    properties = ctypes.create_string_buffer(792 + 64)
    hip.call("hipGetDeviceProperties", properties, 0)
    assert properties.raw[396:].startswith(b"gfx90a:sramecc+:xnack-\0")
    assert int.from_bytes(properties.raw[276:280], "little") == 64
    assert properties.raw[792:] == bytes(64)
