"""The sum of a mixture's experts, computed by grouped products: what `MoE` and patched models call."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

import opmux
from opmux.dtypes import name_of
from opmux.errors import invalid
from opmux.nn.autocast import autocast_dtype
from opmux.nn.expert_weights import GroupedCodes, PlainWeights, Prepared
from opmux.nn.quantizable import CODES, PLAIN_DTYPES, PLAIN_NAMES
from opmux.nn.sizes import check_tensors

_Weights = PlainWeights | GroupedCodes

COMPARED = 512
"""Up to how many rows are sorted by comparing all pairs: a few small kernels, where torch's sort takes more."""


def mix_experts(
    x: Tensor,
    ids: Tensor,
    weights: Tensor,
    up: Tensor | GroupedCodes,
    down: Tensor | GroupedCodes,
    between: Callable[[Tensor], Tensor],
    *,
    up_bias: Tensor | None = None,
    down_bias: Tensor | None = None,
    after: Callable[[Tensor], Tensor] | None = None,
    few: int = 32,
    backend: str | None = None,
) -> Tensor:
    """Compute the experts of each token, and the weighted sum of their results.

    ``y[t] = sum over j of weights[t, j] * after(down[e] @ between(up[e] @ x[t] + up_bias[e]) + down_bias[e])`` for the
    experts e = ids[t, j]; summed in float32 (in float64 for float64) and rounded once. An expert that a token names
    twice counts twice.

    Many tokens are sorted by expert for `opmux.grouped_linear`. Up to ``few`` tokens, where no gradient is due (nor for
    what ``between`` returns), each expert gets room for all of them, for `opmux.masked_grouped_linear`: then nothing is
    sorted. So few that they name no more experts than there are (tokens * top_k <= experts) are sorted all the same:
    most experts have none of them, and room for each would be many times their number. Neither way reads ids on the
    host, so that a graph can be captured. Under autocast x, weights and biases are cast, as in torch.

    Weights may be 8-bit codes. Under ``torch.no_grad()`` the tokens are quantised once then, before they are sorted,
    and `opmux.silu_and_mul` in the pass that computes it; otherwise rows are quantised after they are sorted.

    Args:
        x: The tokens, ``(tokens, hidden)``.
        ids: The experts of each token, ``(tokens, top_k)``, integers below experts.
        weights: What each expert's result is multiplied by, ``(tokens, top_k)``.
        up: The first weight of each expert, ``(experts, width, hidden)``, in x's dtype or as `GroupedCodes`.
        down: The second weight of each expert, ``(experts, hidden, intermediate)``, likewise.
        between: The activation, from ``(*rows, width)`` to ``(*rows, intermediate)``, row by row. It may be given rows
            of arbitrary values, whose results are not used.
        up_bias: ``(experts, width)`` in x's dtype, or None.
        down_bias: ``(experts, hidden)`` in x's dtype, or None.
        after: What is applied to each expert's result, ``(rows, hidden)``, before it is weighted; None for nothing.
        few: Up to how many tokens the masked product is taken, where they name more experts than there are; 0 never
            takes it.
        backend: Passed to the ops.

    Returns:
        ``(tokens, hidden)`` in the dtype of the weights' products: x's, or autocast's.

    Raises:
        InvalidArgument: If an argument is no tensor or no function, a tensor's shape, dtype or device does not fit the
            others, ids are no integers, few is negative, or between or after returns anything but rows that fit; also
            if an id is no expert's, on the CPU and elsewhere under `opmux.policy.check`, which reads ids.
    """
    check_few("mix_experts", few)
    first, second = (w.weight if isinstance(w, GroupedCodes) else w for w in (up, down))
    _check_kinds(x, ids, weights, first, second, up_bias, down_bias, between, after)
    _check(x, ids, weights, first, second, up_bias, down_bias)
    trained = (w.original if isinstance(w, GroupedCodes) else w for w in (up, down))
    recorded = torch.is_grad_enabled() and any(
        t is not None and t.requires_grad for t in (x, *trained, up_bias, down_bias)
    )
    dtype = autocast_dtype(x)
    if dtype is not None:
        x = x.to(dtype)
        up, down = (w if isinstance(w, GroupedCodes) else w.to(dtype) for w in (up, down))
        up_bias, down_bias = (None if bias is None else bias.to(dtype) for bias in (up_bias, down_bias))
    _check_dtypes(x, ids, weights, up, down, up_bias, down_bias)
    on_cpu = type(ids) is Tensor and ids.is_cpu  # where reading them waits for nothing
    if not torch.compiler.is_compiling() and (on_cpu or opmux.policy.current().check):
        _check_range(ids, len(first))
    both = (_weights(up), up_bias), (_weights(down), down_bias)
    found: Tensor | None = None
    if not recorded and len(x) <= few and ids.numel() > len(first):
        found = _masked(x, ids.long(), *both, between, backend)
    if found is None:
        found = _sorted(x, ids.long(), *both, between, backend)
    if after is not None:
        found = _fitting("after", after(found.flatten(0, 1)), (ids.numel(), found.shape[2])).view(found.shape)
    wide = torch.float64 if found.dtype is torch.float64 else torch.float32
    return (found * weights.unsqueeze(-1).to(wide)).sum(1).to(x.dtype)


