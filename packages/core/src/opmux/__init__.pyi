# Made by scripts/make_stubs.py from the signatures of the ops: do not edit.
"""One API for the operators of language models; many backends; the best one chosen at call time."""

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from opmux import bench as bench
from opmux import nn as nn
from opmux import policy as policy
from opmux import rope as rope
from opmux import tuner as tuner
from opmux.__about__ import __version__ as __version__
from opmux.arch import fp8_dtype as fp8_dtype
from opmux.callpath.op import Op as _DefinedOp
from opmux.ops.kv_cache import block_table_from_csr as block_table_from_csr
from opmux.planning.explanation import Candidate as Candidate
from opmux.planning.explanation import Explanation as Explanation
from opmux.planning.explanation import explain as explain
from opmux.running.observe import Trace as Trace
from opmux.running.observe import TraceRow as TraceRow
from opmux.running.observe import trace as trace
from opmux.running.quarantine import Quarantined as Quarantined
from opmux.running.quarantine import quarantine_clear as quarantine_clear
from opmux.running.quarantine import quarantined as quarantined
from opmux.tuner.session import tune as tune

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

class _Op:
    """What every op has beside its call."""

    op: _DefinedOp
    __name__: str

class _add_layer_norm(_Op):
    reference: Callable[..., tuple[Tensor, Tensor]]
    def __call__(
        self,
        x: Tensor,
        residual: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        *,
        eps: float = 1e-05,
        backend: str | None = None,
        out: tuple[Tensor, Tensor] | None = None,
    ) -> tuple[Tensor, Tensor]: ...
    def bind(
        self,
        x: Tensor,
        residual: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        *,
        eps: float = 1e-05,
        backend: str | None = None,
    ) -> Callable[..., tuple[Tensor, Tensor]]: ...

add_layer_norm: _add_layer_norm

class _add_layer_norm_backward(_Op):
    reference: Callable[..., tuple[Tensor, Tensor, Tensor, Tensor]]
    def __call__(
        self,
        grad_y: Tensor,
        grad_residual_out: Tensor,
        residual_out: Tensor,
        weight: Tensor,
        *,
        eps: float = 1e-05,
        output_mask: tuple[bool, bool, bool, bool] = (True, True, True, True),
        backend: str | None = None,
        out: tuple[Tensor, Tensor, Tensor, Tensor] | None = None,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]: ...
    def bind(
        self,
        grad_y: Tensor,
        grad_residual_out: Tensor,
        residual_out: Tensor,
        weight: Tensor,
        *,
        eps: float = 1e-05,
        output_mask: tuple[bool, bool, bool, bool] = (True, True, True, True),
        backend: str | None = None,
    ) -> Callable[..., tuple[Tensor, Tensor, Tensor, Tensor]]: ...

add_layer_norm_backward: _add_layer_norm_backward

class _add_rms_norm(_Op):
    reference: Callable[..., tuple[Tensor, Tensor]]
    def __call__(
        self,
        x: Tensor,
        residual: Tensor,
        weight: Tensor,
        *,
        eps: float = 1e-06,
        weight_offset: float = 0.0,
        backend: str | None = None,
        out: tuple[Tensor, Tensor] | None = None,
    ) -> tuple[Tensor, Tensor]: ...
    def bind(
        self,
        x: Tensor,
        residual: Tensor,
        weight: Tensor,
        *,
        eps: float = 1e-06,
        weight_offset: float = 0.0,
        backend: str | None = None,
    ) -> Callable[..., tuple[Tensor, Tensor]]: ...

add_rms_norm: _add_rms_norm

class _add_rms_norm_(_Op):
    reference: Callable[..., None]
    def __call__(
        self,
        x: Tensor,
        residual: Tensor,
        weight: Tensor,
        *,
        eps: float = 1e-06,
        weight_offset: float = 0.0,
        backend: str | None = None,
    ) -> None: ...
    def bind(
        self,
        x: Tensor,
        residual: Tensor,
        weight: Tensor,
        *,
        eps: float = 1e-06,
        weight_offset: float = 0.0,
        backend: str | None = None,
    ) -> Callable[..., None]: ...

add_rms_norm_: _add_rms_norm_

class _add_rms_norm_backward(_Op):
    reference: Callable[..., tuple[Tensor, Tensor, Tensor]]
    def __call__(
        self,
        grad_y: Tensor,
        grad_residual_out: Tensor,
        residual_out: Tensor,
        weight: Tensor,
        *,
        eps: float = 1e-06,
        weight_offset: float = 0.0,
        output_mask: tuple[bool, bool, bool] = (True, True, True),
        backend: str | None = None,
        out: tuple[Tensor, Tensor, Tensor] | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]: ...
    def bind(
        self,
        grad_y: Tensor,
        grad_residual_out: Tensor,
        residual_out: Tensor,
        weight: Tensor,
        *,
        eps: float = 1e-06,
        weight_offset: float = 0.0,
        output_mask: tuple[bool, bool, bool] = (True, True, True),
        backend: str | None = None,
    ) -> Callable[..., tuple[Tensor, Tensor, Tensor]]: ...

add_rms_norm_backward: _add_rms_norm_backward

class _add_rms_norm_quantize(_Op):
    reference: Callable[..., tuple[Tensor, Tensor, Tensor]]
    def __call__(
        self,
        x: Tensor,
        residual: Tensor,
        weight: Tensor,
        *,
        dtype: torch.dtype,
        block: tuple[int, int] = (1, 128),
        scale_major: Literal["k", "m"] = "k",
        eps: float = 1e-06,
        weight_offset: float = 0.0,
        backend: str | None = None,
        out: tuple[Tensor, Tensor, Tensor] | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]: ...
    def bind(
        self,
        x: Tensor,
        residual: Tensor,
        weight: Tensor,
        *,
        dtype: torch.dtype,
        block: tuple[int, int] = (1, 128),
        scale_major: Literal["k", "m"] = "k",
        eps: float = 1e-06,
        weight_offset: float = 0.0,
        backend: str | None = None,
    ) -> Callable[..., tuple[Tensor, Tensor, Tensor]]: ...

