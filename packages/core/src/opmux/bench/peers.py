"""The peers of an op on a device: torch eager, torch.compile, each library that torch brings, and other packages."""

from collections.abc import Callable
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from opmux.bench import formulations as f
from opmux.bench.data import Arguments
from opmux.bench.gradients import backward_call, has_gradient
from opmux.bench.libraries import library_peers
from opmux.bench.work import all_options
from opmux.callpath.op import Op

EAGER = "torch eager"
COMPILE = "torch.compile"

Run = Callable[[], Any]

_WHOLE: dict[str, Callable[..., Any]] = {
    "rms_norm": f.rms_norm,
    "add_rms_norm": f.add_rms_norm,
    "add_rms_norm_": f.add_rms_norm_,
    "layer_norm": f.layer_norm,
    "add_layer_norm": f.add_layer_norm,
    "silu_and_mul": f.silu_and_mul,
    "gelu_and_mul": f.gelu_and_mul,
    "silu_mul": f.silu_mul,
    "gelu_mul": f.gelu_mul,
    "apply_rope": f.apply_rope,
    "apply_rope_": f.apply_rope_,
    "apply_rope_backward": f.apply_rope_backward,
    "linear": f.linear,
    "linear_backward": f.linear_backward,
    "attention": f.attention,
    "attention_lse": f.attention_lse,
    "merge_attention_states": f.merge_attention_states,
    "write_kv_cache": f.write_kv_cache,
    "quantize": f.quantize,
    "scaled_linear": f.scaled_linear,
    "scaled_linear_accumulate": f.scaled_linear_accumulate,
    "grouped_linear": f.grouped_linear,
    "grouped_linear_backward": f.grouped_linear_backward,
    "grouped_weight_grad": f.grouped_weight_grad,
    "masked_grouped_linear": f.masked_grouped_linear,
    "scaled_grouped_linear": f.scaled_grouped_linear,
    "scaled_grouped_weight_grad": f.scaled_grouped_weight_grad,
    "scaled_masked_grouped_linear": f.scaled_masked_grouped_linear,
    "static_quantize": f.static_quantize,
    "dequantize": f.dequantize,
    "convert_scale": f.convert_scale,
    "pack_scale": f.pack_scale,
    "unpack_scale": f.unpack_scale,
    "convert_fp8": f.convert_fp8,
    "rms_norm_quantize": f.rms_norm_quantize,
    "add_rms_norm_quantize": f.add_rms_norm_quantize,
    "silu_and_mul_quantize": f.silu_and_mul_quantize,
    "cross_entropy": f.cross_entropy,
    "cross_entropy_lse": f.cross_entropy_lse,
    "fused_linear_cross_entropy": f.fused_linear_cross_entropy,
    "fused_linear_cross_entropy_gradients": f.fused_linear_cross_entropy_gradients,
}
"""Ops whose formulation takes the op's own arguments; these are passed to torch.compile."""

_BY_SEQUENCE: dict[str, tuple[Callable[..., Any], Callable[..., Any], str]] = {
    "attention_varlen": (f.each_sequence, f.attention, "cu_seqlens_k"),
    "attention_varlen_lse": (f.each_sequence, f.attention_lse, "cu_seqlens_k"),
    "paged_attention": (f.each_page_list, f.attention, "seq_lens"),
    "paged_attention_lse": (f.each_page_list, f.attention_lse, "seq_lens"),
}
"""Ops whose formulation needs numbers on the host; they are read once, untimed, since a serving engine knows them."""


