"""Launch parameters of paged attention, per arch. Functions of the declared features alone; they import no Triton.

``decode_*`` is for sequences with few new tokens, ``prefill_*`` for the others:

rows            rows of a tile (decode: the most; fewer are taken where fewer do)
block_n         keys of a block
num_warps, num_stages
programs        programs for each unit of the device that splits of the keys are to give
least           fewest keys that a split is worth

``combine_splits`` is how many splits are joined at a time, at most; four times as many where that would take more than
four turns. For each 16 of them there are ``combine_num_warps`` warps.
"""

from collections.abc import Mapping
from typing import Any

from opmux.arch import Arch
from opmux_triton.arithmetic import padded

_KIB = 1024


def shared_memory(arch: Arch) -> int:
    """Bytes of shared memory (LDS) that one program can have."""
    if arch.vendor == "amd":
        return (160 if arch.name == "gfx950" else 64) * _KIB
    return {"sm_80": 163, "sm_87": 163, "sm_90": 227, "sm_100": 227, "sm_103": 227}.get(arch.name, 99) * _KIB


def halves_config(arch: Arch, features: Mapping[str, Any]) -> dict[str, Any]:
    """For 16-bit caches."""
    return _config(arch, features, 2)


def float32_config(arch: Arch, features: Mapping[str, Any]) -> dict[str, Any]:
    """For float32 caches."""
    return _config(arch, features, 4)


def hopper_config(arch: Arch, features: Mapping[str, Any]) -> dict[str, Any]:
    """For the Gluon prefill of 16-bit caches.

    ``hopper_block`` keys at a time and ``hopper_stages`` of them in shared memory, where a tile of queries has
    ``hopper_slots`` places; ``hopper_loaders`` warps load, which are 1, 2 (keys and values) or 4 (halves of both).
    ``2 * hopper_registers + hopper_loading_registers`` is what a thread of each of the two computing warpgroups and one
    that loads have together: three times 168.
    """
    hopper = {"hopper_block": 128, "hopper_stages": 2, "hopper_slots": 2, "hopper_loaders": 4}
    hopper |= {"hopper_registers": 232, "hopper_loading_registers": 40}
    return halves_config(arch, features) | hopper


def _config(arch: Arch, features: Mapping[str, Any], itemsize: int) -> dict[str, Any]:
    k_row, v_row = (itemsize * padded(features[dim]) for dim in ("head_dim", "value_dim"))
    config: dict[str, Any] = {
        "decode_rows": 32 if itemsize == 2 else 16,
        "decode_block_n": 64,
        "decode_num_warps": 4,
        # Short rows: a shallower ring leaves room for more programs (8 x 2k of 8/64 heads on an H200: 1006 to 1043 us).
        "decode_num_stages": 2 if arch.vendor == "amd" else 4 if arch.number >= (9, 0) and k_row > 128 else 3,
        # Few long sequences: parts cost a second pass, so each is longer (1 x 128k on an H200: 137 against 147 us).
        "decode_programs": 2 if features["bucket(batch)"] <= 1 else 4,
        "decode_least": 256,
        **_prefill(arch, max(k_row, v_row) // itemsize, itemsize),
        "prefill_programs": 1,
        "prefill_least": 1024,
        # They are read before it is known how many there are (100 keys with room for 128k: 7.1 us, and 8.2 with 64).
        "combine_splits": 16,
        "combine_num_warps": 1 if arch.vendor == "amd" or v_row <= 128 else 2,
    }
    if itemsize == 4:  # products in float32 take registers, where threads do them alone
        keys = 16 if max(k_row, v_row) > 512 else 64 if max(k_row, v_row) <= 256 and arch.vendor == "nvidia" else 32
        config |= {"decode_block_n": keys, "decode_num_stages": 2}
        config["decode_num_warps"] = 4 if arch.vendor == "amd" else 8
    for path in ("decode", "prefill"):
        # Blocks on their way (all but one are buffers, but for warpgroup products), queries, weights between layouts.
        rows = config[f"{path}_rows"]
        waiting = 0 if path == "prefill" and arch.number >= (9, 0) and arch.vendor == "nvidia" else 1
        while config[f"{path}_block_n"] > 16:
            keys, stages = config[f"{path}_block_n"], config[f"{path}_num_stages"]
            if (k_row + v_row) * keys * (stages - waiting) + rows * (k_row + 2 * keys) <= shared_memory(arch):
                break
            if stages > 2:
                config[f"{path}_num_stages"] = stages - 1
            else:
                config[f"{path}_block_n"] = keys // 2
    if arch.vendor == "amd":
        config["matrix_instr_nonkdim"] = 16
    return config


def _prefill(arch: Arch, width: int, itemsize: int) -> dict[str, Any]:
    """Tiles of prefill by the wider of the head dims: as large as registers allow without spilling."""
    narrow = width <= 128
    if itemsize == 4:
        rows, keys, warps = (32, 16, 4) if arch.vendor == "amd" else (16, 32 if narrow else 16, 8)
    elif arch.vendor == "amd":
        rows, keys, warps = (128, 64, 8) if narrow else (64, 32, 4)
    elif arch.number >= (9, 0):
        rows, keys, warps = (128, 64, 8) if narrow else (64, 32, 8)
    else:
        rows, keys, warps = (128, 32, 8) if narrow else (64, 32, 8)
    return {"prefill_rows": rows, "prefill_block_n": keys, "prefill_num_warps": warps, "prefill_num_stages": 2}
