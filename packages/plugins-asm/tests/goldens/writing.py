"""The goldens: one kernel of each family as the writer emits it. ``python tests/goldens/writing.py`` writes them."""

from pathlib import Path

from opmux_asm.kernels import ARCHS, rms_norm
from opmux_asm.writer import Kernel, module

FOLDER = Path(__file__).parent


def shown(arch: str) -> dict[str, Kernel]:
    """A kernel of each family, small enough to read."""
    return {"rms_norm": rms_norm.rms_norm(arch, "bf16", "bf16", 4, 1)}


def texts() -> dict[str, str]:
    """Name of a golden -> its text."""
    return {
        f"{family}.{arch}.s": module(family, arch, [kernel], "golden")
        for arch in ARCHS
        for family, kernel in shown(arch).items()
    }


if __name__ == "__main__":
    for name, text in texts().items():
        (FOLDER / name).write_text(text)
