"""The implementation records of dense and ragged attention."""

import pytest

from opmux.plugin import Implementation, Priority
from opmux_triton.archs import HOPPER, PORTABLE
from opmux_triton.attention.backward import implementations as backward
from opmux_triton.attention.forward import implementations as forward

RECORDS = (*forward.RECORDS, *backward.RECORDS)


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.full_name + " " + record.op)
def test_a_records_names_lead_to_its_own_folder(record: Implementation) -> None:
    folder = "backward" if record.op.endswith("backward") else "forward"
    hopper = record.name.startswith("hopper")
    module = f"opmux_triton.attention.{folder}"
    assert record.target == f"{module}.{record.name + '_targets' if hopper else 'targets'}:{record.op}"
    assert str(record.config).startswith(f"{module}.configs:")
    assert record.archs == (HOPPER if hopper else PORTABLE)


def test_the_gluon_kernels_come_before_the_portable_ones_and_after_vendors() -> None:
    (record,) = [r for r in forward.RECORDS if r.op == "attention" and r.name == "hopper"]
    assert Priority.PORTABLE < record.priority < Priority.VENDOR


def test_sums_in_any_order_are_not_called_deterministic() -> None:
    assert [(r.op, r.name) for r in RECORDS if not r.deterministic] == [("attention_backward", "hopper")]
