"""The targets of the attention ops, written once: a library brings the functions that compute.

The records admit no sinks, no softcap and no gradient of the lse, so a library's functions never see them.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from torch import Tensor


class Scoring(NamedTuple):
    """How queries score keys, under the ops' own names."""

    scale: float | None
    causal: bool
    window: tuple[int, int]


class Ragged(NamedTuple):
    """Where the sequences of a ragged batch lie, under the ops' own names."""

    cu_seqlens_q: Tensor
    cu_seqlens_k: Tensor
    max_seqlen_q: int
    max_seqlen_k: int


class Forward(NamedTuple):
    """What the backward gets of the forward."""

    q: Tensor
    k: Tensor
    v: Tensor
    out: Tensor
    lse: Tensor


Gradients = tuple[Tensor, Tensor, Tensor]

Attend = Callable[[Tensor, Tensor, Tensor, Scoring, bool], tuple[Tensor, Tensor]]
"""``(q, k, v, scoring, whether the lse is wanted) -> (out, lse)``, in the op's own layouts, contiguous."""

Differentiate = Callable[[Tensor, Forward, Scoring], Gradients]
"""``(grad_out, forward, scoring) -> (grad_q, grad_k, grad_v)``."""

AttendRagged = Callable[[Tensor, Tensor, Tensor, Scoring, Ragged, bool], tuple[Tensor, Tensor]]
DifferentiateRagged = Callable[[Tensor, Forward, Scoring, Ragged], Gradients]

Targets = tuple[Callable[..., Tensor], Callable[..., tuple[Tensor, Tensor]], Callable[..., tuple[Tensor, ...]]]


def dense(attend: Attend, differentiate: Differentiate) -> Targets:
    """The targets of ``attention``, ``attention_lse`` and ``attention_backward``."""

    def attention(q: Tensor, k: Tensor, v: Tensor, sinks: None, **options: Any) -> Tensor:
        return attend(q, k, v, _scoring(**options), False)[0]

    def attention_lse(q: Tensor, k: Tensor, v: Tensor, sinks: None, **options: Any) -> tuple[Tensor, Tensor]:
        return attend(q, k, v, _scoring(**options), True)

    def attention_backward(
        grad_out: Tensor,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        out: Tensor,
        lse: Tensor,
        sinks: None,
        grad_lse: None,
        *,
        output_mask: tuple[bool, ...],
        **options: Any,
    ) -> tuple[Tensor, ...]:
        return _wanted(differentiate(grad_out, Forward(q, k, v, out, lse), _scoring(**options)), output_mask)

    return attention, attention_lse, attention_backward


def ragged(attend: AttendRagged, differentiate: DifferentiateRagged) -> Targets:
    """The targets of ``attention_varlen``, ``attention_varlen_lse`` and ``attention_varlen_backward``."""

    def attention_varlen(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        cu_seqlens_q: Tensor,
        cu_seqlens_k: Tensor,
        sinks: None,
        *,
        max_seqlen_q: int,
        max_seqlen_k: int,
        **options: Any,
    ) -> Tensor:
        batch = Ragged(cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k)
        return attend(q, k, v, _scoring(**options), batch, False)[0]

    def attention_varlen_lse(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        cu_seqlens_q: Tensor,
        cu_seqlens_k: Tensor,
        sinks: None,
        *,
        max_seqlen_q: int,
        max_seqlen_k: int,
        **options: Any,
    ) -> tuple[Tensor, Tensor]:
        batch = Ragged(cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k)
        return attend(q, k, v, _scoring(**options), batch, True)

    def attention_varlen_backward(
        grad_out: Tensor,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        out: Tensor,
        lse: Tensor,
        cu_seqlens_q: Tensor,
        cu_seqlens_k: Tensor,
        sinks: None,
        grad_lse: None,
        *,
        max_seqlen_q: int,
        max_seqlen_k: int,
        output_mask: tuple[bool, ...],
        **options: Any,
    ) -> tuple[Tensor, ...]:
        batch = Ragged(cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k)
        grads = differentiate(grad_out, Forward(q, k, v, out, lse), _scoring(**options), batch)
        return _wanted(grads, output_mask)

    return attention_varlen, attention_varlen_lse, attention_varlen_backward


def _scoring(*, scale: float | None, causal: bool, window: tuple[int, int], softcap: float) -> Scoring:
    return Scoring(scale, causal, window)


def _wanted(grads: Gradients, output_mask: tuple[bool, ...]) -> tuple[Tensor, ...]:
    """Contiguous gradients of q, k and v, an empty tensor for one not wanted, and the empty one of the sinks.

    The libraries compute all three at once.
    """
    empty = grads[0].new_empty(0)
    wanted = [g.contiguous() if want else empty for g, want in zip(grads, output_mask[:3], strict=True)]
    return (*wanted, grads[0].new_empty(0))
