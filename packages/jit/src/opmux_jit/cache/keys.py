"""The key of a cache entry: a digest of everything that decides the machine code."""

import hashlib

from opmux_jit.compilers.includes import included
from opmux_jit.compilers.source import Source

FORMAT = 1
"""The version of the entries' layout, and the name of the folder that has them."""


def source_key(source: Source) -> str:
    """The digest of source, included headers, flags, arch and ABI: everything but the compiler."""
    hashed = hashlib.sha256()
    headers = sorted(included(source))
    fields = [str(FORMAT), source.name, source.text, source.arch, str(source.abi), *source.flags]
    fields += [] if source.language == "c++" else [f"language {source.language}"]
    for part in (*(field.encode() for field in fields), b"headers", *(p for n, c in headers for p in (n.encode(), c))):
        hashed.update(f"{len(part)}:".encode() + part)
    return hashed.hexdigest()[:32]


def entry_key(key: str, compiler: str) -> str:
    """The name of an entry: the source's key, and the digest of the compiler's name and version."""
    return f"{key}-{hashlib.sha256(compiler.encode()).hexdigest()[:8]}"
