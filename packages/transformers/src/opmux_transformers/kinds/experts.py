"""Mixtures of experts that store their weights together, through transformers' experts registry, verified numerically.

A module is judged as it is called: by its class's forward, under transformers' eager implementation and under opmux's,
with random weights of a few experts. The router is the model's own and is not concerned.

Experts of transformers' fine-grained fp8 are judged twice: with weights of full precision in the place of their codes,
which their forward takes too, and then with random codes and scales, as far as rounding the rows between the products
permits.
"""

import copy
import functools
import inspect
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

import opmux
from opmux.nn.quantized_product import ACTIVATIONS, WEIGHTS, scale_shape
from opmux_transformers import agreement, experts
from opmux_transformers.experts import GATES, HELD, NAME, SCALES, Experts, Held, up_name
from opmux_transformers.finegrained import rounding_fp8_linear, with_definition
from opmux_transformers.foreign import whose_forward
from opmux_transformers.kinds.kind import Kind
from opmux_transformers.registries import NAMED, REGISTRIES, asks_fp8_registry, asks_registry
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

_CODES_APART = 0.05
"""The allowed relative difference with codes: a row between the products may be rounded to a neighbouring code."""

_STAYS = "quantised: it computes as before"

_seen: list[nn.Module] = []


def recording_experts(module: nn.Module, *arguments: Tensor) -> Tensor:
    """`experts.compute_experts` for the finding that a module holds, with its calls recorded."""
    held: Held = vars(module)[HELD]
    assert held.found is not None
    _seen.append(module)
    return experts.compute_experts(module, held.found, *arguments)


def register() -> None:
    """Put opmux's experts functions into transformers' registries; models that do not name them are not affected."""
    for registry in REGISTRIES:
        registry.register(NAME, experts.opmux_experts)
        registry.register(_RECORDING, recording_experts)


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
    quantised = any(not p.is_floating_point() or p.element_size() < 2 for p in module.parameters())
    if quantised and not asks_fp8_registry(module):
        return _STAYS
    if not asks_registry(module):
        return "it computes its experts in its own code, not through transformers' experts registry"
    of: Any = module
    up = of._parameters.get("gate_up_proj" if of.has_gate else "up_proj")
    if up is None or of._parameters.get("down_proj") is None:
        return "its weights are not parameters of the module itself"
    if agreement.on_meta(module):
        return "it is on the meta device, where nothing can be checked: load the weights first"
    if getattr(of, "_is_expert_parallel", False) or vars(module).get("num_experts") != len(up):
        return "its experts are spread over several devices"
    activations = _activations(module, up_name(module)) if quantised else ""
    if quantised and activations not in ACTIVATIONS:
        return activations
    try:
        with still():
            few = functools.partial(_with_few_experts, module, len(up))
            found = _judge(few(), up, Experts("", None, activations, agreement.numbers(module)))
            if quantised and isinstance(found, Experts):
                return _difference_of_codes(few(codes=True), found, up) or found
            return found
    except Exception as error:  # a forward may raise anything
        return agreement.raised(module, (), error)


def _activations(module: Any, up: str) -> str:
    """Which values of a row share a scale in a quantised module, as it states; or why it is left."""
    if module.activation_scheme != "dynamic":
        return "quantised: the scales of its input are static, one for each expert"
    for name in (up, "down_proj"):
        weight, scale = module._parameters[name], module._parameters.get(name + SCALES)
        if weight.dtype not in (torch.float8_e4m3fn, torch.float8_e4m3fnuz) or scale is None:
            return _STAYS
        if weight.dtype != (own := opmux.fp8_dtype(weight.device)):
            found = f"quantised: its codes are {weight.dtype}, and the device multiplies {own}".replace("torch.", "")
            return f"{found}: convert weight and scales with opmux.convert_fp8"
        _, n, k = weight.shape
        allowed = {scale_shape(n, k, block) for block in WEIGHTS.values()}
        if tuple(scale.shape[1:]) not in allowed:
            return f"quantised: its scales {list(scale.shape)} are not those of a tensor, channels, or 128x128 blocks"
    if module.block_size is None:
        return "token"
    return "block" if tuple(module.block_size)[1] == 128 else _STAYS


