"""Launch parameters of the products, per arch. Functions of the declared features alone; they import no Triton.

What a config says:
    kind: ``vector`` (one row, no matrix instructions), ``tiles`` (whole tiles), ``shares`` (equal shares of the
        blocks of k, summed by a second kernel: for few tiles) or ``roles`` (the Gluon kernel of sm_90, see `roles`).
    tma, store, flatten, parts: whether operands come by descriptors where they can (else by pointers, in the same
        tiles), how tiles are stored, whether the two loops are one, in how many parts a tile is stored.
    otherwise: what changes where descriptors cannot be used, tma or not.
    uneven: what changes for pointers where k is no multiple of block_k or rows have two strides: addresses and masks
        take registers then.
    swap: compute the transposed product, so that a small m is the n of the matrix instruction.
    block_m, block_n, block_k, group: the tile (m and n as they are after the swap) and the order of tiles.
    cut_rest: whether tiles that do not fill a round of all programs are cut along k.
    per_unit: programs on a multiprocessor, of kernels that stay there.
    xcds: dies among which programs are dealt out.
    sum_rows: rows of a tile that one program sums up, of ``shares``.
"""

from collections.abc import Mapping
from typing import Any

from opmux.arch import Arch
from opmux_triton.arithmetic import next_power_of_two, padded

Config = dict[str, Any]

_UNITS = {"gfx90a": 104, "gfx942": 304, "gfx950": 256, "sm_80": 108, "sm_90": 132, "sm_100": 148}
"""Multiprocessors of the usual product: only the choice between tiles depends on it."""

_SHORT = 2048
"""Sums so short, on sm_90, that storing a tile takes a notable part of its time."""

_CDNA = ("gfx90a", "gfx942", "gfx950")
_LARGE_SHARED = ("sm_80", "sm_87", "sm_90", "sm_100", "sm_103")
"""NVIDIA with 163 KiB of shared memory for a program, or more; the others have 99."""


def linear(arch: Arch, features: Mapping[str, Any]) -> Config:
    """16-bit `linear`."""
    n, k, exponent = features["n"], features["k"], features["bucket(tokens)"]
    if exponent == 0:
        return vector(arch, n, k)
    return halves(arch, 1 << exponent, n, k)


def linear_float32(arch: Arch, features: Mapping[str, Any]) -> Config:
    """float32 `linear`."""
    n, k, exponent = features["n"], features["k"], features["bucket(tokens)"]
    if exponent == 0:
        return vector(arch, n, k)
    return floats(arch, 1 << exponent, n, k)


def linear_backward(arch: Arch, features: Mapping[str, Any]) -> Config:
    """16-bit `linear_backward`: grad_x is (tokens, k) over n, grad_w is (n, k) over tokens."""
    n, k, tokens = features["n"], features["k"], 1 << features["bucket(tokens)"]
    return {
        "grad_x": halves(arch, tokens, k, n),
        "grad_w": halves(arch, n, k, tokens),
        "grad_bias": columns(arch),
    }


def linear_backward_float32(arch: Arch, features: Mapping[str, Any]) -> Config:
    """float32 `linear_backward`."""
    n, k, tokens = features["n"], features["k"], 1 << features["bucket(tokens)"]
    return {
        "grad_x": floats(arch, tokens, k, n),
        "grad_w": floats(arch, n, k, tokens),
        "grad_bias": columns(arch),
    }


