"""A small random model that `patch` quantises, beside one of the same codes on the references.

Products of 8-bit floats differ between backends, by what their sums keep: some 14 bits on Hopper. A value between two
codes then gets the other one, and the layers after it round more values to others. What that comes to depends on the
model, so the unit of each difference is what quantisation itself changes.

Where experts are chosen, the tokens of all models are sent to those of the reference: rounding may choose others.
"""

import copy
from typing import Any

import torch
from torch import Tensor

from opmux_transformers.check import ALL, ROUNDING, Comparison, build, prompts
from opmux_transformers.patching import patch_model
from opmux_transformers.prompted import begin_of_new, call, fills_masks, generated, logits_after
from opmux_transformers.quantised_reference import calls, quantise, size
from opmux_transformers.reporting import Report
from opmux_transformers.routes import noted, routed, routes

LIKE_A_MODULE, LIKE_A_MODEL = 0.5, 1.0
"""The largest difference of two quantised modules or models, as a share of what quantisation changes in one of them.

Two that share no code would be 1.4 apart. With errors of up to 2**-13 of each product's magnitude, drawn at random,
small models of seven families were at most 0.71 apart.
"""

BEHIND = 4.0
"""How far a greedy token may be behind the reference's best, in root mean squares of what quantisation changes."""

NOTHING = ROUNDING[torch.float32]
"""What quantised models may differ by where quantisation changes nothing."""


def compare_quantised(config: Any, codes: str, device: str = "cpu") -> tuple[list[Comparison], Report]:
    """Compare a model that `patch` quantises with one of the same codes that is not patched, on the references.

    Each quantised module is compared on the input that it has in the reference, then the logits, then greedy tokens.
    The unit of each difference is what quantisation changes, by `LIKE_A_MODULE` and `LIKE_A_MODEL`.
    """
    exact = build(config, torch.float32, device)
    plain, patched = copy.deepcopy(exact), copy.deepcopy(exact)
    report = patch_model(patched, {**ALL, "quantize": codes})
    taken = {row.module for row in report.rows if row.kind == "quantize" and row.op}
    quantise(plain, codes, taken)
    ids, name = prompts(plain.config).to(device), f"{codes} codes"
    found = [_quantised_modules(plain, patched, exact, taken, ids, name)]
    right, own, full = _routed_logits((plain, patched, exact), ids)
    rounded = size(full - right)
    found.append(
        Comparison("logits", name, size(own - right) / size(right), LIKE_A_MODEL * rounded / size(right) + NOTHING)
    )
    if not fills_masks(config):
        found.append(_quantised_tokens(plain, patched, ids, BEHIND * rounded, name))
    return found, report


def _quantised_modules(plain: Any, patched: Any, exact: Any, taken: set[str], ids: Tensor, name: str) -> Comparison:
    """Compare each quantised module on the input that it has in the reference; the worst one is given."""
    worst = Comparison("modules", name, 0.0, NOTHING)
    with torch.no_grad():
        for path, args, kwargs, right in calls(plain, taken, ids):
            own, full = (model.get_submodule(path)(*args, **kwargs) for model in (patched, exact))
            unit = size(right)
            bound = LIKE_A_MODULE * size(full - right) / unit + NOTHING
            found = Comparison("modules", name, size(own - right) / unit, bound, path)
            if not worst.detail or found.error / found.bound > worst.error / worst.bound:
                worst = found
    return worst


def _routed_logits(models: tuple[Any, ...], ids: Tensor) -> list[Tensor]:
    """The logits of several models, whose tokens go to the experts of the first one."""
    with torch.no_grad():
        with noted(models[0]) as found:
            logits = [call(models[0], ids).logits]
        for model in models[1:]:
            with routed(model, found):
                logits.append(call(model, ids).logits)
    return logits


def _quantised_tokens(plain: Any, patched: Any, ids: Tensor, allowed: float, name: str) -> Comparison:
    """Compare greedy tokens; a sequence counts up to its first token that the models send to different experts."""
    theirs, start = generated(plain, ids), begin_of_new(plain, ids) - 1
    own, ways = _generated_on_ways(patched, ids)
    alike = torch.ones_like(own[:, start:-1], dtype=torch.bool)
    for one, other in zip(ways, routes(plain, own[:, :-1]), strict=True):
        same = (one == other.view_as(one)).all(-1)
        alike &= same.cumprod(1).bool()[:, start:]
    with torch.no_grad():
        logits = logits_after(plain, ids, own)
    chosen = logits.gather(-1, own[:, start + 1 :, None]).squeeze(-1)
    behind = int(((logits.amax(-1) - chosen > allowed) & alike).sum())
    others = int((own != theirs)[:, start + 1 :].sum())
    return Comparison("tokens", name, behind, 0, f"{others} of {chosen.numel()} differ, {int(alike.sum())} compared")


def _generated_on_ways(model: Any, ids: Tensor) -> tuple[Tensor, list[Tensor]]:
    """Prompts with greedy tokens, and the experts of all but the last one as each was computed, by mixture.

    The pass over a whole prompt and the steps after it round differently, so a pass over all tokens afterwards may send
    some of them elsewhere.
    """
    with noted(model) as found:
        tokens = generated(model, ids)
    calls = tokens.shape[1] - begin_of_new(model, ids)  # the prompt's, and one for each token but the last
    mixtures = len(found) // calls
    chosen = [experts.sort(-1).values.view(len(ids), -1, experts.shape[-1]) for experts, _ in found]
    return tokens, [torch.cat(chosen[place::mixtures], 1) for place in range(mixtures)]
