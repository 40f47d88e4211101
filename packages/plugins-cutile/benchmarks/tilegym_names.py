"""Calls of TileGym beside what the documentation names for them here, on the same numbers.

    python packages/plugins-cutile/benchmarks/tilegym_names.py

calls both on a GPU and compares them, with TileGym and its compiler installed; it prints a line for each name and ends
with 1 where results differ or a call fails. Each row also has the result in plain PyTorch, by TileGym's documentation;
the tests compare the calls here with that.
"""

import argparse
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

import opmux

BF16, FP16, FP32, FP8 = torch.bfloat16, torch.float16, torch.float32, torch.float8_e4m3fn
LN2 = 0.6931471805599453


class Row(NamedTuple):
    """A name of TileGym.

    Attributes:
        name: in ``tilegym.ops``, of one in ``tilegym.ops.activation``.
        make: its tensors on a device.
        there: the call of TileGym, given ``tilegym.ops``.
        here: the call of opmux, with an answer of the same form.
        meaning: the answer in plain PyTorch.
        room: how far, relative to the largest number, results may be apart.
    """

    name: str
    make: Callable[[str], list[Tensor]]
    there: Callable[..., Any]
    here: Callable[..., Any]
    meaning: Callable[..., Any]
    room: float = 2e-2


def _drawn(*shape: int, dtype: torch.dtype = BF16) -> Callable[[str], Tensor]:
    def make(device: str) -> Tensor:
        seed = torch.Generator().manual_seed(sum(shape) * 31 + len(shape))
        return torch.randn(*shape, generator=seed).to(dtype).to(device)

    return make


def _all(*makers: Callable[[str], Tensor]) -> Callable[[str], list[Tensor]]:
    return lambda device: [make(device) for make in makers]


def _rotary(device: str) -> list[Tensor]:
    q, k = _drawn(2, 4, 32, 64)(device), _drawn(2, 2, 32, 64)(device)
    angles = _drawn(1, 32, 32, dtype=FP32)(device)
    both = torch.cat([angles, angles], dim=-1)
    return [q, k, both.cos(), both.sin()]


