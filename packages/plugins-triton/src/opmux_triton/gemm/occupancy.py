"""Whether the tiles of a product keep the multiprocessors of an arch busy. Loads no Triton."""

from opmux.plugin import Arch
from opmux_triton.archs import usual_units


def fills(arch: Arch, block_m: int, block_n: int, m: int, n: int, *, per_unit: int = 1, cut_rest: bool = False) -> bool:
    """Whether tiles of this size keep at least 7/8 of the multiprocessors busy, over all rounds.

    Args:
        arch: of the usual product of an arch.
        block_m, block_n: the tile.
        m, n: the result.
        per_unit: programs on a multiprocessor.
        cut_rest: whether tiles that do not fill a round are cut along k.
    """
    slots = per_unit * usual_units(arch.name)
    tiles = -(-m // block_m) * -(-n // block_n)
    rounds, rest = divmod(tiles, slots)
    last = 1 / (slots // rest if cut_rest else 1) if rest else 0
    return tiles * 8 >= (rounds + last) * slots * 7
