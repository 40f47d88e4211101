"""`quantize_`: the linear layers of a model, converted in place."""

import contextlib
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor, nn

import opmux
from opmux.errors import UnsupportedCall, invalid
from opmux.nn.calibration import Observed, called_with, observe, relative_error, repeated
from opmux.nn.quantizable import check_blocks, codes_dtype
from opmux.nn.quantization_choice import DEFAULT_SKIP, Found, judged, other_weights
from opmux.nn.quantization_report import CONVERTED, LEFT, QuantizationReport, QuantizedRow
from opmux.nn.quantized import QuantizedLinear
from opmux.nn.quantized_product import quantize_rows

_FREED = nn.Linear(1, 1, device="meta")
"""In the place of a layer that was converted and freed."""


def quantize_(
    model: nn.Module,
    codes: torch.dtype | str = "fp8",
    *,
    activations: str = "token",
    weights: str = "channel",
    skip: Mapping[str, str] | Sequence[str] = DEFAULT_SKIP,
    calibration: Any = None,
    keep: bool = False,
    backend: str | None = None,
) -> QuantizationReport:
    """Convert the linear layers of a model to `QuantizedLinear`, in place.

    `torch.nn.Linear` and `opmux.nn.Linear` are converted, no subclass of them. A layer stays as it is if its path
    matches a pattern of ``skip``, its weight is shared with something that is not converted (an embedding), is not
    finite, empty, on the meta device or of a dtype that cannot be quantised, it has hooks, its forward was replaced,
    or the forward of the module that holds it reads its weight. A layer in several places is converted once; layers
    that share a weight share the codes. All layers are judged before any is converted.

    Args:
        model: The model; not a linear layer itself.
        codes: As in `QuantizedLinear`.
        activations: As in `QuantizedLinear`; ``"static"`` needs a calibration, whose largest magnitudes give scales.
        weights: As in `QuantizedLinear`.
        skip: Patterns of paths as `fnmatch` has them, with a reason each or without: ``{**DEFAULT_SKIP,
            "*.down_proj": "too coarse"}``. ``()`` skips nothing.
        calibration: What the model is called with to estimate errors, in evaluation mode and without gradients: a
            tensor, a tuple of positional or a mapping of keyword arguments; or a function that is called with the model
            and returns a result of it, two or three times: it calls the model with the same inputs each time. None
            estimates nothing.
        keep: Whether the report keeps the original layers for its ``undo``; they stay in memory then. Without it and
            without a calibration, each is freed as soon as it is converted, and what is converted stays so if memory
            runs out; else all are put back if anything raises.
        backend: As in `QuantizedLinear`.

    Returns:
        What was converted, what was left and why, the errors, and the size before and afterwards.

    Raises:
        InvalidArgument: If the model is no module or a linear layer itself, codes, activations or weights are none of
            those of `QuantizedLinear`, skip holds anything but strings, static activations have no calibration or one
            that brings a layer nothing or no finite numbers, a calibration gives an empty result or calls the model
            with other inputs the second time, or a tensor of the model is sharded. The model is unchanged then.
        UnknownBackend: If no implementation of `opmux.quantize` has the backend's name. The model is unchanged then.
    """
    if not isinstance(model, nn.Module) or isinstance(model, nn.Linear):
        got = "a linear layer itself" if isinstance(model, nn.Linear) else type(model).__name__
        remedy = "use QuantizedLinear.from_linear for one layer" if isinstance(model, nn.Linear) else "pass the model"
        raise invalid("quantize_", "model", "a module that holds linear layers", got, remedy)
    check_blocks("quantize_", activations, weights)
    _check_skip(skip)
    stored = codes_dtype("quantize_", codes, "cpu")
    if backend is not None:
        _check_backend(stored, activations, backend)
    if activations == "static" and calibration is None:
        remedy = "pass inputs of the model, or choose activations='token'"
        raise invalid("quantize_", "calibration", "inputs to find static scales with", "None", remedy)
    _refuse_sharded(model)
    found = judged(model, skip)
    chosen = [one for one in found if one.reason is None]
    notes = _found_before(model, chosen)
    report = QuantizationReport(bytes_before=_bytes(model))
    run = None if calibration is None else repeated(called_with(calibration))
    how: dict[str, Any] = {"codes": codes, "activations": activations, "weights": weights, "backend": backend}
    observed: dict[nn.Module, Observed] = {}
    try:
        scales = _static_scales(model, run, chosen, codes) if activations == "static" and run is not None else {}
        freed = run is None and not keep
        _convert(chosen, how, scales, free=freed)
        if run is not None:
            result, observed = observe(model, run, {one.linear: one.made for one in chosen})
            if not result.numel():
                got, remedy = f"shape {list(result.shape)}", "pass a batch with at least one row"
                raise invalid("quantize_", "calibration", "a call whose result holds numbers", got, remedy)
            _swap(chosen)
            report.output_error = relative_error(observe(model, run, {})[0], result)
        elif keep:
            _swap(chosen)
    except BaseException:
        _put_back([one for one in chosen if one.linear is not _FREED])
        raise
    report.rows = [_row(one, observed) for one in found]
    report.bytes_after = _bytes(model)
    report.notes += [*notes, *_not_finite(chosen, observed), *other_weights(model), *_unused(skip, found)]
    if keep:
        report._put_back = lambda: _put_back(chosen)
    return report


def _check_skip(skip: Any) -> None:
    inner = [*skip.keys(), *skip.values()] if isinstance(skip, Mapping) else skip
    if isinstance(inner, str) or not isinstance(inner, Sequence) or not all(isinstance(one, str) for one in inner):
        expected = "a mapping or sequence of strings"
        raise invalid("quantize_", "skip", expected, repr(skip), "as in skip=['*.down_proj']; () skips nothing")


