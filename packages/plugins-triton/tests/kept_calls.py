"""Calls whose launches are kept, on a GPU that is not there."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from opmux.arch import parse_arch
from opmux_triton import launch
from opmux_triton.activation import targets as activation
from opmux_triton.activation.configs import GatedConfig
from opmux_triton.attention.backward import configs as attention_backward_configs
from opmux_triton.attention.backward import hopper_targets, hopper_wide_targets
from opmux_triton.attention.backward import targets as attention_backward
from opmux_triton.attention.forward import configs as attention_configs
from opmux_triton.attention.forward import targets as attention
from opmux_triton.gemm import heuristics as gemm_heuristics
from opmux_triton.gemm import targets as gemm
from opmux_triton.kv_cache import targets as kv_cache
from opmux_triton.kv_cache.configs import WriteConfig
from opmux_triton.norm import backward_targets as norm_backward
from opmux_triton.norm import configs as norm_configs
from opmux_triton.norm import targets as norm
from opmux_triton.paged import configs as paged_configs
from opmux_triton.paged import targets as paged
from opmux_triton.quantization import targets as quantization
from opmux_triton.quantization.configs import QuantizeConfig
from opmux_triton.rope import targets as rope
from opmux_triton.rope.configs import RopeConfig

SM_90 = parse_arch("sm_90")
NORM = norm_configs.RowsConfig(block=256, rows=1, num_warps=4)
ROPE = RopeConfig(block_heads=8, tokens=1, num_warps=4)
GATED = GatedConfig(block=256, rows=1, num_warps=4)
QUANTIZE = QuantizeConfig(block=256, rows=1, parts=1, num_warps=4)
WRITE = WriteConfig(block=256, tokens=1, stream=False, num_warps=4)


class Compiled(SimpleNamespace):
    """Stands for Triton's object of a compiled kernel; weak references can be had of it."""


class Device:
    """Stands for a GPU: keeps what its launcher is given."""

    def __init__(self) -> None:
        self.launched: list[tuple[Any, ...]] = []
        self.built = 0

    def run(self, x: int, y: int, z: int, stream: int, function: Any, packed: Any, *rest: Any) -> None:
        """Triton's launcher."""
        self.launched.append((x, y, z, function, *rest[3:]))

    def build(self, kernel: Any, grid: Any, arguments: tuple[Any, ...], meta: Any) -> launch.Handle:
        """Stands for the compiler."""
        self.built += 1
        names = kernel.arg_names[len(arguments) :]
        compiled = Compiled(metadata=SimpleNamespace())
        function = " ".join([kernel.__name__, *(str(a.dtype) for a in arguments if isinstance(a, Tensor))])
        return launch.Handle(compiled, self.run, function, None, tuple(meta[name] for name in names))

    def taken(self) -> list[tuple[Any, ...]]:
        """What was launched since the last time."""
        found, self.launched = self.launched, []
        return found


def halves(*shape: int) -> Tensor:
    return torch.zeros(shape, dtype=torch.bfloat16)


def norm_call() -> tuple[Callable[..., Any], tuple[Tensor | None, ...]]:
    return lambda *t: norm.rms_norm(*t, eps=1e-6, weight_offset=0.0, config=NORM), (halves(2, 64), halves(64))


def add_norm_call() -> tuple[Callable[..., Any], tuple[Tensor | None, ...]]:
    given = (halves(2, 64), halves(2, 64), halves(64))
    return lambda *t: norm.add_rms_norm_(*t, eps=1e-6, weight_offset=0.0, config=NORM), given


def rope_call() -> tuple[Callable[..., Any], tuple[Tensor | None, ...]]:
    tables = torch.zeros(2, 8, 16)
    given = (halves(2, 4, 2, 32), halves(2, 4, 1, 32), tables[0], tables[1], None)
    return lambda *t: rope.apply_rope(*t, interleaved=False, config=ROPE), given


def gated_call() -> tuple[Callable[..., Any], tuple[Tensor | None, ...]]:
    return lambda *t: activation.silu_mul(*t, config=GATED), (halves(3, 64), halves(3, 64))


def write_call() -> tuple[Callable[..., Any], tuple[Tensor | None, ...]]:
    given = (halves(3, 2, 64), halves(3, 2, 64), halves(4, 16, 2, 64), halves(4, 16, 2, 64), torch.arange(3))
    return lambda *t: kv_cache.write_kv_cache(*t, layout="nhd", config=WRITE), given


def linear_call(arch: str = "sm_80", tokens: int = 2) -> tuple[Callable[..., Any], tuple[Tensor | None, ...]]:
    features = {"n": 64, "k": 96, "bucket(tokens)": (tokens - 1).bit_length()}
    config = gemm_heuristics.linear(parse_arch(arch), features)
    return lambda *t: gemm.linear(*t, config=config), (halves(tokens, 96), halves(64, 96), halves(64))