add_rms_norm_quantize: _add_rms_norm_quantize

class _apply_rope(_Op):
    reference: Callable[..., tuple[Tensor, Tensor]]
    def __call__(
        self,
        q: Tensor,
        k: Tensor,
        cos: Tensor,
        sin: Tensor,
        positions: Tensor | None = None,
        *,
        interleaved: bool = False,
        backend: str | None = None,
        out: tuple[Tensor, Tensor] | None = None,
    ) -> tuple[Tensor, Tensor]: ...
    def bind(
        self,
        q: Tensor,
        k: Tensor,
        cos: Tensor,
        sin: Tensor,
        positions: Tensor | None = None,
        *,
        interleaved: bool = False,
        backend: str | None = None,
    ) -> Callable[..., tuple[Tensor, Tensor]]: ...

apply_rope: _apply_rope

class _apply_rope_(_Op):
    reference: Callable[..., None]
    def __call__(
        self,
        q: Tensor,
        k: Tensor,
        cos: Tensor,
        sin: Tensor,
        positions: Tensor | None = None,
        *,
        interleaved: bool = False,
        backend: str | None = None,
    ) -> None: ...
    def bind(
        self,
        q: Tensor,
        k: Tensor,
        cos: Tensor,
        sin: Tensor,
        positions: Tensor | None = None,
        *,
        interleaved: bool = False,
        backend: str | None = None,
    ) -> Callable[..., None]: ...

apply_rope_: _apply_rope_

class _apply_rope_backward(_Op):
    reference: Callable[..., tuple[Tensor, Tensor]]
    def __call__(
        self,
        grad_q_out: Tensor,
        grad_k_out: Tensor,
        cos: Tensor,
        sin: Tensor,
        positions: Tensor | None = None,
        *,
        interleaved: bool = False,
        output_mask: tuple[bool, bool] = (True, True),
        backend: str | None = None,
        out: tuple[Tensor, Tensor] | None = None,
    ) -> tuple[Tensor, Tensor]: ...
    def bind(
        self,
        grad_q_out: Tensor,
        grad_k_out: Tensor,
        cos: Tensor,
        sin: Tensor,
        positions: Tensor | None = None,
        *,
        interleaved: bool = False,
        output_mask: tuple[bool, bool] = (True, True),
        backend: str | None = None,
    ) -> Callable[..., tuple[Tensor, Tensor]]: ...

apply_rope_backward: _apply_rope_backward

class _attention(_Op):
    reference: Callable[..., Tensor]
    def __call__(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        sinks: Tensor | None = None,
        *,
        scale: float | None = None,
        causal: bool = False,
        window: tuple[int, int] = (-1, -1),
        softcap: float = 0.0,
        backend: str | None = None,
        out: Tensor | None = None,
    ) -> Tensor: ...
    def bind(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        sinks: Tensor | None = None,
        *,
        scale: float | None = None,
        causal: bool = False,
        window: tuple[int, int] = (-1, -1),
        softcap: float = 0.0,
        backend: str | None = None,
    ) -> Callable[..., Tensor]: ...

attention: _attention

class _attention_backward(_Op):
    reference: Callable[..., tuple[Tensor, Tensor, Tensor, Tensor]]
    def __call__(
        self,
        grad_out: Tensor,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        out: Tensor,
        lse: Tensor,
        sinks: Tensor | None = None,
        grad_lse: Tensor | None = None,
        *,
        scale: float | None = None,
        causal: bool = False,
        window: tuple[int, int] = (-1, -1),
        softcap: float = 0.0,
        output_mask: tuple[bool, bool, bool, bool] = (True, True, True, True),
        backend: str | None = None,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]: ...
    def bind(
        self,
        grad_out: Tensor,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        out: Tensor,
        lse: Tensor,
        sinks: Tensor | None = None,
        grad_lse: Tensor | None = None,
        *,
        scale: float | None = None,
        causal: bool = False,
        window: tuple[int, int] = (-1, -1),
        softcap: float = 0.0,
        output_mask: tuple[bool, bool, bool, bool] = (True, True, True, True),
        backend: str | None = None,
    ) -> Callable[..., tuple[Tensor, Tensor, Tensor, Tensor]]: ...

attention_backward: _attention_backward

class _attention_lse(_Op):
    reference: Callable[..., tuple[Tensor, Tensor]]
    def __call__(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        sinks: Tensor | None = None,
        *,
        scale: float | None = None,
        causal: bool = False,
        window: tuple[int, int] = (-1, -1),
        softcap: float = 0.0,
        backend: str | None = None,
        out: tuple[Tensor, Tensor] | None = None,
    ) -> tuple[Tensor, Tensor]: ...
    def bind(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        sinks: Tensor | None = None,
        *,
        scale: float | None = None,
        causal: bool = False,
        window: tuple[int, int] = (-1, -1),
        softcap: float = 0.0,
        backend: str | None = None,
    ) -> Callable[..., tuple[Tensor, Tensor]]: ...

attention_lse: _attention_lse

class _attention_varlen(_Op):
    reference: Callable[..., Tensor]
    def __call__(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        cu_seqlens_q: Tensor,
        cu_seqlens_k: Tensor,
        sinks: Tensor | None = None,
        *,
        max_seqlen_q: int,
        max_seqlen_k: int,
        scale: float | None = None,
        causal: bool = False,
        window: tuple[int, int] = (-1, -1),
        softcap: float = 0.0,
        backend: str | None = None,
        out: Tensor | None = None,
    ) -> Tensor: ...
    def bind(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        cu_seqlens_q: Tensor,
        cu_seqlens_k: Tensor,
        sinks: Tensor | None = None,
        *,
        max_seqlen_q: int,
        max_seqlen_k: int,
        scale: float | None = None,
        causal: bool = False,
        window: tuple[int, int] = (-1, -1),
        softcap: float = 0.0,
        backend: str | None = None,
    ) -> Callable[..., Tensor]: ...