def _check_backend(codes: torch.dtype, activations: str, backend: str) -> None:
    """Name the backend in a small call: it may not take a call on the CPU, but its name must be known.

    Raises:
        UnknownBackend: If it is not.
    """
    with contextlib.suppress(UnsupportedCall):
        quantize_rows(torch.zeros(1, 1), codes, activations, torch.ones(1, 1), backend)


def _convert(chosen: list[Found], how: dict[str, Any], scales: dict[nn.Module, float], free: bool) -> None:
    """Make the layers; with ``free``, put each in its places at once, and forget the original."""
    uses = Counter(id(one.linear.weight) for one in chosen)
    shared: dict[Tensor, QuantizedLinear] = {}
    for one in chosen:
        own = dict(how, backend=how["backend"] or getattr(one.linear, "backend", None))
        made = QuantizedLinear.from_linear(one.linear, **own, input_scale=scales.get(one.linear))
        if uses[id(one.linear.weight)] > 1:
            twin = shared.setdefault(one.linear.weight, made)
            made.weight, made.weight_scale = twin.weight, twin.weight_scale
        one.made = made
        if free:
            _swap([one])
            one.linear = _FREED


def _swap(chosen: list[Found]) -> None:
    for one in chosen:
        for holder, name, _ in one.places:
            holder._modules[name] = one.made


def _put_back(chosen: list[Found]) -> None:
    for one in chosen:
        for holder, name, _ in one.places:
            holder._modules[name] = one.linear


def _static_scales(
    model: nn.Module, run: Callable[[nn.Module], Any], chosen: list[Found], codes: torch.dtype | str
) -> dict[nn.Module, float]:
    """The scales that the calibration's largest magnitudes give.

    Raises:
        InvalidArgument: If the calibration does not reach a layer.
    """
    _, observed = observe(model, run, {one.linear: None for one in chosen})
    scales: dict[nn.Module, float] = {}
    for one in chosen:
        seen = observed.get(one.linear)
        if seen is not None and seen.largest == 0:
            expected, got = "inputs that bring every layer values other than zero", f"none for {one.path}"
            remedy = "the largest magnitude gives the scale: calibrate with other inputs, or skip this one"
            raise invalid("quantize_", "calibration", expected, got, remedy)
        if seen is None or not seen.largest < float("inf"):
            got = f"none for {one.path}" if seen is None else f"{seen.largest} as the largest magnitude for {one.path}"
            remedy = "calibrate with inputs that reach every layer, or skip this one"
            raise invalid("quantize_", "calibration", "finite inputs that reach every layer", got, remedy)
        dtype = codes_dtype("quantize_", codes, one.linear.weight.device)
        _, scale = opmux.quantize(torch.tensor([[seen.largest]]), dtype=dtype, block=(-1, -1), backend="reference")
        scales[one.linear] = float(scale)
    return scales


def _row(one: Found, observed: dict[nn.Module, Observed]) -> QuantizedRow:
    if one.reason is not None:
        return QuantizedRow(one.path, LEFT, one.reason, one.shape)
    more = [path for _, _, path in one.places[1:]]
    seen = observed.get(one.linear)
    remark = f"also as {', '.join(more)}" if more else ""
    return QuantizedRow(one.path, CONVERTED, remark, one.shape, None if seen is None else seen.error)


def _found_before(model: nn.Module, chosen: list[Found]) -> list[str]:
    """Notes on what was done to the model before: layers that are converted already, and forwards that were replaced.

    A forward that was put in the place of a module's own may have been made for the layers as they were.
    """
    notes = []
    if already := sum(isinstance(module, QuantizedLinear) for module in model.modules()):
        are, they = ("layer is", "it stays as it is") if already == 1 else ("layers are", "they stay as they are")
        notes.append(f"{already} {are} QuantizedLinear already: {they}")
    others = ((path, one) for path, one in model.named_modules() if not isinstance(one, nn.Linear | QuantizedLinear))
    replaced = next((path or "the model" for path, one in others if "forward" in vars(one)), None)
    if chosen and replaced is not None:
        notes.append(
            f"the forward of {replaced} was replaced before: replace it again, now that layers are converted; if it was"
            " by opmux_transformers.patch(model), call that again"
        )
    return notes


def _not_finite(chosen: list[Found], observed: dict[nn.Module, Observed]) -> list[str]:
    """A note on layers that the calibration brought NaN or infinity."""
    wrong = [one.path for one in chosen if one.linear in observed and not observed[one.linear].largest < float("inf")]
    if not wrong:
        return []
    paths = ", ".join([*wrong[:3], "..."] if len(wrong) > 3 else wrong)
    return [f"the calibration brings NaN or infinity to {paths}: no error is known then; calibrate with finite inputs"]


def _unused(skip: Mapping[str, str] | Sequence[str], found: list[Found]) -> list[str]:
    """Notes on patterns of the caller's own that no layer matches: they may be mistyped."""
    paths = [path for one in found for _, _, path in one.places]
    own = [p for p in skip if p not in DEFAULT_SKIP and not any(fnmatchcase(path, p) for path in paths)]
    return [f"no linear layer matches the pattern {pattern!r} of skip" for pattern in own]


def _bytes(model: nn.Module) -> int:
    return sum(p.numel() * p.element_size() for p in model.parameters())


def _refuse_sharded(model: nn.Module) -> None:
    home = sys.modules.get("torch.distributed.tensor")
    if home is not None and any(isinstance(p, home.DTensor) for p in model.parameters()):
        remedy = "quantise the model first, then shard it"
        raise invalid("quantize_", "model", "a model of whole parameters", "sharded ones (DTensor)", remedy)
