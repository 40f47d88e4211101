"""Random points: calls drawn from the widths of real models, the same for the same seed.

A model is drawn from `MODELS`, evenly; then what changes from call to call, by logarithm, so that every octave is
equally likely. Each op has its own stream of numbers: which other ops are drawn for changes nothing.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import torch

from opmux.callpath.op import OPS
from opmux.dtypes import short_name_of
from opmux.errors import InvalidArgument
from opmux.shapes.point import Point
from opmux.testing.case import usual_dtype
from opmux.tuning.work import Work

_TRIES = 200


@dataclass(frozen=True)
class Model:
    """The widths of a model.

    Attributes:
        value_dim: the size of a head of values, where it is not ``head_dim``.
    """

    name: str
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    value_dim: int = 0


MODELS = (
    Model("GPT-2", 768, 3072, 12, 12, 64),
    Model("Qwen3 0.6B", 1024, 3072, 16, 8, 128),
    Model("Llama 3.2 1B", 2048, 8192, 32, 8, 64),
    Model("Qwen3 1.7B", 2048, 6144, 16, 8, 128),
    Model("Gemma 3 1B", 1152, 6912, 4, 1, 256),
    Model("GPT-OSS 20B", 2880, 2880, 64, 8, 64),
    Model("Phi-2", 2560, 10240, 32, 32, 80),
    Model("Phi-3 mini", 3072, 8192, 32, 32, 96),
    Model("Llama 3.2 3B", 3072, 8192, 24, 8, 128),
    Model("Gemma 3 12B", 3840, 15360, 16, 8, 256),
    Model("Llama 2 7B", 4096, 11008, 32, 32, 128),
    Model("Llama 3 8B", 4096, 14336, 32, 8, 128),
    Model("Qwen3 14B", 5120, 17408, 40, 8, 128),
    Model("Qwen3 32B", 5120, 25600, 64, 8, 128),
    Model("DeepSeek V3", 7168, 18432, 128, 128, 192, value_dim=128),
    Model("Llama 3 70B", 8192, 28672, 64, 8, 128),
)
"""Their published configurations. DeepSeek's heads are those of its prefill."""

BANDS = ((1, 16), (17, 512), (513, 16384))
"""Tokens of a matrix product: decoding, small batches, prefill and training; each is a third of the points."""

ATTENDED = (128, 16384)
"""The length of a sequence in attention; at most this many tokens in a batch, and 4 in 5 of the calls are causal."""

CONTEXTS = (128, 131072)
"""Cached tokens of a sequence."""

BATCHES = (1, 256)
"""Sequences that decode together."""

CHUNKS = (128, 4096)
"""New tokens of a sequence in a prefill over a cache; a third of the points, the others decode."""

PAGES = (16, 32, 64)
"""Tokens of a page."""

CODED = 1 / 3
"""How many of the caches hold 8-bit codes, with a scale for each kv head; the others are of the model's dtype."""

ROWS = (1, 65536)
"""Tokens of norms, gates and rotary embeddings."""

VOCABULARIES = (384, 32_000, 50_257, 65_536, 128_256, 151_936, 201_088, 262_144)
"""Classes of a loss, as published models have them: from ByT5's bytes to Gemma 3."""

Sizes = dict[str, Any]

WANTED: dict[str, Sizes] = {
    "linear_backward": {"output_mask": (True, True, False)},
    "attention_backward": {"output_mask": (True, True, True, False)},
    "attention_varlen_backward": {"output_mask": (True, True, True, False)},
}
"""The gradients that autograd asks for where a layer has no bias, and attention no sinks."""


@dataclass(frozen=True)
class Largest:
    """The largest call that is drawn.

    Attributes:
        flops: floating-point operations.
        memory: bytes that are read and written.
    """

    flops: float
    memory: float

    @classmethod
    def of_device(cls, device: str) -> "Largest":
        """What takes a few tens of milliseconds on a device."""
        return cls(2e9, 2**26) if device == "cpu" else cls(2e13, 2**32)


