"""The records of attention.

What each library takes was probed on an H200 with torch 2.11 (cuDNN 9.19) and on a CPU with torch 2.13.
"""

from collections.abc import Iterator
from dataclasses import replace

from opmux.plugin import (
    Absent,
    Aligned,
    AnyOf,
    AtLeast,
    AtMost,
    Caveat,
    Constraint,
    Contiguous,
    Dtype,
    Equal,
    Implementation,
    MultipleOf,
    OneOf,
    Priority,
    UnitStride,
)
from opmux_vendor.archs import OnArch

HALVES = ("bfloat16", "float16")
FORWARD, BACKWARD = ("attention", "attention_lse"), ("attention_backward",)
RAGGED_FORWARD, RAGGED_BACKWARD = ("attention_varlen", "attention_varlen_lse"), ("attention_varlen_backward",)
TENSORS = ("q", "k", "v")

_TILES = (("seq_q", 128), ("batch", 1), ("heads", 1))
"""How cuDNN cuts a call. Its source is closed: of 64, 128 and 192 queries, these predict its measured times best."""

_NOT_EMPTY = (AtLeast("batch", 1), AtLeast("seq_q", 1), AtLeast("seq_k", 1))
_RAGGED = (
    AtLeast("batch", 1),
    AtLeast("tokens_q", 1),
    AtLeast("tokens_k", 1),
    Contiguous("cu_seqlens_q", "cu_seqlens_k"),
)
_PLAIN = (Absent("sinks"), AtMost("softcap", 0))
_OPEN_WINDOW = OneOf("window", (-1, -1))
_TOP_LEFT = AnyOf(OneOf("causal", False), Equal("seq_q", "seq_k"))
"""A causal mask that the library aligns top-left is opmux's where there are as many queries as keys."""


def _records(
    library: str,
    archs: tuple[str, ...],
    when: tuple[Constraint, ...],
    *,
    ops: tuple[str, ...],
    priority: Priority = Priority.VENDOR,
) -> Iterator[Implementation]:
    """The records of one library."""
    on_gpu = "cpu" not in archs
    for op in ops:
        backward = op in (*BACKWARD, *RAGGED_BACKWARD)
        tensors = ("grad_out", *TENSORS, "out") if backward else TENSORS
        own = _RAGGED if op in (*RAGGED_FORWARD, *RAGGED_BACKWARD) else _NOT_EMPTY
        if backward:
            own = (*own, Absent("grad_lse"))
        if on_gpu:  # loads of 16 bytes: elsewhere cuDNN reads wrong values, and flash attention faults
            own = (*own, *(Aligned(tensor, 16) for tensor in tensors))
        exact = Implementation(
            op=op,
            name=library,
            target=f"opmux_vendor.{library}:{op}",
            archs=archs,
            priority=priority,
            when=(*when, *_PLAIN, *own, UnitStride(*tensors)),
            capturable=on_gpu,
            deterministic=not (backward and on_gpu),
            caveats=(Caveat.MASKED_NONFINITE, *((Caveat.NONFINITE_KIND,) if backward else ())),
            tiles=_TILES if library == "cudnn" and op in FORWARD else (),
        )
        if backward and on_gpu:
            yield replace(exact, when=(*exact.when, Equal("heads", "kv_heads")))
            yield replace(exact, name=f"{library}_gqa", priority=Priority.VENDOR, numerics=_SHARED_KEYS)
        else:
            yield exact


_SHARED_KEYS = "the gradients of a key are rounded to 16 bits for each query head that shares it, then summed"
"""As cuDNN and flash attention do it: where the summands cancel, the roundings exceed what one rounding allows."""

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
)
_NO_EMPTY_ROW = (
    AnyOf(AtMost("seq_q", "seq_k"), OneOf("causal", False)),
    AnyOf(AtMost("seq_q", "seq_k"), _OPEN_WINDOW),
)
"""With no more queries than keys every query sees its own position."""
_WIDE_HEADS = AnyOf(AtMost("head_dim", 192), OnArch(("sm_80", "sm_90", "sm_100", "sm_103")))
"""The backward of wide heads needs more shared memory than other archs have."""
_ON_CPU = (Equal("head_dim", "value_dim"), _OPEN_WINDOW, _TOP_LEFT)
_CPU_SUMS = (Dtype("q", "float32", "float64"), *_ON_CPU)
"""In 16-bit dtypes its exponential is an approximation whose error the lse, and gradients by it, would show."""

_NOT_ONE_BY_ONE = AnyOf(AtLeast("seq_q", 2), AtLeast("seq_k", 2))
"""cuDNN's backward refuses a single query with a single key, or dies of it."""

RECORDS = (
    *_records("cudnn", ("sm_90",), _CUDNN, ops=FORWARD),
    *_records("cudnn", ("sm_90",), (*_CUDNN, _NOT_ONE_BY_ONE), ops=BACKWARD),
    *_records("flash", ("sm_80+",), (*_FLASH, *_NO_EMPTY_ROW), ops=FORWARD),
    *_records("flash", ("sm_80+",), _FLASH, ops=RAGGED_FORWARD),
    # Experimental until the conformance suite has passed on a GPU.
    *_records(
        "flash", ("sm_80+",), (*_FLASH, *_NO_EMPTY_ROW, _WIDE_HEADS), ops=BACKWARD, priority=Priority.EXPERIMENTAL
    ),
    *_records("flash", ("sm_80+",), (*_FLASH, _WIDE_HEADS), ops=RAGGED_BACKWARD, priority=Priority.EXPERIMENTAL),
    *_records("cpu_flash", ("cpu",), _ON_CPU, ops=("attention",)),
    *_records("cpu_flash", ("cpu",), _CPU_SUMS, ops=("attention_lse", "attention_backward")),
)
