"""Calls of a model on a calibration batch: what its linear layers get, and what quantisation changes in them."""

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from opmux.errors import invalid


@dataclass
class Observed:
    """What was seen of one layer.

    Attributes:
        largest: The largest magnitude in its inputs.
        changed: The sum of squares of the change in its results.
        total: The sum of squares of its results.
        compared: Whether its results were compared with those of its twin.
    """

    largest: float = 0.0
    changed: float = 0.0
    total: float = 0.0
    compared: bool = False

    @property
    def error(self) -> float | None:
        """The relative change; None if nothing was compared."""
        if not self.compared:
            return None
        return math.sqrt(self.changed / self.total) if self.total else 0.0


def called_with(calibration: Any) -> Callable[[nn.Module], Any]:
    """The call of the model that a calibration stands for: a tensor, a tuple, a mapping, or a function of the model."""
    if isinstance(calibration, Tensor):
        return lambda model: model(calibration)
    if isinstance(calibration, Mapping):
        return lambda model: model(**calibration)
    if isinstance(calibration, tuple):
        return lambda model: model(*calibration)
    if callable(calibration):
        return calibration  # type: ignore[no-any-return]
    expected = "a tensor, a tuple or mapping of arguments, or a function of the model"
    remedy = "pass what the model is called with"
    raise invalid("quantize_", "calibration", expected, type(calibration).__name__, remedy)


def repeated(run: Callable[[nn.Module], Any]) -> Callable[[nn.Module], Any]:
    """A calibration that is run several times, with a check that the model gets the same tensors each time.

    Raises:
        InvalidArgument: In a later run, if it gets others.
    """
    runs: list[list[Tensor]] = []

    def again(model: nn.Module) -> Any:
        given: list[Tensor] = []

        def before(_: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
            given.extend(one.clone() for one in (*arguments, *named.values()) if isinstance(one, Tensor))

        hook = model.register_forward_pre_hook(before, with_kwargs=True)
        try:
            result = run(model)
        finally:
            hook.remove()
        runs.append(given)
        if len(given) != len(runs[0]) or not all(map(_same, given, runs[0])):
            raise invalid(
                "quantize_", "calibration", "a function that calls the model with the same inputs each time",
                "other inputs in a later call", "draw the batch before, outside of the function",
            )  # fmt: skip
        del runs[1:]
        return result

    return again


def _same(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors are equal, NaN to NaN."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    return bool(((one == other) | ((one != one) & (other != other))).all())  # noqa: PLR0124  # of NaN


def observe(
    model: nn.Module, run: Callable[[nn.Module], Any], twins: Mapping[nn.Module, nn.Module | None]
) -> tuple[Tensor, dict[nn.Module, Observed]]:
    """Call a model in evaluation mode and without gradients, and watch some of its layers.

    Args:
        model: The model.
        run: Calls it.
        twins: The layers to watch, each with one to compare with, or None.

    Returns:
        The first floating-point tensor of the result, and what was seen of each layer that was called.

    Raises:
        InvalidArgument: If there is no such tensor in the result.
    """
    seen: dict[nn.Module, Observed] = {}

    def after(layer: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any], result: Tensor) -> None:
        x = arguments[0] if arguments else named["input"]
        own = seen.setdefault(layer, Observed())
        if x.numel():
            largest = float(x.detach().abs().max())
            if math.isnan(largest) or largest > own.largest:  # `max` would forget NaN
                own.largest = largest
        twin = twins[layer]
        if twin is not None:
            own.changed += float((twin(x).double() - result.double()).square().sum())
            own.total += float(result.double().square().sum())
            own.compared = True

    hooks = [layer.register_forward_hook(after, with_kwargs=True) for layer in twins]
    try:
        with _evaluating(model), torch.no_grad():
            result = _first(run(model))
    finally:
        for hook in hooks:
            hook.remove()
    if result is None:
        raise invalid(
            "quantize_", "calibration", "a call whose result holds a floating-point tensor", "one without",
            "pass inputs for which the model returns logits, or a function that returns them",
        )  # fmt: skip
    return result, seen


def relative_error(got: Tensor, expected: Tensor) -> float:
    """The root mean square of a difference, over that of what was expected."""
    total = float(expected.double().square().sum())
    return math.sqrt(float((got.double() - expected.double()).square().sum()) / total) if total else 0.0


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    """The model in evaluation mode; each module's own mode is restored."""
    before = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in before:
            module.training = training


def _first(result: Any) -> Tensor | None:
    """The first floating-point tensor in a result."""
    if isinstance(result, Tensor):
        return result if result.is_floating_point() else None
    inner = result.values() if isinstance(result, Mapping) else result if isinstance(result, list | tuple) else ()
    return next((found for found in map(_first, inner) if found is not None), None)
