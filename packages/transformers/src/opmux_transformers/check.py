"""A small random model, patched and unpatched, side by side: what ``opmux models check`` compares.

In float32 the patched model must give the logits, the greedy tokens and the gradients of the unpatched one. In bfloat16
the two round in different places; there the patched model's error against a float32 copy may be at most twice that of
the unpatched one. The unpatched model runs transformers' eager attention, which defines what a model computes; the sdpa
of some versions ignores a softcap.

Where experts are chosen, gradients are compared on prompts that all models route alike: rounding may send a token to
another expert. Elsewhere those of bfloat16 are compared over several batches, as one flipped ReLU decides those of one.

A model that only fills masks, such as ModernBERT, has no tokens to generate: its logits and gradients are compared. Of
an encoder with a decoder, such as BART, the decoder's are compared; `prompted` says what the encoder reads.
"""

import copy
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from opmux_transformers.patching import patch_model
from opmux_transformers.prompted import begin_of_new, call, class_for, fills_masks, generated, logits_after
from opmux_transformers.registries import asks_registry
from opmux_transformers.reporting import Report
from opmux_transformers.routes import routed_alike

SEED = 0
PROMPT = 12
"""Tokens of the prompts; longer than the window of the small configurations."""
BATCHES = 4
"""Batches of prompts over which gradients in bfloat16 are compared, where no experts are chosen."""
FACTORS = {torch.float32: 1.0, torch.bfloat16: 2.0}
"""The largest allowed ratio of the patched model's error to the unpatched model's."""
ROUNDING = {torch.float32: 5e-5, torch.bfloat16: 2.0**-8}
"""Allowance for rounding, as a fraction of the largest magnitude."""

ALL: dict[str, Any] = {
    "norm": True, "gate": True, "rope": True, "attention": True, "residual": True, "cache": True, "loss": True,
    "experts": True, "linear": True, "vector": True, "recompute": False, "quantize": None,
}  # fmt: skip


@dataclass(frozen=True)
class Comparison:
    """One quantity of the patched model, compared with the unpatched one's.

    Attributes:
        what: ``"logits"``, ``"tokens"`` or ``"gradients"``; of quantised models also ``"modules"``.
        dtype: The models' dtype, or their codes.
        error: The patched model's error: the largest difference over the largest magnitude; for gradients and quantised
            models the root mean square of both, because rounding may turn a ReLU on or off, or give a value another
            code; for tokens the number of tokens that differ.
        bound: The largest allowed error.
        detail: Where the error is largest.
    """

    what: str
    dtype: str
    error: float
    bound: float
    detail: str = ""

    @property
    def passed(self) -> bool:
        """Whether the error is within its bound."""
        return self.error <= self.bound


def build(config: Any, dtype: torch.dtype, device: str = "cpu") -> nn.Module:
    """A random text model in evaluation mode, with weights large enough that every part of it matters."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        model: nn.Module = class_for(config).from_config(config, attn_implementation="eager")
        with torch.no_grad():
            for parameter in model.parameters():
                spread = 1.5 / parameter.shape[-1] ** 0.5 if parameter.ndim > 1 else 0.2
                parameter.add_(torch.randn_like(parameter) * spread)
    return model.to(device, dtype).eval()


def size_of(config: Any) -> int:
    """The number of parameters of a configuration's model, which is made without memory for them."""
    with torch.device("meta"):
        return sum(p.numel() for p in class_for(config).from_config(config, attn_implementation="eager").parameters())


def prompts(config: Any, number: int = 0) -> Tensor:
    """Two prompts of random tokens; others for each number."""
    generator = torch.Generator().manual_seed(SEED + 1 + number)
    return torch.randint(3, config.vocab_size, (2, PROMPT), generator=generator)


def compare(config: Any, dtype: torch.dtype, device: str = "cpu") -> tuple[list[Comparison], Report]:
    """Build, patch and compare one model in one dtype, on one device."""
    plain = build(config, dtype, device)
    patched = copy.deepcopy(plain)
    report = patch_model(patched, dict(ALL))
    exact = copy.deepcopy(plain).float() if dtype != torch.float32 else plain
    ids = prompts(plain.config).to(device)
    batches = [prompts(plain.config, number).to(device) for number in range(1 if dtype == torch.float32 else BATCHES)]
    if any(asks_registry(module) for module in exact.modules()):
        batches = [routed_alike((exact, plain, patched), lambda number: prompts(plain.config, number).to(device))]
    found = [_logits(plain, patched, exact, ids, dtype), _gradients(plain, patched, exact, batches, dtype)]
    if not fills_masks(config):
        found.append(_tokens(plain, patched, ids, dtype, found[0].bound))
    return found, report


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _bound(theirs: float, dtype: torch.dtype) -> float:
    return FACTORS[dtype] * theirs + ROUNDING[dtype]