def vector(arch: Arch, n: int, k: int) -> Config:
    """One row: as many bytes under way as there can be, and 16 of them to a thread's load."""
    if not arch.is_gpu:
        return {"kind": "vector", "rows": 4, "block_k": 16, "num_warps": 1}
    block_k, rows = 1024 if arch.vendor == "amd" else 512, 8
    if arch.name == "sm_90" and k >= 4096:
        block_k, rows = 4096 if k >= 8192 else 2048, 1
    while rows > 1 and n < rows * 4 * _units(arch):
        rows //= 2
        block_k = min(2048, block_k * 2) if arch.name == "sm_90" else block_k
    block_k = min(block_k, max(128, next_power_of_two(k)))
    lanes = 64 if arch.name in _CDNA else 32
    warps = max(1, min(4, rows * block_k // (lanes * 8)))
    return {"kind": "vector", "rows": rows, "block_k": block_k, "num_warps": warps}


def columns(arch: Arch) -> Config:
    """Sums of columns."""
    if not arch.is_gpu:
        return {"rows": 8, "block": 16, "waves": 1, "num_warps": 1}
    return {"rows": 32, "block": 128, "waves": 4, "num_warps": 4}


def halves(arch: Arch, m: int, n: int, k: int) -> Config:
    """A product in bfloat16 or float16."""
    if not arch.is_gpu:
        return _interpreted(m, k)
    if arch.name == "sm_90":
        return _hopper(arch, m, n, k)
    if arch.vendor == "amd":
        return _amd(arch, m, n, k)
    large = arch.name in _LARGE_SHARED
    if m <= 128:
        height = padded(m)
        return _config(height, 128 if height <= 64 else 64, 64, 4, 4 if large else 3, **_kind(arch, height, 128, m, n))
    if large and _fits(arch, 128, 256, m, n):
        return _config(128, 256, 64, 8, 3)
    return _config(128, 128, 32, 4, 4)


def _hopper(arch: Arch, m: int, n: int, k: int) -> Config:
    """sm_90: 227 KiB of shared memory, a tile of 128 x 256 by two warpgroups."""
    otherwise: Config = {"block_k": 32, "num_stages": 3}
    tma: Config = {"tma": True, "store": "descriptor", "otherwise": otherwise}
    units = _units(arch)
    busy = -(-n // 64) >= 3 * units // 4
    if m <= 64:
        width = padded(m)
        otherwise["block_k"] = 64
        if width <= 16 and 2 * units < -(-n // 64) <= 3 * units:  # one tile for each of three on a multiprocessor
            return _config(64, width, 128, 4, 3, per_unit=3, swap=True, flatten=True, **tma)
        stages = {16: 5, 32: 4, 64: 3}[width]
        # A second kernel costs some microseconds: it pays where few programs would each read long rows.
        kind = "tiles" if 5 * -(-n // 64) >= 2 * units or k <= 2048 else "shares"
        return _config(64, width, 256, 4, stages, kind=kind, swap=True, flatten=True, **tma)
    if m <= 128 and busy:
        return _config(64, 128, 128, 4, 4, swap=True, flatten=True, **tma)
    if m <= 128:
        return _config(128, 128, 64, 8, 6, kind="shares", **tma)
    if k <= _SHORT and _fits(arch, 128, 128, m, n, per_unit=2):  # one stores a tile while the other multiplies
        portable = _config(128, 128, 64, 4, 3, flatten=True, parts=2, per_unit=2, **tma)
        otherwise["num_warps"] = 8  # addresses take registers
        return roles(128, 128, 64, 6, 2, alternate=True, slots=1, otherwise=portable)
    if 3 * units // 4 <= -(-m // 128) * -(-n // 128) <= units:  # one round of small tiles
        return _config(128, 128, 64, 8, 6, flatten=True, parts=2, **tma)
    if not _fits(arch, 128, 256, m, n) and _fits(arch, 192, 128, m, n):
        portable = _config(128, 128, 64, 8, 5, flatten=True, **tma)
        return roles(192, 128, 64, 5, 3, slots=1, group=4, otherwise=portable)
    if _fits(arch, 128, 256, m, n, cut_rest=k > _SHORT):
        otherwise["block_n"] = 128
        return _config(128, 256, 64, 8, 4, flatten=True, parts=2, cut_rest=k > _SHORT, **tma)
    if _fits(arch, 128, 128, m, n) or m * n >= 128 * 128 * units:
        return _config(128, 128, 64, 8, 5, flatten=True, **tma)
    return _config(128, 128, 64, 8, 6, kind="shares", **tma)


def roles(
    block_m: int, block_n: int, block_k: int, stages: int, warpgroups: int, *, otherwise: Config | None = None,
    alternate: bool = False, parts: int = 2, slots: int = 2, group: int = 8, cut: str = "none", spin: bool = False,
    swap: bool = False,
) -> Config:  # fmt: skip
    """A tile of the Gluon kernel.

    Args:
        block_m: rows of a tile: of all warpgroups together, or of one where they alternate; 64 or 128 of each.
        block_n: columns of a tile.
        block_k: columns of a block of the operands.
        stages: how many such blocks the ring holds.
        warpgroups: how many multiply.
        otherwise: the config where descriptors cannot be used.
        alternate: whether warpgroups have whole tiles in turn, so that one stores while the other multiplies.
        parts: in how many parts of its columns a tile is stored, a multiple of ``slots``.
        slots: buffers of a warpgroup for them.
        group: rows of tiles that are walked together.
        cut: which tiles are cut along k, with a second kernel that sums them up: ``none``, the ``rest`` that does not
            fill a round of all programs, ``all``.
        spin: whether programs with other parts of the large operand begin elsewhere in k.
        swap: compute the transposed product.
    """
    return {
        "kind": "roles",
        "otherwise": otherwise,
        "block_m": block_m,
        "block_n": block_n,
        "block_k": block_k,
        "stages": stages,
        "warpgroups": warpgroups,
        "alternate": alternate,
        "parts": parts,
        "slots": slots,
        "group": group,
        "cut": cut,
        "spin": spin,
        "swap": swap,
        "sum_rows": 16,
    }


def _amd(arch: Arch, m: int, n: int, k: int) -> Config:
    """AMD: 64 KiB of LDS (160 on gfx950); one of the pipeline's stages is held in registers."""
    if arch.name not in _CDNA:
        if m <= 64:
            return _config(padded(m), 64, 64, 4, 2, **_kind(arch, padded(m), 64, m, n))
        return _config(128, 128, 32, 8, 2)
    more: Config = {"matrix_instr_nonkdim": 16, "xcds": 1 if arch.name == "gfx90a" else 8}
    if m <= 128:
        height = padded(m)
        return _config(height, 64, 128, 4, 2, uneven={"block_k": 64}, **_kind(arch, height, 64, m, n), **more)
    if _fits(arch, 256, 256, m, n):
        return _config(256, 256, 32, 8, 2, waves_per_eu=2, **more)
    return _config(128, 128, 64, 4, 2, waves_per_eu=2, uneven={"block_k": 32, "num_warps": 8}, **more)


def floats(arch: Arch, m: int, n: int, k: int) -> Config:
    """A product in float32 by fused multiply-adds, on CDNA by float32 matrix instructions."""
    if not arch.is_gpu:
        return _interpreted(m, k)
    if arch.name in _CDNA:
        more: Config = {"matrix_instr_nonkdim": 16}
        if m <= 64:
            kind = _kind(arch, padded(m), 64, m, n)
            return _config(padded(m), 64, 64, 4, 2, uneven={"block_k": 32}, **kind, **more)
        return _config(128, 128, 32, 4, 2, uneven={"block_k": 16, "num_warps": 8}, **more)
    if m <= 32:
        return _config(padded(m), 64, 32, 4, 3 if arch.vendor == "nvidia" else 2, **_kind(arch, 32, 64, m, n))
    if _fits(arch, 128, 128, m, n):
        return _config(128, 128, 16, 8, 3 if arch.vendor == "nvidia" else 2)
    return _config(64, 64, 16, *((8, 3) if arch.vendor == "nvidia" else (4, 2)), **_kind(arch, 64, 64, m, n))


def _interpreted(m: int, k: int) -> Config:
    """Small tiles of every kind, for the interpreter: shares where k is long, the transposed product for few rows."""
    return _config(16, 16, 16, 1, 1, kind="shares" if k >= 96 else "tiles", swap=m <= 4, group=2, sum_rows=8)


def _config(block_m: int, block_n: int, block_k: int, warps: int, stages: int, **more: Any) -> Config:
    config: Config = {
        "kind": "tiles",
        "tma": False,
        "store": "pointers",
        "uneven": {},
        "flatten": False,
        "parts": 1,
        "swap": False,
        "block_m": block_m,
        "block_n": block_n,
        "block_k": block_k,
        "group": 8,
        "cut_rest": False,
        "per_unit": 1,
        "xcds": 1,
        "sum_rows": 16,
        "num_warps": warps,
        "num_stages": stages,
    }
    return config | more


def _units(arch: Arch) -> int:
    return _UNITS.get(arch.name, 64)


def _kind(arch: Arch, block_m: int, block_n: int, m: int, n: int) -> Config:
    """Shares where whole tiles would leave a quarter of the multiprocessors without work."""
    tiles = -(-m // block_m) * -(-n // block_n)
    return {"kind": "shares", "per_unit": 2} if tiles < _units(arch) * 3 // 2 else {}


def _fits(arch: Arch, block_m: int, block_n: int, m: int, n: int, *, per_unit: int = 1, cut_rest: bool = False) -> bool:
    """Whether tiles of this size keep the multiprocessors busy: at least 7/8 of them, over all rounds."""
    slots = per_unit * _units(arch)
    tiles = -(-m // block_m) * -(-n // block_n)
    rounds, rest = divmod(tiles, slots)
    last = 1 / (slots // rest if cut_rest else 1) if rest else 0
    return tiles * 8 >= (rounds + last) * slots * 7
