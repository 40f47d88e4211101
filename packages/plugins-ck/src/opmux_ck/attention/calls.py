"""Which instances of attention a call launches."""

from collections.abc import Iterator
from typing import Any

from opmux.plugin import Call
from opmux_ck.attention.backward_targets import backward_instances
from opmux_ck.attention.paged_targets import paged_instances, scoring_of_pages
from opmux_ck.attention.targets import attention_instance, scoring_of
from opmux_ck.building.instances import Instance


def attention_instances(op: str, call: Call, config: Any) -> Iterator[Instance]:
    """The instances that a target launches for a call with a config, in their order."""
    tensors, options = call.tensors, call.options
    q, causal, window = tensors["q"], options["causal"], options["window"]
    scoring = scoring_of(options["scale"], options["softcap"], causal, window)
    ragged, lse = "_varlen" in op, op.endswith("_lse")
    if op.endswith("_backward"):
        group = q.shape[-2] // max(tensors["k"].shape[-2], 1)
        yield from backward_instances(q.dtype, q.shape[-1], group, scoring, config, ragged=ragged)
    elif op.startswith("paged_"):
        sizes = (*q.shape, tensors["v_cache"].shape[-1])
        scoring = scoring_of_pages(scoring.scale, scoring.cap, causal, window, options["max_seqlen_q"])
        yield from paged_instances(q.dtype, sizes, scoring, config, lse=lse)
    else:
        sizes = q.shape[-1], tensors["v"].shape[-1]
        yield attention_instance(q.dtype, *sizes, scoring, config, ragged=ragged, lse=lse)
