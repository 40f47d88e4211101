"""Fetches the wheel that the sources of Composable Kernel come in, once, and prints where it is.

It is checked by its hash and kept in the user's cache, outside the repository.
"""

import subprocess
import sys
from pathlib import Path

import platformdirs

NAME, VERSION = "amd-aiter", "0.1.7.post2.dev18"
SHA256 = "fe139d74438217c35e87e3b961166bac8db2d381eadccb371da2e63615f05a31"


def fetched() -> Path:
    """The wheel; pip refuses one of another hash."""
    folder = platformdirs.user_cache_path("opmux") / "ck-sources" / SHA256[:16]
    if not (folder / "complete").exists():
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "wanted.txt").write_text(f"{NAME}=={VERSION} --hash=sha256:{SHA256}\n")
        words = ["-m", "pip", "download", "--quiet", "--no-deps", "--require-hashes", "-r", str(folder / "wanted.txt")]
        subprocess.run([sys.executable, *words, "-d", str(folder)], check=True)
        (folder / "complete").touch()
    (wheel,) = folder.glob("*.whl")
    return wheel


if __name__ == "__main__":
    print(fetched())  # noqa: T201
