"""The interface of kinds: every one has all of it, and a new one needs its module and an entry in the list."""

import inspect
from collections.abc import Iterable
from typing import Any

import pytest
import torch
from samples import CLOSE, deep_looks, ids, logits, pair
from torch import Tensor, nn

import opmux_transformers
from opmux_transformers import kinds
from opmux_transformers.foreign import mark
from opmux_transformers.kinds.kind import Kind
from opmux_transformers.survey import Survey
from opmux_transformers.undo import Patch

METHODS = ("find", "judge", "replace", "undo", "report")


@pytest.mark.parametrize("kind", kinds.KINDS, ids=lambda kind: kind.name)
def test_every_kind_has_the_interface(kind: Kind[Any]) -> None:
    for method in METHODS:
        expected = inspect.signature(getattr(Kind, method)).parameters
        assert list(inspect.signature(getattr(type(kind), method)).parameters) == list(expected)
    assert type(kind).__doc__


def test_names_are_unique_and_options_are_arguments_of_patch() -> None:
    names = [kind.name for kind in kinds.KINDS]
    assert len({*names}) == len(names)
    options = {kind.option for kind in kinds.KINDS} - {None}
    assert options == {*inspect.signature(opmux_transformers.patch).parameters} - {"model"}


def test_kinds_hold_no_state() -> None:
    assert [vars(kind) for kind in kinds.KINDS] == [{}] * len(kinds.KINDS)


def test_a_report_has_its_rows_in_the_order_of_the_kinds() -> None:
    _, patched = pair("gpt_oss")
    report = opmux_transformers.patch(patched)
    order = [kind.name for kind in kinds.KINDS]
    found = [order.index(row.kind) for row in report.rows]
    assert found == sorted(found)
    assert list(report.counts()) == [name for name in order if name in report.counts()]


class Embeddings(Kind[str]):
    """Embedding tables, looked up by an op of one's own."""

    name = "embedding"

    def find(self, survey: Survey) -> Iterable[str]:
        """Every table."""
        return [path for path, module in survey.modules.items() if isinstance(module, nn.Embedding)]

    def judge(self, survey: Survey, path: str) -> str | tuple[int, ...]:  # type: ignore[override]
        """Its shape."""
        weight = survey.modules[path].weight
        return "it is too large" if weight.shape[0] > 1000 else tuple(weight.shape)

    def replace(self, survey: Survey, patch: Patch) -> None:
        """Give each another forward."""
        for path in survey.found(self):
            module = survey.modules[path]
            patch.set(module, "forward", looked_up.__get__(module), self.name)

    def op(self, finding: Any) -> str:
        """The op, with the shape."""
        return f"looked up {list(finding)}"


@mark
def looked_up(self: nn.Embedding, tokens: Tensor) -> Tensor:
    return self.weight[tokens]


def test_a_new_kind_needs_an_entry_in_the_list() -> None:
    plain, patched = pair()
    before = deep_looks(patched)
    kinds.KINDS.append(Embeddings())
    try:
        report = opmux_transformers.patch(patched)
        assert [(r.module, r.op) for r in report.rows if r.kind == "embedding"] == [
            ("model.embed_tokens", "looked up [128, 64]")
        ]
        assert "looked up [128, 64]" in str(report)
        assert report.counts()["embedding"] == {"replaced": 1, "left": 0}
        torch.testing.assert_close(logits(patched, ids()), logits(plain, ids()), **CLOSE)
        opmux_transformers.unpatch(patched)
    finally:
        kinds.KINDS.pop()
    assert deep_looks(patched) == before
