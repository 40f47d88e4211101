"""The gated feed-forward layer: SwiGLU and GeGLU."""

from typing import Any

import torch
from torch import Tensor, nn

import opmux
from opmux.errors import invalid
from opmux.nn.fused_weights import fit_projections
from opmux.nn.linear import Linear, backend_repr
from opmux.nn.sizes import check_sizes

_GELU_FORMS = {"gelu": "none", "gelu_tanh": "tanh", "gelu_pytorch_tanh": "tanh"}
"""GELU activations, including Hugging Face's names -> the op's `approximate`."""

ACTIVATIONS = ("silu", *_GELU_FORMS)
"""The gates that `GatedMLP` knows."""


class GatedMLP(nn.Module):
    """``down_proj(activation(gate_proj(x)) * up_proj(x))``: SwiGLU with silu, GeGLU with a GELU.

    The state dict holds ``gate_proj``, ``up_proj`` and ``down_proj``, as in Llama, Qwen, Mistral and Gemma. A fused
    module has ``gate_up_proj`` (the gate's rows first) and ``down_proj``, as in Phi-3, and computes one product instead
    of two. `load_state_dict` accepts both forms.

    Args:
        hidden: The size of x's last dim.
        intermediate: The size of the gate.
        activation: ``"silu"``; ``"gelu"``, the exact form; ``"gelu_tanh"`` or ``"gelu_pytorch_tanh"``, the tanh form.
        bias: Whether the projections have a bias.
        fused: Whether gate and up projection are one weight.
        device: The device of the weights.
        dtype: The dtype of the weights.
        backend: Passed to the ops.

    Raises:
        InvalidArgument: If a size is not a positive whole number, or the activation is unknown.

    Source:
        Shazeer, "GLU Variants Improve Transformer", 2020, https://arxiv.org/abs/2002.05202.
    """

    def __init__(
        self,
        hidden: int,
        intermediate: int,
        activation: str = "silu",
        *,
        bias: bool = False,
        fused: bool = False,
        device: Any = None,
        dtype: torch.dtype | None = None,
        backend: str | None = None,
    ) -> None:
        super().__init__()
        if activation not in ACTIVATIONS:
            raise invalid(
                "GatedMLP", "activation", f"one of {', '.join(ACTIVATIONS)}", repr(activation),
                "write another gate with torch's own functions between two opmux.nn.Linear",
            )  # fmt: skip
        check_sizes("GatedMLP", hidden=hidden, intermediate=intermediate)
        self.activation, self.fused, self.backend = activation, fused, backend
        self._rows = {"gate_proj": intermediate, "up_proj": intermediate}
        how: dict[str, Any] = {"bias": bias, "device": device, "dtype": dtype, "backend": backend}
        if fused:
            self.gate_up_proj = Linear(hidden, 2 * intermediate, **how)
        else:
            self.gate_proj = Linear(hidden, intermediate, **how)
            self.up_proj = Linear(hidden, intermediate, **how)
        self.down_proj = Linear(intermediate, hidden, **how)

    def reset_parameters(self) -> None:
        """Reinitialise the weights, as `torch.nn.Linear` does."""
        for projection in self.children():
            projection.reset_parameters()  # type: ignore[operator]

    def forward(self, x: Tensor) -> Tensor:
        """Compute ``x (*tokens, hidden)`` -> ``(*tokens, hidden)``."""
        return self.down_proj(self._gated(x))  # type: ignore[no-any-return]

    def _gated(self, x: Tensor) -> Tensor:
        if self.fused:
            return packed_gate(self.gate_up_proj(x), self.activation, self.backend)
        gate, up = self.gate_proj(x), self.up_proj(x)
        approximate: Any = _GELU_FORMS.get(self.activation)
        if approximate is None:
            return opmux.silu_mul(gate, up, backend=self.backend)
        return opmux.gelu_mul(gate, up, approximate=approximate, backend=self.backend)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        fit_projections(state_dict, prefix, self.fused, "gate_up_proj", self._rows)
        super()._load_from_state_dict(state_dict, prefix, *rest)

    def extra_repr(self) -> str:
        return f"activation={self.activation!r}, fused={self.fused}{backend_repr(self.backend)}"


def packed_gate(both: Tensor, activation: str, backend: str | None) -> Tensor:
    """The gate of `ACTIVATIONS` on ``(*tokens, 2 * intermediate)``, whose first half is the gate."""
    approximate: Any = _GELU_FORMS.get(activation)
    if approximate is None:
        return opmux.silu_and_mul(both, backend=backend)
    return opmux.gelu_and_mul(both, approximate=approximate, backend=backend)
