"""What the core loads of this package: the records, and where Composable Kernel is. Touches no device or compiler."""

from collections.abc import Callable, Iterator

from opmux.plugin import Implementation, Prebuilt, hookimpl
from opmux.tuning import RecordReader
from opmux_ck.aiter import reader as aiter
from opmux_ck.attention import implementations as attention
from opmux_ck.building.prebuilding import prebuild
from opmux_ck.gemm import implementations as gemm
from opmux_ck.library.report import toolchains
from opmux_ck.norms import implementations as norms

OPMUX_API_VERSION = 1


@hookimpl
def opmux_implementations() -> Iterator[Implementation]:
    """Every implementation."""
    yield from norms.RECORDS
    yield from gemm.RECORDS
    yield from attention.RECORDS


@hookimpl
def opmux_prebuilders() -> list[Callable[..., Prebuilt]]:
    """Compiles instances ahead, for `opmux prebuild`."""
    return [prebuild]


@hookimpl
def opmux_record_readers() -> list[tuple[str, RecordReader]]:
    """AITER's tables of tuned products."""
    return [(aiter.SUFFIX, aiter.read)]


@hookimpl
def opmux_toolchains() -> list[Callable[[], Iterator[dict[str, str | None]]]]:
    """Composable Kernel, for `opmux doctor`."""
    return [toolchains]
