"""Writing keys and values into their slots: one program holds TOKENS tokens and BLOCK columns of k or of v."""

import triton
import triton.language as tl

from opmux_triton.codes import encoded
from opmux_triton.dependent_launch import await_predecessor
from opmux_triton.rounding import rounded


@triton.jit
def _write(
    source, cache, scale, first, tokens, found, capacity, column,
    stride, head_stride, page_stride, slot_stride, cache_head_stride, scale_stride,
    HEADS: tl.constexpr, DIM: tl.constexpr, PAGE_SIZE: tl.constexpr, TOKENS: tl.constexpr, STREAM: tl.constexpr,
    FORMAT: tl.constexpr, FP8: tl.constexpr,
):  # fmt: skip
    """Copy columns (head, dim) of tokens to the slots found for them; to a FORMAT of 8 bits, divided by the scale."""
    head = (column // DIM).to(tl.int64)
    dim = column % DIM
    if scale is not None:
        divisor = tl.load(scale + head * scale_stride, mask=column < HEADS * DIM, other=1.0)
    EVICT: tl.constexpr = "evict_first" if STREAM else ""
    # Tokens without a slot are read too, so that the loads start before the slots are known.
    read = ()
    for number in tl.static_range(TOKENS):
        there = tl.where(first + number < tokens, HEADS * DIM, 0)
        row = source + (first + number) * stride
        read += (tl.load(row + head * head_stride + dim, mask=column < there, eviction_policy=EVICT),)
    for number in tl.static_range(TOKENS):
        slot = found[number]
        live = tl.where((slot >= 0) & (slot < capacity), HEADS * DIM, 0)
        place = cache + (slot // PAGE_SIZE * page_stride + slot % PAGE_SIZE * slot_stride)
        values = read[number]
        if FORMAT != "":
            values = values.to(tl.float32)
            if scale is not None:
                values = tl.div_rn(values, divisor)
            values = encoded(values, FORMAT, FP8)
        elif source.dtype != cache.dtype:
            values = rounded(values.to(tl.float32), cache.dtype.element_ty)
        tl.store(place + head * cache_head_stride + dim, values, mask=column < live, eviction_policy=EVICT)


@triton.jit(do_not_specialize=["tokens", "capacity"])
def write_kv_cache(
    k, v, k_cache, v_cache, slots, tokens, capacity, slots_stride,
    k_stride, k_head_stride, v_stride, v_head_stride,
    k_page_stride, k_slot_stride, k_cache_head_stride, v_page_stride, v_slot_stride, v_cache_head_stride,
    k_scale, v_scale, k_scale_stride, v_scale_stride,
    HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, VALUE_DIM: tl.constexpr, PAGE_SIZE: tl.constexpr,
    BLOCK: tl.constexpr, TOKENS: tl.constexpr, STREAM: tl.constexpr, FORMAT: tl.constexpr,
    FP8: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """``cache[slot // PAGE_SIZE, slot % PAGE_SIZE] = k`` of each token, and likewise v; slots outside are skipped.

    FORMAT is that of a cache of 8-bit codes, which is given as bytes; else it is empty.
    """
    await_predecessor(DEPENDENT)
    K_BLOCKS: tl.constexpr = (HEADS * HEAD_DIM + BLOCK - 1) // BLOCK
    V_BLOCKS: tl.constexpr = (HEADS * VALUE_DIM + BLOCK - 1) // BLOCK
    program = tl.program_id(0)
    block = program % (K_BLOCKS + V_BLOCKS)
    first = (program // (K_BLOCKS + V_BLOCKS)).to(tl.int64) * TOKENS
    found = ()
    for number in tl.static_range(TOKENS):  # one by one: a column of them would be loaded for each element of the tile
        token = first + number
        found += (tl.load(slots + token * slots_stride, mask=token < tokens, other=-1).to(tl.int64),)
    column = tl.arange(0, BLOCK)
    if block < K_BLOCKS:
        _write(
            k, k_cache, k_scale, first, tokens, found, capacity, block * BLOCK + column, k_stride, k_head_stride,
            k_page_stride, k_slot_stride, k_cache_head_stride, k_scale_stride, HEADS, HEAD_DIM, PAGE_SIZE, TOKENS,
            STREAM, FORMAT, FP8,
        )  # fmt: skip
    else:
        _write(
            v, v_cache, v_scale, first, tokens, found, capacity, (block - K_BLOCKS) * BLOCK + column, v_stride,
            v_head_stride, v_page_stride, v_slot_stride, v_cache_head_stride, v_scale_stride, HEADS, VALUE_DIM,
            PAGE_SIZE, TOKENS, STREAM, FORMAT, FP8,
        )  # fmt: skip
