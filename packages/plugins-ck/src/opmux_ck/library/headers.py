"""The two headers that CK's own build generates."""

from opmux_ck.library.places import Library

DTYPES = ("FP16", "BF16", "FP32", "FP64", "INT8", "FP8", "BF8")


def generated(library: Library) -> dict[str, str]:
    """``ck/config.h`` and ``ck/version.h``, by the names that CK includes them by."""
    config = "".join(f'#define CK_ENABLE_{dtype} "ON"\n' for dtype in DTYPES) + "#define CK_USE_XDL\n"
    major, minor, patch = library.version or (0, 0, 0)
    version = (
        f"#define CK_VERSION {major}.{minor}.{patch}\n#define CK_VERSION_MAJOR {major}\n"
        f"#define CK_VERSION_MINOR {minor}\n#define CK_VERSION_PATCH {patch}\n#define CK_COMMIT_ID unknown\n"
    )
    return {"ck/config.h": f"#pragma once\n{config}", "ck/version.h": f"#pragma once\n{version}"}
