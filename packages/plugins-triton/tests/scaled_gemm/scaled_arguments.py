"""Arguments of scaled products, which several tests make: codes of every format, scales of every pair of blocks."""

import torch
from torch import Tensor

BLOCKS = ("tensor", "token", "square", "row")
"""Both per tensor; tokens with channels; 1x128 with 128x128; 1x128 with 1x128."""


def codes(*shape: int, dtype: torch.dtype, device: str = "cpu") -> Tensor:
    """Codes of ordinary values."""
    values = torch.randn(shape, device=device)
    return (values * (40 if dtype == torch.int8 else 2)).clamp(-100, 100).to(dtype)


def scales(blocks: str, batch: tuple[int, ...], m: int, n: int, k: int, device: str = "cpu") -> tuple[Tensor, Tensor]:
    """The scales of both sides, around 1."""
    columns = -(-k // 128)
    of_x = {"tensor": (1, 1), "token": (m, 1)}.get(blocks, (m, columns))
    of_w = {"tensor": (1, 1), "token": (n, 1), "square": (-(-n // 128), columns)}.get(blocks, (n, columns))
    return torch.rand(*batch, *of_x, device=device) + 0.5, torch.rand(*of_w, device=device) + 0.5
