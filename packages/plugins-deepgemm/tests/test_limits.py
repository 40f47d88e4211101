"""The largest sizes that the kernels take: each is taken, and what is beyond it is refused with the reason."""

from typing import Any

import pytest
import torch

import opmux
from opmux.plugin import AtMost
from opmux_deepgemm.implementations import RECORDS

BF16, FP8, F32, I32 = torch.bfloat16, torch.float8_e4m3fn, torch.float32, torch.int32
MOST_ROWS, MOST_N, MOST_K, MOST_MATRICES, MOST_GROUPS, MOST_GROUP_ROWS = 2**23, 2**19, 2**24, 2**7, 2**10, 2**20
PRODUCT = {"n": MOST_N, "k": MOST_K}
RAGGED = PRODUCT | {"m": MOST_ROWS, "groups": MOST_GROUPS}
MASKED = PRODUCT | {"max_m": MOST_GROUP_ROWS, "groups": MOST_GROUPS}
SUMS = {"m": MOST_ROWS, "groups": MOST_GROUPS, "n": MOST_N, "k": MOST_N}
LIMITS = {
    ("linear", ""): PRODUCT | {"tokens": MOST_ROWS},
    ("linear", "across"): PRODUCT | {"tokens": MOST_ROWS},
    ("scaled_linear", ""): PRODUCT | {"m": MOST_ROWS, "batch": MOST_MATRICES},
    ("scaled_linear_accumulate", ""): PRODUCT | {"m": MOST_ROWS},
    ("grouped_linear", ""): RAGGED,
    ("grouped_linear", "across"): RAGGED,
    ("scaled_grouped_linear", ""): RAGGED,
    ("masked_grouped_linear", ""): MASKED,
    ("masked_grouped_linear", "across"): MASKED,
    ("scaled_masked_grouped_linear", ""): MASKED,
    ("grouped_weight_grad", ""): SUMS,
    ("grouped_weight_grad", "across"): SUMS,
    ("scaled_grouped_weight_grad", ""): SUMS,
}
"""By op and name of the implementation; docs/backends/deepgemm.md has them in a table."""
CASES = [(*which, size) for which, limits in LIMITS.items() for size in limits]


def test_every_limit_is_here() -> None:
    found = {
        (one.op, one.name): {limit.name: limit.bound for limit in one.when if isinstance(limit, AtMost)}
        for one in RECORDS
    }
    assert found == LIMITS


def meta(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def scales(*shape: int, rows: int = 1) -> torch.Tensor:
    *groups, m, k = shape
    return meta(*groups, -(-m // rows), -(-k // 128), dtype=F32)


def arguments(op: str, name: str, sizes: dict[str, int]) -> tuple[list[torch.Tensor], dict[str, Any]]:
    """Tensors and options of a call of these sizes; where the implementation reads operands across k, w is one."""
    n, k, groups = sizes["n"], sizes["k"], sizes["groups"]
    scaled, masked = op.startswith("scaled"), "masked" in op
    dtype = FP8 if scaled else BF16
    rows = sizes["tokens"] if op == "linear" else sizes["m"]
    if op.endswith("weight_grad"):
        sums = [meta(groups, n, k, dtype=F32), meta(rows, n, dtype=dtype), meta(rows, k, dtype=dtype)]
        if name:
            sums[2] = meta(k, -(-rows // 8) * 8, dtype=dtype)[:, :rows].mT
        of_sums = [meta(-(-rows // 128), width, dtype=F32) for width in (n, k)] if scaled else []
        return [*sums, meta(groups + 1, dtype=I32), *of_sums], {}
    front = (groups, sizes["max_m"]) if masked else (rows,)
    if op == "scaled_linear" and sizes["batch"] > 1:
        front = sizes["batch"], rows
    of_w = (groups,) if "grouped" in op else ()
    x, w = meta(*front, k, dtype=dtype), meta(*of_w, n, k, dtype=dtype)
    if name:
        w = meta(*of_w, k, n, dtype=dtype).mT
    indices = [meta(groups + (not masked), dtype=I32)] if of_w else []
    accumulate = op.endswith("accumulate")
    of_scales = [scales(*front, k), scales(*of_w, n, k, rows=1 if accumulate else 128)] if scaled else []
    given = [x, w, *indices, *of_scales]
    options: dict[str, Any] = {"out_dtype": BF16} if scaled and not accumulate else {}
    if masked:
        options["expected_m"] = 4
    return [meta(rows, n, dtype=F32), *given] if accumulate else given, options


def judged(op: str, name: str, **sizes: int) -> tuple[str, str]:
    small = {"n": 64, "k": 128, "m": 4, "tokens": 4, "max_m": 4, "groups": 2, "batch": 1}
    given, options = arguments(op, name, small | sizes)
    full = f"deepgemm:{name}" if name else "deepgemm"
    plan = opmux.explain(getattr(opmux, op), *given, **options, arch="sm_90", backend=full)
    found = next(one for one in plan.candidates if one.name == full)
    return found.status, found.reason


@pytest.mark.parametrize(("op", "name", "size"), CASES)
def test_the_largest_size_is_taken_and_the_next_one_refused(op, name, size) -> None:
    step = {"n": 8, "k": 16}.get(size, 1)
    most = LIMITS[op, name][size]
    assert judged(op, name, **{size: most})[0] == "chosen"
    status, reason = judged(op, name, **{size: most + step})
    assert (status, reason) == ("rejected", f"{size} = {most + step} is more than {most}")
