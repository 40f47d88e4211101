"""Calls on a GPU that the tests of several modules make."""

from typing import Any

import torch

from opmux.bench.cases import MAKERS
from opmux.bench.data import Arguments, Data
from opmux.bench.shapes import SIZES
from opmux.callpath.op import OPS
from opmux.demo.model import Llama, LlamaConfig
from opmux_triton import families

IMPLEMENTED = sorted({record.op for record in families.records()})
PREFILL, DECODE = SIZES["small"]


def arguments_of(op: str, shape: Any = PREFILL, dtype: torch.dtype = torch.bfloat16) -> Arguments:
    """Seeded arguments of an op."""
    return MAKERS[op](Data.seeded(torch.device("cuda"), dtype), shape)


def call(op: str, given: Arguments, backend: str = "triton") -> tuple[torch.Tensor, ...]:
    """What a call returns, or what it leaves in its mutated arguments; its arguments stay as they are."""
    tensors = [t.clone() if t is not None else None for t in given.tensors]
    results = OPS[op].public(*tensors, **given.options, backend=backend)
    if results is None:
        named = OPS[op].names(tuple(tensors))
        return tuple(named[name] for name in OPS[op].signature.mutates)
    return results if isinstance(results, tuple) else (results,)


def small_model(seed: int = 0, dtype: torch.dtype = torch.bfloat16) -> Llama:
    """The demo's model, in bfloat16; rope's tables stay float32."""
    model = Llama(LlamaConfig(64, layers=2, heads=4, kv_heads=2, head_dim=64, intermediate=256), seed)
    return model.to("cuda", dtype)


def chosen(traced: Any) -> set[tuple[str, str]]:
    """Each op that a trace saw, with its backend."""
    return {(row.op, row.backend.partition(":")[0]) for row in traced.rows}
