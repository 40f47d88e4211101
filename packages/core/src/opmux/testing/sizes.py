"""Sizes of the dims of a case, by dim name: base sizes, tiles, models' shapes, edges and zeros."""

import math
import random
from collections.abc import Iterator, Mapping
from typing import Any

from opmux.signatures.signature import Signature
from opmux.testing.model_shapes import MODELS, ModelShape
from opmux.testing.profiles import Profile

Dims = dict[str, Any]


def base_dims(signature: Signature, profile: Profile) -> Dims:
    """The dims of most cases."""
    dims: Dims = {}
    for name in signature.binders:
        if name in signature.stars:
            dims[name] = profile.sizes.get(f"*{name}", profile.default_star)
        else:
            dims[name] = profile.sizes.get(name, profile.default_size)
    return dims


def tile_dims(signature: Signature, profile: Profile) -> Dims | None:
    """Dims just past a tile of 128 in at least two directions, the rest small."""
    if not profile.tile:
        return None
    dims = base_dims(signature, profile)
    long = {"tokens", "n", "k", "m", "max_m", "hidden", "vocab", "seq_q", "seq_k", "tokens_q", "tokens_k"} & set(dims)
    if not long:
        return None
    for name in long:
        dims[name] = (profile.tile,) if name in signature.stars else profile.tile
    dims |= {name: (1,) if name in signature.stars else 1 for name in ("batch", "seq") if name in dims}
    if "tokens_q" in dims:
        dims["batch"] = 2
    return dims


EDGES: tuple[Mapping[str, Any], ...] = (
    {"*tokens": (), "*batch": ()},
    {"*tokens": (1,), "tokens": 1, "*batch": (1,)},
    {"n": 1},
    {"k": 1},
    {"seq_q": 1},
    {"seq_q": 40, "seq_k": 19},
    {"seq_k": 1},
    {"kv_heads": 1},
    {"kv_heads": "heads"},
    {"heads": 1, "kv_heads": 1},
    {"value_dim": 48},
    {"head_dim": 40, "half": 20, "value_dim": 24},
    {"half": 8},
    {"half": 1},
    {"page_size": 1, "pages": 80, "max_pages": 24},
    {"page_size": 32, "pages": 9},
    {"batch": 1},
    {"batch": 5},
    {"hidden": 1},
    {"m": 1},
    {"max_m": 1},
    {"groups": 1},
    {"groups": 9},
    {"vocab": 1},
    {"vocab": 9001, "*tokens": (3,), "hidden": 5},  # several blocks of any kernel, and no whole number of them
)
"""Changes of the base dims that often break kernels; each applies to ops that have the dim."""


def edge_dims(signature: Signature, profile: Profile) -> Iterator[Dims]:
    """The base dims with each of the edges."""
    for edge in EDGES:
        yield from changed(signature, profile, edge)


def changed(signature: Signature, profile: Profile, change: Mapping[str, Any]) -> Iterator[Dims]:
    """The base dims with a change, if the op has one of the changed dims."""
    dims = base_dims(signature, profile)
    given = {
        name.removeprefix("*"): v for name, v in change.items() if name.startswith("*") == _is_star(signature, name)
    }
    given = {name: dims.get(v) if isinstance(v, str) else v for name, v in given.items() if name in dims}
    given = {name: v for name, v in given.items() if v is not None}
    if given and any(dims[name] != value for name, value in given.items()):
        yield dims | given


def _is_star(signature: Signature, name: str) -> bool:
    return name.removeprefix("*") in signature.stars