def _far(got: Tensor, exact: Tensor) -> float:
    """The largest difference as a fraction of the largest magnitude."""
    largest = float(exact.abs().max())
    error = float((got.float() - exact.float()).abs().nan_to_num(nan=float("inf")).max())
    return error / largest if largest else error


def _logits(plain: Any, patched: Any, exact: Any, ids: Tensor, dtype: torch.dtype) -> Comparison:
    with torch.no_grad():
        own, theirs, right = (call(model, ids).logits for model in (patched, plain, exact))
    return Comparison("logits", _name(dtype), _far(own, right), _bound(_far(theirs, right), dtype))


def _gradients(plain: Any, patched: Any, exact: Any, batches: Sequence[Tensor], dtype: torch.dtype) -> Comparison:
    right = _Squares(batches)
    own, theirs = _Squares(batches), _Squares(batches)
    for ids in batches:
        wanted = _gradients_of(exact, ids)
        right.add(wanted)
        for model, errors in ((patched, own), (plain, theirs)):
            found = _gradients_of(model, ids)
            if model is patched and found.keys() != wanted.keys():
                return Comparison(
                    "gradients", _name(dtype), float("inf"), 0.0, "not the same parameters have gradients"
                )
            errors.add({name: found[name] - gradient for name, gradient in wanted.items()})
    magnitudes = right.roots()
    middle = statistics.median(magnitudes.values())
    # a gradient that is zero except for rounding (a key bias's) is no useful unit
    units = {name: middle if size < 1e-5 * middle else max(size, 1e-3 * middle) for name, size in magnitudes.items()}
    bounds = {name: error / units[name] for name, error in theirs.roots().items()}
    usual = statistics.median(bounds.values())
    worst = ("", 0.0, 0.0)
    for name, size in own.roots().items():
        # an unpatched model that happened to be exact gives no useful bound: rounding is not repeatable
        error, bound = size / units[name], _bound(max(bounds[name], usual), dtype)
        if not worst[0] or error - bound > worst[1] - worst[2]:
            worst = (name, error, bound)
    return Comparison("gradients", _name(dtype), worst[1], worst[2], worst[0])


class _Squares:
    """The root mean square of each parameter's numbers over all batches."""

    def __init__(self, batches: Sequence[Tensor]) -> None:
        self._sums: dict[str, float] = {}
        self._count = len(batches)

    def add(self, numbers: Mapping[str, Tensor]) -> None:
        """Add those of a batch."""
        for name, each in numbers.items():
            mean = float(each.double().square().mean().nan_to_num(nan=float("inf")))
            self._sums[name] = self._sums.get(name, 0.0) + mean / self._count

    def roots(self) -> dict[str, float]:
        """The root mean squares."""
        return {name: total**0.5 for name, total in self._sums.items()}


def _gradients_of(model: Any, ids: Tensor) -> dict[str, Tensor]:
    """The gradient of each parameter that has one; what dropout drops is random, so none is dropped."""
    model.zero_grad(set_to_none=True)
    call(model.train(not _drops(model.config)), ids, labels=ids).loss.backward()
    model.eval()
    return {name: p.grad.float() for name, p in model.named_parameters() if p.grad is not None}


def _drops(config: Any) -> bool:
    """Whether a configuration names a dropout, of whatever."""
    values = config.to_dict().items()
    return any("drop" in name and isinstance(rate, float) and rate > 0 for name, rate in values)


def _tokens(plain: Any, patched: Any, ids: Tensor, dtype: torch.dtype, bound: float) -> Comparison:
    """Compare greedy tokens; if two logits differ by no more than rounding, either token is right."""
    own, theirs = (generated(model, ids) for model in (patched, plain))
    if torch.equal(own, theirs):
        return Comparison("tokens", _name(dtype), 0, 0)
    with torch.no_grad():
        logits = logits_after(plain, ids, own).float()
    chosen = logits.gather(-1, own[:, begin_of_new(plain, ids) :, None]).squeeze(-1)
    allowed = 2 * bound * float(logits.masked_fill(logits == float("-inf"), 0.0).abs().max())
    behind = int((logits.max(-1).values - chosen > allowed).sum())
    return Comparison(
        "tokens", _name(dtype), behind, 0, "tokens differ only where two logits are equal within rounding"
    )
