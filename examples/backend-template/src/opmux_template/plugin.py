"""What the backend claims. opmux imports this module once; it imports no toolchain and touches no device."""

from collections.abc import Iterator

from opmux.plugin import Dtype, Implementation, MultipleOf, Priority, SameDtype, hookimpl

OPMUX_API_VERSION = 1


@hookimpl
def opmux_implementations() -> Iterator[Implementation]:
    """One implementation of one op."""
    yield Implementation(
        op="rms_norm",
        target="opmux_template.norm:rms_norm",
        archs=("cpu",),
        priority=Priority.PORTABLE,
        when=(Dtype("x", "float32", "bfloat16"), SameDtype("x", "weight"), MultipleOf("hidden", 8)),
        capturable=True,
        deterministic=True,
    )
