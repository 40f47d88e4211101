"""Plain linear layers, quantised to 8 bits because the caller of `patch` asks for it.

The codes are kept beside the weight, which stays as it is: so `unpatch` restores the model bit by bit, and what
``save_pretrained`` writes does not change. That takes half the memory of the weights in addition; `opmux.nn.quantize_`
before `patch` frees the weights instead.
"""

from collections.abc import Iterable
from typing import Any

from torch import nn

from opmux.nn.quantization import DEFAULT_SKIP, reason_to_leave
from opmux.nn.quantized import codes_dtype
from opmux_transformers.coded import Kept, MadeCodes, forward_of
from opmux_transformers.kinds.kind import Kind
from opmux_transformers.survey import Survey
from opmux_transformers.undo import Patch

KEPT = "_opmux_kept"
"""The attribute of a linear that holds the codes of its weight."""

CODES = MadeCodes(KEPT, "", "token", casts=True)


class QuantizeKind(Kind[MadeCodes]):
    """Plain linears that are quantised on request."""

    name = option = "quantize"

    def find(self, survey: Survey) -> Iterable[str]:
        """All plain linears, if the caller asks for it."""
        if not survey.wants(self):
            return ()
        return (path for path, m in survey.modules.items() if isinstance(m, nn.Linear) and _is_plain(m))

    def judge(self, survey: Survey, path: str) -> MadeCodes | str:
        """Everything but heads, routers, and linears that hold more than numbers."""
        module: Any = survey.modules[path]
        head = getattr(survey.model, "get_output_embeddings", lambda: None)()
        if module is head:
            return next(iter(DEFAULT_SKIP.values()))
        return reason_to_leave(module, [path], DEFAULT_SKIP) or CODES

    def replace(self, survey: Survey, patch: Patch) -> None:
        """Make the codes, and give each a forward that multiplies them."""
        for path, codes in survey.found(self).items():
            module: Any = survey.modules[path]
            kept = Kept(codes_dtype("opmux_transformers.patch", survey.options["quantize"], module.weight.device))
            kept.of(module.weight)
            patch.set(module, KEPT, kept, self.name)
            patch.set(module, "forward", forward_of(codes).__get__(module), self.name)

    def op(self, finding: MadeCodes) -> str:
        """The ops, with what shares a scale."""
        return f"quantize, scaled_linear ({finding.activations})"

    def report(self, survey: Survey, patch: Patch) -> None:
        """The rows, and a note on the memory."""
        super().report(survey, patch)
        held = {id(p): p for p in (survey.modules[path]._parameters["weight"] for path in survey.found(self))}
        if size := sum(weight.numel() for weight in held.values() if weight is not None):
            patch.report.notes.append(
                f"the codes take {size / 2**30:.2f} GiB beside the weights, which stay as they are for unpatch;"
                " opmux.nn.quantize_(model) before patch(model) frees the weights"
            )


def _is_plain(module: nn.Module) -> bool:
    """Whether its weight is of 16 bits or more; codes are the business of another kind."""
    weight = module._parameters.get("weight")
    return weight is None or (weight.is_floating_point() and weight.element_size() > 1)


QUANTIZE = QuantizeKind()