def paged_call(longest: int = 1) -> tuple[Callable[..., Any], tuple[Tensor | None, ...]]:
    features = {"page_size": 16, "head_dim": 64, "value_dim": 64, "bucket(batch)": 1}
    chosen = paged_configs.halves_config(SM_90, features)
    config = replace(chosen, decode=replace(chosen.decode, least=64, programs=64))
    options = {"scale": None, "causal": True, "window": (-1, -1), "softcap": 0.0, "layout": "nhd"}
    given = (
        halves(2, 4, 64), halves(64, 16, 2, 64), halves(64, 16, 2, 64), torch.arange(3, dtype=torch.int32),
        torch.full((2,), 300, dtype=torch.int32), torch.zeros(2, 32, dtype=torch.int32), None,
    )  # fmt: skip
    return lambda *t: paged.paged_attention(*t, max_seqlen_q=longest, max_seqlen_k=300, config=config, **options), given


def attention_call() -> tuple[Callable[..., Any], tuple[Tensor | None, ...]]:
    chosen = attention_configs.forward_config(SM_90, {"head_dim": 64, "value_dim": 64, "bucket(seq_q)": 6})
    config = replace(chosen, tma=False)
    options = {"scale": None, "causal": True, "window": (-1, -1), "softcap": 0.0}
    given = (halves(2, 40, 4, 64), halves(2, 48, 2, 64), halves(2, 48, 2, 64), None)
    return lambda *t: attention.attention_lse(*t, config=config, **options), given


def attention_backward_call(
    causal: bool = True, mask: tuple[bool, ...] = (True, True, True, True)
) -> tuple[Callable[..., Any], tuple[Tensor | None, ...]]:
    chosen = attention_backward_configs.backward_config(SM_90, {"head_dim": 64, "value_dim": 64})
    config = replace(chosen, shares=2)
    options: dict[str, Any] = {"scale": None, "causal": causal, "window": (-1, -1), "softcap": 0.0}
    q, k = (2, 40, 4, 64), (2, 48, 2, 64)
    given = (halves(*q), halves(*q), halves(*k), halves(*k), halves(*q), torch.zeros(2, 4, 40), halves(4), None)
    return lambda *t: attention_backward.attention_backward(*t, output_mask=mask, config=config, **options), given


def hopper_backward_call(
    wide: bool, causal: bool = True, shares: int = 0
) -> tuple[Callable[..., Any], tuple[Tensor | None, ...]]:
    """By the Gluon kernels, whose descriptors reach scratch memory too."""
    dim = 192 if wide else 64
    features = {"head_dim": dim, "value_dim": dim}
    options: dict[str, Any] = {"scale": None, "causal": causal, "window": (-1, -1), "softcap": 0.0}
    options["output_mask"] = (True, True, True, False)
    config: Any
    if wide:
        run: Callable[..., Any] = hopper_wide_targets.attention_backward
        config = attention_backward_configs.hopper_wide_config(SM_90, features)
    else:
        run = hopper_targets.attention_backward
        config = replace(attention_backward_configs.hopper_config(SM_90, features), shares=shares)
    q, k = (2, 140, 4, dim), (2, 148, 2, dim)
    given = (halves(*q), halves(*q), halves(*k), halves(*k), halves(*q), torch.zeros(2, 4, 140), None, None)
    return lambda *t: run(*t, config=config, **options), given


def norm_backward_call() -> tuple[Callable[..., Any], tuple[Tensor | None, ...]]:
    config = norm_configs.backward_config(SM_90, {"hidden": 64})
    options: dict[str, Any] = {"eps": 1e-6, "weight_offset": 0.0, "output_mask": (True, True, True), "config": config}
    given = (halves(9, 64), halves(9, 64), halves(9, 64), halves(64))
    return lambda *t: norm_backward.add_rms_norm_backward(*t, **options), given


def linear_backward_call() -> tuple[Callable[..., Any], tuple[Tensor | None, ...]]:
    config = gemm_heuristics.linear_backward(parse_arch("sm_80"), {"n": 64, "k": 96, "bucket(tokens)": 4})
    given = (halves(9, 64), halves(9, 96), halves(64, 96))
    return lambda *t: gemm.linear_backward(*t, output_mask=(True, True, True), config=config), given


def quantize_call() -> tuple[Callable[..., Any], tuple[Tensor | None, ...]]:
    options = {"dtype": torch.float8_e4m3fn, "block": (1, 128), "scale_major": "k", "config": QUANTIZE}
    return lambda *t: quantization.quantize(*t, **options), (halves(3, 256),)


CALLS = (
    norm_call, add_norm_call, rope_call, gated_call, write_call, linear_call, paged_call, attention_call,
    attention_backward_call, norm_backward_call, linear_backward_call, quantize_call,
)  # fmt: skip


def named(launched: Sequence[tuple[Any, ...]], tensors: Sequence[Tensor | None], results: Any) -> list[Any]:
    """Launches with the call's own tensors by their places instead of by their addresses; others are scratch."""
    every = [*tensors, *(results if isinstance(results, tuple) else (results,))]
    places = {t.data_ptr(): f"tensor {place}" for place, t in enumerate(every) if t is not None}
    return [
        tuple(places.get(v, "scratch" if isinstance(v, int) and v > 1 << 24 else v) for v in values)
        for values in launched
    ]
