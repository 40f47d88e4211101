"""What the definitions of all norms share."""

import torch
from torch import Tensor

from opmux.dtypes import accumulation_dtype

REQUIRED = (
    ("hidden > 0", "a row has at least one column"),
    ("eps >= 0", "eps is added under a square root, so it is 0 or more"),
)


def accumulation_dtype_of(*tensors: Tensor) -> torch.dtype:
    """Return float64 if any tensor is float64, else float32: x, residual and weight may differ in dtype."""
    dtypes = {accumulation_dtype(tensor.dtype) for tensor in tensors}
    return torch.float64 if torch.float64 in dtypes else torch.float32