def _turned(q: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    a, b = q.float().chunk(2, dim=-1)
    return q.float() * cos[:, None] + torch.cat([-b, a], dim=-1) * sin[:, None]


def _dense(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    q, k, v = (t.transpose(1, 2) for t in (q, k, v))
    return opmux.attention(q, k, v, **options).transpose(1, 2)


def _softmaxed(
    q: Tensor, k: Tensor, v: Tensor, causal: bool = True, window: int = 0, cap: float = 0.0, sinks: Tensor | None = None
) -> Tensor:
    """Attention of ``(batch, heads, seq, head_dim)`` by its formula; a query sees its last `window` keys."""
    k, v = (t.repeat_interleave(q.shape[1] // t.shape[1], dim=1) for t in (k, v))
    scores = q.float() @ k.float().transpose(-1, -2) * q.shape[-1] ** -0.5
    if cap:
        scores = cap * torch.tanh(scores / cap)
    ahead = torch.arange(k.shape[2], device=q.device) - torch.arange(q.shape[2], device=q.device)[:, None]
    ahead = ahead - (k.shape[2] - q.shape[2])
    if causal:
        scores = scores.masked_fill(ahead > 0, -float("inf"))
    if window:
        scores = scores.masked_fill(ahead <= -window, -float("inf"))
    if sinks is None:
        return scores.softmax(-1) @ v.float()
    more = sinks.float()[None, :, None, None].expand(*scores.shape[:3], 1)
    return torch.cat([scores, more], dim=-1).softmax(-1)[..., :-1] @ v.float()


def _ragged(device: str) -> list[Tensor]:
    """Two sequences, padded to one length, and their lengths."""
    lengths = torch.tensor([128, 70], dtype=torch.int32, device=device)
    return [*HEADS(device), lengths]


def _valid(x: Tensor, lengths: Tensor) -> Tensor:
    """The tokens of padded sequences, one after the other: ``(tokens, heads, head_dim)``."""
    return torch.cat([each[:, :length].transpose(0, 1) for each, length in zip(x, lengths.tolist(), strict=True)])


def _packed(q: Tensor, k: Tensor, v: Tensor, lengths: Tensor) -> Tensor:
    starts = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)]).to(torch.int32)
    tokens = (_valid(x, lengths) for x in (q, k, v))
    return opmux.attention_varlen(*tokens, starts, starts, max_seqlen_q=128, max_seqlen_k=128, causal=True)


def _each(q: Tensor, k: Tensor, v: Tensor, lengths: Tensor) -> Tensor:
    parts = [
        _softmaxed(*(x[place : place + 1, :, :length] for x in (q, k, v)))[0].transpose(0, 1)
        for place, length in enumerate(lengths.tolist())
    ]
    return torch.cat(parts)


def _merged(parts: Tensor, lse: Tensor) -> Tensor:
    """Two parts of attention over ``(batch, heads, parts, head_dim)``, whose lse is in base 2."""
    first, second = (parts[:, None, :, place] for place in range(2))
    of_first, of_second = (lse[:, :, place, None] * LN2 for place in range(2))
    return opmux.merge_attention_states(first, of_first, second, of_second)[0][:, 0]


def _reduced(ops: Any, parts: Tensor, lse: Tensor) -> Tensor:
    """What TileGym writes to the tensor that it is given."""
    out = torch.empty_like(parts[:, :, 0])
    ops.splitk_reduce(parts, lse, out, 512)
    return out


def _codes(device: str) -> list[Tensor]:
    a, b = _drawn(64, 256)(device).to(FP8), _drawn(256, 256, dtype=FP32)(device).to(FP8)
    return [a, b, *(_drawn(*shape, dtype=FP32)(device).abs() + 0.5 for shape in ((64, 2), (2, 2)))]


def _spread(scale: Tensor, rows: int) -> Tensor:
    return scale.repeat_interleave(rows, 0).repeat_interleave(128, 1)


def _losses(device: str) -> list[Tensor]:
    return [_drawn(24, 64)(device), _drawn(96, 64)(device), torch.arange(24, device=device) * 5 % 96]


def _grouped(a: Tensor, b: Tensor, weights: Tensor) -> list[Tensor]:
    offsets = torch.tensor([0, len(a), len(a) + len(b)], dtype=torch.int32, device=a.device)
    return list(opmux.grouped_linear(torch.cat([a, b]), weights, offsets).split([len(a), len(b)]))


HEADS = _all(_drawn(2, 4, 128, 64), _drawn(2, 2, 128, 64), _drawn(2, 2, 128, 64))
ROWS = (
    Row(
        "rms_norm", _all(_drawn(48, 256), _drawn(256)),
        lambda ops, x, w: ops.rms_norm(x, (256,), w, 1e-6),
        lambda x, w: opmux.rms_norm(x, w, eps=1e-6),
        lambda x, w: F.rms_norm(x.float(), (256,), w.float(), 1e-6),
    ),
    Row(
        "layer_norm_legacy", _all(_drawn(48, 256), _drawn(256), _drawn(256)),
        lambda ops, x, w, b: ops.layer_norm_legacy(x, (256,), w, b, 1e-5),
        lambda x, w, b: opmux.layer_norm(x, w, b, eps=1e-5),
        lambda x, w, b: F.layer_norm(x.float(), (256,), w.float(), b.float(), 1e-5),
    ),
    Row(
        "persistent_layer_norm", _all(_drawn(48, 256), _drawn(256), _drawn(256)),
        lambda ops, x, w, b: ops.persistent_layer_norm(x, (256,), w, b, 1e-5)[0],
        lambda x, w, b: opmux.layer_norm(x, w, b, eps=1e-5),
        lambda x, w, b: F.layer_norm(x.float(), (256,), w.float(), b.float(), 1e-5),
    ),
    Row(
        "layer_norm", _all(_drawn(48, 256), _drawn(256), _drawn(256)),
        lambda ops, x, w, b: ops.layer_norm(x, 1, 2, w, b, 1e-5),
        lambda x, w, b: opmux.layer_norm(x, w, b, eps=1e-5),
        lambda x, w, b: F.layer_norm(x.float(), (256,), w.float(), b.float(), 1e-5),
    ),
    Row(
        "silu_and_mul", _all(_drawn(48, 512)),
        lambda ops, x: ops.silu_and_mul(x),
        opmux.silu_and_mul,
        lambda x: F.silu(x[:, :256].float()) * x[:, 256:].float(),
    ),
    Row(
        "get_swiglu", _all(_drawn(2, 24, 256), _drawn(2, 24, 256)),
        lambda ops, a, b: ops.get_swiglu()(a, b),
        opmux.silu_mul,
        lambda a, b: F.silu(a.float()) * b.float(),
    ),
    Row(
        "geglu", _all(_drawn(48, 512)),
        lambda ops, x: ops.activation.geglu(x, -1, "tanh"),
        lambda x: opmux.gelu_mul(x[:, 256:], x[:, :256], approximate="tanh"),
        lambda x: x[:, :256].float() * F.gelu(x[:, 256:].float(), approximate="tanh"),
    ),
    Row(
        "linear_gluact_linear", _all(_drawn(32, 128), _drawn(256, 128), _drawn(256, 128), _drawn(64, 256)),
        lambda ops, x, act, plain, last: ops.linear_gluact_linear(x, act, plain, last, act_type="silu"),
        lambda x, act, plain, last: opmux.linear(opmux.silu_mul(opmux.linear(x, act), opmux.linear(x, plain)), last),
        lambda x, act, plain, last: (
            F.silu(x.float() @ act.float().T) * (x.float() @ plain.float().T) @ last.float().T
        ),
    ),
    Row(
        "apply_rope_base", _rotary,
        lambda ops, q, k, cos, sin: ops.apply_rope_base(q.clone(), k.clone(), cos, sin),
        lambda q, k, cos, sin: tuple(
            t.transpose(1, 2)
            for t in opmux.apply_rope(q.transpose(1, 2), k.transpose(1, 2), cos[0, :, :32], sin[0, :, :32])
        ),
        lambda q, k, cos, sin: (_turned(q, cos, sin), _turned(k, cos, sin)),
    ),
    Row(
        "fmha", HEADS,
        lambda ops, q, k, v: ops.fmha(q, k, v, is_causal=True),
        lambda q, k, v: _dense(q, k, v, causal=True),
        _softmaxed,
    ),
    Row(
        "fmha_varlen", _ragged,
        lambda ops, q, k, v, n: _valid(ops.fmha_varlen(q, k, v, is_causal=True, q_lens=n, kv_lens=n), n),
        _packed,
        _each,
    ),
    Row(
        "fmha_decode", _all(_drawn(2, 4, 1, 64), _drawn(2, 2, 256, 64), _drawn(2, 2, 256, 64)),
        lambda ops, q, k, v: ops.fmha_decode(q, k, v, sm_scale=64**-0.5),
        lambda q, k, v: _dense(q, k, v, scale=64**-0.5),
        lambda q, k, v: _softmaxed(q, k, v, causal=False),
    ),
    Row(
        "gemma_attention", HEADS,
        lambda ops, q, k, v: ops.gemma_attention(q, k, v, window_size=32, soft_cap=20.0, is_causal=True),
        lambda q, k, v: _dense(q, k, v, causal=True, window=(32, 0), softcap=20.0),
        lambda q, k, v: _softmaxed(q, k, v, window=33, cap=20.0),  # its own key and 32 before it
    ),
    Row(
        "gemma_attention_decode", _all(_drawn(2, 4, 1, 64), _drawn(2, 2, 256, 64), _drawn(2, 2, 256, 64)),
        lambda ops, q, k, v: ops.gemma_attention_decode(q, k, v, window_size=32, soft_cap=20.0),
        lambda q, k, v: _dense(q, k, v, causal=True, window=(32, 0), softcap=20.0),
        lambda q, k, v: _softmaxed(q, k, v, window=33, cap=20.0),
    ),
    Row(
        "swa_attention", _all(*(_drawn(2, heads, 128, 64, dtype=FP16) for heads in (4, 2, 2))),
        lambda ops, q, k, v: ops.swa_attention(q, k, v, window_size=32),
        lambda q, k, v: _dense(q, k, v, causal=True, window=(31, 0)),
        lambda q, k, v: _softmaxed(q, k, v, window=32),  # its own key among them
    ),
    Row(
        "attention_sink",
        _all(_drawn(2, 64, 2, 2, 64), _drawn(2, 64, 2, 64), _drawn(2, 64, 2, 64), _drawn(4)),
        lambda ops, q, k, v, s: ops.attention_sink(q, k, v, s, sm_scale=0.125),
        lambda q, k, v, s: opmux.attention(q.flatten(2, 3), k, v, s, scale=0.125, causal=True).flatten(2),
        lambda q, k, v, s: _softmaxed(
            q.flatten(2, 3).transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), sinks=s
        ).transpose(1, 2).flatten(2),
    ),
    Row(
        "attention_sink_decode",
        _all(_drawn(2, 1, 2, 2, 64), _drawn(2, 256, 2, 64), _drawn(2, 256, 2, 64), _drawn(4)),
        lambda ops, q, k, v, s: ops.attention_sink_decode(
            q, k, v, s, sm_scale=0.125, start_q=torch.tensor([255], device=q.device)
        ),
        lambda q, k, v, s: opmux.attention(q.flatten(2, 3), k, v, s, scale=0.125, causal=True).flatten(2),
        lambda q, k, v, s: _softmaxed(
            q.flatten(2, 3).transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), sinks=s
        ).transpose(1, 2).flatten(2),
    ),
    Row(
        "splitk_reduce", _all(_drawn(2, 4, 2, 64), _drawn(2, 4, 2, dtype=FP32)),
        _reduced,
        _merged,
        lambda parts, lse: (parts.float() * (lse * LN2).softmax(-1)[..., None]).sum(2),
    ),
    Row(
        "matmul", _all(_drawn(64, 128), _drawn(256, 128)),
        lambda ops, a, b: ops.matmul(a, b, trans_a=False, trans_b=True, static_persistent=True),
        opmux.linear,
        lambda a, b: a.float() @ b.float().T,
    ),
    Row(
        "w8a8_block_fp8_matmul", _codes,
        lambda ops, a, b, of_a, of_b: ops.w8a8_block_fp8_matmul(a, b, of_a, of_b, [128, 128], output_dtype=BF16),
        lambda a, b, of_a, of_b: opmux.scaled_linear(a, b, of_a, of_b, out_dtype=BF16),
        lambda a, b, of_a, of_b: (a.float() * _spread(of_a, 1)) @ (b.float() * _spread(of_b, 128)).T,
    ),
    Row(
        "group_gemm", _all(_drawn(64, 128), _drawn(32, 128), _drawn(2, 256, 128)),
        lambda ops, a, b, w: ops.group_gemm([a, b], [w[0].T.contiguous(), w[1].T.contiguous()]),
        _grouped,
        lambda a, b, w: [a.float() @ w[0].float().T, b.float() @ w[1].float().T],
    ),
    Row(
        "fused_linear_cross_entropy", _losses,
        lambda ops, x, w, t: ops.fused_linear_cross_entropy(x, w, t),
        opmux.fused_linear_cross_entropy,
        lambda x, w, t: F.cross_entropy(x.float() @ w.float().T, t),
    ),
)  # fmt: skip
"""Every name of the page that is a function of tensors; the tests hold it to the page."""


def apart(found: Any, wanted: Any) -> float:
    """The largest difference, relative to the largest number."""
    pairs = zip(found, wanted, strict=True) if isinstance(wanted, (list, tuple)) else [(found, wanted)]
    return max(float((f.float() - w.float()).abs().max() / w.float().abs().max()) for f, w in pairs)


def main() -> int:
    """Compare every name."""
    argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0]).parse_args()
    import tilegym
    from tilegym import ops

    print(f"TileGym {getattr(tilegym, '__version__', '?')}, {torch.cuda.get_device_name()}")
    wrong = 0
    for row in ROWS:
        try:
            tensors = row.make("cuda")
            off = apart(row.here(*tensors), row.there(ops, *tensors))
            said = f"apart by {off:.1e}"
        except Exception as error:
            off, said = float("inf"), f"{type(error).__name__}: {str(error)[:200]}"
        wrong += not off <= row.room
        print(f"{'ok' if off <= row.room else 'DIFFERS'} {row.name}: {said}", flush=True)
    return int(wrong > 0)


if __name__ == "__main__":
    raise SystemExit(main())
