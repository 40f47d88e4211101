"""Fetches what the sources of Composable Kernel come in, once, and prints where it is.

It is checked by its hash and kept in the user's cache, outside the repository. ``python fetching.py older`` fetches the
older version that flash-attn's source distribution has.
"""

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import platformdirs


@dataclass(frozen=True)
class Release:
    """A file of PyPI.

    Attributes:
        wanted: the project and its version.
        sha256: of the file.
        options: of pip, which prepares the metadata of a source distribution even where it builds nothing.
    """

    wanted: str
    sha256: str
    options: tuple[str, ...] = ()


NEWEST = Release("amd-aiter==0.1.7.post2.dev18", "fe139d74438217c35e87e3b961166bac8db2d381eadccb371da2e63615f05a31")
"""CK 1.2.0, of November 2025."""
OLDER = Release(
    "flash-attn==2.8.3",
    "1e71dd64a9e0280e0447b8a0c2541bad4bf6ac65bdeaa2f90e51a9e57de0370d",
    ("--no-binary", ":all:", "--no-build-isolation"),
)
"""CK of the middle of 2025; its sources state no version."""
WITHOUT_CUDA = {"FLASH_ATTENTION_SKIP_CUDA_BUILD": "TRUE"}
"""Lets flash-attn's metadata be prepared where there is no CUDA."""


def fetched(release: Release = NEWEST) -> Path:
    """The file; pip refuses one of another hash."""
    folder = platformdirs.user_cache_path("opmux") / "ck-sources" / release.sha256[:16]
    files = folder / "files"
    if not (folder / "complete").exists():
        files.mkdir(parents=True, exist_ok=True)
        (folder / "wanted.txt").write_text(f"{release.wanted} --hash=sha256:{release.sha256}\n")
        words = ["-m", "pip", "download", "--quiet", "--no-deps", "--require-hashes", *release.options]
        words += ["-r", str(folder / "wanted.txt"), "-d", str(files)]
        subprocess.run([sys.executable, *words], check=True, env={**os.environ, **WITHOUT_CUDA})
        (folder / "complete").touch()
    (file,) = files.iterdir()
    return file


if __name__ == "__main__":
    print(fetched(OLDER if sys.argv[1:] == ["older"] else NEWEST))  # noqa: T201
