"""The records of attention.

What each library takes was probed on an H200 with torch 2.11 (cuDNN 9.19) and on a CPU with torch 2.13.
"""

from collections.abc import Iterator

from opmux.plugin import (
    Absent,
    Aligned,
    AnyOf,
    AtLeast,
    AtMost,
    Caveat,
    Constraint,
    Dtype,
    Equal,
    Implementation,
    MultipleOf,
    OneOf,
    Priority,
    UnitStride,
)

HALVES = ("bfloat16", "float16")
FORWARD, BACKWARD = ("attention", "attention_lse"), ("attention_backward",)
TENSORS = ("q", "k", "v")

_NOT_EMPTY = (AtLeast("batch", 1), AtLeast("seq_q", 1), AtLeast("seq_k", 1))
_PLAIN = (Absent("sinks"), AtMost("softcap", 0))
_OPEN_WINDOW = OneOf("window", (-1, -1))
_TOP_LEFT = AnyOf(OneOf("causal", False), Equal("seq_q", "seq_k"))
"""A causal mask that the library aligns top-left is opmux's where there are as many queries as keys."""


def _records(
    library: str, archs: tuple[str, ...], when: tuple[Constraint, ...], *, ops: tuple[str, ...]
) -> Iterator[Implementation]:
    """The records of one library."""
    on_gpu = "cpu" not in archs
    for op in ops:
        backward = op in BACKWARD
        tensors = ("grad_out", *TENSORS, "out") if backward else TENSORS
        own: tuple[Constraint, ...] = (Absent("grad_lse"),) if backward else ()
        if on_gpu:  # loads of 16 bytes: elsewhere cuDNN reads wrong values, and flash attention faults
            own = (*own, *(Aligned(tensor, 16) for tensor in tensors))
        yield Implementation(
            op=op,
            name=library,
            target=f"opmux_vendor.{library}:{op}",
            archs=archs,
            # Until the conformance suite has passed on a GPU, the gradients are there for those who ask.
            priority=Priority.EXPERIMENTAL if backward and on_gpu else Priority.VENDOR,
            when=(*when, *_PLAIN, *_NOT_EMPTY, UnitStride(*tensors), *own),
            capturable=on_gpu,
            deterministic=not (backward and on_gpu),
            caveats=(Caveat.MASKED_NONFINITE,),
        )


_CUDNN = (
    Dtype("q", *HALVES),
    MultipleOf("head_dim", 8),
    MultipleOf("value_dim", 8),
    AtMost("head_dim", 256),
    AtMost("value_dim", 256),
    _OPEN_WINDOW,
    _TOP_LEFT,
)
_FLASH = (
    Dtype("q", *HALVES),
    MultipleOf("head_dim", 8),
    AtMost("head_dim", 256),
    Equal("head_dim", "value_dim"),
    # With no more queries than keys every query sees its own position.
    AnyOf(AtMost("seq_q", "seq_k"), OneOf("causal", False)),
    AnyOf(AtMost("seq_q", "seq_k"), _OPEN_WINDOW),
)
_ON_CPU = (Equal("head_dim", "value_dim"), _OPEN_WINDOW, _TOP_LEFT)
_CPU_SUMS = (Dtype("q", "float32", "float64"), *_ON_CPU)
"""In 16-bit dtypes its exponential is an approximation whose error the lse, and gradients by it, would show."""

RECORDS = (
    *_records("cudnn", ("sm_90",), _CUDNN, ops=FORWARD),
    # With a single query and key the process dies in cuDNN's backward: nothing near that size is claimed.
    *_records("cudnn", ("sm_90",), (*_CUDNN, AtLeast("seq_q", 64), AtLeast("seq_k", 64)), ops=BACKWARD),
    *_records("flash", ("sm_80+",), _FLASH, ops=(*FORWARD, *BACKWARD)),
    *_records("cpu_flash", ("cpu",), _ON_CPU, ops=("attention",)),
    *_records("cpu_flash", ("cpu",), _CPU_SUMS, ops=("attention_lse", "attention_backward")),
)
