"""A model quantised on the references, without a patch: what a model that `patch` quantises is compared with."""

from collections.abc import Collection
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

import opmux
import opmux.nn
from opmux.nn.quantizable import codes_dtype
from opmux_transformers.experts import up_name
from opmux_transformers.prompted import call
from opmux_transformers.registries import asks_registry


def quantise(model: nn.Module, codes: str, taken: Collection[str]) -> None:
    """Quantise some plain linears and experts of a model in place, per token and channel.

    Args:
        model: The model.
        codes: ``"fp8"`` or ``"int8"``.
        taken: The paths of the linears and experts.
    """
    linears = [path for path, module in model.named_modules() if isinstance(module, nn.Linear)]
    for path in taken:
        module = model.get_submodule(path)
        if asks_registry(module):
            vars(module)["forward"] = _Experts(module, codes)
    opmux.nn.quantize_(model, codes, skip=[path for path in linears if path not in taken], backend="reference")
    for path in taken:
        module = model.get_submodule(path)
        if type(module) is nn.Linear:  # it has to keep its weight, which another module's forward reads
            made = opmux.nn.QuantizedLinear.from_linear(module, codes=codes, backend="reference")
            vars(module)["forward"] = made.forward


Call = tuple[str, tuple[Any, ...], dict[str, Any], Tensor]
"""The path of a module, the arguments of a call of it, and its result; tensors are copies."""


def calls(model: nn.Module, paths: Collection[str], ids: Tensor) -> list[Call]:
    """Every call of some modules of a model, in the order of the calls.

    Tensors are copied, because a model may scale a module's result, or add to it, in place.

    Args:
        model: The model.
        paths: The paths of the modules.
        ids: The tokens that the model is called with.
    """
    found: list[Call] = []

    def note(path: str, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], result: Tensor) -> None:
        found.append((path, *_copied((args, kwargs, result))))

    hooks = [
        model.get_submodule(path).register_forward_hook(partial(note, path), with_kwargs=True) for path in sorted(paths)
    ]
    try:
        with torch.no_grad():
            call(model, ids)
    finally:
        for hook in hooks:
            hook.remove()
    return found


def _copied(given: Any) -> Any:
    """The same with copies of the tensors in tuples and mappings."""
    if isinstance(given, Tensor):
        return given.clone()
    if isinstance(given, dict):
        return {name: _copied(value) for name, value in given.items()}
    return tuple(map(_copied, given)) if type(given) is tuple else given


def size(values: Tensor) -> float:
    """The root mean square of a tensor's elements; infinite where one is no number."""
    return float(values.double().square().mean().sqrt().nan_to_num(nan=float("inf")))


def _rounded(values: Tensor, dtype: torch.dtype) -> Tensor:
    """What the codes of rows stand for."""
    q, scale = opmux.quantize(values, dtype=dtype, block=(1, -1), backend="reference")
    return opmux.dequantize(q, scale, out_dtype=values.dtype, backend="reference")


class _Experts:
    """The forward of a mixture, expert by expert: weights and rows are rounded to codes before each product."""

    def __init__(self, module: Any, codes: str) -> None:
        self.module, self.names = module, (up_name(module), "down_proj")
        weights = [module._parameters[name].detach() for name in self.names]
        self.dtype = codes_dtype("opmux models check", codes, weights[0].device)
        self.weights = [_rounded(w.mT if module.is_transposed else w, self.dtype) for w in weights]

    def __call__(self, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
        """The module's result; the arguments are those of its forward."""
        of, total = self.module, torch.zeros_like(hidden_states)
        for expert in range(len(self.weights[0])):
            tokens, places = torch.where(top_k_index == expert)
            both = self._product(hidden_states[tokens], 0, expert)
            rows = self._product(of._apply_gate(both) if of.has_gate else of.act_fn(both), 1, expert)
            if getattr(of, "has_post_expert_norm", False):
                rows = of.post_expert_norm(rows)
            total.index_add_(0, tokens, (rows * top_k_weights[tokens, places, None]).to(total.dtype))
        return total

    def _product(self, rows: Tensor, which: int, expert: int) -> Tensor:
        bias = self.module._parameters[f"{self.names[which]}_bias"][expert] if self.module.has_bias else None
        return functional.linear(_rounded(rows, self.dtype), self.weights[which][expert], bias)
