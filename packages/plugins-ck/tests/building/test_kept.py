"""Machine code that is there already: it needs no compiler, and of a bundle no CK either."""

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from opmux.shapes import read_shapes
from opmux_ck.__about__ import __version__
from opmux_ck.building import instances, toolchain
from opmux_ck.building.instances import code_of
from opmux_ck.gemm.choice import TILES
from opmux_ck.gemm.instances import Product
from opmux_ck.library.places import LibraryMissing
from opmux_jit import CompilerMissing, KernelMissing, prebuild
from opmux_jit.__about__ import __version__ as jit_version
from opmux_jit.cache import entry, files, layers
from opmux_jit.compilers import Source, choice

INSTANCE = Product("bf16", "bf16", replace(TILES[1], pads_n=False, pads_k=False), 3)
CALLS = [
    {"op": "linear", "dtypes": {"x": "bf16", "w": "bf16"}, "dims": {"tokens": 2048, "n": 4096, "k": 4096}},
    {"op": "linear", "dtypes": {"x": "bf16", "w": "bf16"}, "dims": {"tokens": 2048, "n": 4096, "k": 8192}},
    {"op": "rms_norm", "dtypes": {"x": "bf16", "weight": "bf16"}, "dims": {"tokens": 7, "hidden": 4096}},
    {"op": "silu_mul", "dtypes": {"gate": "bf16", "up": "bf16"}, "dims": {"tokens": 4, "n": 8}},
]


@dataclass
class Standing:
    """Stands for a compiler."""

    name: str
    version: str = "6.4"
    path: Path = Path("/opt/bin/it")
    library: str = ""
    count: int = 0

    def refusal(self, source: Source) -> str | None:
        return None

    def compile(self, source: Source, folder: Path) -> bytes:
        self.count += 1
        return f"{source.arch} {source.name}".encode()


@pytest.fixture
def compilers(ck, monkeypatch) -> dict[str, Standing]:
    """The compilers that are installed, beside a CK."""
    monkeypatch.setenv("OPMUX_CK_DIR", str(ck))
    found = {"zig": Standing("zig", "0.17.0")}
    monkeypatch.setattr(toolchain, "find", found.get)
    monkeypatch.setattr(choice, "find", found.get)
    return found


@pytest.fixture
def bundle(compilers, tmp_path) -> Path:
    """A bundle of the calls' instances; the cache is empty again."""
    shapes, out = tmp_path / "shapes.json", tmp_path / "bundle"
    shapes.write_text(json.dumps(CALLS))
    ticks: list[tuple[str, int, int]] = []
    done = prebuild(["gfx942"], read_shapes(shapes), out, backend="ck", processes=1, tick=lambda *t: ticks.append(t))
    assert (done.kernels, done.failures) == ({"ck": 2}, [])
    assert ticks == [("ck", 1, 2), ("ck", 2, 2)]
    assert compilers["zig"].count == 2
    shutil.rmtree(tmp_path / "cache")
    layers.forget()
    return out


def test_the_cache_serves_without_a_compiler(compilers) -> None:
    built = code_of(INSTANCE, "gfx942")
    layers.forget()
    compilers.clear()
    assert code_of(INSTANCE, "gfx942").key == built.key


def test_the_cache_serves_where_compiling_is_forbidden(compilers, monkeypatch) -> None:
    """By whichever compiler: here ROCm was installed after the instance was built."""
    built = code_of(INSTANCE, "gfx942")
    layers.forget()
    compilers["hipcc"] = Standing("hipcc")
    monkeypatch.setenv("OPMUX_NO_JIT", "1")
    assert code_of(INSTANCE, "gfx942").key == built.key
    with pytest.raises(KernelMissing, match="OPMUX_NO_JIT forbids compiling"):
        code_of(INSTANCE, "gfx950")


@pytest.mark.parametrize("missing", ["compiler", "CK"])
def test_where_compiling_is_forbidden_the_error_names_the_command(compilers, monkeypatch, missing) -> None:
    """Not what it would take to compile, which this machine is not to do."""
    if missing == "CK":
        monkeypatch.delenv("OPMUX_CK_DIR")
    compilers.clear()
    monkeypatch.setenv("OPMUX_NO_JIT", "1")
    with pytest.raises(KernelMissing) as caught:
        code_of(INSTANCE, "gfx942")
    said = str(caught.value)
    assert said.startswith(f"{INSTANCE.name}: no machine code for gfx942, and OPMUX_NO_JIT forbids compiling\n")
    assert said.endswith("opmux prebuild --arch gfx942 --backend ck --op linear --shapes FILE --out DIR")


def test_another_compiler_builds_its_own(compilers) -> None:
    built = code_of(INSTANCE, "gfx942")
    layers.forget()
    compilers["hipcc"] = Standing("hipcc")
    assert code_of(INSTANCE, "gfx942").key != built.key
    assert compilers["hipcc"].count == 1


@pytest.mark.parametrize("installed", [(), ("hipcc",)])
def test_a_bundle_serves_with_any_compiler_and_none(compilers, bundle, monkeypatch, installed) -> None:
    compilers.clear()
    compilers.update({name: Standing(name) for name in installed})
    monkeypatch.setenv("OPMUX_BUNDLES", str(bundle))
    place = code_of(INSTANCE, "gfx942").place
    assert place is not None
    assert place.is_relative_to(bundle)


