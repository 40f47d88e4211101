"""The paged KV cache: writing keys and values into its slots, and its page lists.

A page holds ``page_size`` tokens; slot ``page * page_size + offset`` is one token's place in it.
"""

from itertools import pairwise

import torch
from torch import Tensor

from opmux.definition import define_op
from opmux.dtypes import Float32, Int64, Real, Stored, accumulation_dtype, name_of
from opmux.errors import invalid
from opmux.ops._blocks import rounded


def _check_slots(*, k_cache: Tensor, slot_mapping: Tensor, **_: object) -> None:
    """Raise if a slot lies outside the cache; reads slot_mapping, and so synchronises."""
    slots = k_cache.shape[0] * k_cache.shape[1]
    outside = (slot_mapping < -1) | (slot_mapping >= slots)
    if not bool(outside.any()):
        return
    index = int(outside.nonzero()[0])
    expected = f"-1 or a slot below pages * page_size = {slots} at index {index}"
    remedy = "check the allocator that gave the slots"
    raise invalid("write_kv_cache", "slot_mapping", expected, str(int(slot_mapping[index])), remedy)


def _stored(values: Tensor, cache: Tensor, scale: Tensor | None) -> Tensor:
    """Return values as a cache stores them: divided by their scale if they have one, in its dtype."""
    if scale is not None:
        values = values.to(accumulation_dtype(values.dtype))
        values = values / scale.to(values.dtype)[:, None]
    if cache.dtype.itemsize > 1:
        return values.to(cache.dtype)
    return rounded(values.to(accumulation_dtype(values.dtype)), cache.dtype)


@define_op(
    mutates=("k_cache", "v_cache"),
    scales={"k_cache": "k_scale", "v_cache": "v_scale"},
    require=(
        ("head_dim > 0 and value_dim > 0", "a head has at least one dim"),
        ("page_size == 1 or page_size % 16 == 0", "a page holds one token or a multiple of 16"),
        ('layout == "nhd"', "the only layout defined so far is nhd: pages, page_size, kv_heads, head_dim"),
    ),
    check_data=_check_slots,
    touched={"k_cache": "tokens * kv_heads * head_dim", "v_cache": "tokens * kv_heads * value_dim"},
    capturable=False,
)
def write_kv_cache(
    k: Real[Tensor, "tokens kv_heads head_dim"],
    v: Real[Tensor, "tokens kv_heads value_dim"],
    k_cache: Stored[Tensor, "pages page_size kv_heads head_dim"],
    v_cache: Stored[Tensor, "pages page_size kv_heads value_dim"],
    slot_mapping: Int64[Tensor, "tokens"],
    k_scale: Float32[Tensor, "kv_heads|1"] | None = None,
    v_scale: Float32[Tensor, "kv_heads|1"] | None = None,
    *,
    layout: str = "nhd",
) -> None:
    """Write keys and values into their slots of a paged cache.

    ``k_cache[slot // page_size, slot % page_size] = k[t]`` with ``slot = slot_mapping[t]``, and likewise for
    v, each value converted to its cache's dtype. An 8-bit cache gets ``round(k[t] / k_scale)``, as `static_quantize`
    gives it: computed in float32 (in float64 for float64), rounded to the nearest with ties to even, and saturating,
    infinities too; NaN stays NaN (0 in int8). The scales are used as they are: they should be positive and finite, and
    the same for all tokens of a cache, since nothing in the cache tells them.

    A token whose slot is -1 is skipped; slots that no token names are unchanged. Slots should be distinct: if several
    tokens share a slot, it is undefined which one is kept.

    The reference reads the slots, and so synchronises.

    Args:
        k: The keys, ``(tokens, kv_heads, head_dim)``.
        v: The values, ``(tokens, kv_heads, value_dim)``.
        k_cache: The cache of the keys, ``(pages, page_size, kv_heads, head_dim)``; written to. It may be a
            slice of a larger tensor.
        v_cache: The cache of the values, ``(pages, page_size, kv_heads, value_dim)``; written to. It may be a
            slice of a larger tensor.
        slot_mapping: The slot of each token, ``(tokens,)`` int64, below ``pages * page_size``; -1 skips the
            token.
        k_scale: What one unit of an 8-bit k_cache is worth, float32 ``(kv_heads,)``, or ``(1,)`` for all heads; None
            is 1, and the only choice for a cache of real numbers.
        v_scale: The same for v_cache.
        layout: The order of the caches' dims; ``"nhd"`` is the only one so far.

    Raises:
        InvalidArgument: If a shape, dtype or device breaks the signature, page_size is neither 1 nor a
            multiple of 16, the layout is unknown, a slot lies outside the cache, a cache requires grad, or a scale is
            given for a cache that is not 8-bit.

    Source:
        Kwon et al., "Efficient Memory Management for Large Language Model Serving with PagedAttention", 2023,
        https://arxiv.org/abs/2309.06180.
    """
    _check_slots(k_cache=k_cache, slot_mapping=slot_mapping)
    kept = slot_mapping >= 0
    slots = slot_mapping[kept]
    page_size = k_cache.shape[1]
    pages, offsets = slots // page_size, slots % page_size
    k_cache[pages, offsets] = _stored(k[kept], k_cache, k_scale)
    v_cache[pages, offsets] = _stored(v[kept], v_cache, v_scale)


