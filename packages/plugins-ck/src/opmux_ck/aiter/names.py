"""What AITER's names of CK kernels say, as configs of this package.

A name is ``FAMILY_THREADSxMxNxK_MFMAxMFMA_REPEATSxREPEATS_..._SCHEDULE_vPIPELINE``. The transfers between have no
counterpart: `ck_tile` derives them from the tile.
"""

import re
from dataclasses import replace

from opmux_ck.gemm.configs import MFMA_OF_CODES, STORES, WAVE, CodesConfig, misfit

ROWWISE = "a8w8_rowwise"
WITHOUT = {
    "a8w8_blockscale_bpreshuffle": "scales of blocks and shuffled weights",
    "a8w8_blockscale": "scales of blocks",
    "a8w8_bpreshuffle": "shuffled weights",
    "a8w8_batched": "batches of weights",
    "bf16_batched": "batches of weights",
    "a4w4_blockscale": "4-bit codes",
}
"""Families that this backend has no instances of, and what for: the longest first."""
_ROWWISE = re.compile(
    rf"{ROWWISE}_(\d{{2,4}})x(\d{{2,3}})x(\d{{2,3}})x(\d{{2,4}})_(\d{{2}})x(\d{{2}})_(\d)x(\d)_[\dx_]+_(intra|inter)wave_v(\d)"
)


class Unmapped(ValueError):
    """A kernel has no counterpart here; the message says why."""


def config_of(name: str, n: int, k: int) -> CodesConfig:
    """The config with the tile of a kernel of AITER's, for ``n`` columns over ``k`` elements.

    Raises:
        Unmapped: the name is no kernel of CK's, or this backend has no instance with its tile.
    """
    matched = _ROWWISE.fullmatch(name)
    if matched is None:
        raise Unmapped(_not_rowwise(name))
    threads, tile_m, tile_n, tile_k, mfma, mfma_n, repeats_m, repeats_n = map(int, matched.groups()[:8])
    schedule, version = matched[9], matched[10]
    if schedule != "intra" or version != "3":
        raise Unmapped(f"{schedule}wave_v{version}: of CK's loops for codes there is intrawave_v3 alone")
    waves_m, waves_n = tile_m // (mfma * repeats_m or 1), tile_n // (mfma_n * repeats_n or 1)
    if mfma != mfma_n or mfma not in MFMA_OF_CODES or waves_m * waves_n * WAVE != threads:
        raise Unmapped(f"{threads} threads are not the waves of {tile_m}x{tile_n} in {mfma}x{mfma_n}")
    store = next(store for store in STORES[::-1] if n % store == 0)
    try:
        config = CodesConfig(tile_m, tile_n, tile_k, waves_m, waves_n, mfma, MFMA_OF_CODES[mfma][0], "v3", store)
    except ValueError as error:
        raise Unmapped(str(error)) from None
    config = replace(config, pads_n=n % tile_n > 0, pads_k=k % tile_k > 0)
    reason = misfit(config, n, k)
    if reason:
        raise Unmapped(reason)
    return config


def _not_rowwise(name: str) -> str:
    for family, what in WITHOUT.items():
        if name.startswith(f"{family}_"):
            return f"{family}: this backend has no instances for {what}"
    if name.startswith("_ZN5aiter"):
        return "the kernel is AITER's assembly"
    return f"`kernelName` expected a name as {ROWWISE}_256x128x128x128_..., got {name[:60]!r}"
