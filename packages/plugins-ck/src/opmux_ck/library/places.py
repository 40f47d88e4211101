"""Where Composable Kernel (CK) is: its include folder, its version, and what this package needs of it."""

import functools
import importlib.metadata
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from opmux.plugin import BuildFailed
from opmux_ck.library.archives import ArchiveError, unpacked

VARIABLE = "OPMUX_CK_DIR"
OLDEST = (1, 1, 0)
"""The oldest CK whose templates this package was written for."""
CORE = "ck_tile/core.hpp"
_END = "ck_tile/ops/epilogue.hpp"
_OPS = {
    "ck_tile/ops/rmsnorm2d.hpp": ("rms_norm", "add_rms_norm", "rms_norm_quantize", "add_rms_norm_quantize"),
    "ck_tile/ops/layernorm2d.hpp": ("layer_norm", "add_layer_norm"),
    "ck_tile/ops/gemm/kernel/universal_gemm_kernel.hpp": ("linear", "grouped_linear", "masked_grouped_linear"),
    "ck_tile/ops/gemm_quant/kernel/gemm_quant_kernel.hpp": (
        "scaled_linear",
        "scaled_grouped_linear",
        "scaled_masked_grouped_linear",
    ),
    "ck_tile/ops/fmha/kernel/fmha_fwd_kernel.hpp": (
        "attention",
        "attention_lse",
        "attention_varlen",
        "attention_varlen_lse",
    ),
    "ck_tile/ops/fmha/kernel/fmha_fwd_splitkv_kernel.hpp": ("paged_attention", "paged_attention_lse"),
    "ck_tile/ops/fmha/kernel/fmha_bwd_kernel.hpp": ("attention_backward", "attention_varlen_backward"),
}
NEEDED = {op: (header, _END) for header, ops in _OPS.items() for op in ops}
"""What the kernels of an op include."""
PARTS = {
    "linear with a bias": ("ck_tile/ops/epilogue/default_2d_epilogue.hpp", "CDElementwise"),
    **{
        op: ("ck_tile/ops/fmha/pipeline/block_fmha_pipeline_problem.hpp", "kUseTrLoad")
        for op in NEEDED
        if "attention" in op
    },
}
"""Ops, and parts of ops by what an instance says, that need a name in a header which older versions lack."""
ROCM = "/opt/rocm"
WHEEL, IN_WHEEL = "amd-aiter", "aiter_meta/3rdparty/composable_kernel"

_SET_BY_CMAKE = re.compile(r"^set\(version (\d+)\.(\d+)\.(\d+)\)", re.MULTILINE)
_DEFINED = re.compile(r"^#define CK_VERSION_(?:MAJOR|MINOR|PATCH) (\d+)", re.MULTILINE)


class LibraryMissing(BuildFailed):
    """Composable Kernel is not there, is too old, or lacks what an op includes; nothing was built."""


@dataclass(frozen=True)
class Library:
    """An installed CK.

    Attributes:
        include: the folder that has ``ck_tile``.
        version: as its build files state it; None where they do not.
        origin: what named it: the variable, ROCm, or the package that has it.
    """

    include: Path
    version: tuple[int, int, int] | None
    origin: str

    @property
    def shown_version(self) -> str:
        """``1.2.0``, or ``unknown``."""
        return "unknown" if self.version is None else ".".join(map(str, self.version))

    def lacks(self) -> dict[str, str]:
        """The ops and parts of ops that it cannot compute, each with the headers or names that it does not have."""
        missing = {op: [name for name in names if not (self.include / name).is_file()] for op, names in NEEDED.items()}
        lacking = {op: ", ".join(names) for op, names in missing.items() if names}
        for part, (header, name) in PARTS.items():
            if part not in lacking and not _names(self.include / header, name):
                lacking[part] = f"{name} in {header}"
        return lacking

    def refusal(self) -> str | None:
        """Why it is not used, or None."""
        if self.version is not None and self.version < OLDEST:
            oldest = ".".join(map(str, OLDEST))
            return f"{self.include} has version {self.shown_version}, older than {oldest}"
        return None


