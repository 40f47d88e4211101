"""What programs that run under Triton's interpreter share: views that do not fold, and how results are compared."""

import torch
from torch import Tensor


def scattered(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """A tensor whose leading dims do not fold: every one of them is a slice."""
    whole = torch.randn([2 * n for n in shape[:-1]] + [shape[-1] + 8], dtype=dtype)
    return whole[tuple(slice(0, n) for n in shape)]


def same(found: object, expected: object, what: str) -> None:
    """Compare results of targets and references."""
    for a, b in zip(several(found), several(expected), strict=True):
        assert a.shape == b.shape, what
        assert a.is_contiguous(), what
        torch.testing.assert_close(a, b, rtol=2e-5, atol=2e-5, equal_nan=True, msg=lambda m: f"{what}: {m}")


def several(value: object) -> tuple[Tensor, ...]:
    """Results of a target as a tuple."""
    return value if isinstance(value, tuple) else (value,)  # type: ignore[return-value]
