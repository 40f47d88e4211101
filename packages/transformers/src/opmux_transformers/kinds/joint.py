"""Joint weights of quantised linears with the same input: queries, keys and values; the gate and the up projection."""

from collections.abc import Iterable, Iterator

from opmux_transformers.coded import PLACE
from opmux_transformers.joint import JOINT, join
from opmux_transformers.kinds.gate import gate_of
from opmux_transformers.kinds.kind import Kind
from opmux_transformers.kinds.residual import RESIDUAL
from opmux_transformers.survey import Survey
from opmux_transformers.undo import Patch


class JointKind(Kind[bool]):
    """Linears of a layer whose norms feed them. It has no rows: the linears are reported where they are quantised."""

    name = "joint"

    def find(self, survey: Survey) -> Iterable[str]:
        """Layers whose residual sums are fused."""
        return survey.found(RESIDUAL)

    def judge(self, survey: Survey, path: str) -> bool:
        """What may be joined is seen when the codes are made."""
        return True

    def replace(self, survey: Survey, patch: Patch) -> None:
        """Join what each norm feeds."""
        for path in survey.found(self):
            for holder, names in _groups(survey, path):
                module = survey.modules[holder]
                joint = join(module, names)
                if joint is None:
                    continue
                patch.set(module, JOINT, joint, self.name)
                for place, name in enumerate(names):
                    patch.set(module._modules[name], PLACE, place, self.name)

    def report(self, survey: Survey, patch: Patch) -> None:
        """No rows."""


def _groups(survey: Survey, path: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    """The modules of a layer that hold linears with the same input, and the linears' names."""
    block = survey.found(RESIDUAL)[path]
    if block.fed:
        yield f"{path}.{block.attention}", block.fed
    mlp = f"{path}.{block.mlp}"
    gate = gate_of(survey.modules[mlp])
    if gate is not None and len(gate.inputs) > 1:
        yield mlp, gate.inputs


JOINTS = JointKind()
