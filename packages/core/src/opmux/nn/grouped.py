"""Linear layers of several groups, and the experts of a mixture that are made of them."""

import math
from typing import Any

import torch
from torch import Tensor, nn

import opmux
from opmux.errors import invalid
from opmux.nn.autocast import autocast_dtype
from opmux.nn.linear import backend_repr
from opmux.nn.mixture import check_few, mix_experts
from opmux.nn.mlp import ACTIVATIONS, packed_gate
from opmux.nn.sizes import check_sizes, check_tensors


class GroupedLinear(nn.Module):
    """Linear layers of one size, each for a group of rows, computed by `opmux.grouped_linear`.

    Weights start with the values of a `torch.nn.Linear` each. Under autocast x and weight are cast, as in torch.

    Args:
        groups: How many layers there are.
        in_features: The size of x's last dim.
        out_features: The size of the result's last dim.
        device: The device of the weights.
        dtype: The dtype of the weights, and of x.
        backend: Passed to the op.

    Raises:
        InvalidArgument: If a size is not a positive whole number.

    Source:
        `torch.nn.Linear`, group by group.
    """

    def __init__(
        self,
        groups: int,
        in_features: int,
        out_features: int,
        device: Any = None,
        dtype: torch.dtype | None = None,
        *,
        backend: str | None = None,
    ) -> None:
        super().__init__()
        check_sizes("GroupedLinear", groups=groups, in_features=in_features, out_features=out_features)
        self.groups, self.in_features, self.out_features = groups, in_features, out_features
        self.backend = backend
        self.weight = nn.Parameter(torch.empty(groups, out_features, in_features, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Reinitialise the weights, as `torch.nn.Linear` does."""
        uniform_(self.weight)

    def forward(self, x: Tensor, group_offsets: Tensor, group_sizes: Tensor | None = None) -> Tensor:
        """Compute ``x (m, in_features)`` -> ``(m, out_features)``; the other arguments are those of the op."""
        weight: Tensor = self.weight
        dtype = autocast_dtype(x)
        if dtype is not None:
            x, weight = x.to(dtype), weight.to(dtype)
        return opmux.grouped_linear(x, weight, group_offsets, group_sizes, backend=self.backend)

    def extra_repr(self) -> str:
        sizes = f"groups={self.groups}, in_features={self.in_features}, out_features={self.out_features}"
        return sizes + backend_repr(self.backend)


class MoE(nn.Module):
    """The experts of a mixture: gated layers, of which each token goes to a few; a router says to which.

    ``y[t] = sum over j of weights[t, j] * down[e](activation(gate[e](x[t])) * up[e](x[t]))`` for the experts
    e = ids[t, j]; summed in float32. The state dict holds ``gate_up_proj (experts, 2 * intermediate, hidden)``, the
    gate's rows first, and ``down_proj (experts, hidden, intermediate)``, as the experts of Hugging Face's models do.

    The products are those of `mix_experts`: `opmux.grouped_linear`, and `opmux.masked_grouped_linear` for up to ``few``
    tokens where no gradient is due and they name more experts than there are (tokens * top_k > experts). Neither way
    reads ids on the host, so that a graph can be captured.

    Args:
        hidden: The size of x's last dim.
        intermediate: The size of an expert's gate.
        experts: How many experts there are.
        activation: As in `GatedMLP`.
        few: Up to how many tokens the masked product may be taken; 0 never takes it.
        device: The device of the weights.
        dtype: The dtype of the weights.
        backend: Passed to the ops.

    Raises:
        InvalidArgument: If a size is not a positive whole number, few is negative, or the activation is unknown.

    Source:
        Shazeer et al., "Outrageously Large Neural Networks: the Sparsely-Gated Mixture-of-Experts Layer", 2017,
        https://arxiv.org/abs/1701.06538.
    """

    def __init__(
        self,
        hidden: int,
        intermediate: int,
        experts: int,
        activation: str = "silu",
        *,
        few: int = 32,
        device: Any = None,
        dtype: torch.dtype | None = None,
        backend: str | None = None,
    ) -> None:
        super().__init__()
        if activation not in ACTIVATIONS:
            expected = f"one of {', '.join(ACTIVATIONS)}"
            raise invalid(
                "MoE", "activation", expected, repr(activation), "compute another gate with torch's functions"
            )
        check_sizes("MoE", hidden=hidden, intermediate=intermediate, experts=experts)
        check_few("MoE", few)
        self.activation, self.few, self.experts, self.backend = activation, few, experts, backend
        how: dict[str, Any] = {"device": device, "dtype": dtype}
        self.gate_up_proj = nn.Parameter(torch.empty(experts, 2 * intermediate, hidden, **how))
        self.down_proj = nn.Parameter(torch.empty(experts, hidden, intermediate, **how))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Reinitialise the weights, as `torch.nn.Linear` does."""
        uniform_(self.gate_up_proj)
        uniform_(self.down_proj)

    def forward(self, x: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
        """Compute the mixture.

        Args:
            x: The tokens, ``(*tokens, hidden)``.
            ids: The experts of each token, ``(*tokens, top_k)``, integers below ``experts``. An expert that a token
                names twice counts twice.
            weights: What each expert's result is multiplied by, ``(*tokens, top_k)``.

        Returns:
            ``(*tokens, hidden)`` in the dtype of the weights' products: x's, or autocast's.

        Raises:
            InvalidArgument: If x has another last dim than hidden, ids or weights have other leading dims than x or
                differ in shape, or a token has no expert; and what `mix_experts` refuses.
        """
        self._check(x, ids, weights)
        mixed = mix_experts(
            x.reshape(-1, x.shape[-1]), ids.reshape(-1, ids.shape[-1]), weights.reshape(-1, ids.shape[-1]),
            self.gate_up_proj, self.down_proj, self._gate, few=self.few, backend=self.backend,
        )  # fmt: skip
        return mixed.view(x.shape)

    def _gate(self, both: Tensor) -> Tensor:
        return packed_gate(both, self.activation, self.backend)

    def _check(self, x: Tensor, ids: Tensor, weights: Tensor) -> None:
        check_tensors("MoE", x=x, ids=ids, weights=weights)
        hidden = self.gate_up_proj.shape[2]
        if x.shape[-1:] != (hidden,):
            got = f"shape {list(x.shape)}"
            raise invalid("MoE", "x", f"a last dim of hidden = {hidden}", got, "make the mixture for this size")
        if ids.shape[:-1] != x.shape[:-1]:
            expected = f"shape ({', '.join(map(str, (*x.shape[:-1], 'top_k')))})"
            raise invalid("MoE", "ids", expected, str(list(ids.shape)), "give the experts of every token of `x`")
        if not ids.shape[-1]:
            raise invalid("MoE", "ids", "one expert or more for each token", "top_k = 0", "give the router's choice")
        if weights.shape != ids.shape:
            raise invalid("MoE", "weights", f"shape {list(ids.shape)}", str(list(weights.shape)), "as `ids` has it")

    def extra_repr(self) -> str:
        experts, width, hidden = self.gate_up_proj.shape
        sizes = f"hidden={hidden}, intermediate={width // 2}, experts={experts}, activation={self.activation!r}"
        return f"{sizes}, few={self.few}{backend_repr(self.backend)}"


def uniform_(weight: Tensor) -> None:
    """Fill grouped weights with what a `torch.nn.Linear` of each group starts with."""
    bound = 1 / math.sqrt(weight.shape[-1])
    with torch.no_grad():
        weight.uniform_(-bound, bound)