attention_varlen: _attention_varlen

class _attention_varlen_backward(_Op):
    reference: Callable[..., tuple[Tensor, Tensor, Tensor, Tensor]]
    def __call__(
        self,
        grad_out: Tensor,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        out: Tensor,
        lse: Tensor,
        cu_seqlens_q: Tensor,
        cu_seqlens_k: Tensor,
        sinks: Tensor | None = None,
        grad_lse: Tensor | None = None,
        *,
        max_seqlen_q: int,
        max_seqlen_k: int,
        scale: float | None = None,
        causal: bool = False,
        window: tuple[int, int] = (-1, -1),
        softcap: float = 0.0,
        output_mask: tuple[bool, bool, bool, bool] = (True, True, True, True),
        backend: str | None = None,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]: ...
    def bind(
        self,
        grad_out: Tensor,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        out: Tensor,
        lse: Tensor,
        cu_seqlens_q: Tensor,
        cu_seqlens_k: Tensor,
        sinks: Tensor | None = None,
        grad_lse: Tensor | None = None,
        *,
        max_seqlen_q: int,
        max_seqlen_k: int,
        scale: float | None = None,
        causal: bool = False,
        window: tuple[int, int] = (-1, -1),
        softcap: float = 0.0,
        output_mask: tuple[bool, bool, bool, bool] = (True, True, True, True),
        backend: str | None = None,
    ) -> Callable[..., tuple[Tensor, Tensor, Tensor, Tensor]]: ...

attention_varlen_backward: _attention_varlen_backward

class _attention_varlen_lse(_Op):
    reference: Callable[..., tuple[Tensor, Tensor]]
    def __call__(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        cu_seqlens_q: Tensor,
        cu_seqlens_k: Tensor,
        sinks: Tensor | None = None,
        *,
        max_seqlen_q: int,
        max_seqlen_k: int,
        scale: float | None = None,
        causal: bool = False,
        window: tuple[int, int] = (-1, -1),
        softcap: float = 0.0,
        backend: str | None = None,
        out: tuple[Tensor, Tensor] | None = None,
    ) -> tuple[Tensor, Tensor]: ...
    def bind(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        cu_seqlens_q: Tensor,
        cu_seqlens_k: Tensor,
        sinks: Tensor | None = None,
        *,
        max_seqlen_q: int,
        max_seqlen_k: int,
        scale: float | None = None,
        causal: bool = False,
        window: tuple[int, int] = (-1, -1),
        softcap: float = 0.0,
        backend: str | None = None,
    ) -> Callable[..., tuple[Tensor, Tensor]]: ...

attention_varlen_lse: _attention_varlen_lse

class _convert_fp8(_Op):
    reference: Callable[..., tuple[Tensor, Tensor]]
    def __call__(
        self,
        q: Tensor,
        scale: Tensor,
        *,
        dtype: torch.dtype,
        backend: str | None = None,
        out: tuple[Tensor, Tensor] | None = None,
    ) -> tuple[Tensor, Tensor]: ...
    def bind(
        self,
        q: Tensor,
        scale: Tensor,
        *,
        dtype: torch.dtype,
        backend: str | None = None,
    ) -> Callable[..., tuple[Tensor, Tensor]]: ...

convert_fp8: _convert_fp8

class _convert_scale(_Op):
    reference: Callable[..., Tensor]
    def __call__(
        self,
        scale: Tensor,
        *,
        dtype: torch.dtype,
        scale_major: Literal["k", "m"] = "k",
        backend: str | None = None,
        out: Tensor | None = None,
    ) -> Tensor: ...
    def bind(
        self,
        scale: Tensor,
        *,
        dtype: torch.dtype,
        scale_major: Literal["k", "m"] = "k",
        backend: str | None = None,
    ) -> Callable[..., Tensor]: ...

convert_scale: _convert_scale

class _cross_entropy(_Op):
    reference: Callable[..., Tensor]
    def __call__(
        self,
        logits: Tensor,
        target: Tensor,
        *,
        ignore_index: int = -100,
        label_smoothing: float = 0.0,
        z_loss: float = 0.0,
        softcap: float = 0.0,
        reduction: Literal["mean", "sum", "none"] = "mean",
        backend: str | None = None,
        out: Tensor | None = None,
    ) -> Tensor: ...
    def bind(
        self,
        logits: Tensor,
        target: Tensor,
        *,
        ignore_index: int = -100,
        label_smoothing: float = 0.0,
        z_loss: float = 0.0,
        softcap: float = 0.0,
        reduction: Literal["mean", "sum", "none"] = "mean",
        backend: str | None = None,
    ) -> Callable[..., Tensor]: ...

cross_entropy: _cross_entropy

class _cross_entropy_backward(_Op):
    reference: Callable[..., Tensor]
    def __call__(
        self,
        grad_loss: Tensor,
        logits: Tensor,
        target: Tensor,
        lse: Tensor,
        grad_lse: Tensor | None = None,
        *,
        ignore_index: int = -100,
        label_smoothing: float = 0.0,
        z_loss: float = 0.0,
        softcap: float = 0.0,
        reduction: Literal["mean", "sum", "none"] = "mean",
        output_mask: tuple[bool] = (True,),
        backend: str | None = None,
        out: Tensor | None = None,
    ) -> Tensor: ...
    def bind(
        self,
        grad_loss: Tensor,
        logits: Tensor,
        target: Tensor,
        lse: Tensor,
        grad_lse: Tensor | None = None,
        *,
        ignore_index: int = -100,
        label_smoothing: float = 0.0,
        z_loss: float = 0.0,
        softcap: float = 0.0,
        reduction: Literal["mean", "sum", "none"] = "mean",
        output_mask: tuple[bool] = (True,),
        backend: str | None = None,
    ) -> Callable[..., Tensor]: ...

cross_entropy_backward: _cross_entropy_backward

