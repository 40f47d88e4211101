"""Plain linear layers and experts, quantised to 8 bits because the caller of `patch` asks for it.

The codes are kept beside the weight, which stays as it is: so `unpatch` restores the model bit by bit, and what
``save_pretrained`` writes does not change. That takes half the memory of the weights in addition; `opmux.nn.quantize_`
before `patch` frees those of linears instead.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from opmux.nn.quantizable import codes_dtype, flaw_of
from opmux.nn.quantization_choice import DEFAULT_SKIP, other_weights, reason_to_leave
from opmux_transformers import experts
from opmux_transformers.coded import Kept, MadeCodes, forward_of
from opmux_transformers.kinds.experts import EXPERTS
from opmux_transformers.kinds.kind import Kind
from opmux_transformers.survey import Survey
from opmux_transformers.undo import Patch

KEPT = "_opmux_kept"
"""The attribute of a linear that holds the codes of its weight."""

CODES = MadeCodes(KEPT, "", "token", casts=True)


@dataclass(frozen=True)
class MadeExperts:
    """Experts whose weights get codes beside them.

    Attributes:
        names: The attributes that hold the weights.
        transposed: Whether the rows of a weight are its inputs.
    """

    names: tuple[str, ...]
    transposed: bool


class QuantizeKind(Kind[MadeCodes | MadeExperts]):
    """Plain linears, and experts that are computed by grouped products, that are quantised on request."""

    name = option = "quantize"

    def find(self, survey: Survey) -> Iterable[str]:
        """All plain linears and experts, if the caller asks for it."""
        if not survey.wants(self):
            return ()
        judged = survey.results[EXPERTS.name]
        linears = (path for path, m in survey.modules.items() if isinstance(m, nn.Linear) and _is_plain(m))
        return (*linears, *(path for path in judged if _are_plain(survey.modules[path])))

    def judge(self, survey: Survey, path: str) -> MadeCodes | MadeExperts | str:
        """Everything but heads, routers, and linears that hold more than numbers."""
        module: Any = survey.modules[path]
        if path in survey.results[EXPERTS.name]:
            return _judge_experts(module) if path in survey.found(EXPERTS) else "only replaced experts are quantised"
        if module is head_of(survey):
            return next(iter(DEFAULT_SKIP.values()))
        return reason_to_leave(module, [path], DEFAULT_SKIP) or CODES

    def replace(self, survey: Survey, patch: Patch) -> None:
        """Make the codes, and give each a forward that multiplies them."""
        for path, codes in survey.found(self).items():
            module: Any = survey.modules[path]
            if isinstance(codes, MadeExperts):
                for name in codes.names:
                    kept = Kept(_dtype(survey, module._parameters[name]), name, codes.transposed)
                    kept.of(module._parameters[name])
                    patch.set(module, experts.KEPT + name, kept, self.name)
                continue
            kept = Kept(_dtype(survey, module.weight))
            kept.of(module.weight)
            patch.set(module, KEPT, kept, self.name)
            patch.set(module, "forward", forward_of(codes).__get__(module), self.name)

    def op(self, finding: MadeCodes | MadeExperts) -> str:
        """The ops, with what shares a scale."""
        if isinstance(finding, MadeExperts):
            return "quantize, scaled_grouped_linear, scaled_masked_grouped_linear (token)"
        return f"quantize, scaled_linear ({finding.activations})"

    def report(self, survey: Survey, patch: Patch) -> None:
        """The rows, and a note on the memory."""
        super().report(survey, patch)
        found = (
            (path, f.names if isinstance(f, MadeExperts) else ("weight",)) for path, f in survey.found(self).items()
        )
        weights = (survey.modules[path]._parameters[name] for path, names in found for name in names)
        held = {id(p): p for p in weights}
        experts_of = [survey.modules[path] for path, f in survey.found(self).items() if isinstance(f, MadeExperts)]
        if survey.wants(self):
            patch.report.notes += other_weights(survey.model, experts_of)
        if size := sum(weight.numel() for weight in held.values() if weight is not None):
            patch.report.notes.append(
                f"the codes take {size / 2**30:.2f} GiB beside the weights, which stay as they are for unpatch;"
                " opmux.nn.quantize_(model) before patch(model) frees those of linears"
            )


def head_of(survey: Survey) -> nn.Module | None:
    """The head of a model, if it says which module that is."""
    head: nn.Module | None = getattr(survey.model, "get_output_embeddings", lambda: None)()
    return head


def _dtype(survey: Survey, weight: Tensor) -> Any:
    """The dtype of the codes that the caller asks for."""
    return codes_dtype("opmux_transformers.patch", survey.options["quantize"], weight.device)


def _judge_experts(module: Any) -> MadeExperts | str:
    """The weights of experts to quantise, or why they stay."""
    names = experts.up_name(module), "down_proj"
    flaws = ((name, flaw_of(module._parameters[name])) for name in names)
    found = next((f"its {name} has {flaw}" for name, flaw in flaws if flaw is not None), None)
    return found or MadeExperts(names, bool(module.is_transposed))


def _are_plain(module: nn.Module) -> bool:
    """Whether the weights of experts are of 16 bits or more."""
    return all(p.is_floating_point() and p.element_size() > 1 for p in module.parameters())


def _is_plain(module: nn.Module) -> bool:
    """Whether its weight is of 16 bits or more; codes are the business of another kind."""
    weight = module._parameters.get("weight")
    return weight is None or (weight.is_floating_point() and weight.element_size() > 1)


QUANTIZE = QuantizeKind()