def draw(
    ops: Sequence[str], count: int, seed: int, device: str = "cuda", dtype: torch.dtype | None = None
) -> list[Point]:
    """Draw points for ops, one op after the other in turn.

    Args:
        ops: their names.
        count: how many points for each op.
        seed: of the drawing.
        device: ``cpu`` or ``cuda``: decides how large a call may be.
        dtype: of the model's tensors; None takes bfloat16 on a GPU, float32 on a CPU.

    Raises:
        InvalidArgument: where an op has no distribution, or ``count`` is not positive.
    """
    if count < 1:
        raise InvalidArgument(f"tune: `random` expected 1 point or more for each op, got {count}")
    for name in ops:
        if name not in DISTRIBUTIONS:
            known = ", ".join(sorted(DISTRIBUTIONS))
            raise InvalidArgument(
                f"tune: `random` expected ops with a distribution, got {name}; those are {known}; "
                "give a file of shapes for the others"
            )
    kind = device.partition(":")[0]
    dtype = dtype or (torch.float32 if kind == "cpu" else torch.bfloat16)
    drawn = [_drawn(name, count, Random(f"{seed} {name}"), Largest.of_device(kind), dtype) for name in ops]
    return [points[number] for number in range(count) for points in drawn]


def _drawn(name: str, count: int, random: Random, largest: Largest, dtype: torch.dtype) -> list[Point]:
    points: dict[str, Point] = {}
    for _ in range(_TRIES * count):
        if len(points) == count:
            return list(points.values())
        point = point_of(name, DISTRIBUTIONS[name](random, random.choice(MODELS)), dtype)
        if _size_fits(point, largest):
            points.setdefault(point.key, point)
    raise InvalidArgument(
        f"tune: `random` expected a number of points that can be drawn for {name} in {short_name_of(dtype)} here, "
        f"got {count}; {len(points)} differ"
    )


def point_of(name: str, sizes: Sizes, dtype: torch.dtype) -> Point:
    """A call of an op with these sizes and options, its other options at their defaults.

    A gradient asks for what a model without biases and sinks needs. Caches with 8-bit codes have their scales.

    Args:
        name: the op.
        sizes: at least its dims, and its options that are sizes; ``stored`` is the dtype of caches, where it is not
            that of the model.
        dtype: of the model's tensors.
    """
    signature = OPS[name].signature
    sizes = {**WANTED.get(name, {}), **sizes}
    given = {t.name for t in signature.required} | {"positions"}
    caches = {"k_cache", "v_cache"} if "stored" in sizes else set()
    given |= {signature.scales[cache] for cache in caches}
    dtypes = {
        t.name: sizes["stored"] if t.name in caches else usual_dtype(t, dtype)
        for t in signature.tensors if t.name in given
    }  # fmt: skip
    dims = {name: sizes[name] for name in signature.binders}
    options = {o.name: sizes[o.name] for o in signature.options if o.name in sizes and sizes[o.name] != o.default}
    return Point(name, dtypes, dims, options)


def _size_fits(point: Point, largest: Largest) -> bool:
    work, sizes = Work(point.definition, point.dtypes, point.options), {**point.dims, **point.options}
    return work.flops(sizes) <= largest.flops and work.moved_bytes(sizes) <= largest.memory


def _between(random: Random, bounds: tuple[int, int]) -> int:
    """A whole number within bounds, evenly by logarithm."""
    low, high = bounds
    return min(high, max(low, round(math.exp(random.uniform(math.log(low), math.log(high + 1))))))


def _heads(model: Model) -> Sizes:
    return {
        "heads": model.heads,
        "kv_heads": model.kv_heads,
        "head_dim": model.head_dim,
        "value_dim": model.value_dim or model.head_dim,
    }


def _product(random: Random, model: Model) -> Sizes:
    value_dim = model.value_dim or model.head_dim
    packed = model.heads * model.head_dim + model.kv_heads * (model.head_dim + value_dim)
    n, k = random.choice(
        (
            (packed, model.hidden),
            (model.hidden, model.heads * value_dim),
            (2 * model.intermediate, model.hidden),
            (model.hidden, model.intermediate),
        )
    )
    return {"tokens": _between(random, random.choice(BANDS)), "n": n, "k": k}