class _cross_entropy_lse(_Op):
    reference: Callable[..., tuple[Tensor, Tensor]]
    def __call__(
        self,
        logits: Tensor,
        target: Tensor,
        *,
        ignore_index: int = -100,
        label_smoothing: float = 0.0,
        z_loss: float = 0.0,
        softcap: float = 0.0,
        reduction: Literal["mean", "sum", "none"] = "mean",
        backend: str | None = None,
        out: tuple[Tensor, Tensor] | None = None,
    ) -> tuple[Tensor, Tensor]: ...
    def bind(
        self,
        logits: Tensor,
        target: Tensor,
        *,
        ignore_index: int = -100,
        label_smoothing: float = 0.0,
        z_loss: float = 0.0,
        softcap: float = 0.0,
        reduction: Literal["mean", "sum", "none"] = "mean",
        backend: str | None = None,
    ) -> Callable[..., tuple[Tensor, Tensor]]: ...

cross_entropy_lse: _cross_entropy_lse

class _dequantize(_Op):
    reference: Callable[..., Tensor]
    def __call__(
        self,
        q: Tensor,
        scale: Tensor,
        *,
        out_dtype: torch.dtype,
        backend: str | None = None,
        out: Tensor | None = None,
    ) -> Tensor: ...
    def bind(
        self,
        q: Tensor,
        scale: Tensor,
        *,
        out_dtype: torch.dtype,
        backend: str | None = None,
    ) -> Callable[..., Tensor]: ...

dequantize: _dequantize

class _fused_linear_cross_entropy(_Op):
    reference: Callable[..., Tensor]
    def __call__(
        self,
        x: Tensor,
        weight: Tensor,
        target: Tensor,
        *,
        ignore_index: int = -100,
        label_smoothing: float = 0.0,
        z_loss: float = 0.0,
        softcap: float = 0.0,
        reduction: Literal["mean", "sum", "none"] = "mean",
        backend: str | None = None,
        out: Tensor | None = None,
    ) -> Tensor: ...
    def bind(
        self,
        x: Tensor,
        weight: Tensor,
        target: Tensor,
        *,
        ignore_index: int = -100,
        label_smoothing: float = 0.0,
        z_loss: float = 0.0,
        softcap: float = 0.0,
        reduction: Literal["mean", "sum", "none"] = "mean",
        backend: str | None = None,
    ) -> Callable[..., Tensor]: ...

fused_linear_cross_entropy: _fused_linear_cross_entropy

class _fused_linear_cross_entropy_backward(_Op):
    reference: Callable[..., tuple[Tensor, Tensor]]
    def __call__(
        self,
        grad_loss: Tensor,
        x: Tensor,
        weight: Tensor,
        target: Tensor,
        x_gradient: Tensor | None = None,
        weight_gradient: Tensor | None = None,
        *,
        ignore_index: int = -100,
        label_smoothing: float = 0.0,
        z_loss: float = 0.0,
        softcap: float = 0.0,
        reduction: Literal["mean", "sum", "none"] = "mean",
        output_mask: tuple[bool, bool] = (True, True),
        backend: str | None = None,
        out: tuple[Tensor, Tensor] | None = None,
    ) -> tuple[Tensor, Tensor]: ...
    def bind(
        self,
        grad_loss: Tensor,
        x: Tensor,
        weight: Tensor,
        target: Tensor,
        x_gradient: Tensor | None = None,
        weight_gradient: Tensor | None = None,
        *,
        ignore_index: int = -100,
        label_smoothing: float = 0.0,
        z_loss: float = 0.0,
        softcap: float = 0.0,
        reduction: Literal["mean", "sum", "none"] = "mean",
        output_mask: tuple[bool, bool] = (True, True),
        backend: str | None = None,
    ) -> Callable[..., tuple[Tensor, Tensor]]: ...

fused_linear_cross_entropy_backward: _fused_linear_cross_entropy_backward

class _fused_linear_cross_entropy_gradients(_Op):
    reference: Callable[..., tuple[Tensor, Tensor, Tensor]]
    def __call__(
        self,
        x: Tensor,
        weight: Tensor,
        target: Tensor,
        *,
        ignore_index: int = -100,
        label_smoothing: float = 0.0,
        z_loss: float = 0.0,
        softcap: float = 0.0,
        reduction: Literal["mean", "sum", "none"] = "mean",
        output_mask: tuple[bool, bool, bool] = (True, True, True),
        backend: str | None = None,
        out: tuple[Tensor, Tensor, Tensor] | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]: ...
    def bind(
        self,
        x: Tensor,
        weight: Tensor,
        target: Tensor,
        *,
        ignore_index: int = -100,
        label_smoothing: float = 0.0,
        z_loss: float = 0.0,
        softcap: float = 0.0,
        reduction: Literal["mean", "sum", "none"] = "mean",
        output_mask: tuple[bool, bool, bool] = (True, True, True),
        backend: str | None = None,
    ) -> Callable[..., tuple[Tensor, Tensor, Tensor]]: ...

fused_linear_cross_entropy_gradients: _fused_linear_cross_entropy_gradients

class _gelu_and_mul(_Op):
    reference: Callable[..., Tensor]
    def __call__(
        self,
        x: Tensor,
        *,
        approximate: Literal["none", "tanh"] = "none",
        backend: str | None = None,
        out: Tensor | None = None,
    ) -> Tensor: ...
    def bind(
        self,
        x: Tensor,
        *,
        approximate: Literal["none", "tanh"] = "none",
        backend: str | None = None,
    ) -> Callable[..., Tensor]: ...

gelu_and_mul: _gelu_and_mul

class _gelu_and_mul_backward(_Op):
    reference: Callable[..., Tensor]
    def __call__(
        self,
        grad_out: Tensor,
        x: Tensor,
        *,
        approximate: Literal["none", "tanh"] = "none",
        output_mask: tuple[bool] = (True,),
        backend: str | None = None,
        out: Tensor | None = None,
    ) -> Tensor: ...
    def bind(
        self,
        grad_out: Tensor,
        x: Tensor,
        *,
        approximate: Literal["none", "tanh"] = "none",
        output_mask: tuple[bool] = (True,),
        backend: str | None = None,
    ) -> Callable[..., Tensor]: ...

