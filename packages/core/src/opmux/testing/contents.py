"""The contents of arguments: makers by argument name, as a name means the same in every op.

Index data is valid, as the ops require; unused places hold poison. Float data is chosen to expose mistakes: rows of
norms differ in scale (a quiet row shows a wrong eps), means are not zero, and sinks matter.
"""

import math

import torch
from torch import Tensor

from opmux.callpath.op import Op
from opmux.testing.making import DATA, MAKERS, Making, is_offsets, makes
from opmux.testing.memory import poison_
from opmux.testing.patterns import PATTERNS, lengths
from opmux.testing.sequences import draw_lengths, draw_paged, running

ZEROS = "zeros"
"""Contents with blocks of zeros, for ops that make scales."""

SMALL = 2.0**-50
"""The scale of numbers so small that a least scale, as of a clamp at 1e-12, shows; their square has a scale too."""

TINIEST = 2.0**-149
"""The smallest number of float32: a scale made of it underflows to zero."""

ALL_CODES = "all_codes"
"""Codes of every finite value that their dtype has, the largest and the least included."""

PLANTED = ("nan", "inf", "-inf")
"""Probes that put one number into the middle of a tensor."""

FULL = "full"
"""Contents of calls that are timed: all sequences alike, and as long as the dims and options of the call allow."""

QUIET_ROWS = (1.0, 2.0**-9, 16.0)
"""Scales of successive rows of a norm's input: the mean square of a quiet row is about eps."""

MEAN = 0.25
"""The mean of a norm's input, in units of its standard deviation."""


def some_numbers(making: Making) -> Tensor:
    """Contents of arguments without a maker: normal numbers, spread over the range of 8-bit formats."""
    stored = making.dtype
    if _has_all_codes(making):
        return _all_codes(making)
    if stored.is_floating_point and stored.itemsize == 1:
        making.dtype = torch.float32
    if making.name.endswith("scale"):
        return making.normal().abs().add(0.5).to(stored)
    if stored != making.dtype:
        return making.normal(4.0).to(stored)
    return making.normal()


def some_integers(making: Making) -> Tensor:
    """Integers that no maker is registered for: offsets where the shape ends in ``name+1``, zeros elsewhere.

    Zero is the only index that is always valid.
    """
    if _has_all_codes(making):
        return _all_codes(making)
    if making.dtype == torch.int8:
        return making.integers(-127, 128).to(torch.int8)
    if is_offsets(making.op, making.name):
        first = next(t for t in making.made.values() if t is not None)
        return making.as_index(running(_lengths_of(making, making.shape[0] - 1, first.shape[0])))
    return making.as_index(torch.zeros(making.shape, dtype=torch.int64))


