"""One number of a workgroup: first over the lanes of a wave, then over its waves through LDS."""

from opmux_asm.writer import Kernel, Register
from opmux_asm.writer.kernel import WAVE

ACROSS = (
    "quad_perm:[1,0,3,2] row_mask:0xf bank_mask:0xf",
    "quad_perm:[2,3,0,1] row_mask:0xf bank_mask:0xf",
    "row_half_mirror row_mask:0xf bank_mask:0xf",
    "row_mirror row_mask:0xf bank_mask:0xf",
    "row_bcast:15 row_mask:0xa bank_mask:0xf",
    "row_bcast:31 row_mask:0xc bank_mask:0xf",
)
"""Steps after which lane 63 has combined all lanes: within rows of 16, then rows 0 and 2 into 1 and 3, 1 into 3."""


def over_wave(k: Kernel, operation: str, value: Register, out: Register) -> None:
    """Combine a value of every lane into a scalar register; ``value`` is overwritten.

    Args:
        k: the kernel.
        operation: ``v_add_f32`` or another whose operands may be swapped.
        value: a vector register.
        out: a scalar register.
    """
    for step in ACROSS:
        getattr(k, f"{operation}_dpp")(value, value, value, mods=step)
    k.v_readlane_b32(out, value, WAVE - 1)


def over_group(k: Kernel, operation: str, value: Register, out: Register) -> None:
    """Combine a value of every thread into a vector register that all lanes hold alike; ``value`` is overwritten.

    Each call has LDS of its own, so that one barrier is enough. The order of the sums depends on nothing but the
    workgroup's size.

    Args:
        k: the kernel, of 1, 2, 4, 8 or 16 waves.
        operation: see `over_wave`.
        value: a vector register.
        out: a vector register.
    """
    waves = k.threads // WAVE
    with k.temporary("of_wave", 1, "s") as of_wave:
        over_wave(k, operation, value, of_wave)
        k.v_mov_b32(out, of_wave)
    if waves == 1:
        return
    at = k.allocate_lds(4 * waves)
    with k.temporary("slot") as slot, k.temporary("parts", max(waves, 2)) as parts:
        k.v_lshrrev_b32(slot, 6, k.thread)
        k.v_lshlrev_b32(slot, 2, slot)
        k.ds_write_b32(slot, out, mods=f"offset:{at}", note="each wave's part")
        k.v_mov_b32(slot, 0)
        k.barrier()
        step = min(waves, 4)
        for i in range(0, waves, step):
            k.emit_read(parts[i : i + step], slot, at + 4 * i)
        k.wait_for(parts)
        step = 1
        while step < waves:
            for i in range(0, waves, 2 * step):
                target = out if 2 * step == waves else parts[i]
                getattr(k, operation)(target, parts[i], parts[i + step])
            step *= 2
