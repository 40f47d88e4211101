"""The wheel that the programs come in: fetched once, checked, and kept outside the repository."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

NAME, VERSION = "amd-aiter", "0.1.7.post2.dev18"
SHA256 = "fe139d74438217c35e87e3b961166bac8db2d381eadccb371da2e63615f05a31"
INSIDE = "aiter_meta/hsa/"


def folder() -> Path:
    """The code objects, in a folder for each arch: only they are kept (100 MB). pip refuses a wheel of another hash."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "opmux" / "foreign" / SHA256[:16]
    if (cache / "complete").exists():
        return cache / INSIDE
    cache.mkdir(parents=True, exist_ok=True)
    (cache / "wanted.txt").write_text(f"{NAME}=={VERSION} --hash=sha256:{SHA256}\n")
    words = ["-m", "pip", "download", "--quiet", "--no-deps", "--require-hashes", "-r", str(cache / "wanted.txt")]
    subprocess.run([sys.executable, *words, "-d", str(cache)], check=True)
    (wheel,) = cache.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(cache, [n for n in archive.namelist() if n.startswith(INSIDE) and n.endswith(".co")])
    wheel.unlink()
    (cache / "complete").touch()
    return cache / INSIDE
