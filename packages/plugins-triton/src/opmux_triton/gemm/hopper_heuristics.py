"""Which launch parameters a product of 16-bit operands gets on sm_90. Loads no Triton.

227 KiB of shared memory, a tile of 128 x 256 by two warpgroups. The Gluon kernel takes products of more than a few
rows, in the tile that `opmux_triton.gemm.hopper_model` predicts to be the fastest, but for those that fill the device
once with tiles of 64 columns of the result.
`opmux_triton.gemm.implementations` asks here whether it does.
"""

from collections.abc import Mapping
from typing import Any

from opmux.plugin import Arch, parse_arch
from opmux_triton.archs import usual_units
from opmux_triton.arithmetic import padded
from opmux_triton.gemm import hopper_model
from opmux_triton.gemm.configs import HopperBackwardConfig, HopperConfig, TileChange, TilesConfig
from opmux_triton.gemm.occupancy import fills
from opmux_triton.gemm.vectors import columns

_ARCH = parse_arch("sm_90")
_UNITS = usual_units("sm_90")
_MANY = 3 * _UNITS // 4
"""Tiles that keep most multiprocessors busy."""
_SHORT = 2048
"""Sums so short that storing a tile takes a notable part of its time."""

FEW = 16
"""Rows up to which the portable kernels were measured to be as fast as the Gluon kernel, or faster."""


def linear(arch: Arch, features: Mapping[str, Any]) -> HopperConfig:
    """`linear` by the Gluon kernel, for calls that `why_not_linear` has nothing against."""
    found = gluon(*sizes(features))
    if found is None:
        raise ValueError(str(why_not_linear(features)))
    return found


def linear_backward(arch: Arch, features: Mapping[str, Any]) -> HopperBackwardConfig:
    """`linear_backward` with at least one product by the Gluon kernel, see `why_not_linear_backward`."""
    grad_x, grad_w = (gluon(*each) or portable(*each) for each in backward_sizes(features))
    return HopperBackwardConfig(grad_x=grad_x, grad_w=grad_w, grad_bias=columns(arch))


def why_not_linear(features: Mapping[str, Any]) -> str | None:
    """Why the Gluon kernel does not take a call of `linear`, or None."""
    return None if takes(*sizes(features)) else "the portable kernel was measured to be as fast or faster"


def why_not_linear_backward(features: Mapping[str, Any]) -> str | None:
    """Why the Gluon kernel takes no product of a call of `linear_backward`, or None."""
    if any(takes(*each) for each in backward_sizes(features)):
        return None
    return "the portable kernel was measured to be as fast or faster"


def sizes(features: Mapping[str, Any]) -> tuple[int, int, int]:
    """The (m, n, k) of a linear layer's product."""
    return features["bucket(tokens, 8)"], features["n"], features["k"]


def backward_sizes(features: Mapping[str, Any]) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
    """The (m, n, k) of the products that give grad_x and grad_w."""
    tokens, n, k = sizes(features)
    return (tokens, k, n), (n, k, tokens)


def gluon(m: int, n: int, k: int) -> HopperConfig | None:
    """The Gluon kernel's parameters for a product, or None where the portable kernel takes it."""
    return hopper_model.config(hopper_model.best(m, n, k), m, portable(m, n, k)) if takes(m, n, k) else None


def takes(m: int, n: int, k: int) -> bool:
    """Whether the Gluon kernel takes a product."""
    return m > FEW and min(n, k) > 0 and not _is_one_round_of_rows(m, n)


def portable(m: int, n: int, k: int) -> TilesConfig:
    """The portable kernels' parameters for a product; those for m are those for the next power of two."""
    m = 1 << (m - 1).bit_length()
    if m <= 64:
        width = padded(m)
        # One tile for each of two or three programs on a multiprocessor.
        if width <= 16 and 2 * _UNITS < -(-n // 64) <= 3 * _UNITS:
            return _tiles(64, width, 128, 4, 3, per_unit=3, swap=True, flatten=True, otherwise=_deep())
        if width <= 16 and _UNITS < -(-n // 64) <= 2 * _UNITS:
            return _tiles(64, width, 128, 4, 4, per_unit=2, swap=True, flatten=True, otherwise=_deep())
        stages = {16: 5, 32: 4, 64: 3}[width]
        # A second kernel costs some microseconds: it pays where few programs would each read long rows.
        kind = "tiles" if 5 * -(-n // 64) >= 2 * _UNITS or k <= 2048 else "shares"
        return _tiles(64, width, 256, 4, stages, kind=kind, swap=True, flatten=True, otherwise=_deep())
    if m <= 128 and -(-n // 64) >= _MANY:
        return _tiles(64, 128, 128, 4, 4, swap=True, flatten=True)
    if m <= 128:
        return _tiles(128, 128, 64, 8, 6, kind="shares")
    if _alternates(m, n, k):  # one program stores a tile while the other multiplies; addresses take registers
        otherwise = TileChange(block_k=32, num_stages=3, num_warps=8)
        return _tiles(128, 128, 64, 4, 3, flatten=True, parts=2, per_unit=2, otherwise=otherwise)
    if _is_one_round(m, n):
        return _tiles(128, 128, 64, 8, 6, flatten=True, parts=2)
    if _has_tiles_of_192(m, n):
        return _tiles(128, 128, 64, 8, 5, flatten=True)
    if fills(_ARCH, 128, 256, m, n, cut_rest=k > _SHORT):
        otherwise = TileChange(block_k=32, num_stages=3, block_n=128)
        return _tiles(128, 256, 64, 8, 4, flatten=True, parts=2, cut_rest=k > _SHORT, otherwise=otherwise)
    if fills(_ARCH, 128, 128, m, n) or m * n >= 128 * 128 * _UNITS:
        return _tiles(128, 128, 64, 8, 5, flatten=True)
    return _tiles(128, 128, 64, 8, 6, kind="shares")


def _alternates(m: int, n: int, k: int) -> bool:
    return k <= _SHORT and fills(_ARCH, 128, 128, m, n, per_unit=2)


def _is_one_round_of_rows(m: int, n: int) -> bool:
    """Whether the portable tile, 64 rows of the weight by all tokens, gives each multiprocessor one, and few none.

    At five such shapes that were measured it took 0.82 to 1.00 times as long as the Gluon kernel's choice.
    """
    return 64 < m <= 128 and _MANY <= -(-n // 64) <= _UNITS


def _is_one_round(m: int, n: int) -> bool:
    """Whether small tiles give each multiprocessor one, and few none."""
    return _MANY <= -(-m // 128) * -(-n // 128) <= _UNITS


def _has_tiles_of_192(m: int, n: int) -> bool:
    return not fills(_ARCH, 128, 256, m, n) and fills(_ARCH, 192, 128, m, n)


def _deep() -> TileChange:
    return TileChange(block_k=64, num_stages=3)


def _tiles(block_m: int, block_n: int, block_k: int, warps: int, stages: int, **more: Any) -> TilesConfig:
    values: dict[str, Any] = {"otherwise": TileChange(block_k=32, num_stages=3)} | more
    return TilesConfig(
        block_m=block_m, block_n=block_n, block_k=block_k, num_warps=warps, num_stages=stages, tma=True,
        store="descriptor", **values,
    )  # fmt: skip