def test_a_bundle_serves_without_ck(compilers, bundle, monkeypatch) -> None:
    compilers.clear()
    monkeypatch.delenv("OPMUX_CK_DIR")
    with pytest.raises(LibraryMissing):
        code_of(INSTANCE, "gfx942")
    monkeypatch.setenv("OPMUX_BUNDLES", str(bundle))
    assert code_of(INSTANCE, "gfx942").code == f"gfx942 {INSTANCE.name}".encode()
    monkeypatch.setattr(instances, "templates_digest", lambda header: "those of another version")
    with pytest.raises(LibraryMissing):
        code_of(INSTANCE, "gfx942")


def test_a_bundle_with_a_flipped_bit_is_not_taken(compilers, bundle, monkeypatch, caplog) -> None:
    """The instance is built, or there is the error of a machine that cannot build it."""
    (code,) = (path for path in bundle.rglob("code.bin") if INSTANCE.name.encode() in path.read_bytes())
    code.chmod(0o600)
    data = bytearray(code.read_bytes())
    data[3] ^= 1
    code.write_bytes(data)
    monkeypatch.setenv("OPMUX_BUNDLES", str(bundle))
    count = compilers["zig"].count
    assert code_of(INSTANCE, "gfx942").code == f"gfx942 {INSTANCE.name}".encode()
    assert compilers["zig"].count == count + 1
    assert any("damaged" in record.getMessage() for record in caplog.records)
    layers.forget()
    monkeypatch.setenv("OPMUX_CACHE", str(bundle.parent / "another"))
    monkeypatch.delenv("OPMUX_CK_DIR")
    with pytest.raises(LibraryMissing):
        code_of(INSTANCE, "gfx942")


def test_a_bundle_of_another_arch_is_not_taken(compilers, bundle, monkeypatch) -> None:
    compilers.clear()
    monkeypatch.delenv("OPMUX_CK_DIR")
    monkeypatch.setenv("OPMUX_BUNDLES", str(bundle))
    with pytest.raises(LibraryMissing):
        code_of(INSTANCE, "gfx950")
    monkeypatch.setenv("OPMUX_NO_JIT", "1")
    with pytest.raises(KernelMissing) as caught:
        code_of(INSTANCE, "gfx950")
    said = str(caught.value).splitlines()
    assert said[0] == f"{INSTANCE.name}: no machine code for gfx950, and OPMUX_NO_JIT forbids compiling"
    assert said[2] == f"  bundles: {bundle} (gfx942; opmux-ck {__version__}, opmux-jit {jit_version}, zig 0.17.0)"


KILLED = """
import os, signal
from pathlib import Path
from opmux_ck.building.instances import code_of
from opmux_ck.gemm.choice import TILES
from opmux_ck.gemm.instances import Product
from opmux_ck.building import toolchain
from opmux_jit.compilers import choice

class Dying:
    name, version, path, library = "zig", "0.17.0", Path("/opt/bin/it"), ""
    def refusal(self, source):
        return None
    def compile(self, source, folder):
        (folder / "half.o").write_bytes(b"half of it")
        os.kill(os.getpid(), signal.SIGKILL)

toolchain.find = choice.find = {"zig": Dying()}.get
code_of(Product("bf16", "bf16", TILES[1], 3), "gfx942")
"""


def test_a_killed_build_leaves_nothing_that_is_loaded(compilers, tmp_path) -> None:
    done = subprocess.run([sys.executable, "-c", KILLED], capture_output=True, check=False, timeout=120)
    assert done.returncode == -signal.SIGKILL, done.stderr[-2000:]
    assert list((tmp_path / "cache").rglob("half.o"))
    instance = Product("bf16", "bf16", TILES[1], 3)
    made = code_of(instance, "gfx942")
    assert (made.code, compilers["zig"].count) == (f"gfx942 {instance.name}".encode(), 1)
    assert not list((tmp_path / "cache").rglob("half.o"))


def test_a_full_disk_costs_no_call(compilers, monkeypatch, caplog) -> None:
    def full(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(files, "write_file", full)
    made = code_of(INSTANCE, "gfx942")
    assert (made.code, made.place) == (f"gfx942 {INSTANCE.name}".encode(), None)
    assert any(os.strerror(errno.ENOSPC) in record.getMessage() for record in caplog.records)


def test_a_bundle_that_does_not_fit_the_disk_is_a_line_each(compilers, tmp_path, monkeypatch) -> None:
    def full(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(entry, "write", full)
    shapes = tmp_path / "shapes.json"
    shapes.write_text(json.dumps(CALLS))
    done = prebuild(["gfx942"], read_shapes(shapes), tmp_path / "bundle", backend="ck", processes=1)
    assert done.kernels == {"ck": 0}
    assert all(os.strerror(errno.ENOSPC) in line for line in done.failures)
    assert len(done.failures) == 2


def test_without_compiler_and_code_the_error_is_the_compilers(compilers) -> None:
    compilers.clear()
    with pytest.raises(CompilerMissing, match="no compiler for gfx942"):
        code_of(INSTANCE, "gfx942")


def test_what_cannot_be_built_is_a_line_each(compilers, tmp_path, monkeypatch) -> None:
    shapes = tmp_path / "shapes.json"
    shapes.write_text(json.dumps(CALLS))
    compilers.clear()
    done = prebuild(["gfx942"], read_shapes(shapes), tmp_path / "bundle", backend="ck", processes=2)
    assert done.kernels == {"ck": 0}
    assert [line.partition("\n")[0] for line in done.failures] == [
        f"{name} for gfx942: {name}: no compiler for gfx942"
        for name in (INSTANCE.name, "rms_norm_bf16_bf16_b1x4096_t1x256_v8_pad")
    ]
