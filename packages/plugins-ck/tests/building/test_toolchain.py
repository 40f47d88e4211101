"""Which compiler builds the instances, and what is said where there is none."""

from dataclasses import dataclass
from pathlib import Path

import pytest

from opmux_ck.building import toolchain
from opmux_ck.building.toolchain import TEMPLATES, compiler_for, include_dirs, templates_digest
from opmux_jit import CompilerMissing


@dataclass
class Installed:
    """Stands for a compiler."""

    name: str
    version: str
    path: Path = Path("/opt/bin/it")


@pytest.fixture
def present(monkeypatch) -> dict[str, Installed]:
    """The compilers that are installed."""
    found: dict[str, Installed] = {}
    monkeypatch.setattr(toolchain, "find", found.get)
    return found


def test_rocms_own_comes_first(present) -> None:
    present["clang"] = Installed("clang", "19.1.7")
    assert compiler_for("k", "gfx942").name == "clang"
    present["zig"] = Installed("zig", "0.17.0")
    assert compiler_for("k", "gfx942").name == "zig"
    present["hipcc"] = Installed("hipcc", "6.4.43482")
    assert compiler_for("k", "gfx942").name == "hipcc"


def test_where_there_is_none_each_has_its_reason(present) -> None:
    present["clang"] = Installed("clang", "14.0.6")
    with pytest.raises(CompilerMissing) as caught:
        compiler_for("rms_norm_bf16", "gfx942")
    assert str(caught.value).splitlines() == [
        "rms_norm_bf16: no compiler for gfx942",
        "  hipcc: not found",
        "  zig: not found",
        "  clang: /opt/bin/it is version 14.0.6, older than 19",
        '  try: install ROCm and set ROCM_PATH, or pip install "opmux-ck[compiler]"',
    ]


def test_hipcc_has_hips_headers_and_the_others_get_a_subset() -> None:
    assert list(include_dirs("hipcc")) == [TEMPLATES]
    assert list(include_dirs("zig")) == [TEMPLATES, TEMPLATES / "hip_subset"]
    assert (TEMPLATES / "hip_subset/hip/hip_runtime.h").is_file()


def test_the_digest_tells_headers_and_flags_apart(tmp_path, monkeypatch) -> None:
    """Of the headers those that the unit includes: another op's may change."""
    monkeypatch.setattr(toolchain, "TEMPLATES", tmp_path)
    (tmp_path / "rows.h").write_text("// one")
    (tmp_path / "norm.h").write_text('#pragma once\n#include "rows.h"\n#include "ck_tile/core.hpp"\n')
    (tmp_path / "gemm.h").write_text("// one")

    def digest() -> str:
        return templates_digest.__wrapped__("norm.h")

    digests = [digest()]
    (tmp_path / "gemm.h").write_text("// two")
    assert digest() == digests[0]
    (tmp_path / "rows.h").write_text("// two")
    digests.append(digest())
    (tmp_path / "hip_subset").mkdir()
    (tmp_path / "hip_subset" / "hip.h").write_text("// one")
    digests.append(digest())
    monkeypatch.setattr(toolchain, "FLAGS", (*toolchain.FLAGS, "-DANOTHER"))
    digests.append(digest())
    assert len(set(digests)) == 4
