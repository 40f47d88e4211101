"""What `sweep_memory` runs: ops with their inputs, a plain formulation, the bytes they move, and config variants."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from opmux.arch import Arch
from opmux_triton.activation import backward_targets as gate_backward
from opmux_triton.activation import configs as gate_configs
from opmux_triton.activation import targets as gates
from opmux_triton.kv_cache import configs as cache_configs
from opmux_triton.kv_cache import targets as caches
from opmux_triton.norm import backward_targets as norm_backward
from opmux_triton.norm import configs as norm_configs
from opmux_triton.norm import targets as norms
from opmux_triton.rope import configs as rope_configs
from opmux_triton.rope import targets as ropes

Shape = Mapping[str, int]
Config = dict[str, Any]
EPS = 1e-6
BF16 = torch.bfloat16


@dataclass(frozen=True)
class Subject:
    """An op: how its inputs are made, run, computed plainly, and what they weigh."""

    make: Callable[[Shape, str], list[Tensor]]
    run: Callable[..., Any]
    plain: Callable[..., Any]
    traffic: Callable[[Shape], int]
    heuristic: Callable[[Arch, Shape], Config]
    in_place: bool = False


def bucket(n: int) -> int:
    """As the feature of that name."""
    return (n - 1).bit_length()


def _rand(device: str, *sizes: int, dtype: torch.dtype = BF16) -> Tensor:
    if device == "meta":
        return torch.empty(sizes, dtype=dtype, device="meta")
    return torch.randn(sizes, dtype=dtype, device=device)


def _rows(count: int, weights: int) -> Callable[[Shape, str], list[Tensor]]:
    def make(s: Shape, device: str) -> list[Tensor]:
        rows = [_rand(device, s["T"], s["H"]) for _ in range(count)]
        return rows + [_rand(device, s["H"]) for _ in range(weights)]

    return make


def _columns(count: int, packed: bool = False) -> Callable[[Shape, str], list[Tensor]]:
    def make(s: Shape, device: str) -> list[Tensor]:
        made = [_rand(device, s["T"], s["N"]) for _ in range(count)]
        return [*made, _rand(device, s["T"], 2 * s["N"])] if packed else made

    return make


def _angles(s: Shape, device: str) -> list[Tensor]:
    table = [_rand(device, s["T"], s["D"] // 2, dtype=torch.float32) for _ in range(2)]
    positions = (
        torch.empty(s["T"], dtype=torch.int32, device="meta")
        if device == "meta"
        else torch.arange(s["T"], device=device, dtype=torch.int32)
    )
    return [*table, positions]


def _heads(s: Shape, device: str) -> list[Tensor]:
    return [_rand(device, s["T"], s["Q"], s["D"]), _rand(device, s["T"], s["K"], s["D"]), *_angles(s, device)]


def _packed_heads(s: Shape, device: str) -> list[Tensor]:
    q, k = s["Q"] * s["D"], s["K"] * s["D"]
    packed = _rand(device, s["T"], q + 2 * k)
    q_part, k_part = packed[:, :q].unflatten(1, (s["Q"], s["D"])), packed[:, q : q + k].unflatten(1, (s["K"], s["D"]))
    return [q_part, k_part, *_angles(s, device)]


def _cache(s: Shape, device: str) -> list[Tensor]:
    kv = [_rand(device, s["T"], s["K"], s["D"]) for _ in range(2)]
    cached = [_rand(device, s["T"] // 16 + 1, 16, s["K"], s["D"]) for _ in range(2)]
    if device == "meta":
        slots = torch.empty(s["T"], dtype=torch.int64, device="meta")
    else:
        pages = torch.randperm(s["T"] // 16 + 1, device=device)[: -(-s["T"] // 16)]
        slots = (pages[:, None] * 16 + torch.arange(16, device=device)).flatten()[: s["T"]].contiguous()
    return [*kv, *cached, slots]


def _rms(x: Tensor, w: Tensor) -> Tensor:
    f = x.float()
    return (f * torch.rsqrt(f.square().mean(-1, keepdim=True) + EPS) * w.float()).to(x.dtype)


def _add_rms(x: Tensor, r: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    total = (x.float() + r.float()).to(r.dtype)
    return _rms(total, w).to(x.dtype), total


def _layer(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return torch.nn.functional.layer_norm(x.float(), x.shape[-1:], w.float(), b.float(), EPS).to(x.dtype)


def _rms_backward(gy: Tensor, x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    f, g = x.float(), gy.float()
    inverse = torch.rsqrt(f.square().mean(-1, keepdim=True) + EPS)
    n, gw = f * inverse, g * w.float()
    gx = inverse * (gw - n * (gw * n).mean(-1, keepdim=True))
    return gx.to(x.dtype), (g * n).sum(0).to(w.dtype)


def _add_rms_backward(gy: Tensor, gr: Tensor, s: Tensor, w: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    f, g = s.float(), gy.float()
    inverse = torch.rsqrt(f.square().mean(-1, keepdim=True) + EPS)
    n, gw = f * inverse, g * w.float()
    gx = inverse * (gw - n * (gw * n).mean(-1, keepdim=True)) + gr.float()
    return gx.to(gy.dtype), gx.to(s.dtype), (g * n).sum(0).to(w.dtype)


def _layer_backward(gy: Tensor, x: Tensor, w: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    f, g = x.float(), gy.float()
    f = f - f.mean(-1, keepdim=True)
    inverse = torch.rsqrt(f.square().mean(-1, keepdim=True) + EPS)
    n, gw = f * inverse, g * w.float()
    gx = inverse * (gw - gw.mean(-1, keepdim=True) - n * (gw * n).mean(-1, keepdim=True))
    return gx.to(x.dtype), (g * n).sum(0).to(w.dtype), g.sum(0).to(w.dtype)


def _silu_and(x: Tensor) -> Tensor:
    gate, up = x.float().chunk(2, -1)
    return (torch.nn.functional.silu(gate) * up).to(x.dtype)


def _silu_mul(gate: Tensor, up: Tensor) -> Tensor:
    return (torch.nn.functional.silu(gate.float()) * up.float()).to(gate.dtype)


def _gelu_mul(gate: Tensor, up: Tensor) -> Tensor:
    return (torch.nn.functional.gelu(gate.float()) * up.float()).to(gate.dtype)


def _gelu_tanh_mul(gate: Tensor, up: Tensor) -> Tensor:
    return (torch.nn.functional.gelu(gate.float(), approximate="tanh") * up.float()).to(gate.dtype)


def _silu_backward(grad: Tensor, gate: Tensor, up: Tensor) -> tuple[Tensor, Tensor]:
    g, a, b = grad.float(), gate.float(), up.float()
    s = torch.sigmoid(a)
    return (g * b * s * (1 + a * (1 - s))).to(gate.dtype), (g * a * s).to(gate.dtype)


def _silu_and_backward(grad: Tensor, x: Tensor) -> Tensor:
    return torch.cat(_silu_backward(grad, *x.chunk(2, -1)), -1)


def _gelu_backward(grad: Tensor, gate: Tensor, up: Tensor) -> tuple[Tensor, Tensor]:
    g, a, b = grad.float(), gate.float(), up.float()
    cdf = 0.5 * torch.erfc(-a * 0.5**0.5)
    slope = cdf + a * torch.exp(-0.5 * a * a) * 0.3989422804014327
    return (g * b * slope).to(gate.dtype), (g * a * cdf).to(gate.dtype)


def _turn(x: Tensor, c: Tensor, s: Tensor) -> Tensor:
    a, b = x.float().chunk(2, -1)
    return torch.cat((a * c - b * s, b * c + a * s), -1).to(x.dtype)


def _rope(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
    c, s = cos[positions].unsqueeze(1), sin[positions].unsqueeze(1)
    return _turn(q, c, s), _turn(k, c, s)


def _rope_in_place(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, positions: Tensor) -> None:
    for x, turned in zip((q, k), _rope(q, k, cos, sin, positions), strict=True):
        x.copy_(turned)


def _add_rms_in_place(x: Tensor, r: Tensor, w: Tensor) -> None:
    y, total = _add_rms(x, r, w)
    x.copy_(y)
    r.copy_(total)


def _write(k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, slots: Tensor) -> None:
    k_cache.view(-1, *k.shape[1:]).index_copy_(0, slots, k)
    v_cache.view(-1, *v.shape[1:]).index_copy_(0, slots, v)


def _norm_features(s: Shape) -> dict[str, int]:
    return {"hidden": s["H"], "bucket(tokens)": bucket(s["T"])}


def _rms_config(arch: Arch, s: Shape) -> Config:
    return norm_configs.rms_config(arch, _norm_features(s))


def _added_config(arch: Arch, s: Shape) -> Config:
    return norm_configs.added_config(arch, _norm_features(s))


def _centred_config(arch: Arch, s: Shape) -> Config:
    return norm_configs.centred_config(arch, _norm_features(s))


def _norm_backward_config(arch: Arch, s: Shape) -> Config:
    return norm_configs.backward_config(arch, _norm_features(s))


def _centred_backward_config(arch: Arch, s: Shape) -> Config:
    return norm_configs.centred_backward_config(arch, _norm_features(s))


def _gate_config(arch: Arch, s: Shape) -> Config:
    return gate_configs.gated_config(arch, {"n": s["N"], "bucket(tokens)": bucket(s["T"])})


def _gate_backward_config(arch: Arch, s: Shape) -> Config:
    return gate_configs.gated_backward_config(arch, {"n": s["N"], "bucket(tokens)": bucket(s["T"])})


def _rope_config(arch: Arch, s: Shape) -> Config:
    features = {"heads": s["Q"], "kv_heads": s["K"], "head_dim": s["D"], "bucket(batch)": 0}
    return rope_configs.rope_config(arch, features | {"bucket(seq)": bucket(s["T"])})


def _cache_config(arch: Arch, s: Shape) -> Config:
    dims = {"kv_heads": s["K"], "head_dim": s["D"], "value_dim": s["D"], "bucket(tokens)": bucket(s["T"])}
    return cache_configs.write_config(arch, dims)


def _rope_bytes(s: Shape) -> int:
    return s["T"] * (4 * (s["Q"] + s["K"]) * s["D"] + 4 * s["D"] + 4)


RMS = {"eps": EPS, "weight_offset": 0.0}

SUBJECTS: dict[str, Subject] = {
    "rms_norm": Subject(
        _rows(1, 1), lambda t, c: norms.rms_norm(*t, **RMS, config=c), _rms,
        lambda s: 4 * s["T"] * s["H"], _rms_config,
    ),
    "add_rms_norm": Subject(
        _rows(2, 1), lambda t, c: norms.add_rms_norm(*t, **RMS, config=c), _add_rms,
        lambda s: 8 * s["T"] * s["H"], _added_config,
    ),
    "add_rms_norm_": Subject(
        _rows(2, 1), lambda t, c: norms.add_rms_norm_(*t, **RMS, config=c), _add_rms_in_place,
        lambda s: 8 * s["T"] * s["H"], _added_config, in_place=True,
    ),
    "layer_norm": Subject(
        _rows(1, 2), lambda t, c: norms.layer_norm(*t, eps=EPS, config=c), _layer,
        lambda s: 4 * s["T"] * s["H"], _centred_config,
    ),
    "rms_norm_backward": Subject(
        _rows(2, 1), lambda t, c: norm_backward.rms_norm_backward(*t, **RMS, output_mask=(True, True), config=c),
        _rms_backward, lambda s: 6 * s["T"] * s["H"], _norm_backward_config,
    ),
    "add_rms_norm_backward": Subject(
        _rows(3, 1), lambda t, c: norm_backward.add_rms_norm_backward(*t, **RMS, output_mask=(True,) * 3, config=c),
        _add_rms_backward, lambda s: 10 * s["T"] * s["H"], _norm_backward_config,
    ),
    "layer_norm_backward": Subject(
        _rows(2, 1), lambda t, c: norm_backward.layer_norm_backward(*t, eps=EPS, output_mask=(True,) * 3, config=c),
        _layer_backward, lambda s: 6 * s["T"] * s["H"], _centred_backward_config,
    ),
    "silu_and_mul": Subject(
        _columns(0, packed=True), lambda t, c: gates.silu_and_mul(*t, config=c), _silu_and,
        lambda s: 6 * s["T"] * s["N"], _gate_config,
    ),
    "silu_mul": Subject(
        _columns(2), lambda t, c: gates.silu_mul(*t, config=c), _silu_mul, lambda s: 6 * s["T"] * s["N"], _gate_config
    ),
    "gelu_mul": Subject(
        _columns(2), lambda t, c: gates.gelu_mul(*t, approximate="none", config=c), _gelu_mul,
        lambda s: 6 * s["T"] * s["N"], _gate_config,
    ),
    "gelu_tanh_mul": Subject(
        _columns(2), lambda t, c: gates.gelu_mul(*t, approximate="tanh", config=c), _gelu_tanh_mul,
        lambda s: 6 * s["T"] * s["N"], _gate_config,
    ),
    "silu_mul_backward": Subject(
        _columns(3), lambda t, c: gate_backward.silu_mul_backward(*t, output_mask=(True, True), config=c),
        _silu_backward, lambda s: 10 * s["T"] * s["N"], _gate_backward_config,
    ),
    "silu_and_mul_backward": Subject(
        _columns(1, packed=True), lambda t, c: gate_backward.silu_and_mul_backward(*t, output_mask=(True,), config=c),
        _silu_and_backward, lambda s: 10 * s["T"] * s["N"], _gate_backward_config,
    ),
    "gelu_mul_backward": Subject(
        _columns(3),
        lambda t, c: gate_backward.gelu_mul_backward(*t, approximate="none", output_mask=(True, True), config=c),
        _gelu_backward, lambda s: 10 * s["T"] * s["N"], _gate_backward_config,
    ),
    "apply_rope": Subject(
        _heads, lambda t, c: ropes.apply_rope(*t, interleaved=False, config=c), _rope, _rope_bytes, _rope_config
    ),
    "apply_rope_": Subject(
        _packed_heads, lambda t, c: ropes.apply_rope_(*t, interleaved=False, config=c), _rope_in_place, _rope_bytes,
        _rope_config, in_place=True,
    ),
    "write_kv_cache": Subject(
        _cache, lambda t, c: caches.write_kv_cache(*t, layout="nhd", config=c), _write,
        lambda s: s["T"] * (8 * s["K"] * s["D"] + 8), _cache_config, in_place=True,
    ),
}  # fmt: skip


def _norms(block: int, *warps: int) -> list[Config]:
    return [{"BLOCK": block, "ROWS": 1, "num_warps": w} for w in warps]


def _backward(
    block: int, warps: int, programs: int, tail: int = 0, stages: int = 3, again: str = "", rows: int = 1,
    columns: int = 32,
) -> Config:  # fmt: skip
    return {
        "BLOCK": block, "TAIL": tail, "ROWS": rows, "STAGES": stages, "AGAIN": again, "num_warps": warps,
        "programs": programs, "sum_columns": columns, "sum_rows": 32, "sum_warps": 4,
    }  # fmt: skip


def _writes(*sizes: tuple[int, int, bool]) -> list[Config]:
    return [{"BLOCK": 1024, "TOKENS": t, "STREAM": s, "num_warps": w} for t, w, s in sizes]


def _gates(*sizes: tuple[int, int]) -> list[Config]:
    return [{"BLOCK": b, "ROWS": 1, "num_warps": w} for b, w in sizes]


def _heads_of(*sizes: tuple[int, int, int]) -> list[Config]:
    return [{"BLOCK_HEADS": h, "TOKENS": t, "num_warps": w} for h, t, w in sizes]


S4096, S8192 = {"T": 32768, "H": 4096}, {"T": 16384, "H": 8192}
S5120, S128 = {"T": 26112, "H": 5120}, {"T": 1 << 20, "H": 128}
S16384, S2048 = {"T": 8192, "H": 16384}, {"T": 65536, "H": 2048}
S12288 = {"T": 10880, "H": 12288}
FFN = {"T": 8192, "N": 14336}
HEADS = {"T": 32768, "Q": 32, "K": 8, "D": 128}
_TILES = _gates((512, 2), (1024, 2), (1024, 4), (2048, 8))

LARGE: list[tuple[str, Shape, list[Config]]] = [
    ("rms_norm_backward", S5120, [
        _backward(4096, 4, 2, 1024), _backward(4096, 4, 2, 1024, 2), _backward(4096, 4, 2, 1024, 4),
        _backward(4096, 4, 1, 1024, 4), _backward(4096, 8, 1, 1024), _backward(4096, 4, 2, 1024, 2, "weight"),
    ]),
    ("layer_norm_backward", S5120, [
        _backward(4096, 4, 2, 1024, 2), _backward(4096, 4, 2, 1024, 4), _backward(4096, 4, 2, 1024, 2, "weight"),
        _backward(4096, 8, 1, 1024, 4), _backward(4096, 8, 2, 1024, 2, "weight"),
    ]),
    ("write_kv_cache", {"T": 65536, "K": 8, "D": 128}, _writes(
        (2, 4, True), (1, 4, False), (1, 2, False), (2, 2, False), (4, 4, False), (4, 4, True), (8, 4, False),
    )),
    ("rms_norm_backward", S16384, [
        _backward(16384, 16, 1, 0, 1, "all"), _backward(16384, 32, 1, 0, 2, "weight"),
        _backward(16384, 16, 1, 0, 2, "all"),
    ]),
    ("layer_norm_backward", S16384, [
        _backward(16384, 16, 1, 0, 2, "all"), _backward(16384, 32, 1, 0, 2, "all"),
        _backward(16384, 16, 1, 0, 2, "weight"),
    ]),
    ("rms_norm_backward", S12288, [
        _backward(8192, 16, 1, 4096, 2, "weight"), _backward(8192, 16, 1, 4096, 3, "weight"),
        _backward(8192, 8, 1, 4096, 2), _backward(16384, 16, 1, 0, 1, "all"),
    ]),
    ("layer_norm_backward", S12288, [
        _backward(8192, 16, 1, 4096, 3, "weight"), _backward(8192, 8, 1, 4096, 2, "weight"),
        _backward(16384, 16, 1, 0, 1, "all"),
    ]),
    ("add_rms_norm_backward", S5120, [_backward(4096, 4, 2, 1024), _backward(4096, 4, 2, 1024, 2)]),
    ("add_rms_norm_backward", S12288, [_backward(8192, 16, 1, 4096, 2, "weight")]),
    ("add_rms_norm_backward", S16384, [_backward(16384, 16, 1, 0, 1, "all")]),
    ("rms_norm", S4096, [*_norms(4096, 4, 8), *_norms(2048, 8)]),
    ("rms_norm", S8192, [*_norms(8192, 8, 16), *_norms(4096, 16)]),
    ("gelu_mul", FFN, _TILES),
    ("rms_norm_backward", S4096, [_backward(4096, 4, 2, columns=64), _backward(4096, 8, 2)]),
    ("rms_norm_backward", S8192, [_backward(8192, 8, 1, columns=64), _backward(8192, 16, 1)]),
    ("layer_norm_backward", S4096, [_backward(4096, 8, 1), _backward(4096, 8, 2)]),
    ("layer_norm_backward", S8192, [_backward(8192, 16, 1)]),
    ("add_rms_norm_backward", S4096, [_backward(4096, 4, 2, stages=2), _backward(4096, 8, 1, stages=4)]),
    ("add_rms_norm_backward", S8192, [_backward(8192, 8, 1, stages=2), _backward(8192, 16, 1)]),
    ("rms_norm_backward", S2048, [
        _backward(2048, 4, 4, stages=1), _backward(2048, 4, 2), _backward(2048, 2, 4), _backward(2048, 4, 4, stages=4),
    ]),
    ("rms_norm_backward", S128, [
        _backward(128, 4, 4, rows=16, stages=1), _backward(128, 4, 2, rows=16), _backward(128, 2, 4, rows=8),
        _backward(128, 4, 4, rows=32),
    ]),
    ("gelu_tanh_mul", FFN, _gates((1024, 2))),
    ("gelu_mul_backward", FFN, _TILES),
    ("silu_mul_backward", FFN, _gates((1024, 2), (2048, 8))),
    ("layer_norm", S4096, _norms(4096, 8)),
    ("add_rms_norm", S4096, _norms(4096, 4, 16)),
    ("add_rms_norm", S8192, _norms(8192, 8, 32)),
    ("rms_norm", S5120, [*_norms(8192, 4, 8), *_norms(1024, 8)]),
    ("rms_norm", S128, [{"BLOCK": 128, "ROWS": 16, "num_warps": 4}]),
    ("add_rms_norm_", S8192, []),
    ("silu_mul", FFN, []),
    ("silu_and_mul", FFN, []),
    ("silu_and_mul_backward", FFN, _gates((1024, 2))),
    ("apply_rope", HEADS, _heads_of((8, 1, 1))),
    ("apply_rope_", HEADS, _heads_of((8, 1, 2))),
]  # fmt: skip
"""At least 256 MB of traffic each; what is still open comes first."""
OPEN = 10
"""How many of them are."""

_FEW_TOKENS = (1, 16, 128)
SMALL: list[tuple[str, Shape, list[Config]]] = [
    *((op, {"T": t, "H": h}, []) for op in ("rms_norm", "add_rms_norm") for h in (4096, 8192) for t in _FEW_TOKENS),
    *((op, {"T": t, "N": n}, []) for op in ("silu_mul", "silu_and_mul") for n in (4096, 8192) for t in _FEW_TOKENS),
    *(("apply_rope", {"T": t, "Q": h // 128, "K": 8, "D": 128}, []) for h in (4096, 8192) for t in _FEW_TOKENS),
]  # fmt: skip
"""Few rows, where latency counts."""

_COMPILED = ("rms_norm", "add_rms_norm", "layer_norm", "gelu_mul", "gelu_tanh_mul", "silu_mul", "silu_mul_backward")


def has_peer(name: str, shape: Shape) -> bool:
    """Whether torch.compile is worth its seconds here: it is known to be far behind for the others."""
    return shape["T"] <= 128 or name in _COMPILED
