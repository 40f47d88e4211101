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
    name: str,
    archs: tuple[str, ...],
    when: tuple[Constraint, ...],
    *,
    ops: tuple[str, ...] = (*FORWARD, *BACKWARD),
    capturable: bool = False,
    deterministic_backward: bool = False,
) -> Iterator[Implementation]:
    for op in ops:
        backward = op in BACKWARD
        tensors = ("grad_out", *TENSORS, "out") if backward else TENSORS
        own: tuple[Constraint, ...] = (Absent("grad_lse"),) if backward else ()
        if "cpu" not in archs:  # loads of 16 bytes: elsewhere cuDNN reads wrong values, and flash attention faults
            own = (*own, *(Aligned(tensor, 16) for tensor in tensors))
        yield Implementation(
            op=op,
            name=name,
            target=f"opmux_vendor.{name}:{op}",
            archs=archs,
            priority=Priority.VENDOR,
            when=(*when, *_PLAIN, *_NOT_EMPTY, UnitStride(*tensors), *own),
            capturable=capturable,
            deterministic=deterministic_backward or not backward,
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
_ON_CPU = (Equal("head_dim", "value_dim"), _OPEN_WINDOW, _TOP_LEFT)

RECORDS = (
    *_records("cudnn", ("sm_90",), _CUDNN, ops=FORWARD, capturable=True),
    *_records(
        "cudnn",
        ("sm_90",),
        # With a single query and key the process dies in cuDNN's backward: nothing near that size is claimed.
        (*_CUDNN, AtLeast("seq_q", 64), AtLeast("seq_k", 64)),
        ops=BACKWARD,
        capturable=True,
    ),
    *_records(
        "flash",
        ("sm_80+",),
        (
            Dtype("q", *HALVES),
            MultipleOf("head_dim", 8),
            AtMost("head_dim", 256),
            Equal("head_dim", "value_dim"),
            # Then every query sees its own position, and no row is empty.
            AnyOf(AtMost("seq_q", "seq_k"), _OPEN_WINDOW),
            AnyOf(AtMost("seq_q", "seq_k"), OneOf("causal", False)),
        ),
        capturable=True,
    ),
    *_records("cpu_flash", ("cpu",), _ON_CPU, ops=("attention",), deterministic_backward=True),
    *_records(
        "cpu_flash",
        ("cpu",),
        # In 16-bit dtypes its exponential is an approximation whose error the lse, and gradients by it, would show.
        (Dtype("q", "float32", "float64"), *_ON_CPU),
        ops=("attention_lse", "attention_backward"),
        deterministic_backward=True,
    ),
)