def _weights(given: Tensor | GroupedCodes) -> _Weights:
    return given if isinstance(given, GroupedCodes) else PlainWeights(given)


def _sorted(
    x: Tensor,
    ids: Tensor,
    up: tuple[_Weights, Tensor | None],
    down: tuple[_Weights, Tensor | None],
    between: Callable[[Tensor], Tensor],
    backend: str | None,
) -> Tensor:
    """Each expert's result for each token, ``(tokens, top_k, hidden)``, with the rows sorted by expert."""
    order = _order(ids.reshape(-1), len(up[0].weight))
    offsets, top_k = order.offsets, ids.shape[1]
    of_row = None if up[1] is None and down[1] is None else order.sorted(ids.reshape(-1), 1)

    how: Any = (x.dtype, backend)
    (first, up_bias), (second, down_bias) = up, down
    if torch.is_grad_enabled():
        both = _biased(first.recorded(order.sorted(x, top_k), offsets, *how), up_bias, of_row)
        out = second.recorded(_gated(second, both, between), offsets, *how)
    else:
        rows = tuple(order.sorted(_bytes(part), top_k).view(part.dtype) for part in first.prepared(x, backend))
        both = _biased(first.of_sorted(rows, offsets, *how), up_bias, of_row)
        out = second.of_sorted(_between(second, both, between, backend), offsets, *how)
    out = _biased(out, down_bias, of_row)
    return out[order.places].view(*ids.shape, out.shape[1])