gelu_and_mul_backward: _gelu_and_mul_backward

class _gelu_mul(_Op):
    reference: Callable[..., Tensor]
    def __call__(
        self,
        gate: Tensor,
        up: Tensor,
        *,
        approximate: Literal["none", "tanh"] = "none",
        backend: str | None = None,
        out: Tensor | None = None,
    ) -> Tensor: ...
    def bind(
        self,
        gate: Tensor,
        up: Tensor,
        *,
        approximate: Literal["none", "tanh"] = "none",
        backend: str | None = None,
    ) -> Callable[..., Tensor]: ...

gelu_mul: _gelu_mul

class _gelu_mul_backward(_Op):
    reference: Callable[..., tuple[Tensor, Tensor]]
    def __call__(
        self,
        grad_out: Tensor,
        gate: Tensor,
        up: Tensor,
        *,
        approximate: Literal["none", "tanh"] = "none",
        output_mask: tuple[bool, bool] = (True, True),
        backend: str | None = None,
        out: tuple[Tensor, Tensor] | None = None,
    ) -> tuple[Tensor, Tensor]: ...
    def bind(
        self,
        grad_out: Tensor,
        gate: Tensor,
        up: Tensor,
        *,
        approximate: Literal["none", "tanh"] = "none",
        output_mask: tuple[bool, bool] = (True, True),
        backend: str | None = None,
    ) -> Callable[..., tuple[Tensor, Tensor]]: ...

gelu_mul_backward: _gelu_mul_backward

class _grouped_linear(_Op):
    reference: Callable[..., Tensor]
    def __call__(
        self,
        x: Tensor,
        w: Tensor,
        group_offsets: Tensor,
        group_sizes: Tensor | None = None,
        *,
        backend: str | None = None,
        out: Tensor | None = None,
    ) -> Tensor: ...
    def bind(
        self,
        x: Tensor,
        w: Tensor,
        group_offsets: Tensor,
        group_sizes: Tensor | None = None,
        *,
        backend: str | None = None,
    ) -> Callable[..., Tensor]: ...

grouped_linear: _grouped_linear

class _grouped_linear_backward(_Op):
    reference: Callable[..., tuple[Tensor, Tensor]]
    def __call__(
        self,
        grad_out: Tensor,
        x: Tensor,
        w: Tensor,
        group_offsets: Tensor,
        group_sizes: Tensor | None = None,
        *,
        output_mask: tuple[bool, bool] = (True, True),
        backend: str | None = None,
        out: tuple[Tensor, Tensor] | None = None,
    ) -> tuple[Tensor, Tensor]: ...
    def bind(
        self,
        grad_out: Tensor,
        x: Tensor,
        w: Tensor,
        group_offsets: Tensor,
        group_sizes: Tensor | None = None,
        *,
        output_mask: tuple[bool, bool] = (True, True),
        backend: str | None = None,
    ) -> Callable[..., tuple[Tensor, Tensor]]: ...

grouped_linear_backward: _grouped_linear_backward

class _grouped_weight_grad(_Op):
    reference: Callable[..., None]
    def __call__(
        self,
        out: Tensor,
        dy: Tensor,
        x: Tensor,
        group_offsets: Tensor,
        group_sizes: Tensor | None = None,
        *,
        backend: str | None = None,
    ) -> None: ...
    def bind(
        self,
        out: Tensor,
        dy: Tensor,
        x: Tensor,
        group_offsets: Tensor,
        group_sizes: Tensor | None = None,
        *,
        backend: str | None = None,
    ) -> Callable[..., None]: ...

grouped_weight_grad: _grouped_weight_grad

class _layer_norm(_Op):
    reference: Callable[..., Tensor]
    def __call__(
        self,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        *,
        eps: float = 1e-05,
        backend: str | None = None,
        out: Tensor | None = None,
    ) -> Tensor: ...
    def bind(
        self,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        *,
        eps: float = 1e-05,
        backend: str | None = None,
    ) -> Callable[..., Tensor]: ...

layer_norm: _layer_norm

class _layer_norm_backward(_Op):
    reference: Callable[..., tuple[Tensor, Tensor, Tensor]]
    def __call__(
        self,
        grad_y: Tensor,
        x: Tensor,
        weight: Tensor,
        *,
        eps: float = 1e-05,
        output_mask: tuple[bool, bool, bool] = (True, True, True),
        backend: str | None = None,
        out: tuple[Tensor, Tensor, Tensor] | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]: ...
    def bind(
        self,
        grad_y: Tensor,
        x: Tensor,
        weight: Tensor,
        *,
        eps: float = 1e-05,
        output_mask: tuple[bool, bool, bool] = (True, True, True),
        backend: str | None = None,
    ) -> Callable[..., tuple[Tensor, Tensor, Tensor]]: ...

layer_norm_backward: _layer_norm_backward

class _linear(_Op):
    reference: Callable[..., Tensor]
    def __call__(
        self,
        x: Tensor,
        w: Tensor,
        bias: Tensor | None = None,
        *,
        out_dtype: torch.dtype | None = None,
        backend: str | None = None,
        out: Tensor | None = None,
    ) -> Tensor: ...
    def bind(
        self,
        x: Tensor,
        w: Tensor,
        bias: Tensor | None = None,
        *,
        out_dtype: torch.dtype | None = None,
        backend: str | None = None,
    ) -> Callable[..., Tensor]: ...

linear: _linear

class _linear_backward(_Op):
    reference: Callable[..., tuple[Tensor, Tensor, Tensor]]
    def __call__(
        self,
        grad_out: Tensor,
        x: Tensor,
        w: Tensor,
        *,
        output_mask: tuple[bool, bool, bool] = (True, True, True),
        backend: str | None = None,
        out: tuple[Tensor, Tensor, Tensor] | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]: ...
    def bind(
        self,
        grad_out: Tensor,
        x: Tensor,
        w: Tensor,
        *,
        output_mask: tuple[bool, bool, bool] = (True, True, True),
        backend: str | None = None,
    ) -> Callable[..., tuple[Tensor, Tensor, Tensor]]: ...

