"""Quantised linear layers: those that multiply 8-bit codes by 8-bit codes, verified numerically.

A candidate states its numbers of features, and holds 8-bit codes of that shape and their scales. What it does with its
input is read from what quantisers state: transformers' fine-grained fp8, compressed-tensors, and `opmux.nn`. Then its
own forward is called with random codes and scales, on input that can be quantised without rounding, so that only what
it computes matters and not how it rounds. A kernel that transformers would fetch from its hub is replaced by its
definition in torch for that call: what its forward hands over is what is compared. Linears of compressed-tensors
compute nothing before the library has decompressed them: its own function decompresses the copy that is called.
"""

import functools
import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

import opmux
from opmux.nn import QuantizedLinear
from opmux.nn.quantized_product import WEIGHTS, scale_shape
from opmux_transformers import agreement, compressed
from opmux_transformers.coded import CODES, OWN, SCALE, Codes, CompressedCodes, KeptScale, forward_of, matrix
from opmux_transformers.finegrained import fp8_linear, with_definition
from opmux_transformers.foreign import whose_forward
from opmux_transformers.kinds.gate import is_linear
from opmux_transformers.kinds.kind import Kind
from opmux_transformers.survey import Survey
from opmux_transformers.trial import Trial, still
from opmux_transformers.undo import Patch

STAYS = "quantised: it computes as before"
_SCALES = ("weight_scale_inv", "weight_scale", "scale")
"""Names of a weight's scales."""
_INPUT_SCALES = ("activation_scale", "input_scale")
"""Names of the scale of static activations."""
_CUT = 2.0**-8
"""What a GPU's matrix units may cut off a sum of products of 8-bit floats, over the root of the sum of their squares.

Hopper's keep 14 bits of the largest term of an addition. A block of 128 columns is added up by few additions, and the
blocks by float32, so that the error grows like that root: with the square root of the columns. 14 units of 2**-13 of it
were measured on an H200 and 32 are allowed, as the conformance kit does.
"""
_ROUNDED = 2.0**-20
"""The same for the roundings of float32, times the square root of the columns: each rounds a sum of such terms."""
_ROWS = 5


def is_quantised(module: nn.Module) -> bool:
    """Whether a linear stores its weight in anything but floating-point numbers of 16 bits or more, or has a scheme."""
    if not is_linear(module):
        return False
    if compressed.scheme_of(module) is not None:
        return True
    if type(module) is nn.Linear:
        return False
    held = [*module.parameters(recurse=False), *module.buffers(recurse=False)]
    return any(not t.is_floating_point() or t.element_size() < 2 for t in held)


def find_codes(module: Any) -> Codes | str:
    """Judge a quantised linear.

    Returns:
        How it stores its codes, or why it is left unchanged.
    """
    stated = _stated(module)
    if isinstance(stated, str):
        return stated
    if not isinstance(stated, CompressedCodes) and (foreign := whose_forward(module)) is not None:
        return foreign
    if agreement.on_meta(module):
        return "it is on the meta device, where nothing can be checked: load the weights first"
    weight, own = module._parameters["weight"], opmux.fp8_dtype(module._parameters["weight"].device)
    if weight.dtype in (torch.float8_e4m3fn, torch.float8_e4m3fnuz) and weight.dtype != own:
        found = f"its codes are {weight.dtype}, and the device multiplies {own}".replace("torch.", "")
        return f"{found}: convert weight and scales with opmux.convert_fp8"
    try:
        with still():
            return _difference(module, stated) or stated
    except Exception as error:  # a forward may raise anything
        return agreement.raised(module, (), error)


def _stated(module: Any) -> Codes | str:
    """What a module says of its codes; or why they are none that opmux multiplies."""
    compressing = compressed.scheme_of(module) is not None
    if compressing and (flaw := compressed.flaw_of(module)) is not None:
        return f"{STAYS}: {flaw}"
    weight = module._parameters.get("weight")
    known = (torch.int8, torch.float8_e4m3fn, torch.float8_e4m3fnuz)
    if weight is None or weight.dtype not in known or weight.shape != (module.out_features, module.in_features):
        return STAYS
    held = {**module._parameters, **module._buffers}
    scale = next((name for name in _SCALES if held.get(name) is not None), None)
    if scale is None:
        return STAYS
    input_scale = next((name for name in _INPUT_SCALES if held.get(name) is not None), "")
    activations = _activations(module, bool(input_scale))
    if activations is None:
        return STAYS
    shape = tuple(matrix(held[scale]).shape) if held[scale].ndim <= 2 else ()
    allowed = {scale_shape(module.out_features, module.in_features, block) for block in WEIGHTS.values()}
    if shape not in allowed:
        return f"quantised: its scales {list(held[scale].shape)} are not those of a tensor, channels, or 128x128 blocks"
    if input_scale and held[input_scale].numel() != 1:
        return "quantised: the scale of its input is not a single number"
    if compressing:
        return CompressedCodes(scale, input_scale, activations, kept=held[scale].dtype != torch.float32)
    return Codes(scale, input_scale, activations, isinstance(module, QuantizedLinear))


