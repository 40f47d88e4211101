"""The linear layer."""

from typing import Any

import torch
from torch import Tensor, nn

import opmux
from opmux.nn.autocast import autocast_dtype
from opmux.nn.sizes import check_sizes


class Linear(nn.Linear):
    """`torch.nn.Linear` computed by `opmux.linear`: ``y = x @ weight.T + bias``, accumulated in float32.

    It is a subclass of `torch.nn.Linear`, so code that looks for one to initialise, wrap or quantise finds it. Under
    autocast x, weight and bias are cast, as in torch.

    Args:
        in_features: The size of x's last dim.
        out_features: The size of y's last dim.
        bias: Whether there is a bias.
        device: The device of the weights.
        dtype: The dtype of the weights, and of x.
        backend: Passed to the op.

    Raises:
        InvalidArgument: If a size is not a positive whole number.

    Source:
        `torch.nn.Linear`.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        device: Any = None,
        dtype: torch.dtype | None = None,
        *,
        backend: str | None = None,
    ) -> None:
        check_sizes("Linear", in_features=in_features, out_features=out_features)
        super().__init__(in_features, out_features, bias, device, dtype)
        self.backend = backend

    def forward(self, input: Tensor) -> Tensor:  # torch's name
        """Compute ``input (*tokens, in_features)`` -> ``(*tokens, out_features)``."""
        weight: Tensor = self.weight
        bias: Tensor | None = self.bias
        dtype = autocast_dtype(input)
        if dtype is not None:
            input, weight = input.to(dtype), weight.to(dtype)
            bias = None if bias is None else bias.to(dtype)
        return opmux.linear(input, weight, bias, backend=self.backend)

    def extra_repr(self) -> str:
        return super().extra_repr() + backend_repr(self.backend)


def backend_repr(backend: str | None) -> str:
    """The backend as a module's ``extra_repr`` shows it; empty if there is none."""
    return "" if backend is None else f", backend={backend!r}"
