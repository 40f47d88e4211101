"""What the core calls for a norm."""

from collections.abc import Iterator

import torch
from torch import Tensor

from opmux_ck.launching import launch
from opmux_ck.norms.configs import NormConfig
from opmux_ck.norms.instances import RmsNorm

SHORT = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32"}
MOST_BYTES = (1 << 31) - 1
"""Of a matrix in a launch: CK counts its elements, and the buffers' bytes, in 32 bits."""
MOST_ROWS = 1 << 21
"""Of a launch: HIP wants fewer than 2**32 threads, and a row has up to 1024."""


def rms_norm(x: Tensor, weight: Tensor, *, eps: float, weight_offset: float, config: NormConfig) -> Tensor:
    """The op `rms_norm`; `weight_offset` is 0."""
    y = torch.empty_like(x, memory_format=torch.contiguous_format)
    if not y.numel():
        return y
    columns = weight.numel()
    instance = RmsNorm(SHORT[x.dtype], SHORT[weight.dtype], config)
    for x_part, y_part in in_launches(x.reshape(-1, columns), y.view(-1, columns)):
        rows = len(x_part)
        launch(
            instance, -(-rows // config.rows), x_part, weight, y_part, eps, rows, columns, x_part.stride(0),
            y_part.stride(0),
        )  # fmt: skip
    return y


def in_launches(x: Tensor, y: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Matrices of equally many rows, in parts that a launch can address."""
    row_bytes = max(x.stride(0), y.stride(0), 1) * x.element_size()
    most = min(max(MOST_BYTES // row_bytes, 1), MOST_ROWS)
    for first in range(0, len(x), most):
        yield x[first : first + most], y[first : first + most]