linear_backward: _linear_backward

class _masked_grouped_linear(_Op):
    reference: Callable[..., Tensor]
    def __call__(
        self,
        x: Tensor,
        w: Tensor,
        masked_m: Tensor,
        *,
        expected_m: int,
        backend: str | None = None,
        out: Tensor | None = None,
    ) -> Tensor: ...
    def bind(
        self,
        x: Tensor,
        w: Tensor,
        masked_m: Tensor,
        *,
        expected_m: int,
        backend: str | None = None,
    ) -> Callable[..., Tensor]: ...

masked_grouped_linear: _masked_grouped_linear

class _merge_attention_states(_Op):
    reference: Callable[..., tuple[Tensor, Tensor]]
    def __call__(
        self,
        out_a: Tensor,
        lse_a: Tensor,
        out_b: Tensor,
        lse_b: Tensor,
        *,
        backend: str | None = None,
        out: tuple[Tensor, Tensor] | None = None,
    ) -> tuple[Tensor, Tensor]: ...
    def bind(
        self,
        out_a: Tensor,
        lse_a: Tensor,
        out_b: Tensor,
        lse_b: Tensor,
        *,
        backend: str | None = None,
    ) -> Callable[..., tuple[Tensor, Tensor]]: ...

merge_attention_states: _merge_attention_states

class _merge_attention_states_backward(_Op):
    reference: Callable[..., tuple[Tensor, Tensor, Tensor, Tensor]]
    def __call__(
        self,
        grad_out: Tensor,
        grad_lse: Tensor,
        out_a: Tensor,
        lse_a: Tensor,
        out_b: Tensor,
        lse_b: Tensor,
        *,
        output_mask: tuple[bool, bool, bool, bool] = (True, True, True, True),
        backend: str | None = None,
        out: tuple[Tensor, Tensor, Tensor, Tensor] | None = None,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]: ...
    def bind(
        self,
        grad_out: Tensor,
        grad_lse: Tensor,
        out_a: Tensor,
        lse_a: Tensor,
        out_b: Tensor,
        lse_b: Tensor,
        *,
        output_mask: tuple[bool, bool, bool, bool] = (True, True, True, True),
        backend: str | None = None,
    ) -> Callable[..., tuple[Tensor, Tensor, Tensor, Tensor]]: ...

merge_attention_states_backward: _merge_attention_states_backward

class _pack_scale(_Op):
    reference: Callable[..., Tensor]
    def __call__(
        self,
        scale: Tensor,
        *,
        scale_major: Literal["k", "m"] = "k",
        backend: str | None = None,
        out: Tensor | None = None,
    ) -> Tensor: ...
    def bind(
        self,
        scale: Tensor,
        *,
        scale_major: Literal["k", "m"] = "k",
        backend: str | None = None,
    ) -> Callable[..., Tensor]: ...

pack_scale: _pack_scale

class _paged_attention(_Op):
    reference: Callable[..., Tensor]
    def __call__(
        self,
        q: Tensor,
        k_cache: Tensor,
        v_cache: Tensor,
        cu_seqlens_q: Tensor,
        seq_lens: Tensor,
        block_table: Tensor,
        sinks: Tensor | None = None,
        q_scale: Tensor | None = None,
        k_scale: Tensor | None = None,
        v_scale: Tensor | None = None,
        *,
        max_seqlen_q: int,
        max_seqlen_k: int,
        scale: float | None = None,
        causal: bool = True,
        window: tuple[int, int] = (-1, -1),
        softcap: float = 0.0,
        layout: str = "nhd",
        backend: str | None = None,
        out: Tensor | None = None,
    ) -> Tensor: ...
    def bind(
        self,
        q: Tensor,
        k_cache: Tensor,
        v_cache: Tensor,
        cu_seqlens_q: Tensor,
        seq_lens: Tensor,
        block_table: Tensor,
        sinks: Tensor | None = None,
        q_scale: Tensor | None = None,
        k_scale: Tensor | None = None,
        v_scale: Tensor | None = None,
        *,
        max_seqlen_q: int,
        max_seqlen_k: int,
        scale: float | None = None,
        causal: bool = True,
        window: tuple[int, int] = (-1, -1),
        softcap: float = 0.0,
        layout: str = "nhd",
        backend: str | None = None,
    ) -> Callable[..., Tensor]: ...

paged_attention: _paged_attention

class _paged_attention_lse(_Op):
    reference: Callable[..., tuple[Tensor, Tensor]]
    def __call__(
        self,
        q: Tensor,
        k_cache: Tensor,
        v_cache: Tensor,
        cu_seqlens_q: Tensor,
        seq_lens: Tensor,
        block_table: Tensor,
        sinks: Tensor | None = None,
        q_scale: Tensor | None = None,
        k_scale: Tensor | None = None,
        v_scale: Tensor | None = None,
        *,
        max_seqlen_q: int,
        max_seqlen_k: int,
        scale: float | None = None,
        causal: bool = True,
        window: tuple[int, int] = (-1, -1),
        softcap: float = 0.0,
        layout: str = "nhd",
        backend: str | None = None,
        out: tuple[Tensor, Tensor] | None = None,
    ) -> tuple[Tensor, Tensor]: ...
    def bind(
        self,
        q: Tensor,
        k_cache: Tensor,
        v_cache: Tensor,
        cu_seqlens_q: Tensor,
        seq_lens: Tensor,
        block_table: Tensor,
        sinks: Tensor | None = None,
        q_scale: Tensor | None = None,
        k_scale: Tensor | None = None,
        v_scale: Tensor | None = None,
        *,
        max_seqlen_q: int,
        max_seqlen_k: int,
        scale: float | None = None,
        causal: bool = True,
        window: tuple[int, int] = (-1, -1),
        softcap: float = 0.0,
        layout: str = "nhd",
        backend: str | None = None,
    ) -> Callable[..., tuple[Tensor, Tensor]]: ...

