"""Writing keys and values into their slots: one program holds TOKENS tokens and BLOCK columns of k or of v."""

import triton
import triton.language as tl

from opmux_triton.rounding import rounded


@triton.jit
def _write(
    source, cache, token, slot, live, column, stride, head_stride, page_stride, slot_stride, cache_head_stride,
    HEADS: tl.constexpr, DIM: tl.constexpr, PAGE_SIZE: tl.constexpr,
):  # fmt: skip
    """Copy columns (head, dim) of tokens to their slots."""
    inside = live & (column < HEADS * DIM)
    head = (column // DIM).to(tl.int64)
    dim = column % DIM
    values = tl.load(source + token * stride + head * head_stride + dim, mask=inside)
    place = slot // PAGE_SIZE * page_stride + slot % PAGE_SIZE * slot_stride
    if source.dtype != cache.dtype:
        values = rounded(values.to(tl.float32), cache.dtype.element_ty)
    tl.store(cache + place + head * cache_head_stride + dim, values, mask=inside)


@triton.jit(do_not_specialize=["tokens", "capacity"])
def write_kv_cache(
    k, v, k_cache, v_cache, slots, tokens, capacity, slots_stride,
    k_stride, k_head_stride, v_stride, v_head_stride,
    k_page_stride, k_slot_stride, k_cache_head_stride, v_page_stride, v_slot_stride, v_cache_head_stride,
    HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, VALUE_DIM: tl.constexpr, PAGE_SIZE: tl.constexpr,
    BLOCK: tl.constexpr, TOKENS: tl.constexpr,
):  # fmt: skip
    """``cache[slot // PAGE_SIZE, slot % PAGE_SIZE] = k`` of each token, and likewise v; slots outside are skipped."""
    K_BLOCKS: tl.constexpr = (HEADS * HEAD_DIM + BLOCK - 1) // BLOCK
    V_BLOCKS: tl.constexpr = (HEADS * VALUE_DIM + BLOCK - 1) // BLOCK
    program = tl.program_id(0)
    block = program % (K_BLOCKS + V_BLOCKS)
    token = (program // (K_BLOCKS + V_BLOCKS)).to(tl.int64) * TOKENS + tl.arange(0, TOKENS)[:, None]
    slot = tl.load(slots + token * slots_stride, mask=token < tokens, other=-1)
    live = (slot >= 0) & (slot < capacity)
    column = tl.arange(0, BLOCK)[None, :]
    if block < K_BLOCKS:
        _write(
            k, k_cache, token, slot, live, block * BLOCK + column, k_stride, k_head_stride,
            k_page_stride, k_slot_stride, k_cache_head_stride, HEADS, HEAD_DIM, PAGE_SIZE,
        )  # fmt: skip
    else:
        _write(
            v, v_cache, token, slot, live, (block - K_BLOCKS) * BLOCK + column, v_stride, v_head_stride,
            v_page_stride, v_slot_stride, v_cache_head_stride, HEADS, VALUE_DIM, PAGE_SIZE,
        )  # fmt: skip