def _activations(module: Any, static: bool) -> str | None:
    """Which values of its input share a scale, as the module states; None if it does not, or leaves its input alone."""
    if isinstance(module, QuantizedLinear):
        return module.activations
    if isinstance(scheme := getattr(module, "activation_scheme", None), str) and hasattr(module, "block_size"):
        if static or scheme == "static":
            return "static" if static and scheme == "static" else None
        return "token" if module.block_size is None else "block" if tuple(module.block_size)[1] == 128 else None
    return compressed.activations_of(module, static) if compressed.scheme_of(module) is not None else None


def _difference(module: Any, codes: Codes) -> str | None:
    """How a module with random codes differs from its replacement, on input that is quantised without rounding."""
    values = _random_values(module, codes)
    x = _exact_input(module, codes)
    step = _step(module, codes)
    allowed = _allowed(values["weight"], matrix(values[codes.scale]), x)
    for training in (False, True):
        found = []  # compressed-tensors finds the scales of tokens in three dims, and one scale for all rows in two
        for prepare, given in ((_own_way(module, codes), x), (functools.partial(_give, forward_of(codes)), x * step)):
            trial = Trial.own(module, **values).where(prepare)
            trial.shared.training = training
            found.append(trial(given[None])[0] if isinstance(codes, CompressedCodes) else trial(given))
        far = agreement.distance(found[1], found[0])
        if isinstance(far, str):
            return far
        excess = float(((found[1] - found[0]).abs() / allowed).nan_to_num(nan=math.inf).max())
        if excess > 1:
            return (
                f"on random codes it differs from the replacement by {far:.2g} of its magnitude, {excess:.2g} times"
                f" what sums of {module.in_features} products may differ by"
            )
    return None


def _allowed(weight: Tensor, scale: Tensor, x: Tensor) -> Tensor:
    """By how much two sums of these products may differ, ``(rows, n)``."""
    terms = opmux.dequantize(weight, scale, out_dtype=torch.float32, backend="reference")
    root = (x.double().square() @ terms.double().square().T).sqrt()
    cut = _CUT if weight.is_floating_point() and weight.device.type != "cpu" else 0.0
    found: Tensor = root * (cut + _ROUNDED * math.sqrt(x.shape[1]))
    return found


def _own_way(module: Any, codes: Codes) -> Callable[[Any], None]:
    """What has a copy compute as the module does."""
    if isinstance(codes, CompressedCodes):
        return compressed.decompress
    return functools.partial(_give, with_definition(type(module).forward, fp8_linear))


def _step(module: Any, codes: Codes) -> float:
    """The step of its dynamic activations over that of opmux's."""
    rounds = isinstance(codes, CompressedCodes) and codes.activations != "static"
    return compressed.INT8_STEP if rounds and module._parameters["weight"].dtype == torch.int8 else 1.0


def _give(forward: Any, made: Any) -> None:
    codes = getattr(forward, CODES, None)
    if isinstance(codes, CompressedCodes) and codes.kept:
        vars(made)[SCALE] = KeptScale(codes.scale)
    made.forward = forward.__get__(made)


def _random_values(module: Any, codes: Codes) -> dict[str, Tensor]:
    """Random codes, scales and a random bias for a module, as its own tensors have them."""
    weight = module._parameters["weight"]
    held = {**module._parameters, **module._buffers}
    numbers = agreement.random(*weight.shape, like=weight, dtype=torch.float32, seed=1)
    made = {"weight": opmux.quantize(numbers, dtype=weight.dtype, block=(-1, -1), backend="reference")[0]}
    scale = held[codes.scale]
    factors = agreement.random(*scale.shape, like=weight, dtype=torch.float32, seed=2).abs() / 64 + 1 / 64
    if scale.dtype == torch.float8_e8m0fnu:
        factors = torch.exp2(factors.log2().round())
    whole = isinstance(codes, CompressedCodes)  # its numbers have the dtype of its scales: all are float32 in a check
    made[codes.scale] = factors if whole else factors.to(scale.dtype)
    if codes.input_scale:
        own = held[codes.input_scale]
        made[codes.input_scale] = torch.full_like(own, 2.0**-5, dtype=torch.float32 if whole else own.dtype)
    bias = held.get("bias")
    if bias is not None:
        made["bias"] = agreement.random(*bias.shape, like=weight, dtype=torch.float32, seed=3)
    return made