paged_attention_lse: _paged_attention_lse

class _quantize(_Op):
    reference: Callable[..., tuple[Tensor, Tensor]]
    def __call__(
        self,
        x: Tensor,
        *,
        dtype: torch.dtype,
        block: tuple[int, int] = (1, 128),
        scale_major: Literal["k", "m"] = "k",
        backend: str | None = None,
        out: tuple[Tensor, Tensor] | None = None,
    ) -> tuple[Tensor, Tensor]: ...
    def bind(
        self,
        x: Tensor,
        *,
        dtype: torch.dtype,
        block: tuple[int, int] = (1, 128),
        scale_major: Literal["k", "m"] = "k",
        backend: str | None = None,
    ) -> Callable[..., tuple[Tensor, Tensor]]: ...

quantize: _quantize

class _rms_norm(_Op):
    reference: Callable[..., Tensor]
    def __call__(
        self,
        x: Tensor,
        weight: Tensor,
        *,
        eps: float = 1e-06,
        weight_offset: float = 0.0,
        backend: str | None = None,
        out: Tensor | None = None,
    ) -> Tensor: ...
    def bind(
        self,
        x: Tensor,
        weight: Tensor,
        *,
        eps: float = 1e-06,
        weight_offset: float = 0.0,
        backend: str | None = None,
    ) -> Callable[..., Tensor]: ...

rms_norm: _rms_norm

class _rms_norm_backward(_Op):
    reference: Callable[..., tuple[Tensor, Tensor]]
    def __call__(
        self,
        grad_y: Tensor,
        x: Tensor,
        weight: Tensor,
        *,
        eps: float = 1e-06,
        weight_offset: float = 0.0,
        output_mask: tuple[bool, bool] = (True, True),
        backend: str | None = None,
        out: tuple[Tensor, Tensor] | None = None,
    ) -> tuple[Tensor, Tensor]: ...
    def bind(
        self,
        grad_y: Tensor,
        x: Tensor,
        weight: Tensor,
        *,
        eps: float = 1e-06,
        weight_offset: float = 0.0,
        output_mask: tuple[bool, bool] = (True, True),
        backend: str | None = None,
    ) -> Callable[..., tuple[Tensor, Tensor]]: ...

rms_norm_backward: _rms_norm_backward

class _rms_norm_quantize(_Op):
    reference: Callable[..., tuple[Tensor, Tensor]]
    def __call__(
        self,
        x: Tensor,
        weight: Tensor,
        *,
        dtype: torch.dtype,
        block: tuple[int, int] = (1, 128),
        scale_major: Literal["k", "m"] = "k",
        eps: float = 1e-06,
        weight_offset: float = 0.0,
        backend: str | None = None,
        out: tuple[Tensor, Tensor] | None = None,
    ) -> tuple[Tensor, Tensor]: ...
    def bind(
        self,
        x: Tensor,
        weight: Tensor,
        *,
        dtype: torch.dtype,
        block: tuple[int, int] = (1, 128),
        scale_major: Literal["k", "m"] = "k",
        eps: float = 1e-06,
        weight_offset: float = 0.0,
        backend: str | None = None,
    ) -> Callable[..., tuple[Tensor, Tensor]]: ...

rms_norm_quantize: _rms_norm_quantize

class _scaled_grouped_linear(_Op):
    reference: Callable[..., Tensor]
    def __call__(
        self,
        x: Tensor,
        w: Tensor,
        group_offsets: Tensor,
        x_scale: Tensor,
        w_scale: Tensor,
        group_sizes: Tensor | None = None,
        *,
        out_dtype: torch.dtype,
        backend: str | None = None,
        out: Tensor | None = None,
    ) -> Tensor: ...
    def bind(
        self,
        x: Tensor,
        w: Tensor,
        group_offsets: Tensor,
        x_scale: Tensor,
        w_scale: Tensor,
        group_sizes: Tensor | None = None,
        *,
        out_dtype: torch.dtype,
        backend: str | None = None,
    ) -> Callable[..., Tensor]: ...

scaled_grouped_linear: _scaled_grouped_linear

class _scaled_grouped_weight_grad(_Op):
    reference: Callable[..., None]
    def __call__(
        self,
        out: Tensor,
        dy: Tensor,
        x: Tensor,
        group_offsets: Tensor,
        dy_scale: Tensor,
        x_scale: Tensor,
        group_sizes: Tensor | None = None,
        *,
        backend: str | None = None,
    ) -> None: ...
    def bind(
        self,
        out: Tensor,
        dy: Tensor,
        x: Tensor,
        group_offsets: Tensor,
        dy_scale: Tensor,
        x_scale: Tensor,
        group_sizes: Tensor | None = None,
        *,
        backend: str | None = None,
    ) -> Callable[..., None]: ...

scaled_grouped_weight_grad: _scaled_grouped_weight_grad

class _scaled_linear(_Op):
    reference: Callable[..., Tensor]
    def __call__(
        self,
        x: Tensor,
        w: Tensor,
        x_scale: Tensor,
        w_scale: Tensor,
        bias: Tensor | None = None,
        *,
        out_dtype: torch.dtype,
        backend: str | None = None,
        out: Tensor | None = None,
    ) -> Tensor: ...
    def bind(
        self,
        x: Tensor,
        w: Tensor,
        x_scale: Tensor,
        w_scale: Tensor,
        bias: Tensor | None = None,
        *,
        out_dtype: torch.dtype,
        backend: str | None = None,
    ) -> Callable[..., Tensor]: ...

scaled_linear: _scaled_linear

class _scaled_linear_accumulate(_Op):
    reference: Callable[..., None]
    def __call__(
        self,
        out: Tensor,
        x: Tensor,
        w: Tensor,
        x_scale: Tensor,
        w_scale: Tensor,
        *,
        backend: str | None = None,
    ) -> None: ...
    def bind(
        self,
        out: Tensor,
        x: Tensor,
        w: Tensor,
        x_scale: Tensor,
        w_scale: Tensor,
        *,
        backend: str | None = None,
    ) -> Callable[..., None]: ...

