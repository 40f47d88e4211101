"""Mixtures of experts that store their weights together, through transformers' experts registry, verified numerically.

A module is judged as it is called: by its class's forward, under transformers' eager implementation and under opmux's,
with random weights of a few experts. The router is the model's own and is not concerned.
"""

import copy
import functools
import inspect
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

from opmux_transformers import agreement, experts
from opmux_transformers.experts import GATES, HELD, NAME, NAMED, Experts, Held
from opmux_transformers.foreign import whose_forward
from opmux_transformers.kinds.kind import Kind
from opmux_transformers.stand_ins import switch
from opmux_transformers.survey import Survey
from opmux_transformers.trial import Trial, difference_in_training, still
from opmux_transformers.undo import Patch

_RECORDING = "opmux_recording"
"""The name of the experts function that a check runs under: opmux's own, with its calls recorded."""

_FEW, _MANY = 7, 40
"""Tokens of a check: for the masked product and for the sorted one."""

_EXPERTS, _TOP_K = 4, 2
"""Experts of a check: so few that the float32 copy of a large mixture stays small."""

_LARGE = 100.0
"""Factor on the input of a second check, which finds clamped values."""

_seen: list[nn.Module] = []


def recording_experts(module: nn.Module, *arguments: Tensor) -> Tensor:
    """`experts.compute_experts` for the finding that a module holds, with its calls recorded."""
    held: Held = vars(module)[HELD]
    assert held.found is not None
    _seen.append(module)
    return experts.compute_experts(module, held.found, *arguments)


def register() -> None:
    """Put opmux's experts functions into transformers' registry; models that do not name them are not affected."""
    ALL_EXPERTS_FUNCTIONS.register(NAME, experts.opmux_experts)
    ALL_EXPERTS_FUNCTIONS.register(_RECORDING, recording_experts)


def holds_experts(module: nn.Module) -> bool:
    """Whether a module holds several matrices in one tensor, and names experts.

    Convolutions and some attentions also hold tensors of three dims, but have no attribute or parameter that names
    experts.
    """
    if not any(p is not None and p.ndim == 3 and min(p.shape) > 1 for p in module._parameters.values()):
        return False
    return any("expert" in name for name in (*vars(module), *inspect.signature(type(module).forward).parameters))


def find_experts(module: nn.Module) -> Experts | str:
    """Judge a module that `holds_experts` on random input.

    Returns:
        How its experts are computed, or why it is left unchanged.
    """
    if (foreign := whose_forward(module)) is not None:
        return foreign
    if any(not p.is_floating_point() or p.element_size() < 2 for p in module.parameters()):
        return "quantised: it computes as before"
    if not experts.asks_registry(module):
        return "it computes its experts in its own code, not through transformers' experts registry"
    of: Any = module
    up = of._parameters.get("gate_up_proj" if of.has_gate else "up_proj")
    if up is None or of._parameters.get("down_proj") is None:
        return "its weights are not parameters of the module itself"
    if agreement.on_meta(module):
        return "it is on the meta device, where nothing can be checked: load the weights first"
    if getattr(of, "_is_expert_parallel", False) or vars(module).get("num_experts") != len(up):
        return "its experts are spread over several devices"
    try:
        with still():
            return _judge(_with_few_experts(module, len(up)), up, agreement.numbers(module))
    except Exception as error:  # a forward may raise anything
        return agreement.raised(module, (), error)


def _judge(module: nn.Module, like: Tensor, fixed: tuple[tuple[str, Any], ...]) -> Experts | str:
    """Judge a mixture of few experts in float32; ``like`` is a weight of the whole one."""
    of: Any = module
    hidden = like.shape[1 if of.is_transposed else 2]
    trial = Trial.random(module, like, ("", *(name for name, _ in module.named_children())))
    few, many = (_arguments(tokens, hidden, of.num_experts, like) for tokens in (_FEW, _MANY))
    large = (_LARGE * few[0], *few[1:])
    eager = trial.where(functools.partial(_name, name="eager"))
    activation = experts.activation_of(module)

    def difference(found: Experts) -> str | None:
        """How the module differs if its experts are computed so; None if it agrees."""
        ours = trial.where(functools.partial(_name, name=_RECORDING, found=found))
        differences = (agreement.difference(ours(*given), eager(*given)) for given in (few, large))
        return next(filter(None, differences), None) or difference_in_training(
            trial, like.device, lambda: eager(*many), lambda: ours(*many)
        )

    _seen.clear()
    own = Experts("", None, fixed)
    reason = difference(own) or trial.written
    if not _seen:
        return "its forward does not ask transformers' experts registry"
    if reason is not None or activation is None or not of.has_gate:
        return reason or own
    gated = (Experts(gate, activation, fixed) for gate in GATES)
    return next((found for found in gated if difference(found) is None), own)


def _with_few_experts(module: nn.Module, experts: int) -> nn.Module:
    """A module like this one with a few uninitialised experts, on the meta device."""
    few = min(experts, _EXPERTS)

    def fewer(parameter: nn.Parameter | None) -> nn.Parameter | None:
        if parameter is None or parameter.ndim < 2 or len(parameter) != experts:
            return parameter
        return nn.Parameter(parameter.new_empty((few, *parameter.shape[1:]), device="meta"))

    made = type(module).__new__(type(module))
    vars(made).update(vars(module))
    vars(made)["_parameters"] = {name: fewer(parameter) for name, parameter in module._parameters.items()}
    vars(made)["num_experts"] = few
    return made


def _arguments(tokens: int, hidden: int, experts: int, like: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Tokens, the experts of each, all different, and their factors."""
    x = agreement.random(tokens, hidden, like=like, dtype=torch.float32)
    order = agreement.random(tokens, experts, like=like, dtype=torch.float32, seed=agreement.SEED + 1).argsort(-1)
    factors = agreement.random(*order.shape, like=like, dtype=torch.float32, seed=agreement.SEED + 2)
    return x, order[:, :_TOP_K].contiguous(), factors[:, :_TOP_K].contiguous()


def _name(made: nn.Module, name: str, found: Experts | None = None) -> None:
    """Have a copy's configuration name an experts function, and hold a finding."""
    config = copy.copy(vars(made)["config"])
    vars(config)[NAMED] = name
    vars(made).update({"config": config, HELD: Held(found, None)})


class ExpertsKind(Kind[Experts]):
    """Mixtures of experts, through transformers' registry."""

    name = option = "experts"

    def find(self, survey: Survey) -> Iterable[str]:
        """Modules that hold several matrices in one tensor."""
        return (path for path, module in survey.modules.items() if holds_experts(module))

    def judge(self, survey: Survey, path: str) -> Experts | str:
        """Judge one of all mixtures that differ only in the values of their tensors."""
        module = survey.modules[path]
        return survey.once(("experts", agreement.signature_of(module)), lambda: find_experts(module))

    def replace(self, survey: Survey, patch: Patch) -> None:
        """Name opmux's experts in the configurations; a mixture that is left keeps what they named before."""
        found = survey.found(self)
        for path in survey.results[self.name] if found else ():
            module = survey.modules[path]
            if experts.asks_registry(module):
                before = vars(vars(module)["config"]).get(NAMED)
                patch.set(module, HELD, Held(found.get(path), before), self.name)
        switch(survey, patch, found, NAMED, NAME, self.name)

    def op(self, finding: Experts) -> str:
        """The products, and the gate between them."""
        return f"grouped_linear, masked_grouped_linear, {finding.gate or 'its own gate'}"


EXPERTS = ExpertsKind()
