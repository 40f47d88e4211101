"""Every kernel that calls of models and of all ops get, compiled for four archs: arguments, memory, instructions."""

from collections import Counter
from collections.abc import Iterator

import pytest
from cubins import Cubin, compiled, kernel, layout, meta

from opmux.errors import BuildFailed
from opmux_cutile.launching import TileKernel
from opmux_cutile.parameters import Array, Constant
from opmux_cutile.shipping.kernels import ARCHS, kernels
from opmux_cutile.shipping.more_calls import more_calls

SHARES = 8
"""Parts of an arch's kernels, each a test, so that several processes share them."""
COPIED = (
    "linear", "scaled_linear", "ragged", "masked", "dense", "decode", "product", "of_rows", "of_weights",
    "scaled_ragged", "scaled_masked", "keys_dense", "keys_ragged", "queries_dense", "queries_ragged",
)  # fmt: skip
GATHERED = ("gathered", "gathered_product", "dense_gathered", "ragged_gathered", "attend")
MULTIPLIED = (*COPIED, *GATHERED)
"""Names of kernels whose operands the copy engine reads, of those where threads do, and of those that multiply."""
ATOMICS = ("ATOM.", "ATOMG", "RED.", "REDG", "UATOMG", "UREDG")
"""How instructions begin that change global memory atomically."""
CODES = ("float8_e4m3fn", "float8_e5m2", "int8")
WRITE_DESCRIPTOR = "ATOMG.E.EXCH.STRONG.GPU"
PRODUCTS = ("HGMMA", "QGMMA", "UTCHMMA", "UTCQMMA", "HMMA", "QMMA")


def faults(kernel: TileKernel, found: Cubin) -> Iterator[str]:
    """What a cubin lacks of what its kernel needs."""
    if found.parameters != layout(kernel.letters):
        yield "its parameters are elsewhere than the launcher puts them"
    if found.local or found.count("LDL") or found.count("STL"):
        yield f"{found.local} bytes of local memory, read {found.count('LDL')} and written {found.count('STL')} times"
    if not 0 < found.registers <= 255:
        yield f"{found.registers} registers"
    if kernel.name in MULTIPLIED and not any(found.count(instruction) for instruction in PRODUCTS):
        yield "no instruction of the matrix units"
    if kernel.name in COPIED and not found.count("UTMALDG"):
        yield "no instruction of the copy engine"
    if kernel.name in GATHERED and not scattered(kernel) and not found.count("LDGSTS.E.BYPASS.128"):
        yield "no copy of 16 bytes past the registers"
    # The one use of atomics on global memory is the compiler's: a part of a tensor gets a copy descriptor of its own,
    # which it writes to memory that the driver provides, and then invalidates in the descriptors' cache.
    atomics = sum(found.count(begin) for begin in ATOMICS)
    if atomics != found.opcodes[WRITE_DESCRIPTOR] or atomics != found.count("UTMACCTL.IV"):
        yield f"{atomics} atomics on global memory, of which {found.count('UTMACCTL.IV')} write copy descriptors"


def scattered(kernel: TileKernel) -> bool:
    """Whether rows of codes are no whole vectors of 16 bytes: such heads have what their rows allow."""
    arrays = [parameter for parameter in kernel.parameters if isinstance(parameter, Array)]
    return kernel.name == "attend" and any((array.shape[-1] or 0) % 16 for array in arrays if array.dtype in CODES)


def title(kernel: TileKernel) -> str:
    """The kernel with what told its code from that of others, but for dtypes and strides."""
    sizes = [parameter.value for parameter in kernel.parameters if isinstance(parameter, Constant)]
    return f"{kernel.op}: {kernel.name}, {sizes}, {dict(kernel.hints)}"


@pytest.mark.parametrize("share", range(SHARES))
@pytest.mark.parametrize("arch", ["sm_80", *ARCHS])
def test_kernels(arch: str, share: int, tmp_path) -> None:
    wanted = list(kernels(arch, more_calls()).values())[share::SHARES]
    assert wanted
    wrong = []
    for one in wanted:
        try:
            wrong += [f"{title(one)}: {fault}" for fault in faults(one, compiled(one, arch, tmp_path))]
        except BuildFailed as error:
            wrong.append(f"{title(one)}: {error}")
    assert not wrong, "\n".join(wrong)


def test_every_fault_is_found() -> None:
    product = kernel("linear", meta(512, 512), meta(512, 512), None)
    good = Cubin(layout(product.letters), 168, 0, Counter({"UTMALDG.2D": 4, "HGMMA.64x128x16.F32.BF16": 4}))
    assert not list(faults(product, good))
    bad = Cubin(good.parameters[1:], 0, 16, Counter({"LDL": 2, "STL": 1, "REDG.E.ADD.STRONG.GPU": 1}))
    assert list(faults(product, bad)) == [
        "its parameters are elsewhere than the launcher puts them",
        "16 bytes of local memory, read 2 and written 1 times",
        "0 registers",
        "no instruction of the matrix units",
        "no instruction of the copy engine",
        "1 atomics on global memory, of which 0 write copy descriptors",
    ]
    cut = Cubin(good.parameters, 168, 0, good.opcodes + Counter({WRITE_DESCRIPTOR: 2, "UTMACCTL.IV": 2}))
    assert not list(faults(product, cut))
