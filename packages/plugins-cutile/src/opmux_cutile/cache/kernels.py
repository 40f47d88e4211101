"""Writes to a paged cache in CUDA Tile: a block writes the keys and values of TOKENS tokens, HEADS heads at a time.

A token without a slot has a negative page, which is outside the cache, so it is not written. Codes of 8-bit floats are
rounded by the conversion; those of int8 by adding and taking away 1.5 * 2**23, which leaves no fraction.
"""

import cuda.tile as ct


def put(
    x, cache, scale, tokens, slots, HEADS: ct.Constant[int], DIM: ct.Constant[int], LARGEST: ct.Constant[float],
    INTEGER: ct.Constant[bool], SCALED: ct.Constant[bool],
):  # fmt: skip
    """Write the heads of some tokens, as codes up to LARGEST unless that is 0."""
    page_size = cache.shape[1]
    pages, offsets = slots // page_size, slots % page_size
    dims = ct.arange(DIM, dtype=ct.int32)[None, None, :]
    for group in range(ct.cdiv(x.shape[1], HEADS)):
        heads = group * HEADS + ct.arange(HEADS, dtype=ct.int32)
        value = ct.gather(x, (tokens[:, None, None], heads[None, :, None], dims))
        if LARGEST:
            value = value.astype(ct.float32)
            if SCALED:
                value = value / ct.gather(scale, (heads,), padding_value=1.0)[None, :, None]
            if INTEGER:
                value = ct.where(ct.isnan(value), 0.0, value)
            value = ct.minimum(ct.maximum(value, -LARGEST, propagate_nan=True), LARGEST, propagate_nan=True)
            if INTEGER:
                value = (value + 12582912.0) - 12582912.0
        place = pages[:, None, None], offsets[:, None, None], heads[None, :, None], dims
        ct.scatter(cache, place, value.astype(cache.dtype))


@ct.kernel
def write(
    k, v, k_cache, v_cache, slot_mapping, k_scale, v_scale,
    TOKENS: ct.Constant[int], HEADS: ct.Constant[int], DIM: ct.Constant[int], WIDTH: ct.Constant[int],
    LARGEST: ct.Constant[float], V_LARGEST: ct.Constant[float], INTEGER: ct.Constant[bool],
    V_INTEGER: ct.Constant[bool], SCALED: ct.Constant[bool], V_SCALED: ct.Constant[bool],
):  # fmt: skip
    """Write keys and values to the slots of their tokens."""
    tokens = ct.bid(0) * TOKENS + ct.arange(TOKENS, dtype=ct.int32)
    slots = ct.gather(slot_mapping, (tokens,), padding_value=-1)
    put(k, k_cache, k_scale, tokens, slots, HEADS, DIM, LARGEST, INTEGER, SCALED)
    put(v, v_cache, v_scale, tokens, slots, HEADS, WIDTH, V_LARGEST, V_INTEGER, V_SCALED)