def _lengths_of(making: Making, batch: int, tokens: int) -> list[int]:
    """Sequence lengths in the case's pattern; otherwise awkward ones, with an empty sequence and leftover tokens."""
    if making.case.data == FULL:
        longest = making.options.get(f"max_seqlen_{making.name[-1]}", tokens)
        return [min(tokens // batch, longest)] * batch
    found = lengths(making.case.data, batch, tokens)
    return draw_lengths(making.generator, batch, tokens) if found is None else found


def special_contents(op: Op) -> tuple[str, ...]:
    """The words for special contents that the makers of an op's arguments know."""
    found: dict[str, None] = {}
    for argument in op.signature.tensors:
        key = (op.name, argument.name) if (op.name, argument.name) in MAKERS else ("*", argument.name)
        words = DATA.get(key, PATTERNS if key not in MAKERS and is_offsets(op, argument.name) else ())
        found |= dict.fromkeys(words)
    return tuple(found)


# Floating-point data


def _rows_of_all_scales(making: Making) -> Tensor:
    drawn = making.normal(mean=MEAN)
    if not drawn.numel() or drawn.dim() < 2:
        return drawn
    rows = drawn.numel() // drawn.shape[-1]
    scales = torch.tensor(QUIET_ROWS, dtype=drawn.dtype, device=drawn.device)
    of_row = scales[torch.arange(rows, device=drawn.device) % len(QUIET_ROWS)]
    return drawn * of_row.reshape(*drawn.shape[:-1], 1)


@makes("x")
@makes("residual")
@makes("residual_out")
def _streams(making: Making) -> Tensor:
    """Inputs of norms and of quantisation: rows of all scales; for other ops, rows of one scale, or codes."""
    if making.dtype.itemsize == 1:
        return _codes(making)
    if making.case.data == ZEROS:
        return _with_zero_blocks(making)
    return _rows_of_all_scales(making) if {"hidden", "m"} & set(making.op.signature.binders) else making.normal()


def _with_zero_blocks(making: Making) -> Tensor:
    """Matrices of which every kind of block is zero somewhere, and rows of very small numbers.

    The first matrix is zero; of the others, where they are that large, a tile of 128x128. Of five successive rows one
    is zero, one holds small numbers, and one begins with a block of zeros. Where the values themselves are quantised,
    one is so small that its scales underflow.
    """
    drawn = _rows_of_all_scales(making)
    halves = 2 if "n" in making.op.signature.binders else 1  # of gated activations
    found = drawn.unflatten(-1, (halves, drawn.shape[-1] // halves))
    found[..., 1::5, :, :] = 0
    found[..., 2::5, :, :] *= SMALL
    found[..., 4::5, :, :32] = 0
    if set(making.case.dtypes) == {"x"} and halves == 1 and making.dtype.itemsize > 2:
        found[..., 3::5, :, :] = found[..., 3::5, :, :].sign() * TINIEST
    if max(found.shape[-3], found.shape[-1]) > 128:
        found[..., :128, :, :128] = 0
    found.flatten(0, -4)[:1] = 0
    return drawn


@makes("weight")
def _gain(making: Making) -> Tensor:
    return making.normal(0.25, 0.0 if making.options.get("weight_offset") else 1.0)


TIES = "ties"
"""Contents that lie halfway between two codes, with a scale of 1: no rounding excuses the wrong one."""


@makes("x", op="static_quantize", data=(TIES,))
def _halves(making: Making) -> Tensor:
    return making.integers(-250, 251).div(2).to(making.dtype) if making.case.data == TIES else _streams(making)


@makes("scale", op="static_quantize")
def _known_scale(making: Making) -> Tensor:
    if making.case.data == TIES:
        return torch.ones(making.shape, dtype=making.dtype, device=making.device)
    return some_numbers(making)


def _has_all_codes(making: Making) -> bool:
    """Whether the argument that is made has all codes: operands do, real numbers beside codes do not."""
    return (
        making.case.data == ALL_CODES and making.dtype.itemsize == 1 and making.name not in making.op.signature.scales
    )


def _all_codes(making: Making) -> Tensor:
    """Every bit pattern alike, but zero for those of NaN and infinities."""
    drawn = making.integers(0, 256).to(torch.uint8).view(making.dtype)
    if not making.dtype.is_floating_point:
        return drawn
    return drawn.to(torch.float32).nan_to_num(nan=0.0, posinf=0.0, neginf=0.0).to(making.dtype)


def largest_code(dtype: torch.dtype) -> float:
    """The largest finite value of a dtype of codes."""
    return torch.finfo(dtype).max if dtype.is_floating_point else 127.0


def _codes(making: Making) -> Tensor:
    return some_numbers(making) if making.dtype.is_floating_point else some_integers(making)


@makes("w")
def _weight(making: Making) -> Tensor:
    if making.dtype.itemsize == 1:
        return _codes(making)
    return making.normal(1 / math.sqrt(max(1, making.shape[-1])))


@makes("gate")
def _gate(making: Making) -> Tensor:
    return making.normal(2.0)


@makes("cos")
def _cos(making: Making) -> Tensor:
    return torch.cos(_angles(making)).to(making.dtype)


@makes("sin")
def _sin(making: Making) -> Tensor:
    return torch.sin(_angles(making)).to(making.dtype)


def _angles(making: Making) -> Tensor:
    positions, half = making.shape
    step = 10000.0 ** (-torch.arange(half, device=making.device, dtype=torch.float64) / max(1, half))
    return torch.arange(positions, device=making.device, dtype=torch.float64).unsqueeze(1) * step


@makes("lse_a")
@makes("lse_b")
def _partial_lse(making: Making) -> Tensor:
    """Log-sum-exps, some of them -inf (a side that attended to nothing), occasionally on both sides."""
    drawn = making.normal(1.5)
    return drawn.masked_fill(making.integers(0, 5) == 0, -math.inf)


_CODES = 32.0
"""The standard deviation of the codes in a cache that has a scale."""


# Losses: logits that differ enough for a peaked softmax, and rows and weights that make such logits

LOGITS = 3.0
"""The standard deviation of logits."""


@makes("logits")
def _logits(making: Making) -> Tensor:
    return making.normal(LOGITS)


def _rows_of_logits(making: Making) -> Tensor:
    return making.normal()


def _classes_of_logits(making: Making) -> Tensor:
    return making.normal(LOGITS / math.sqrt(max(1, making.shape[-1])))


for _op in ("", "_gradients", "_backward"):
    makes("x", op=f"fused_linear_cross_entropy{_op}")(_rows_of_logits)
    makes("weight", op=f"fused_linear_cross_entropy{_op}")(_classes_of_logits)


@makes("grad_loss", op="fused_linear_cross_entropy_backward")
def _grad_of_reduced(making: Making) -> Tensor:
    """The same number for every token, unless each has a loss of its own."""
    drawn = making.normal()
    if making.options["reduction"] == "none" or not drawn.numel():
        return drawn
    return drawn.reshape(-1)[0].expand(making.shape)


IGNORED = "ignored"
"""Contents in which every token is ignored."""


@makes("target", data=(IGNORED, *PATTERNS))
def _targets(making: Making) -> Tensor:
    """Classes, some of them ignored."""
    drawn, ignored = making.indices(making.dim("vocab")), making.options["ignore_index"]
    if making.case.data == IGNORED:
        return making.as_index(torch.full_like(drawn, ignored))
    if making.case.data != FULL:
        drawn = drawn.where(making.integers(0, 6) > 0, ignored)
    if making.case.probe == "nan" and drawn.numel() and drawn.dim():
        # Where the probe puts the NaN: in 16 bits into an ignored token, whose logits must not be used; else not.
        middle = tuple(size // 2 for size in drawn.shape)
        sixteen = next(iter(making.case.dtypes.values())).itemsize == 2
        drawn[middle] = ignored if sixteen else (ignored + 1) % making.dim("vocab")
    if making.case.probe == "-inf" and making.options["label_smoothing"] and drawn.numel() and drawn.dim():
        drawn[tuple(size // 2 for size in drawn.shape)] = (ignored + 1) % making.dim("vocab")  # a token that counts
    return making.as_index(drawn)


# Index data


@makes("positions", data=PATTERNS)
def _positions(making: Making) -> Tensor:
    return making.as_index(making.indices(making.dim("max_positions")))


@makes("slot_mapping", data=PATTERNS)
def _slots(making: Making) -> Tensor:
    """Slots all over the cache, each used once; some tokens are skipped.

    Patterns that would name a slot twice skip tokens instead: every other one (repeated), all of them (equal), all but
    those of the first and the last slot (ends).
    """
    slots, tokens = making.dim("pages") * making.dim("page_size"), making.shape[0]
    drawn = torch.full((tokens,), -1, device=making.device)
    given = min(slots, tokens)
    match making.case.data:
        case "equal":
            return making.as_index(drawn)
        case "ends":
            drawn[: min(given, 1)] = 0
            if given > 1:
                drawn[-1] = slots - 1
            return making.as_index(drawn)
        case pattern if pattern in PATTERNS:
            order = making.indices(slots, given)
            if pattern == "gaps":
                order = torch.arange(given, device=making.device) * max(1, slots // max(given, 1))
            drawn[:given] = order
            if pattern == "repeated":
                drawn[:given] = torch.arange(given, device=making.device)
                drawn[1::2] = -1
            return making.as_index(drawn)
    drawn[:given] = making.permutation(slots)[:given]
    if making.case.data != FULL:
        skipped = making.integers(0, 6) == 0
        if making.case.probe in PLANTED:  # in the middle: what is put there has to be written
            skipped[tokens // 2 : tokens // 2 + 1] = False
        drawn[skipped] = -1
    return making.as_index(drawn)


@makes("cu_seqlens_q", data=PATTERNS)
@makes("cu_seqlens_k", data=("loose", *PATTERNS))
def _offsets(making: Making) -> Tensor:
    if "block_table" in making.case.dtypes:
        return making.as_index(running(_paged(making)["new"]))
    side = making.name[-1]
    # The contract allows an empty sequence and tokens past the last one, which kernels easily forget.
    found = _lengths_of(making, making.dim("batch"), making.dim(f"tokens_{side}"))
    making.shared[f"max_seqlen_{side}"] = max(found, default=0)
    if making.case.data == "loose":
        making.shared[f"max_seqlen_{side}"] += 37
    return making.as_index(running(found))


@makes("seq_lens", data=PATTERNS)
def _lengths(making: Making) -> Tensor:
    return making.as_index(_paged(making)["lengths"])


@makes("block_table", data=("decode", "prefill", "loose", *PATTERNS))
def _block_table(making: Making) -> Tensor:
    """Distinct pages for what each sequence needs, and rubbish in the entries past them.

    In a pattern, pages are shared like those of a common prefix: each sequence has the pattern's pages.
    """
    table = poison_(torch.empty(making.shape, dtype=torch.int64, device=making.device))
    table[:, 1::2] = 2**31 - 1
    of_all, patterned = making.dim("pages"), making.case.data in PATTERNS
    order = [] if patterned else making.permutation(of_all).tolist()
    for row, pages in enumerate(_paged(making)["pages"]):
        if patterned:
            table[row, :pages] = making.indices(of_all, pages)
        else:
            table[row, :pages] = torch.tensor([order.pop() for _ in range(pages)], device=making.device)
    return making.as_index(table)


@makes("group_offsets", data=PATTERNS)
def _group_offsets(making: Making) -> Tensor:
    """Offsets of groups, one of them empty, with rows left over behind the last; in full calls every row is in one."""
    groups, rows = making.dim("groups"), making.dim("m")
    if making.case.data == FULL:
        # As even as can be: few rows go to as many groups.
        return making.as_index([-(-rows * place // groups) for place in range(groups + 1)] if groups else [0])
    return making.as_index(running(_lengths_of(making, groups, rows)))


@makes("group_sizes", data=PATTERNS)
def _group_sizes(making: Making) -> Tensor:
    """Sizes of groups with padding of one row at least, with none, and of any size, in turn."""
    offsets = making.made["group_offsets"]
    assert offsets is not None
    sizes = offsets.diff().tolist()
    if making.case.data != FULL:
        for place, size in enumerate(sizes):
            drawn = int(making.integers(0, size + 1, ()))
            sizes[place] = (max(0, size - 1 - size // 8), size, drawn)[place % 3]
    return making.as_index(sizes)


@makes("masked_m", data=("consecutive", "equal", "ends"))
def _masked_m(making: Making) -> Tensor:
    """Counts of rows: some, none, all and one, in turn; also one each, half each, and all and none alternately."""
    groups, most = making.dim("groups"), making.dim("max_m")
    cycle = {
        FULL: (making.options.get("expected_m", most),),
        "consecutive": (min(1, most),),
        "equal": (most // 2,),
        "ends": (most, 0),
    }.get(making.case.data)
    drawn = making.integers(0, most + 1, (groups,)).tolist()
    counts = [
        cycle[place % len(cycle)] if cycle else (drawn[place], 0, most, min(1, most))[place % 4]
        for place in range(groups)
    ]
    making.shared["expected_m"] = sum(counts) // max(groups, 1)
    return making.as_index(counts)


@makes("packed")
def _packed_scales(making: Making) -> Tensor:
    """Any four bytes; the last integer of a row holds one to four scales."""
    words = making.shape[-1]
    making.shared["k_blocks"] = max(0, 4 * words - int(making.integers(0, 4, ())))
    return making.as_index(making.integers(-(2**31), 2**31))


@makes("k_cache")
@makes("v_cache")
def _cache(making: Making) -> Tensor:
    """Cached keys or values; `fill_unused` puts NaN where there is no token of a sequence."""
    stored = making.dtype
    if stored.itemsize > 1:
        return making.normal()
    if making.case.data == ALL_CODES:
        return _all_codes(making)
    making.dtype = torch.float32
    largest = 127.0 if stored == torch.int8 else 240.0
    spread = _CODES if f"{making.name[0]}_scale" in making.case.dtypes else 1.0
    return making.normal(spread).clamp(-largest, largest).to(stored)


@makes("k_scale")
@makes("v_scale")
def _cache_scale(making: Making) -> Tensor:
    """Scales of caches, different for every head, that make values of about 1; of all codes, values up to about 5."""
    drawn = making.normal().abs().add(0.5)
    stored = making.case.dtypes[f"{making.name[0]}_cache"]
    if making.case.data == ALL_CODES and stored.itemsize == 1:
        return drawn.mul(4.0 / largest_code(stored))
    return drawn.div(_CODES).to(making.dtype)


@makes("k_scale", op="write_kv_cache")
@makes("v_scale", op="write_kv_cache")
def _written_scale(making: Making) -> Tensor:
    """Scales so small that some values saturate."""
    return _cache_scale(making).div(4.0)


def _paged(making: Making) -> dict[str, list[int]]:
    """How many new tokens, total tokens and pages each sequence has; drawn once for all arguments of a call."""
    if "paged" not in making.shared:
        found = draw_paged(
            making.generator,
            batch=making.dim("batch"),
            tokens=making.dim("tokens"),
            pages=making.dim("pages"),
            page_size=making.dim("page_size"),
            max_pages=making.dim("max_pages"),
            kind=making.case.data,
            longest=making.options.get("max_seqlen_k") if making.case.data == FULL else None,
        )
        making.shared["paged"] = found
        loose = 37 if making.case.data == "loose" else 0
        making.shared["max_seqlen_q"] = max(found["new"], default=0) + loose
        making.shared["max_seqlen_k"] = max(found["lengths"], default=0) + loose
    paged: dict[str, list[int]] = making.shared["paged"]
    return paged
