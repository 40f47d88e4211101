"""Attention with its projections: grouped heads, rope, norms of q and k, window, softcap, sinks."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import opmux
from opmux.errors import invalid
from opmux.nn.context import Context
from opmux.nn.fused_weights import fit_projections
from opmux.nn.linear import Linear, backend_repr
from opmux.nn.norm import RMSNorm
from opmux.nn.sizes import check_sizes

Rotary = Callable[[Tensor, Tensor, Tensor | None], tuple[Tensor, Tensor]]
"""(q, k, positions) -> both rotated: a `RotaryEmbedding`, or a function of your own."""


class Attention(nn.Module):
    """Project to heads, norm, rotate, attend, project back: ``o_proj(attention(rotary(q), rotary(k), v))``.

    The state dict holds ``q_proj``, ``k_proj``, ``v_proj`` (fused: ``qkv_proj``, with the rows in this order, as in
    Phi-3), ``o_proj``, and ``q_norm``, ``k_norm`` and ``sinks`` if the module has them. `load_state_dict` accepts both
    the fused and the separate projections.

    Args:
        hidden: The size of x's last dim.
        heads: Query heads.
        kv_heads: Key and value heads, a divisor of the query heads; None means as many as query heads.
        head_dim: The size of a head; None means ``hidden / heads``.
        value_dim: The size of a value head; None means head_dim.
        rotary: Rotates q and k. None means no rotation, unless the call passes its own.
        bias: Whether the projections have a bias.
        out_bias: Whether o_proj has a bias; None means the same as ``bias``.
        fused: Whether the q, k and v projections are one weight.
        qk_norm: ``"head"``: an RMS norm of each head of q and of k (Qwen3, Gemma 3). ``"all"``: one norm over all heads
            together (OLMo 2). None: no norm.
        qk_norm_eps: The eps of these norms.
        qk_norm_offset: Their weight_offset (Gemma 3: 1.0).
        scale: Factor on the scores; None means ``1 / sqrt(head_dim)``.
        causal: Whether a token attends only to itself and the tokens before it.
        window: How many tokens (left, right) of its own position a token sees; -1 means no limit. A configuration's
            ``sliding_window=n`` counts the token itself: ``(n - 1, 0)`` or, where causal, ``(n - 1, -1)``.
        softcap: Bound on the scores; 0.0 is off.
        sinks: Whether each head has a learned logit that joins the softmax (gpt-oss).
        device: The device of the weights.
        dtype: The dtype of the weights.
        backend: Passed to the ops.

    Raises:
        InvalidArgument: If a size is not a positive whole number, the head counts do not fit each other or hidden, or
            qk_norm is unknown.

    Source:
        Vaswani et al., "Attention Is All You Need", 2017; Ainslie et al., "GQA", 2023,
        https://arxiv.org/abs/2305.13245; the options: `opmux.attention`.
    """

    sinks: nn.Parameter | None

    def __init__(
        self,
        hidden: int,
        heads: int,
        kv_heads: int | None = None,
        head_dim: int | None = None,
        *,
        value_dim: int | None = None,
        rotary: Rotary | None = None,
        bias: bool = False,
        out_bias: bool | None = None,
        fused: bool = False,
        qk_norm: str | None = None,
        qk_norm_eps: float = 1e-6,
        qk_norm_offset: float = 0.0,
        scale: float | None = None,
        causal: bool = True,
        window: tuple[int, int] = (-1, -1),
        softcap: float = 0.0,
        sinks: bool = False,
        device: Any = None,
        dtype: torch.dtype | None = None,
        backend: str | None = None,
    ) -> None:
        super().__init__()
        kv_heads = heads if kv_heads is None else kv_heads
        _check(hidden, heads, kv_heads, head_dim, qk_norm)
        head_dim = hidden // heads if head_dim is None else head_dim
        value_dim = head_dim if value_dim is None else value_dim
        check_sizes("Attention", head_dim=head_dim, value_dim=value_dim)
        self.heads, self.kv_heads, self.head_dim, self.value_dim = heads, kv_heads, head_dim, value_dim
        self.scale, self.causal, self.window, self.softcap = scale, causal, window, softcap
        self.fused, self.qk_norm, self.rotary, self.backend = fused, qk_norm, rotary, backend
        made: dict[str, Any] = {"device": device, "dtype": dtype, "backend": backend}
        q_size, k_size, v_size = heads * head_dim, kv_heads * head_dim, kv_heads * value_dim
        self._rows = {"q_proj": q_size, "k_proj": k_size, "v_proj": v_size}
        if fused:
            self.qkv_proj = Linear(hidden, q_size + k_size + v_size, bias, **made)
        else:
            self.q_proj = Linear(hidden, q_size, bias, **made)
            self.k_proj = Linear(hidden, k_size, bias, **made)
            self.v_proj = Linear(hidden, v_size, bias, **made)
        self.o_proj = Linear(heads * value_dim, hidden, bias if out_bias is None else out_bias, **made)
        if qk_norm is not None:
            sizes = (q_size, k_size) if qk_norm == "all" else (head_dim, head_dim)
            self.q_norm, self.k_norm = (
                RMSNorm(size, qk_norm_eps, weight_offset=qk_norm_offset, **made) for size in sizes
            )
        self.register_parameter(
            "sinks", nn.Parameter(torch.zeros(heads, device=device, dtype=dtype)) if sinks else None
        )

    def reset_parameters(self) -> None:
        """Reinitialise the weights: projections as `torch.nn.Linear` does, norms to 1, sinks to 0."""
        for child in self.children():
            if isinstance(child, Linear | RMSNorm):
                child.reset_parameters()
        if self.sinks is not None:
            nn.init.zeros_(self.sinks)

    def forward(
        self,
        x: Tensor,
        positions: Tensor | None = None,
        context: Context | None = None,
        rotary: Rotary | None = None,
    ) -> Tensor:
        """Attend within x, or to what a context provides.

        Args:
            x: ``(batch, seq, hidden)``; with a context ``(tokens, hidden)``, unless the context says otherwise.
            positions: For rope, ``(batch, seq)`` or ``(tokens,)``, int32 or int64; None takes those of the context, or
                counts from 0 along seq.
            context: What the tokens attend to: `PackedSequences`, `PagedLayer`, or a class of your own.
            rotary: Used instead of the module's own.

        Returns:
            A tensor with the shape and dtype of x.

        Raises:
            InvalidArgument: If x is not a batch and no context is given.
        """
        if context is None and x.dim() != 3:
            raise invalid(
                "Attention", "x", "shape (batch, seq, hidden), since no context is given", f"shape {tuple(x.shape)}",
                "pass x[None] for a single sequence, or a context for ragged tokens",
            )  # fmt: skip
        q, k, v = self._projected(x)
        rotary = self.rotary if rotary is None else rotary
        if rotary is not None:
            if positions is None and context is not None:
                positions = context.positions
            q, k = rotary(q, k, positions)
        options: dict[str, Any] = {
            "scale": self.scale, "causal": self.causal, "window": self.window, "softcap": self.softcap,
            "backend": self.backend,
        }  # fmt: skip
        if context is None:
            out = opmux.attention(q, k, v, self.sinks, **options)
        else:
            out = context.attend(q, k, v, self.sinks, **options)
        return self.o_proj(out.flatten(-2))  # type: ignore[no-any-return]

    def _projected(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """q, k and v split into heads, normed but not rotated."""
        if self.fused:
            q, k, v = self.qkv_proj(x).split_with_sizes(list(self._rows.values()), -1)
        else:
            q, k, v = self.q_proj(x), self.k_proj(x), self.v_proj(x)
        if self.qk_norm == "all":
            q, k = self.q_norm(q), self.k_norm(k)
        q, k = q.unflatten(-1, (-1, self.head_dim)), k.unflatten(-1, (-1, self.head_dim))
        v = v.unflatten(-1, (-1, self.value_dim))
        if self.qk_norm == "head":
            q, k = self.q_norm(q), self.k_norm(k)
        return q, k, v

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        fit_projections(state_dict, prefix, self.fused, "qkv_proj", self._rows)
        super()._load_from_state_dict(state_dict, prefix, *rest)

    def extra_repr(self) -> str:
        shown = f"heads={self.heads}, kv_heads={self.kv_heads}, head_dim={self.head_dim}, causal={self.causal}"
        options = {"value_dim": self.head_dim, "window": (-1, -1), "softcap": 0.0, "scale": None}
        changed = [f", {name}={getattr(self, name)}" for name, usual in options.items() if getattr(self, name) != usual]
        learned = "" if self.sinks is None else ", sinks=True"
        return shown + "".join(changed) + learned + backend_repr(self.backend)


def _check(hidden: int, heads: int, kv_heads: int, head_dim: int | None, qk_norm: str | None) -> None:
    """Reject sizes that do not fit each other, and an unknown qk_norm.

    Raises:
        InvalidArgument: Names the argument.
    """
    check_sizes("Attention", hidden=hidden, heads=heads, kv_heads=kv_heads)
    if head_dim is None and hidden % heads:
        raise invalid(
            "Attention", "head_dim", f"a number, since heads = {heads} does not divide hidden = {hidden}", "None",
            "pass it, or change one of the two",
        )  # fmt: skip
    if heads % kv_heads:
        raise invalid(
            "Attention", "kv_heads", f"a divisor of heads = {heads}", f"{kv_heads}",
            "each kv head serves the same number of query heads",
        )  # fmt: skip
    if qk_norm not in (None, "head", "all"):
        raise invalid("Attention", "qk_norm", "'head', 'all' or None", repr(qk_norm), "check the spelling")
