"""Quantised linear layers: named in the report, and left as they are."""

from collections.abc import Iterable

from torch import nn

from opmux_transformers.kinds.gate import is_linear
from opmux_transformers.kinds.kind import Kind
from opmux_transformers.survey import Survey
from opmux_transformers.undo import Patch


def is_quantised(module: nn.Module) -> bool:
    """Whether a linear stores its weight in anything but floating-point numbers of 16 bits or more."""
    if not is_linear(module) or type(module) is nn.Linear:
        return False
    held = [*module.parameters(recurse=False), *module.buffers(recurse=False)]
    return any(not t.is_floating_point() or t.element_size() < 2 for t in held)


class LinearKind(Kind[None]):
    """Linear layers that are not plain, which are never replaced."""

    name = "linear"

    def find(self, survey: Survey) -> Iterable[str]:
        """Quantised linears."""
        return (path for path, module in survey.modules.items() if is_quantised(module))

    def judge(self, survey: Survey, path: str) -> str:
        """Left, always."""
        return "quantised: it computes as before"

    def report(self, survey: Survey, patch: Patch) -> None:
        """The rows, and a note if the model says that it is quantised."""
        super().report(survey, patch)
        model, config = survey.model, getattr(survey.model, "config", None)
        named = getattr(model, "is_quantized", False) or getattr(config, "quantization_config", None) is not None
        if named or survey.results[self.name]:
            patch.report.notes.append("the model is quantised: its linear layers are called as they are")


LINEAR = LinearKind()