def _norm(random: Random, model: Model) -> Sizes:
    return {"tokens": _between(random, ROWS), "hidden": model.hidden}


def _gate(random: Random, model: Model) -> Sizes:
    return {"tokens": _between(random, ROWS), "n": model.intermediate}


def _rope(random: Random, model: Model) -> Sizes:
    tokens = _between(random, ROWS)
    seq = random.choice((1, tokens))
    batch = tokens // seq
    half, positions = model.head_dim // 2, 8192
    return {**_heads(model), "batch": batch, "seq": seq, "half": half, "max_positions": positions}


def _dense(random: Random, model: Model) -> Sizes:
    seq = _between(random, ATTENDED)
    batch = _between(random, (1, max(1, ATTENDED[1] // seq)))
    return {**_heads(model), "batch": batch, "seq_q": seq, "seq_k": seq, "causal": random.random() < 0.8}


def _ragged(random: Random, model: Model) -> Sizes:
    sizes = _dense(random, model)
    seq, tokens = sizes.pop("seq_q"), sizes["batch"] * sizes.pop("seq_k")
    return {**sizes, "tokens_q": tokens, "tokens_k": tokens, "max_seqlen_q": seq, "max_seqlen_k": seq}


def _paged(random: Random, model: Model) -> Sizes:
    page_size = random.choice(PAGES)
    decodes = random.random() < 2 / 3
    batch = _between(random, BATCHES if decodes else (1, 8))
    new = 1 if decodes else _between(random, CHUNKS)
    context = max(new, _between(random, CONTEXTS))
    pages = -(-context // page_size)
    sizes = {
        **_heads(model),
        "batch": batch,
        "tokens": batch * new,
        "page_size": page_size,
        "max_pages": pages,
        "pages": batch * pages,
        "max_seqlen_q": new,
        "max_seqlen_k": context,
    }
    return {**sizes, **_stored(sizes)}


def _stored(sizes: Sizes) -> Sizes:
    """What a cache holds; the other sizes decide, so that a seed draws the same ones whatever that is."""
    return {"stored": torch.float8_e4m3fn} if Random(str(sizes)).random() < CODED else {}


def _written(random: Random, model: Model) -> Sizes:
    page_size, tokens = random.choice(PAGES), _between(random, ROWS)
    sizes = {**_heads(model), "tokens": tokens, "page_size": page_size, "pages": 2 * -(-tokens // page_size)}
    return {**sizes, **_stored(sizes)}


def _states(random: Random, model: Model) -> Sizes:
    sizes = _dense(random, model)
    return {**sizes, "seq": sizes["seq_q"]}


def _quantized(random: Random, model: Model) -> Sizes:
    return {"batch": 1, "m": _between(random, ROWS), "k": model.hidden, "dtype": torch.float8_e4m3fn}


def _scaled(random: Random, model: Model) -> Sizes:
    sizes = _quantized(random, model)
    return {**sizes, "m_blocks": sizes["m"], "k_blocks": -(-sizes["k"] // 128)}


def _converted_scale(random: Random, model: Model) -> Sizes:
    return {**_scaled(random, model), "dtype": torch.float8_e8m0fnu}


def _converted_fp8(random: Random, model: Model) -> Sizes:
    return {**_scaled(random, model), "dtype": torch.float8_e4m3fnuz}


def _dequantized(random: Random, model: Model) -> Sizes:
    return {**_scaled(random, model), "out_dtype": torch.bfloat16}


def _scaled_product(random: Random, model: Model) -> Sizes:
    product = _product(random, model)
    m, n, k = product["tokens"], product["n"], product["k"]
    blocks = -(-k // 128)
    tokens = {"m_blocks": m, "k_blocks": 1, "w_rows": n, "w_blocks": 1}
    squares = {"m_blocks": m, "k_blocks": blocks, "w_rows": -(-n // 128), "w_blocks": blocks}
    scales = random.choice((tokens, squares))
    return {"batch": 1, "m": m, "n": n, "k": k, **scales, "out_dtype": torch.bfloat16}


EXPERTS = ((8, 2), (32, 4), (64, 6), (128, 8))
"""Groups of a grouped product, and how many of them a token goes to."""


def _grouped_product(random: Random, model: Model) -> Sizes:
    product = _product(random, model)
    groups, each = random.choice(EXPERTS)
    width = max(128, model.intermediate // groups // 128 * 128)
    n, k = random.choice(((2 * width, model.hidden), (model.hidden, width)))
    return {"groups": groups, "m": each * product["tokens"], "n": n, "k": k}


def _masked_product(random: Random, model: Model) -> Sizes:
    sizes = _grouped_product(random, model)
    expected = -(-sizes.pop("m") // sizes["groups"])
    return {**sizes, "max_m": max(128, 1 << (2 * expected - 1).bit_length()), "expected_m": expected}


def _with_scales(sizes: Sizes) -> Sizes:
    blocks, rows = -(-sizes["k"] // 128), sizes.get("m", sizes.get("max_m"))
    scales = {"m_blocks": rows, "k_blocks": blocks, "w_rows": -(-sizes["n"] // 128), "w_blocks": blocks}
    return {**sizes, **scales, "out_dtype": torch.bfloat16}


def _norm_quantized(random: Random, model: Model) -> Sizes:
    return {**_quantized(random, model), "hidden": model.hidden}


def _gate_quantized(random: Random, model: Model) -> Sizes:
    return {**_quantized(random, model), "n": model.intermediate}


def _loss(random: Random, model: Model) -> Sizes:
    return {"tokens": _between(random, ROWS), "hidden": model.hidden, "vocab": random.choice(VOCABULARIES)}


Distribution = Callable[[Random, Model], Sizes]

DISTRIBUTIONS: dict[str, Distribution] = {
    **dict.fromkeys(("linear", "linear_backward"), _product),
    **dict.fromkeys(
        (
            "rms_norm", "rms_norm_backward", "add_rms_norm", "add_rms_norm_", "add_rms_norm_backward",
            "layer_norm", "layer_norm_backward", "add_layer_norm", "add_layer_norm_backward",
        ),
        _norm,
    ),
    **dict.fromkeys(
        (
            "silu_and_mul", "silu_and_mul_backward", "gelu_and_mul", "gelu_and_mul_backward",
            "silu_mul", "silu_mul_backward", "gelu_mul", "gelu_mul_backward",
        ),
        _gate,
    ),
    **dict.fromkeys(("apply_rope", "apply_rope_", "apply_rope_backward"), _rope),
    **dict.fromkeys(("attention", "attention_lse", "attention_backward"), _dense),
    **dict.fromkeys(("attention_varlen", "attention_varlen_lse", "attention_varlen_backward"), _ragged),
    **dict.fromkeys(("paged_attention", "paged_attention_lse"), _paged),
    **dict.fromkeys(("merge_attention_states", "merge_attention_states_backward"), _states),
    **dict.fromkeys(("cross_entropy", "cross_entropy_lse", "cross_entropy_backward"), _loss),
    **dict.fromkeys(
        (
            "fused_linear_cross_entropy", "fused_linear_cross_entropy_gradients",
            "fused_linear_cross_entropy_backward",
        ),
        _loss,
    ),
    "write_kv_cache": _written,
    "quantize": _quantized,
    "static_quantize": _scaled,
    "convert_scale": _converted_scale,
    "convert_fp8": _converted_fp8,
    "dequantize": _dequantized,
    **dict.fromkeys(("rms_norm_quantize", "add_rms_norm_quantize"), _norm_quantized),
    "silu_and_mul_quantize": _gate_quantized,
    **dict.fromkeys(("scaled_linear", "scaled_linear_accumulate"), _scaled_product),
    **dict.fromkeys(
        ("grouped_linear", "grouped_linear_backward", "grouped_weight_grad", "scaled_grouped_weight_grad"),
        _grouped_product,
    ),
    "masked_grouped_linear": _masked_product,
    "scaled_grouped_linear": lambda random, model: _with_scales(_grouped_product(random, model)),
    "scaled_masked_grouped_linear": lambda random, model: _with_scales(_masked_product(random, model)),
}  # fmt: skip
"""Op -> the sizes of one of its calls; for any other op, give shapes."""
