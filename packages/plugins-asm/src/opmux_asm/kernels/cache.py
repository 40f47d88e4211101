"""`write_kv_cache`: a workgroup copies the heads of one token's key, or of its value, to their slot."""

from opmux_asm.kernels.rope import advance
from opmux_asm.writer import OFF, VCC, Argument, Kernel

FAMILY = "write_kv_cache"
THREADS = 64
ARGUMENTS = (
    Argument("source", "p"), Argument("cache", "p"), Argument("slots", "p"), Argument("source_stride", "I"),
    Argument("source_head", "I"), Argument("page_stride", "I"), Argument("token_stride", "I"),
    Argument("head_stride", "I"), Argument("slot_count", "I"), Argument("heads", "I"), Argument("page_shift", "I"),
    Argument("chunk_shift", "I"), Argument("steps", "I"),
)  # fmt: skip
"""Strides in bytes: of the source's tokens and heads; of the cache's pages, slots and heads. A page has 2**page_shift
slots and a head 2**chunk_shift accesses of 16 bytes."""
NAME = "write_kv_cache_16"


def kernels(arch: str) -> list[Kernel]:
    """The kernel, which copies bytes of any dtype."""
    return [copy_heads(arch)]


def copy_heads(arch: str) -> Kernel:
    """One kernel."""
    about = "Copy the heads of a token to its slot of a paged cache, unless that lies outside of it. Grid: tokens."
    k = Kernel(NAME, arch, THREADS, ARGUMENTS, about)
    given = k.load_arguments()
    k.comment("The token's slot")
    place, slot, done = k.s("place", 2), k.s("slot", 2), k.label("done")
    eight = k.s("eight")
    k.s_mov_b32(eight, 8)
    advance(k, place, given["slots"], k.group, eight)
    k.s_load_dwordx2(slot, place, 0)
    k.wait(lgkm=0)
    k.s_cmp_lg_u32(slot[1], 0)
    k.s_cbranch_scc1(done)
    k.s_cmp_ge_u32(slot[0], given["slot_count"])
    k.s_cbranch_scc1(done)
    k.comment("Where it begins in the source, and in the cache")
    source, target, page = k.s("source_row", 2), k.s("slot_row", 2), k.s("page")
    advance(k, source, given["source"], k.group, given["source_stride"])
    k.s_lshr_b32(page, slot[0], given["page_shift"])
    advance(k, target, given["cache"], page, given["page_stride"])
    k.s_lshl_b32(page, page, given["page_shift"])
    k.s_sub_u32(slot[0], slot[0], page)
    k.s_mul_i32(slot[0], slot[0], given["token_stride"])
    k.s_add_u32(target[0], target[0], slot[0])
    k.s_addc_u32(target[1], target[1], 0)
    k.comment("Its heads, an access of each lane at a time")
    head, chunk, at, data, unit = k.v("head"), k.v("chunk"), k.v("at", 2), k.v("data", 4), k.v("unit")
    strides = [k.v(f"{name}_of_head") for name in ("source", "slot")]
    for stride, name in zip(strides, ("source_head", "head_stride"), strict=True):
        k.v_mov_b32(stride, given[name])
    k.v_mov_b32(unit, k.thread)
    with k.loop("heads", given["steps"]):
        k.v_lshrrev_b32(head, given["chunk_shift"], unit)
        k.v_lshlrev_b32(chunk, given["chunk_shift"], head)
        k.v_sub_u32(chunk, unit, chunk)
        k.v_lshlrev_b32(chunk, 4, chunk)
        k.v_cmp_gt_u32(VCC, given["heads"], head)
        k.s_mov_b64("exec", VCC)
        for start, stride, what in zip((source, target), strides, ("load", "store"), strict=True):
            k.v_mad_u64_u32(at, VCC, head, stride, start)
            k.v_add_co_u32(at[0], VCC, at[0], chunk)
            k.v_addc_co_u32(at[1], VCC, 0, at[1], VCC)
            if what == "load":
                k.global_load_dwordx4(data, at, OFF)
                k.wait_for(data)
            else:
                k.global_store_dwordx4(at, data, OFF)
        k.s_mov_b64("exec", -1)
        k.v_add_u32(unit, THREADS, unit)
    k.place(done)
    return k
