"""Triton's cache with opmux-jit's bundles below it: kernels that were compiled ahead are found, verified, and loaded.

With ``OPMUX_NO_JIT=1`` a kernel that neither has is an error with the command that builds it.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import triton
from triton.runtime.cache import FileCacheManager

try:
    from opmux_jit import Damaged, KernelMissing, compiling_forbidden
    from opmux_jit import named_bundles as layers
except ImportError:  # it, or something that it depends on; or it is older than what is asked of it
    INSTALLED = False
else:
    INSTALLED = True

FOLDER = "triton"
LAUNCHER = "__triton_launcher"
"""How Triton before 3.9 calls the compiled C code that launches a kernel."""
_arch: Callable[[], str] = str
"""What is compiled for in the current context: Triton makes the cache's objects, and does not tell them."""

logger = logging.getLogger("opmux.triton")


class BundledCache(FileCacheManager):  # type: ignore[misc]  # Triton is not typed
    """Triton's own cache first, then the bundles."""

    def get_group(self, filename: str) -> dict[str, str] | None:
        """The files of a kernel by name; None where it must be compiled.

        Raises:
            KernelMissing: where it must be compiled, and that is forbidden.
        """
        own: dict[str, str] | None = super().get_group(filename)
        found = own or self._of_bundles(filename)
        if found is None and compiling_forbidden():
            kernel = filename.removesuffix(".json")
            known = ", ".join(b.label for b in layers()) or "none is named by OPMUX_BUNDLES"
            raise KernelMissing(
                f"kernel {kernel} is not compiled for triton {triton.__version__}, and OPMUX_NO_JIT forbids it; "
                f"bundles: {known}; "
                f"try: opmux prebuild --arch {_arch()} --backend triton --shapes FILE --out DIR"
            )
        return found

    def get_file(self, filename: str) -> str | None:
        """A file of Triton's cache; of the code that launches kernels, also one of the bundles."""
        own: str | None = super().get_file(filename)
        if own is not None or not filename.startswith(LAUNCHER):
            return own
        name = f"{FOLDER}/{self.key}/{filename}"
        for bundle in layers():
            try:
                bundle.read(name)
            except FileNotFoundError:
                continue
            except Damaged as damage:
                logger.warning("bundle %s: %s is damaged, and is not used: %s", bundle.root, filename, damage)
                continue
            return str(bundle.root / name)
        return None

    def _of_bundles(self, filename: str) -> dict[str, str] | None:
        folder = f"{FOLDER}/{self.key}"
        for bundle in layers():
            names = bundle.names(folder)
            if f"{folder}/{filename}" not in names:
                continue
            try:
                for name in names:
                    bundle.read(name)
            except Damaged as damage:
                logger.warning("bundle %s: kernel %s is damaged, and is not used: %s", bundle.root, filename, damage)
                continue
            return {name.rpartition("/")[2]: str(bundle.root / name) for name in names}
        return None


@contextmanager
def _layered(arch: Callable[[], str]) -> Iterator[None]:
    global _arch
    before = triton.knobs.cache.manager_class
    triton.knobs.cache.manager_class, _arch = BundledCache, arch
    try:
        yield
    finally:
        triton.knobs.cache.manager_class = before


def layered(arch: Callable[[], str]) -> AbstractContextManager[None]:
    """A context in which kernels are looked for in the bundles too, if there are any or compiling is forbidden.

    Args:
        arch: returns what is compiled for, which errors name.
    """
    if (
        INSTALLED
        and triton.knobs.cache.manager_class in (None, FileCacheManager)
        and (layers() or compiling_forbidden())
    ):
        return _layered(arch)
    return nullcontext()
