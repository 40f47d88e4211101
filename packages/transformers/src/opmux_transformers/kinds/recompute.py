"""Gated MLPs that compute the input of their output projection again in the backward pass, on request."""

from collections.abc import Iterable

from torch import nn

from opmux_transformers.kinds.gate import GATE, Gate
from opmux_transformers.kinds.kind import Kind
from opmux_transformers.recomputed import RECOMPUTED
from opmux_transformers.survey import Survey
from opmux_transformers.undo import Patch


class RecomputeKind(Kind[Gate]):
    """Gated MLPs that are replaced and whose output projection is a linear of torch's own."""

    name = option = "recompute"

    def find(self, survey: Survey) -> Iterable[str]:
        """The gated MLPs that are replaced, if the caller asks for it."""
        return survey.found(GATE) if survey.wants(self) else ()

    def judge(self, survey: Survey, path: str) -> Gate | str:
        """What is kept for the backward pass by a linear of another class is its own business."""
        gate = survey.found(GATE)[path]
        output = survey.modules[path]._modules[gate.output]
        if type(output) is not nn.Linear:
            return f"its {gate.output} is of class {type(output).__name__}, which may keep its input for other reasons"
        return gate

    def replace(self, survey: Survey, patch: Patch) -> None:
        """Tell the forward that the gate has been given."""
        for path in survey.found(self):
            patch.set(survey.modules[path], RECOMPUTED, True, self.name)

    def op(self, finding: Gate) -> str:
        """The op that runs again."""
        return finding.op

    def note(self, finding: Gate) -> str:
        """When it runs again."""
        return "again in backward"


RECOMPUTE = RecomputeKind()
