"""The families of kernels, each a code object for each arch. Standard library only: the build of the wheel runs it."""

import functools
from collections.abc import Callable

from opmux_asm.__about__ import __version__
from opmux_asm.kernels import attention, block_products, cache, paged_decode, products, recipes, rope, row_kernels
from opmux_asm.writer import Kernel, module

FAMILIES: dict[str, Callable[[str], list[Kernel]]] = {
    **{name: functools.partial(row_kernels.kernels, name) for name in recipes.FAMILIES},
    **{name: functools.partial(products.kernels, name) for name in products.FAMILIES},
    block_products.FAMILY: block_products.kernels,
    rope.FAMILY: rope.kernels,
    cache.FAMILY: cache.kernels,
    attention.FAMILY: attention.kernels,
    paged_decode.FAMILY: paged_decode.kernels,
}
"""By name, a function of the arch that writes the family's kernels."""


def source(family: str, arch: str) -> tuple[str, dict[str, dict[str, object]]]:
    """A family's assembly, and how each kernel is launched: threads of a workgroup, letters of its arguments."""
    kernels = FAMILIES[family](arch)
    launches: dict[str, dict[str, object]] = {
        k.name: {"threads": k.threads, "signature": k.signature, "lds": k.lds} for k in kernels
    }
    return module(family, arch, kernels, __version__), launches