def long_dims(signature: Signature, profile: Profile) -> Iterator[Dims]:
    """A decode step of one long sequence and a few short ones, and the same with as many kv heads as query heads.

    Where the profile has sizes past a tile, also with many new tokens of the long one. None where the op reads no
    block table.
    """
    dims = base_dims(signature, profile)
    if not profile.context or "block_table" not in {t.name for t in signature.tensors}:
        return
    columns = -(-profile.context // dims["page_size"])
    long = {**dims, "max_pages": columns, "pages": columns + columns // 2}
    step = {**long, "tokens": dims["batch"]}
    yield step
    yield {**step, "kv_heads": dims["heads"]}
    if profile.tile:
        yield {**long, "tokens": dims["batch"] + CHUNK, "head_dim": 64, "value_dim": 64}


def zero_dims(signature: Signature, profile: Profile) -> Iterator[Dims]:
    """The base dims with one of them zero."""
    for name in signature.binders:
        dims = base_dims(signature, profile)
        if name == "max_positions":
            dims["seq"] = 0  # tokens would have no valid position
        dims[name] = (0, *dims[name][1:]) if name in signature.stars and dims[name] else 0
        if name in signature.stars and not dims[name]:
            dims[name] = (0,)
        yield dims


OWN_RANGES: Mapping[str, tuple[int, int]] = {
    "heads": (1, 8),
    "kv_heads": (1, 4),
    "head_dim": (2, 136),
    "value_dim": (1, 136),
    "half": (1, 40),
    "batch": (1, 5),
    "pages": (3, 20),
    "page_size": (1, 48),
    "max_pages": (1, 6),
    "max_positions": (33, 130),
    "groups": (1, 5),
}
"""The smallest and the largest spread size of dims that do not reach a profile's limit."""


LEFT_OVER = (1, 2, 4, 7, 4, 1, 4, 3)
"""The remainder of spread sizes by 8, by step: half a vector in every other step from the third on."""


def spread_dims(signature: Signature, profile: Profile) -> Iterator[Dims]:
    """Sizes from 1 to the profile's limit for every dim at once, in equal steps of the logarithm.

    Each dim takes a size from every step, in an order of its own, and sizes differ in their remainders by 8. This
    exposes kernels that are wrong for short rows, or for the remainder after whole vectors.
    """
    count = profile.spread
    if not count:
        return
    columns: dict[str, list[int]] = {}
    for name in signature.binders:
        low, high = OWN_RANGES.get(name, (1, profile.odd_limit))
        high = max(low, min(high, profile.odd_limit))
        draws = random.Random(f"{profile.name} {name}")
        edges = [low * (high / low) ** (step / count) for step in range(count + 1)]
        sizes = []
        for step in range(count):
            least, most = math.ceil(edges[step]), max(math.ceil(edges[step]), math.floor(edges[step + 1]))
            wanted = LEFT_OVER[step % len(LEFT_OVER)]
            fitting = [size for size in range(least, most + 1) if size % 8 == wanted]
            sizes.append(draws.choice(fitting) if fitting else draws.randint(least, most))
        draws.shuffle(sizes)
        columns[name] = sizes
    for place in range(count):
        yield {name: (sizes[place],) if name in signature.stars else sizes[place] for name, sizes in columns.items()}


SCALE_BLOCKS = ((-1, -1), (1, -1), (1, 128), (128, 128), (1, 32))
"""The blocks that the scales ``(m_blocks, k_blocks)`` of a matrix ``(m, k)`` may be for, rows and columns."""

PRODUCT_BLOCKS = (((-1, -1), (-1, -1)), ((1, -1), (1, -1)), ((1, 128), (128, 128)), ((1, 128), (1, 128)))
"""Those that the scales of the two sides of a product may be for; ``(n, k)`` has ``(w_rows, w_blocks)``."""


def scaled(signature: Signature, dims: Mapping[str, Any], place: int) -> Dims:
    """The dims with those of scales made to fit a block, another one for each place; they cannot be drawn alone."""
    found, names = dict(dims), set(signature.binders)
    if {"n", "k", "w_rows", "w_blocks"} <= names:
        blocks, of_weight = PRODUCT_BLOCKS[place % len(PRODUCT_BLOCKS)]
        found |= zip(("w_rows", "w_blocks"), _block_counts((dims["n"], dims["k"]), of_weight), strict=True)
    else:
        blocks = SCALE_BLOCKS[place % len(SCALE_BLOCKS)]
    rows = next((name for name in ("m", "max_m") if name in names), None)
    if rows is not None and {"k", "m_blocks", "k_blocks"} <= names:
        found |= zip(("m_blocks", "k_blocks"), _block_counts((dims[rows], dims["k"]), blocks), strict=True)
    return found


def _block_counts(sizes: tuple[int, int], blocks: tuple[int, int]) -> list[int]:
    return [1 if length == -1 else -(-size // length) for size, length in zip(sizes, blocks, strict=True)]


CHUNK = 150
"""New tokens of a long sequence: more than kernels take as a decode step, and than fit into a tile."""

LONG_SUM, LONG_SUM_OF_ROWS = {"m": 8, "max_m": 8, "n": 16, "k": 16384}, {"m": 49152, "n": 16, "k": 16}
"""Products with sums so long that matrix units lose bits of 8-bit floats, unless float32 takes over in between."""

SEVERAL_BLOCKS, SEVERAL_OF_ROWS = {"m": 3, "max_m": 3, "n": 136, "k": 272}, {"m": 400, "n": 9, "k": 17}
"""Blocks of scales and a part of one either way, for profiles whose other sizes fit into one."""


def product_sums(signature: Signature, dims: Mapping[str, Any], long: bool) -> Dims | None:
    """The dims with sizes of long sums, or of several blocks; None where the op is no product of quantised matrices.

    Args:
        signature: of the op.
        dims: those of the op's other cases.
        long: whether sums are long, or of several blocks only.
    """
    if {"n", "k", "w_blocks"} <= set(dims):
        sizes = LONG_SUM if long else SEVERAL_BLOCKS
    elif any(tensor.name == "dy_scale" for tensor in signature.tensors):
        sizes = LONG_SUM_OF_ROWS if long else SEVERAL_OF_ROWS
    else:
        return None
    return {**dims, **{n: s for n, s in sizes.items() if n in dims}}


OUTPUT_LAYER = {"n": 50257, "k": 1024, "vocab": 50257, "hidden": 1024}
"""GPT-2's vocabulary, whose logits fill no rows of 16 bytes: libraries have other kernels for such a result."""


def output_layer_dims(signature: Signature, profile: Profile) -> Dims | None:
    """The dims of a few tokens' logits; None where the profile scales models down, or the op has no single weight."""
    names = set(signature.binders)
    if profile.large or profile.divisor != 1 or not ({"n", "k"} <= names or "vocab" in names):
        return None
    if names & {"groups", "w_blocks"} or "tokens" not in signature.stars:
        return None
    return base_dims(signature, profile) | {n: s for n, s in OUTPUT_LAYER.items() if n in names} | {"tokens": (32,)}


def model_dims(signature: Signature, profile: Profile) -> Iterator[tuple[ModelShape, Dims]]:
    """The shapes of models, scaled by the profile."""
    names = set(signature.binders)
    if not names & {"hidden", "n", "k", "heads", "vocab"}:
        return
    for name in profile.models:
        shape = MODELS[name].scaled(profile.divisor)
        qkv = (shape.heads + 2 * shape.kv_heads) * shape.head_dim
        ways = [(qkv, shape.hidden), (shape.hidden, shape.intermediate)] if {"n", "k"} <= names else [(0, 0)]
        for n, k in ways:
            dims = base_dims(signature, profile)
            sizes = {
                "hidden": shape.hidden,
                "n": n or shape.intermediate,
                "k": k or shape.hidden,
                "m": profile.model_tokens,
                "max_m": profile.model_tokens,
                "heads": shape.heads,
                "kv_heads": shape.kv_heads,
                "head_dim": shape.head_dim,
                "value_dim": shape.head_dim,
                "half": shape.head_dim // 2,
                "vocab": 8 * shape.intermediate,
            }
            dims |= {name: size for name, size in sizes.items() if name in names}
            if "tokens" in signature.stars and not {"heads", "seq"} & names:
                dims["tokens"] = (profile.model_tokens,)
            yield shape, dims