class _Order(NamedTuple):
    """A stable order of rows by their experts.

    Attributes:
        places: The place of each row in it, ``(rows,)``.
        offsets: Where each expert's rows start, and where the last one's end.
        rows: Which row is at each place; None for few rows, which are written to their places instead, in fewer small
            kernels.
    """

    places: Tensor
    offsets: Tensor
    rows: Tensor | None

    def sorted(self, tokens: Tensor, top_k: int) -> Tensor:
        """The rows of ``tokens (tokens, *)``, of which each is top_k rows, in this order: ``(tokens * top_k, *)``."""
        if self.rows is not None:
            return tokens[self.rows if top_k == 1 else self.rows // top_k]
        found = tokens.new_empty(len(self.places), *tokens.shape[1:])
        found[self.places.view(len(tokens), top_k)] = tokens.unsqueeze(1)
        return found


def _order(ids: Tensor, experts: int) -> _Order:
    """The order of rows by their experts ``ids (rows,)``."""
    rows = torch.arange(len(ids), device=ids.device)
    if len(ids) <= COMPARED:
        keys = ids * len(ids) + rows
        starts = torch.arange(experts + 1, device=ids.device).unsqueeze(1)
        return _Order((keys.unsqueeze(1) > keys).sum(1), (ids < starts).sum(1, dtype=torch.int32), None)
    order = ids.argsort(stable=True)
    # `torch.bincount` would read the largest id on the host
    counts = torch.zeros(experts, dtype=torch.int32, device=ids.device)
    counts = counts.scatter_add(0, ids, torch.ones_like(ids, dtype=torch.int32))
    offsets = torch.zeros(experts + 1, dtype=torch.int32, device=ids.device)
    offsets[1:] = counts.cumsum(0)
    return _Order(torch.zeros_like(order).scatter(0, order, rows), offsets, order)


def _masked(
    x: Tensor,
    ids: Tensor,
    up: tuple[_Weights, Tensor | None],
    down: tuple[_Weights, Tensor | None],
    between: Callable[[Tensor], Tensor],
    backend: str | None,
) -> Tensor | None:
    """The same with room for all tokens at each expert, however often a token names it; None if a gradient is due."""
    (tokens, top_k), experts = ids.shape, len(up[0].weight)
    chosen = torch.zeros(tokens, experts, dtype=torch.bool, device=x.device).scatter(1, ids, True)
    places = (chosen.cumsum(0).gather(1, ids) - 1).reshape(-1)
    flat, counts = ids.reshape(-1), chosen.sum(0, dtype=torch.int32)
    expected = -(-tokens * top_k // experts)

    how: Any = (counts, expected, x.dtype, backend)
    (first, up_bias), (second, down_bias) = up, down
    rows = tuple(_placed(part, experts, flat, places, top_k) for part in first.prepared(x, backend))
    both = _biased(first.of_masked(rows, *how), up_bias)
    if torch.is_grad_enabled():
        gated = _gated(second, both, between)
        if gated.requires_grad:  # of what `between` holds, say an adapter: the masked product has none
            return None
        prepared = second.prepared(gated, backend)
    else:
        prepared = _between(second, both, between, backend)
    out = _biased(second.of_masked(prepared, *how), down_bias)
    return out[flat, places].view(tokens, top_k, out.shape[2])


def _biased(rows: Tensor, bias: Tensor | None, of_row: Tensor | None = None) -> Tensor:
    """Rows with the biases of their experts: sorted rows, of the experts ``of_row``, or rows in each expert's room."""
    if bias is None:
        return rows
    return rows + (bias.unsqueeze(1) if of_row is None else bias[of_row])


def _between(down: _Weights, both: Tensor, between: Callable[[Tensor], Tensor], backend: str | None) -> Prepared:
    """The activation of rows, prepared for the second product: in one pass, where it is a SwiGLU and that has codes."""
    whole = both.shape[-1] == 2 * down.weight.shape[2]
    if isinstance(down, GroupedCodes) and between is opmux.silu_and_mul and whole:
        return down.gated(both, backend)
    return down.prepared(_gated(down, both, between), backend)


def _gated(down: _Weights, both: Tensor, between: Callable[[Tensor], Tensor]) -> Tensor:
    """The activation of rows."""
    return _fitting("between", between(both), (*both.shape[:-1], down.weight.shape[2]))


def _fitting(name: str, result: Any, shape: tuple[int, ...]) -> Tensor:
    """What a function returned, if it is a tensor of this shape.

    Raises:
        InvalidArgument: If it is not.
    """
    if isinstance(result, Tensor) and result.shape == shape:
        return result
    got = f"one that returns {f'shape {list(result.shape)}' if isinstance(result, Tensor) else type(result).__name__}"
    expected = f"a function that returns a tensor of shape {list(shape)} here"
    raise invalid("mix_experts", name, expected, got, "compute each row on its own, for the sizes of `up` and `down`")


def _placed(rows: Tensor, experts: int, flat: Tensor, places: Tensor, top_k: int) -> Tensor:
    """The rows of each token, ``(tokens, width)``, in the room of its experts: ``(experts, tokens, width)``."""
    given = _bytes(rows)
    room = given.new_empty(experts, *given.shape)
    room[flat.view(len(given), top_k), places.view(len(given), top_k)] = given.unsqueeze(1)
    return room.view(rows.dtype)


def _bytes(rows: Tensor) -> Tensor:
    """Codes as bytes, which torch can index on every device."""
    return rows.view(torch.uint8) if rows.element_size() == 1 else rows


def _check_kinds(
    x: Any, ids: Any, weights: Any, up: Any, down: Any, up_bias: Any, down_bias: Any, between: Any, after: Any
) -> None:
    """Reject what is no tensor, or no function, and tensors on several devices."""
    check_tensors("mix_experts", x=x, ids=ids, weights=weights)
    given = {"ids": ids, "weights": weights, "up": up, "down": down, "up_bias": up_bias, "down_bias": down_bias}
    for name, value in given.items():
        if value is None and name.endswith("bias"):
            continue
        if not isinstance(value, Tensor):
            expected = "a tensor or None" if name.endswith("bias") else "a tensor or GroupedCodes"
            got = "None" if value is None else f"a {type(value).__name__}"
            raise invalid("mix_experts", name, expected, got, "give those of all experts, in one tensor")
        if value.device != x.device:
            remedy = "move it to the device of the tokens"
            raise invalid("mix_experts", name, f"device {x.device}, that of `x`", f"{value.device}", remedy)
    for name, value in (("between", between), ("after", after)):
        if not callable(value) and not (name == "after" and value is None):
            expected = "a function" if name == "between" else "a function or None"
            raise invalid("mix_experts", name, expected, repr(value), "give one that takes and returns a tensor")


def _check(
    x: Tensor, ids: Tensor, weights: Tensor, up: Tensor, down: Tensor, up_bias: Tensor | None, down_bias: Tensor | None
) -> None:
    if x.ndim != 2 or up.ndim != 3 or down.ndim != 3:
        got = f"shapes {list(x.shape)}, {list(up.shape)} and {list(down.shape)}"
        expected = "(tokens, hidden), (experts, width, hidden) and (experts, hidden, intermediate)"
        raise invalid("mix_experts", "x, up, down", expected, got, "flatten the leading dims of `x`")
    if x.shape[1] != up.shape[2]:
        expected, got = f"shape (tokens, {up.shape[2]}), the hidden size of `up`", f"shape {list(x.shape)}"
        raise invalid("mix_experts", "x", expected, got, "take the experts of this model")
    if down.shape[:2] != (len(up), x.shape[1]):
        expected = f"shape ({len(up)}, {x.shape[1]}, intermediate), as `up` and `x` have it"
        raise invalid("mix_experts", "down", expected, f"shape {list(down.shape)}", "take both weights of one mixture")
    if ids.ndim != 2 or len(ids) != len(x):
        raise invalid(
            "mix_experts", "ids", f"shape ({len(x)}, top_k)", str(list(ids.shape)), "give the experts of every token"
        )
    if weights.shape != ids.shape:
        raise invalid("mix_experts", "weights", f"shape {list(ids.shape)}", str(list(weights.shape)), "as `ids` has it")
    sizes: dict[str, Any] = {"up_bias": (up_bias, up.shape[1]), "down_bias": (down_bias, down.shape[1])}
    for name, (bias, size) in sizes.items():
        if bias is not None and bias.shape != (len(up), size):
            expected = f"shape [{len(up)}, {size}]"
            raise invalid("mix_experts", name, expected, str(list(bias.shape)), "one bias for each row of a weight")


def _check_dtypes(
    x: Tensor,
    ids: Tensor,
    weights: Tensor,
    up: Tensor | GroupedCodes,
    down: Tensor | GroupedCodes,
    up_bias: Tensor | None,
    down_bias: Tensor | None,
) -> None:
    """Reject dtypes that no product takes, as they are under autocast."""
    if x.dtype not in PLAIN_DTYPES:
        remedy = "give the tokens before they are quantised"
        raise invalid("mix_experts", "x", f"dtype {PLAIN_NAMES}", name_of(x.dtype), remedy)
    if ids.dtype not in (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8):
        remedy = "give the indices of experts, say those of `torch.topk`"
        raise invalid("mix_experts", "ids", "an integer dtype", name_of(ids.dtype), remedy)
    if not weights.dtype.is_floating_point:
        remedy = "give the router's weights, say the values of `torch.topk`"
        raise invalid("mix_experts", "weights", "a floating-point dtype", name_of(weights.dtype), remedy)
    for name, weight in (("up", up), ("down", down)):
        if isinstance(weight, Tensor) and weight.dtype != x.dtype:
            codes = weight.dtype in CODES
            remedy = "give codes and scales as GroupedCodes" if codes else "cast it or `x`"
            raise invalid("mix_experts", name, f"dtype {name_of(x.dtype)}, that of `x`", name_of(weight.dtype), remedy)
    for name, bias in (("up_bias", up_bias), ("down_bias", down_bias)):
        if bias is not None and bias.dtype != x.dtype:
            expected = f"dtype {name_of(x.dtype)}"
            raise invalid("mix_experts", name, expected, name_of(bias.dtype), "cast it to the dtype of the tokens")


def _check_range(ids: Tensor, experts: int) -> None:
    """Read the ids, and refuse those that are no expert's."""
    wrong = ids[(ids < 0) | (ids >= experts)]
    if len(wrong):
        expected = f"numbers from 0 to below experts = {experts}"
        raise invalid("mix_experts", "ids", expected, str(int(wrong[0])), "check the router that gave them")


def check_few(where: str, few: int) -> None:
    """Reject a number of tokens that is none."""
    if isinstance(few, bool) or not isinstance(few, int) or few < 0:
        raise invalid(where, "few", "a whole number, 0 or more", repr(few), "0 never takes the masked product")