def _judge(module: nn.Module, like: Tensor, own: Experts) -> Experts | str:
    """Judge a mixture of few experts in float32.

    Args:
        module: The mixture.
        like: A weight of the whole one.
        own: The finding if the module's own gate is called.
    """
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
    reason = difference(own) or trial.written
    if not _seen:
        return "its forward does not ask transformers' experts registry"
    if reason is not None or activation is None or not of.has_gate:
        return reason or own
    gated = (replace(own, gate=gate, activation=activation) for gate in GATES)
    return next((found for found in gated if difference(found) is None), own)


def _difference_of_codes(module: Any, found: Experts, like: Tensor) -> str | None:
    """How a mixture of few experts with random codes and scales differs from its replacement."""
    values = {}
    for seed, name in enumerate((up_name(module), "down_proj")):
        weight, scale = module._parameters[name], module._parameters[name + SCALES]
        numbers = agreement.random(*weight.shape, like=like, dtype=torch.float32, seed=seed)
        values[name], _ = opmux.quantize(numbers, dtype=weight.dtype, block=(-1, -1), backend="reference")
        factors = agreement.random(*scale.shape, like=like, dtype=torch.float32, seed=2 + seed).abs() + 1
        factors = factors / (64 * weight.shape[2] ** 0.5)
        if scale.dtype == torch.float8_e8m0fnu:
            factors = torch.exp2(factors.log2().round())
        values[name + SCALES] = factors.to(scale.dtype)
    trial = Trial.own(module, **values)
    definition = rounding_fp8_linear(found.codes)

    def defined(made: Any) -> None:
        _name(made, "eager")
        for name, function in inspect.getmembers(type(made), inspect.isfunction):
            if (new := with_definition(function, definition)) is not function:
                vars(made)[name] = new.__get__(made)

    hidden = like.shape[1 if module.is_transposed else 2]
    for tokens in (_FEW, _MANY):
        given = _arguments(tokens, hidden, module.num_experts, like)
        ours = trial.where(functools.partial(_name, name=_RECORDING, found=found))(*given)
        far = agreement.distance(ours, trial.where(defined)(*given))
        if isinstance(far, str):
            return far
        if far > _CODES_APART:
            return f"on random codes it differs from the replacement by {far:.2g} of its magnitude"
    return None


def _with_few_experts(module: nn.Module, experts: int, codes: bool = False) -> nn.Module:
    """A module like this one with a few uninitialised experts, on the meta device.

    Args:
        module: The module.
        experts: How many it has.
        codes: Whether codes stay codes; else they become float32.
    """
    few = min(experts, _EXPERTS)

    def fewer(parameter: nn.Parameter | None) -> nn.Parameter | None:
        if parameter is None or parameter.ndim < 2 or len(parameter) != experts:
            return parameter
        dtype = parameter.dtype if codes or parameter.element_size() > 1 else torch.float32
        made = parameter.new_empty((few, *parameter.shape[1:]), device="meta", dtype=dtype)
        return nn.Parameter(made, requires_grad=False)

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
            if asks_registry(module):
                before = vars(vars(module)["config"]).get(NAMED)
                patch.set(module, HELD, Held(found.get(path), before), self.name)
        switch(survey, patch, found, NAMED, NAME, self.name)

    def op(self, finding: Experts) -> str:
        """The products, and the gate between them."""
        gate = finding.gate or "its own gate"
        if finding.codes:
            return f"scaled_grouped_linear, scaled_masked_grouped_linear, {gate} ({finding.codes})"
        return f"grouped_linear, masked_grouped_linear, {gate}"


EXPERTS = ExpertsKind()
