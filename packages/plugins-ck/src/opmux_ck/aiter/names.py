"""What AITER's names of CK kernels say, as configs of this package.

A name is ``FAMILY_THREADSxMxNxK_MFMAxMFMA_REPEATSxREPEATS_..._SCHEDULE_vPIPELINE``; with scales of blocks, the blocks
come first, the elements of a load follow the tile, and the repeats are left out. The transfers between have no
counterpart: `ck_tile` derives them from the tile.
"""

import re
from dataclasses import replace

from opmux_ck.gemm.configs import MFMA_OF_CODES, SCALE_BLOCK, STORES, WAVE, BlockCodesConfig, CodesConfig, misfit

ROWWISE = "a8w8_rowwise"
BLOCKSCALE = "a8w8_blockscale"
WITHOUT = {
    "a8w8_blockscale_bpreshuffle": "shuffled weights",
    "a8w8_bpreshuffle": "shuffled weights",
    "a8w8_batched": "batches of weights",
    "bf16_batched": "batches of weights",
    "a4w4_blockscale": "4-bit codes",
}
"""Families that this backend has no instances of, and what for."""
REPEATS = {
    (128, 128, 3): (2, 2),
    (128, 64, 3): (2, 1),
    (64, 128, 3): (1, 2),
    (64, 64, 3): (1, 1),
    (16, 256, 1): (1, 4),
    (16, 128, 1): (1, 2),
    (16, 64, 1): (1, 1),
    (32, 256, 1): (1, 2),
    (32, 128, 1): (1, 1),
    (32, 64, 1): (2, 1),
    (64, 256, 1): (2, 2),
    (64, 128, 1): (2, 1),
    (64, 64, 1): (1, 1),
}
"""Of AITER's kernels with scales of blocks and steps of 128: by m, n and the pipeline, the matrix instructions of a
wave in m and n. Their names do not say it; AITER's list of kernels does."""
_TILE = r"(\d{2,4})x(\d{2,3})x(\d{2,3})x(\d{2,4})"
_ROWWISE = re.compile(rf"{ROWWISE}_{_TILE}_(\d{{2}})x(\d{{2}})_(\d)x(\d)_[\dx_]+_(intra|inter)wave_v(\d)")
_BLOCKSCALE = re.compile(
    rf"{BLOCKSCALE}_1x128x128_{_TILE}_\d{{1,2}}x\d{{1,2}}_(\d{{2}})x(\d{{2}})_[\dx_]+_(intra|inter)wave_v(\d)"
)


class Unmapped(ValueError):
    """A kernel has no counterpart here; the message says why."""


def config_of(name: str, n: int, k: int) -> CodesConfig:
    """The config with the tile of a kernel of AITER's, for ``n`` columns over ``k`` elements.

    A `BlockCodesConfig` where the kernel takes scales of blocks.

    Raises:
        Unmapped: the name is no kernel of CK's, or this backend has no instance with its tile.
    """
    if matched := _ROWWISE.fullmatch(name):
        tile, repeats = tuple(map(int, matched.groups()[:6])), (int(matched[7]), int(matched[8]))
        if matched[9] != "intra" or matched[10] != "3":
            raise Unmapped(f"{matched[9]}wave_v{matched[10]}: of CK's loops for codes there is intrawave_v3 alone")
        return _fitting(CodesConfig, tile, repeats, n, k)
    if matched := _BLOCKSCALE.fullmatch(name):
        tile = tuple(map(int, matched.groups()[:6]))
        if tile[3] != SCALE_BLOCK:
            raise Unmapped(f"a step of k has {tile[3]} elements, here {SCALE_BLOCK}: one block of scales")
        kernel = (tile[1], tile[2], int(matched[8]))
        if matched[7] != "intra" or kernel not in REPEATS:
            raise Unmapped(f"{tile[1]}x{tile[2]} with {matched[7]}wave_v{matched[8]} is not in AITER's list of kernels")
        return _fitting(BlockCodesConfig, tile, REPEATS[kernel], n, k)
    raise Unmapped(_unknown(name))


def _fitting(kind: type[CodesConfig], tile: tuple[int, ...], repeats: tuple[int, int], n: int, k: int) -> CodesConfig:
    """The config of a tile: threads, m, n, k, and the rows and columns of the matrix instruction.

    Raises:
        Unmapped: it is not legal here, or does not fit the sizes.
    """
    threads, tile_m, tile_n, tile_k, mfma, mfma_n = tile
    waves_m, waves_n = tile_m // (mfma * repeats[0] or 1), tile_n // (mfma_n * repeats[1] or 1)
    if mfma != mfma_n or mfma not in MFMA_OF_CODES or waves_m * waves_n * WAVE != threads:
        raise Unmapped(f"{threads} threads are not the waves of {tile_m}x{tile_n} in {mfma}x{mfma_n}")
    store = next(store for store in STORES[::-1] if n % store == 0)
    try:
        config = kind(tile_m, tile_n, tile_k, waves_m, waves_n, mfma, MFMA_OF_CODES[mfma][0], "v3", store)
    except ValueError as error:
        raise Unmapped(str(error)) from None
    config = replace(config, pads_n=n % tile_n > 0, pads_k=k % tile_k > 0)
    reason = misfit(config, n, k)
    if reason:
        raise Unmapped(reason)
    return config


def _unknown(name: str) -> str:
    """Why a name that no pattern matches is not mapped."""
    for family, what in WITHOUT.items():
        if name.startswith(f"{family}_"):
            return f"{family}: this backend has no instances for {what}"
    if name.startswith("_ZN5aiter"):
        return "the kernel is AITER's assembly"
    return f"`kernelName` expected a name as {ROWWISE}_256x128x128x128_..., got {name[:60]!r}"