scaled_linear_accumulate: _scaled_linear_accumulate

class _scaled_masked_grouped_linear(_Op):
    reference: Callable[..., Tensor]
    def __call__(
        self,
        x: Tensor,
        w: Tensor,
        masked_m: Tensor,
        x_scale: Tensor,
        w_scale: Tensor,
        *,
        expected_m: int,
        out_dtype: torch.dtype,
        backend: str | None = None,
        out: Tensor | None = None,
    ) -> Tensor: ...
    def bind(
        self,
        x: Tensor,
        w: Tensor,
        masked_m: Tensor,
        x_scale: Tensor,
        w_scale: Tensor,
        *,
        expected_m: int,
        out_dtype: torch.dtype,
        backend: str | None = None,
    ) -> Callable[..., Tensor]: ...

scaled_masked_grouped_linear: _scaled_masked_grouped_linear

class _silu_and_mul(_Op):
    reference: Callable[..., Tensor]
    def __call__(
        self,
        x: Tensor,
        *,
        backend: str | None = None,
        out: Tensor | None = None,
    ) -> Tensor: ...
    def bind(
        self,
        x: Tensor,
        *,
        backend: str | None = None,
    ) -> Callable[..., Tensor]: ...

silu_and_mul: _silu_and_mul

class _silu_and_mul_backward(_Op):
    reference: Callable[..., Tensor]
    def __call__(
        self,
        grad_out: Tensor,
        x: Tensor,
        *,
        output_mask: tuple[bool] = (True,),
        backend: str | None = None,
        out: Tensor | None = None,
    ) -> Tensor: ...
    def bind(
        self,
        grad_out: Tensor,
        x: Tensor,
        *,
        output_mask: tuple[bool] = (True,),
        backend: str | None = None,
    ) -> Callable[..., Tensor]: ...

silu_and_mul_backward: _silu_and_mul_backward

class _silu_and_mul_quantize(_Op):
    reference: Callable[..., tuple[Tensor, Tensor]]
    def __call__(
        self,
        x: Tensor,
        *,
        dtype: torch.dtype,
        block: tuple[int, int] = (1, 128),
        scale_major: Literal["k", "m"] = "k",
        backend: str | None = None,
        out: tuple[Tensor, Tensor] | None = None,
    ) -> tuple[Tensor, Tensor]: ...
    def bind(
        self,
        x: Tensor,
        *,
        dtype: torch.dtype,
        block: tuple[int, int] = (1, 128),
        scale_major: Literal["k", "m"] = "k",
        backend: str | None = None,
    ) -> Callable[..., tuple[Tensor, Tensor]]: ...

silu_and_mul_quantize: _silu_and_mul_quantize

class _silu_mul(_Op):
    reference: Callable[..., Tensor]
    def __call__(
        self,
        gate: Tensor,
        up: Tensor,
        *,
        backend: str | None = None,
        out: Tensor | None = None,
    ) -> Tensor: ...
    def bind(
        self,
        gate: Tensor,
        up: Tensor,
        *,
        backend: str | None = None,
    ) -> Callable[..., Tensor]: ...

silu_mul: _silu_mul

class _silu_mul_backward(_Op):
    reference: Callable[..., tuple[Tensor, Tensor]]
    def __call__(
        self,
        grad_out: Tensor,
        gate: Tensor,
        up: Tensor,
        *,
        output_mask: tuple[bool, bool] = (True, True),
        backend: str | None = None,
        out: tuple[Tensor, Tensor] | None = None,
    ) -> tuple[Tensor, Tensor]: ...
    def bind(
        self,
        grad_out: Tensor,
        gate: Tensor,
        up: Tensor,
        *,
        output_mask: tuple[bool, bool] = (True, True),
        backend: str | None = None,
    ) -> Callable[..., tuple[Tensor, Tensor]]: ...

silu_mul_backward: _silu_mul_backward

class _static_quantize(_Op):
    reference: Callable[..., Tensor]
    def __call__(
        self,
        x: Tensor,
        scale: Tensor,
        *,
        dtype: torch.dtype,
        backend: str | None = None,
        out: Tensor | None = None,
    ) -> Tensor: ...
    def bind(
        self,
        x: Tensor,
        scale: Tensor,
        *,
        dtype: torch.dtype,
        backend: str | None = None,
    ) -> Callable[..., Tensor]: ...

static_quantize: _static_quantize

class _unpack_scale(_Op):
    reference: Callable[..., Tensor]
    def __call__(
        self,
        packed: Tensor,
        *,
        k_blocks: int,
        dtype: torch.dtype,
        scale_major: Literal["k", "m"] = "k",
        backend: str | None = None,
        out: Tensor | None = None,
    ) -> Tensor: ...
    def bind(
        self,
        packed: Tensor,
        *,
        k_blocks: int,
        dtype: torch.dtype,
        scale_major: Literal["k", "m"] = "k",
        backend: str | None = None,
    ) -> Callable[..., Tensor]: ...

unpack_scale: _unpack_scale

class _write_kv_cache(_Op):
    reference: Callable[..., None]
    def __call__(
        self,
        k: Tensor,
        v: Tensor,
        k_cache: Tensor,
        v_cache: Tensor,
        slot_mapping: Tensor,
        k_scale: Tensor | None = None,
        v_scale: Tensor | None = None,
        *,
        layout: str = "nhd",
        backend: str | None = None,
    ) -> None: ...
    def bind(
        self,
        k: Tensor,
        v: Tensor,
        k_cache: Tensor,
        v_cache: Tensor,
        slot_mapping: Tensor,
        k_scale: Tensor | None = None,
        v_scale: Tensor | None = None,
        *,
        layout: str = "nhd",
        backend: str | None = None,
    ) -> Callable[..., None]: ...

write_kv_cache: _write_kv_cache