def candidates() -> Iterator[tuple[str, Library | str]]:
    """Each place in turn, with the library there or the reason why there is none."""
    named = _named()
    yield VARIABLE, _at_name(named) if named else "not set"
    homes = [home for home in (os.environ.get("ROCM_PATH"), os.environ.get("HIP_PATH"), ROCM) if home]
    yield "ROCm", _in_first(homes)
    yield WHEEL, _in_wheel()


def library_for(op: str) -> Library:
    """The library that an op, or a part of one, is built from: the first that there is.

    One that the user names is not passed over.

    Raises:
        LibraryMissing: there is none, or what there is is too old or lacks the op's header.
    """
    reasons = {}
    for place, found in candidates():
        reason = found if isinstance(found, str) else found.refusal() or _lacking(found, op)
        if reason is None and isinstance(found, Library):
            return found
        reasons[place] = reason
        if place == VARIABLE and _named():
            break
    lines = "".join(f"\n  {place}: {reason}" for place, reason in reasons.items())
    raise LibraryMissing(
        f"{op}: no Composable Kernel to build it from{lines}\n"
        f"  try: set {VARIABLE} to a folder or a source archive of Composable Kernel 1.1 or newer, install ROCm's "
        "package composablekernel-dev, or pip install amd-aiter"
    )


def first_named() -> Library | str | None:
    """The first library found, or what is wrong with the place that the user names; None where there is none."""
    for place, found in candidates():
        if isinstance(found, Library) or (place == VARIABLE and _named()):
            return found
    return None


def _named() -> str:
    return os.environ.get(VARIABLE, "").strip()


def _lacking(found: Library, op: str) -> str | None:
    lacking = found.lacks()
    missing = lacking.get(op.partition(" ")[0]) or lacking.get(op)
    return f"{found.include} (version {found.shown_version}) lacks {missing}" if missing else None


def _at_name(named: str) -> Library | str:
    path = Path(named).expanduser()
    if path.is_file():
        try:
            path = unpacked(path)
        except ArchiveError as error:
            return str(error)
    if not path.is_dir():
        return f"{named}: no such file or folder"
    return _in_folder(path, VARIABLE) or f"{named} has neither {CORE} nor include/{CORE}"


def _in_first(homes: list[str]) -> Library | str:
    for home in homes:
        found = _in_folder(Path(home), "ROCm")
        if found is not None:
            return found
    return f"no include/{CORE} in {', '.join(dict.fromkeys(homes))}"


def _in_wheel() -> Library | str:
    try:
        wheel = importlib.metadata.distribution(WHEEL)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"
    folder = Path(str(wheel.locate_file(IN_WHEEL)))
    return _in_folder(folder, f"{WHEEL} {wheel.version}") or f"{folder} has no include/{CORE}"


def _in_folder(folder: Path, origin: str) -> Library | None:
    """The library of a source tree, of an installation, or of an include folder itself."""
    for include in (folder / "include", folder):
        if (include / CORE).is_file():
            return Library(include.absolute(), version_of(include), origin)
    return None


@functools.cache
def _names(header: Path, name: str) -> bool:
    """Whether a header is there and has a name in it."""
    return header.is_file() and name in header.read_text(encoding="utf-8", errors="replace")


@functools.cache
def version_of(include: Path) -> tuple[int, int, int] | None:
    """The version that the installed header states, else the source tree's build file; None where neither does."""
    for path, pattern in ((include / "ck" / "version.h", _DEFINED), (include.parent / "CMakeLists.txt", _SET_BY_CMAKE)):
        try:
            found = pattern.findall(path.read_text(encoding="utf-8", errors="replace"))
        except OSError:
            continue
        numbers = found[0] if found and isinstance(found[0], tuple) else found
        if len(numbers) == len(OLDEST):
            major, minor, patch = map(int, numbers)
            return major, minor, patch
    return None
