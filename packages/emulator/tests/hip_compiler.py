"""HIP programs, compiled by the clang of ziglang's wheel with the HIP headers and device libraries of Triton's."""

import importlib.util
import struct
import subprocess
import sys
from pathlib import Path

from opmux_emulator.hip import library

AMD = Path(importlib.util.find_spec("triton").submodule_search_locations[0]) / "backends" / "amd"
ZIG = Path(importlib.util.find_spec("ziglang").submodule_search_locations[0])

# What clang's own wrapper header says first; the wheel lacks that header.
PRELUDE = """
#define __host__ __attribute__((host))
#define __device__ __attribute__((device))
#define __global__ __attribute__((global))
#define __shared__ __attribute__((shared))
#define __constant__ __attribute__((constant))
#define __managed__ __attribute__((managed))
#define __CLANG_HIP_RUNTIME_WRAPPER_INCLUDED__ 1
#include <cmath>
"""
ABI = """
target triple = "amdgcn-amd-amdhsa"
@__oclc_ABI_version = linkonce_odr hidden local_unnamed_addr addrspace(4) constant i32 600, align 4
"""


def zig(*words: object) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "ziglang", *map(str, words)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def bundle(parts: dict[str, bytes]) -> bytes:
    """A fat binary as clang-offload-bundler writes it."""
    entries = {"host-x86_64-unknown-linux-gnu": b"", **{f"hipv4-amdgcn-amd-amdhsa--{a}": d for a, d in parts.items()}}
    head, body, at = b"__CLANG_OFFLOAD_BUNDLE__" + struct.pack("<Q", len(entries)), b"", 4096
    for name, data in entries.items():
        head += struct.pack("<QQQ", at, len(data), len(name)) + name.encode()
        body += data.ljust(-(-len(data) // 4096) * 4096, b"\0")
        at = 4096 + len(body)
    return head.ljust(4096, b"\0") + body


class HipCompiler:
    """Compiles sources of HIP in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "prelude.h").write_text(PRELUDE)
        (folder / "abi.ll").write_text(ABI)
        zig(
            "clang",
            "-target",
            "amdgcn-amd-amdhsa",
            "-nogpulib",
            "-c",
            "-emit-llvm",
            folder / "abi.ll",
            "-o",
            folder / "abi.bc",
        )
        self.flags = ["-nogpulib", "-nogpuinc", "-isystem", ZIG / "lib/include", f"-I{AMD / 'include'}", "-include"]
        self.flags += [folder / "prelude.h", "-O2", "-w", "-D__HIP_PLATFORM_AMD__", "-std=c++17", "-fPIC"]

    def device(self, source: Path, arch: str) -> bytes:
        """The code object of an arch."""
        stem = self.folder / f"{source.stem}.{arch}"
        libraries = [
            x
            for bc in (AMD / "lib/ockl.bc", self.folder / "abi.bc")
            for x in ("-Xclang", "-mlink-builtin-bitcode", "-Xclang", bc)
        ]
        zig(
            "clang",
            "-x",
            "hip",
            "--cuda-device-only",
            f"--offload-arch={arch}",
            *self.flags,
            *libraries,
            "-S",
            source,
            "-o",
            f"{stem}.s",
        )
        zig("clang", "-target", "amdgcn-amd-amdhsa", f"-mcpu={arch}", "-c", f"{stem}.s", "-o", f"{stem}.o")
        zig("ld.lld", "-shared", f"{stem}.o", "-o", f"{stem}.hsaco")
        return Path(f"{stem}.hsaco").read_bytes()

    def build(self, source: Path, archs: tuple[str, ...], shared: bool = False) -> Path:
        """A program, or a shared object, linked to the emulator's library as to any libamdhip64.so."""
        name = source.stem
        fat = self.folder / f"{name}.hipfb"
        fat.write_bytes(bundle({arch: self.device(source, arch) for arch in archs}))
        host = self.folder / f"{name}.o"
        zig(
            "clang",
            "-x",
            "hip",
            "--cuda-host-only",
            *self.flags,
            "-Xclang",
            "-fcuda-include-gpubinary",
            "-Xclang",
            fat,
            "-c",
            source,
            "-o",
            host,
        )
        made = self.folder / (f"{name}.so" if shared else name)
        words = [
            "c++",
            *(["-shared"] if shared else []),
            str(host),
            f"-L{library().parent}",
            "-lamdhip64",
            "-o",
            str(made),
        ]
        subprocess.run(words, check=True, capture_output=True)
        return made
