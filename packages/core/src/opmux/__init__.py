"""One API for the operators of language-model inference and training; many backends; the best one chosen at call time.

Ops are functions of this module. `explain` says which implementation takes a call and why, `trace` what ran,
`policy` what the process prefers. Ops that plugins define become attributes once the plugins are loaded.
"""

import importlib as _importlib
from typing import Any

from opmux._collector import paused as _paused

with _paused():
    from opmux import log as _log
    from opmux import policy, rope
    from opmux.__about__ import __version__
    from opmux.arch import fp8_dtype
    from opmux.ops.activation import (
        gelu_and_mul,
        gelu_and_mul_backward,
        gelu_mul,
        gelu_mul_backward,
        silu_and_mul,
        silu_and_mul_backward,
        silu_mul,
        silu_mul_backward,
    )
    from opmux.ops.attention import attention, attention_backward, attention_lse, merge_attention_states
    from opmux.ops.attention_varlen import attention_varlen, attention_varlen_backward, attention_varlen_lse
    from opmux.ops.conversion import convert_fp8, convert_scale, pack_scale, unpack_scale
    from opmux.ops.fused_loss import (
        fused_linear_cross_entropy,
        fused_linear_cross_entropy_backward,
        fused_linear_cross_entropy_gradients,
    )
    from opmux.ops.fused_quantization import add_rms_norm_quantize, rms_norm_quantize, silu_and_mul_quantize
    from opmux.ops.gemm import linear, linear_backward
    from opmux.ops.grouped_gemm import (
        grouped_linear,
        grouped_linear_backward,
        grouped_weight_grad,
        masked_grouped_linear,
    )
    from opmux.ops.kv_cache import block_table_from_csr, write_kv_cache
    from opmux.ops.layer_norm import add_layer_norm, add_layer_norm_backward, layer_norm, layer_norm_backward
    from opmux.ops.loss import cross_entropy, cross_entropy_backward, cross_entropy_lse
    from opmux.ops.norm import add_rms_norm, add_rms_norm_, add_rms_norm_backward, rms_norm, rms_norm_backward
    from opmux.ops.paged_attention import paged_attention, paged_attention_lse
    from opmux.ops.quantization import dequantize, quantize, static_quantize
    from opmux.ops.rope import apply_rope, apply_rope_, apply_rope_backward
    from opmux.ops.scaled_gemm import scaled_linear, scaled_linear_accumulate
    from opmux.ops.scaled_grouped_gemm import (
        scaled_grouped_linear,
        scaled_grouped_weight_grad,
        scaled_masked_grouped_linear,
    )
    from opmux.planning.explanation import Candidate, Explanation, explain
    from opmux.running.observe import Trace, TraceRow, trace
    from opmux.running.quarantine import Quarantined, quarantine_clear, quarantined

__all__ = [
    "Candidate",
    "Explanation",
    "Quarantined",
    "Trace",
    "TraceRow",
    "__version__",
    "add_layer_norm",
    "add_layer_norm_backward",
    "add_rms_norm",
    "add_rms_norm_",
    "add_rms_norm_backward",
    "add_rms_norm_quantize",
    "apply_rope",
    "apply_rope_",
    "apply_rope_backward",
    "attention",
    "attention_backward",
    "attention_lse",
    "attention_varlen",
    "attention_varlen_backward",
    "attention_varlen_lse",
    "block_table_from_csr",
    "convert_fp8",
    "convert_scale",
    "cross_entropy",
    "cross_entropy_backward",
    "cross_entropy_lse",
    "dequantize",
    "explain",
    "fp8_dtype",
    "fused_linear_cross_entropy",
    "fused_linear_cross_entropy_backward",
    "fused_linear_cross_entropy_gradients",
    "gelu_and_mul",
    "gelu_and_mul_backward",
    "gelu_mul",
    "gelu_mul_backward",
    "grouped_linear",
    "grouped_linear_backward",
    "grouped_weight_grad",
    "layer_norm",
    "layer_norm_backward",
    "linear",
    "linear_backward",
    "masked_grouped_linear",
    "merge_attention_states",
    "pack_scale",
    "paged_attention",
    "paged_attention_lse",
    "policy",
    "quantize",
    "quarantine_clear",
    "quarantined",
    "rms_norm",
    "rms_norm_backward",
    "rms_norm_quantize",
    "rope",
    "scaled_grouped_linear",
    "scaled_grouped_weight_grad",
    "scaled_linear",
    "scaled_linear_accumulate",
    "scaled_masked_grouped_linear",
    "silu_and_mul",
    "silu_and_mul_backward",
    "silu_and_mul_quantize",
    "silu_mul",
    "silu_mul_backward",
    "static_quantize",
    "trace",
    "unpack_scale",
    "write_kv_cache",
]

_log.configure()


_ON_DEMAND = ("bench", "nn", "tuner")
"""Public modules that are imported when they are first asked for."""

_FUNCTIONS_ON_DEMAND = {"tune": "tuner"}
"""Public functions likewise, by the module that has them."""


def __dir__() -> list[str]:
    """The public names: ops, those of plugins included, and what else users call; no internals."""
    from opmux.callpath.op import OPS
    from opmux.plugins.loading import ensure_loaded

    ensure_loaded()
    return sorted({*__all__, *_ON_DEMAND, *_FUNCTIONS_ON_DEMAND, *OPS})


def __getattr__(name: str) -> Any:
    """What is not there from the start: `opmux.nn` and `opmux.bench`, generated backwards, and what plugins define."""
    if name in _ON_DEMAND:
        return _importlib.import_module(f"opmux.{name}")
    if name in _FUNCTIONS_ON_DEMAND:
        return getattr(_importlib.import_module(f"opmux.{_FUNCTIONS_ON_DEMAND[name]}"), name)
    from opmux.callpath.op import OPS
    from opmux.near import did_you_mean
    from opmux.plugins.loading import ensure_loaded

    if not name.startswith("_"):
        if name not in OPS:
            ensure_loaded()
        if name in OPS:
            return OPS[name].public
        meant = did_you_mean(name, (*OPS, *__all__, *_ON_DEMAND, *_FUNCTIONS_ON_DEMAND))
        raise AttributeError(f"module 'opmux' has no attribute {name!r}; {meant}see `opmux ops` for the ops")
    raise AttributeError(f"module 'opmux' has no attribute {name!r}")
