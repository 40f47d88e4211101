"""``python -m opmux_asm.objects``: read every code object as a launch would, and compare it with the manifest."""

import sys

from opmux.plugin import BuildFailed
from opmux_asm.kernels import ARCHS
from opmux_asm.objects import build, families, reading


def main() -> int:
    """Print what was read; 1 if a code object is damaged or cannot be assembled."""
    code = kernels = 0
    try:
        for arch in ARCHS:
            for family in families.FAMILIES:
                found = reading.code_object(family, arch)
                code, kernels = code + 1, kernels + len(found.kernels)
    except BuildFailed as error:
        sys.stderr.write(f"{error}\n")
        return 1
    whence = "of the wheel" if (reading.FOLDER / build.MANIFEST).exists() else "assembled here"
    sys.stdout.write(f"{code} code objects {whence}, {kernels} kernels\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
