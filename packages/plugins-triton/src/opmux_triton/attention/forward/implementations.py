"""The records of attention's forward."""

from opmux_triton.archs import HALVES
from opmux_triton.attention.records import hopper, portable
from opmux_triton.scoring.constraints import HOPPER_WIDE_HEADS

_TENSORS = ("q", "k", "v")
_QUERIES = {
    "attention": "seq_q",
    "attention_lse": "seq_q",
    "attention_varlen": "max_seqlen_q",
    "attention_varlen_lse": "max_seqlen_q",
}
"""Each op and what bounds its number of queries."""
_HEADS = (("batch", 1), ("heads", 1))
_DENSE = ("attention", "attention_lse")
_HOPPER_ROWS = 128
"""Queries of a tile of the Gluon kernel: of two warpgroups. At 64 columns it may be three: a schedule made in the call
says so, where that fills the last round better."""

RECORDS = (
    *(
        portable(
            op,
            name,
            dtypes,
            folder="forward",
            config=config,
            tensors=_TENSORS,
            queries=queries,
            tiles=(("seq_q", "rows"), *_HEADS) if op in _DENSE else (),
        )
        for op, queries in _QUERIES.items()
        for name, dtypes, config in (("", HALVES, "forward_config"), ("float32", ("float32",), "float32_config"))
    ),
    *(
        hopper(
            op,
            folder="forward",
            heads=HOPPER_WIDE_HEADS,
            tensors=_TENSORS,
            aligned=_TENSORS,
            deterministic=True,
            tiles=(("seq_q", _HOPPER_ROWS), *_HEADS),
        )
        for op in _DENSE
    ),
)