def peers_of(op: Op, arguments: Arguments, device: torch.device, compiled: bool) -> dict[str, Callable[[], Run]]:
    """The peers of a call, by name.

    Args:
        compiled: whether torch.compile is one of them.

    Returns:
        Functions that make the call to be timed; they may raise if the peer is not available here.
    """
    name, options = op.name, all_options(op, arguments)
    tensors: tuple[Any, ...] = arguments.tensors
    found: dict[str, Callable[[], Run]] = {}
    if name in _WHOLE:
        eager = _WHOLE[name]
        found[EAGER] = lambda: lambda: eager(*tensors, **options)
        if compiled:
            found[COMPILE] = lambda: _compiled(eager, tensors, options)
    elif name in _BY_SEQUENCE:
        over, attend, lengths = _BY_SEQUENCE[name]
        given = op.names(tensors)
        ragged = over(given["cu_seqlens_q"].tolist(), given[lengths].tolist(), attend)
        found[EAGER] = lambda: lambda: ragged(*tensors, **options)
    elif has_gradient(name):
        given = {**op.names(tensors), **options}
        found[EAGER] = lambda: backward_call(name, given)
        if compiled:
            found[COMPILE] = lambda: _compiled_backward(name, given)
    if device.type == "cuda" and torch.version.cuda:
        if name == "linear":
            found["cuBLASLt"] = lambda: _with_cublaslt(lambda: f.linear(*tensors, **options))
        elif name == "linear_backward":
            found["cuBLASLt"] = lambda: _with_cublaslt(lambda: f.linear_backward(*tensors, **options))
        elif name == "attention":
            found["cuDNN"] = lambda: _with_kernel(SDPBackend.CUDNN_ATTENTION, lambda: f.attention(*tensors, **options))
            found["flash attention"] = lambda: _with_kernel(
                SDPBackend.FLASH_ATTENTION, lambda: f.attention(*tensors, **options)
            )
            found["cuDNN, heads first"] = lambda: _heads_first(tensors, options["causal"])
        elif name == "attention_backward":
            found["cuDNN"] = lambda: _backward_with(SDPBackend.CUDNN_ATTENTION, {**op.names(tensors), **options})
            found["flash attention"] = lambda: _backward_with(
                SDPBackend.FLASH_ATTENTION, {**op.names(tensors), **options}
            )
        found |= library_peers(name, {**op.names(tensors), **options})
    return found


def _compile(function: Callable[..., Any]) -> Callable[..., Any]:
    """torch.compile with tuning, but without CUDA graphs, which no contender uses."""
    mode = "max-autotune-no-cudagraphs" if torch.cuda.is_available() else None
    made: Callable[..., Any] = torch.compile(function, dynamic=False, mode=mode)
    return made


def _compiled(eager: Callable[..., Any], tensors: Any, options: Any) -> Run:
    torch.compiler.reset()  # compile each case on its own, regardless of earlier ones
    made = _compile(eager)
    return lambda: made(*tensors, **options)


def _with_cublaslt(run: Run) -> Run:
    def call() -> Any:
        before = torch.backends.cuda.preferred_blas_library()
        torch.backends.cuda.preferred_blas_library("cublaslt")
        try:
            return run()
        finally:
            torch.backends.cuda.preferred_blas_library(before)

    return call


def _with_kernel(kernel: SDPBackend, run: Run) -> Run:
    def call() -> Any:
        with sdpa_kernel(kernel):
            return run()

    return call


def _compiled_backward(name: str, given: Any) -> Run:
    torch.compiler.reset()
    # The graph is retained and rerun, so its buffers must not be donated.
    with torch._functorch.config.patch(donated_buffer=False):
        return backward_call(name, given, _compile)


def _heads_first(tensors: tuple[Any, ...], causal: bool) -> Run:
    """cuDNN on tensors laid out as (batch, heads, seq, head_dim) beforehand."""
    q, k, v = (t.transpose(1, 2).contiguous().transpose(1, 2) for t in tensors[:3])
    return _with_kernel(SDPBackend.CUDNN_ATTENTION, lambda: f.attention(q, k, v, causal=causal))


def _backward_with(kernel: SDPBackend, given: Any) -> Run:
    with sdpa_kernel(kernel):
        return backward_call("attention_backward", given)