def _exact_input(module: Any, codes: Codes) -> Tensor:
    """Rows of codes times powers of two, with the largest code in every block of 128: their scale is that power."""
    weight = module._parameters["weight"]
    k = module.in_features
    numbers = agreement.random(_ROWS, k, like=weight, dtype=torch.float32)
    q, _ = opmux.quantize(numbers, dtype=weight.dtype, block=(1, -1), backend="reference")
    largest = q.float().abs().max()
    q = q.float()
    if _step(module, codes) != 1:
        q = q.clamp_min(1 - largest)  # -127.5 steps would be rounded to -128
    q[:, torch.arange(0, k, 128, device=q.device)] = largest
    if codes.activations == "static":
        return q * 2.0**-5
    powers = torch.arange(_ROWS, device=q.device).neg().exp2().unsqueeze(1)
    if codes.activations == "block":
        blocks = torch.arange(math.ceil(k / 128), device=q.device).remainder(3).neg().exp2()
        powers = powers * blocks.repeat_interleave(128)[:k]
    return q * powers * 2.0**-3


class LinearKind(Kind[Codes]):
    """Linear layers that multiply 8-bit codes. They are replaced first: others are judged with them in place."""

    name = option = "linear"
    at_once = True

    def find(self, survey: Survey) -> Iterable[str]:
        """Quantised linears."""
        return (path for path, module in survey.modules.items() if is_quantised(module))

    def judge(self, survey: Survey, path: str) -> Codes | str:
        """Judge one of all linears that differ only in the values of their tensors.

        The hook of compressed-tensors decompresses all of a model, so all of its linears are replaced or none is.
        """
        alone = self._alone(survey, path)
        if not isinstance(alone, CompressedCodes):
            return alone
        cause = survey.once("cause of linears", lambda: self._cause(survey))
        return f"{STAYS}: the model's first call decompresses it together with {cause}" if cause else alone

    def _alone(self, survey: Survey, path: str) -> Codes | str:
        module = survey.modules[path]
        return survey.once(("linear", agreement.signature_of(module)), lambda: find_codes(module))

    def _cause(self, survey: Survey) -> str | None:
        """A compressed module of compressed-tensors that is left, and why; None if there is none."""
        for path, module in survey.modules.items():
            scheme = compressed.scheme_of(module)
            if scheme is None or scheme.weights is None or not compressed.is_compressed(module):
                continue
            alone = self._alone(survey, path) if is_linear(module) else f"{STAYS}: it is no linear"
            if isinstance(alone, str):
                return f"{path} ({alone.removeprefix(f'{STAYS}: ')})"
        return None

    def replace(self, survey: Survey, patch: Patch) -> None:
        """Give each a forward that calls `opmux.scaled_linear`."""
        for path, codes in survey.found(self).items():
            module = survey.modules[path]
            if isinstance(codes, CompressedCodes):
                patch.set(module, OWN, vars(module)["forward"], self.name)
                if codes.kept:
                    kept = KeptScale(codes.scale)
                    kept.of(module._parameters[codes.scale])  # type: ignore[arg-type]  # judged: there is one
                    patch.set(module, SCALE, kept, self.name)
            patch.set(module, "forward", forward_of(codes).__get__(module), self.name)
        if any(isinstance(codes, CompressedCodes) for codes in survey.found(self).values()):
            self._suspend_hooks(survey, patch)

    def _suspend_hooks(self, survey: Survey, patch: Patch) -> None:
        """Keep the library from decompressing the model at its first call."""
        for module in survey.modules.values():
            if (taken := compressed.suspend(module)) is not None:
                patch.set(module, compressed.SUSPENDED, taken, self.name)
                patch.report.notes.append(
                    "compressed-tensors would decompress the model at its first call: its hook waits until unpatch"
                )

    def undo(self, patch: Patch) -> None:
        """Put back the forwards, and the hooks that were taken."""
        owners = [change.owner for change in patch.changes if change.name == compressed.SUSPENDED]
        for owner in owners:
            vars(owner)[compressed.SUSPENDED].put_back(owner)
        super().undo(patch)

    def op(self, finding: Codes) -> str:
        """The ops, with what shares a scale."""
        return f"{'static_' if finding.input_scale else ''}quantize, scaled_linear ({finding.activations})"

    def report(self, survey: Survey, patch: Patch) -> None:
        """The rows, and a note if some of a quantised model's linears are left."""
        super().report(survey, patch)
        model, config = survey.model, getattr(survey.model, "config", None)
        named = getattr(model, "is_quantized", False) or getattr(config, "quantization_config", None) is not None
        found = survey.found(self)
        if (named or survey.results[self.name]) and (not found or found.keys() != survey.results[self.name].keys()):
            others = "its linear layers are called as they are"
            some = "those of its linear layers that are left are called as they are"
            patch.report.notes.append(f"the model is quantised: {some if found else others}")
        if any(compressed.has_hook(module) for module in survey.modules.values()):
            patch.report.notes.append(
                "compressed-tensors decompresses the model at its first call, and wraps all of its modules then:"
                f" {compressed.remedy()}"
            )


LINEAR = LinearKind()