def block_table_from_csr(page_indptr: Tensor, page_indices: Tensor, max_pages: int | None = None) -> Tensor:
    """Make a block table from compressed page lists (CSR, the format of FlashInfer).

    ``block_table[b, i] = page_indices[page_indptr[b] + i]`` for i below
    ``page_indptr[b + 1] - page_indptr[b]``; the entries after it are 0.

    The lists are checked, which reads page_indptr and so synchronises. During graph capture and under
    torch.compile nothing is read: max_pages is then required, and the offsets are not checked.

    Args:
        page_indptr: Where each sequence's pages begin in page_indices, then where the last ones end,
            ``(batch + 1,)`` int32.
        page_indices: The pages of the first sequence, of the second, and so on, ``(entries,)`` int32.
        max_pages: The width of the table, at least the length of the longest list; None takes that length.

    Returns:
        The block table, ``(batch, max_pages)`` int32, contiguous.

    Raises:
        InvalidArgument: If a tensor is not one-dimensional int32, page_indptr is empty, the devices differ,
            page_indptr decreases or points outside page_indices, or a list has more than max_pages pages.

    Source:
        FlashInfer, "KV-Cache Layout", https://docs.flashinfer.ai/tutorials/kv_layout.html.
    """
    for name, tensor in (("page_indptr", page_indptr), ("page_indices", page_indices)):
        if not isinstance(tensor, Tensor):
            remedy = "convert it with torch.tensor(..., dtype=torch.int32)"
            raise invalid("block_table_from_csr", name, "a torch.Tensor", f"a {type(tensor).__name__}", remedy)
        if tensor.ndim != 1 or tensor.dtype != torch.int32:
            got = f"{name_of(tensor.dtype)}{list(tensor.shape)}"
            remedy = "convert it with .to(torch.int32), or flatten it"
            raise invalid("block_table_from_csr", name, "int32 with one dim", got, remedy)
    if page_indptr.device != page_indices.device:
        expected = f"device {page_indptr.device}, where `page_indptr` is"
        remedy = "move one of them with .to(device)"
        raise invalid("block_table_from_csr", "page_indices", expected, str(page_indices.device), remedy)
    if page_indptr.shape[0] == 0:
        raise invalid("block_table_from_csr", "page_indptr", "batch + 1 offsets", "none", "begin it with 0")
    if max_pages is not None and (not isinstance(max_pages, (int, torch.SymInt)) or isinstance(max_pages, bool)):
        remedy = "omit it to measure the longest list"
        raise invalid("block_table_from_csr", "max_pages", "a whole number", repr(max_pages), remedy)
    if max_pages is None:
        max_pages = _longest_list(page_indptr, page_indices)
    elif not _reading_is_impossible(page_indptr):
        longest = _longest_list(page_indptr, page_indices)
        if max_pages < longest:
            expected = f"{longest} or more, the length of the longest list, so that no page is lost"
            remedy = "omit it to measure the longest list"
            raise invalid("block_table_from_csr", "max_pages", expected, str(max_pages), remedy)
    first, end = page_indptr[:-1, None], page_indptr[1:, None]
    source = first + torch.arange(max_pages, dtype=torch.int32, device=page_indptr.device)
    if page_indices.shape[0] == 0:
        return torch.zeros_like(source)
    # Entries past a list's end are read from within page_indices and then dropped.
    pages = page_indices[source.clamp(0, page_indices.shape[0] - 1).to(torch.int64)]
    return torch.where(source < end, pages, 0)


def _reading_is_impossible(tensor: Tensor) -> bool:
    """Whether a tensor's values cannot be read on the host: a graph is being captured, or compiled."""
    return torch.compiler.is_compiling() or (tensor.is_cuda and torch.cuda.is_current_stream_capturing())


def _longest_list(page_indptr: Tensor, page_indices: Tensor) -> int:
    """Check the offsets, and return the length of the longest list; synchronises once."""
    offsets = page_indptr.tolist()
    entries = page_indices.shape[0]
    for i, (previous, offset) in enumerate(zip([0, *offsets[:-1]], offsets, strict=True)):
        if not previous <= offset <= entries:
            bounds = f"{previous} (the offset before it) to {entries} (the length of `page_indices`)"
            remedy = "check how the lists were joined"
            raise invalid("block_table_from_csr", "page_indptr", f"{bounds} at index {i}", str(offset), remedy)
    return max((end - first for first, end in pairwise(offsets)), default=0)
