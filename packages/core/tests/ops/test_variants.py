"""In-place and lse forms say of their arguments what their base says, and take what it takes."""

import inspect

import pytest
import torch
from torch import Tensor

import opmux
from opmux.callpath.op import OPS
from opmux.dtypes import Real
from opmux.ops._variants import in_place
from opmux.plugin import define_op

FORMS = [
    ("add_rms_norm_", "add_rms_norm", {"x": "y", "residual": "residual_out"}),
    ("apply_rope_", "apply_rope", {"q": "q_out", "k": "k_out"}),
    ("attention_lse", "attention", {}),
    ("attention_varlen_lse", "attention_varlen", {}),
    ("paged_attention_lse", "paged_attention", {}),
]


def section(doc: str, title: str) -> str:
    return doc.partition(f"{title}:\n")[2].partition("\n\n")[0]


@pytest.mark.parametrize(("name", "base", "becomes"), FORMS)
def test_parameters_and_relations_are_those_of_the_base(name, base, becomes):
    form, of = OPS[name].signature, OPS[base].signature
    assert (form.tensors, form.options, form.require, form.same_dtype) == (
        of.tensors,
        of.options,
        of.require,
        of.same_dtype,
    )
    assert form.mutates == tuple(becomes)
    written, base_written = (inspect.signature(OPS[n].public).parameters for n in (name, base))
    assert [p for n, p in written.items() if n != "out"] == [p for n, p in base_written.items() if n != "out"]
    assert (OPS[name].flops, OPS[name].capturable) == (OPS[base].flops, OPS[base].capturable)


@pytest.mark.parametrize(("name", "base", "becomes"), FORMS)
def test_the_text_about_arguments_is_that_of_the_base(name, base, becomes):
    text = section(OPS[base].doc, "Args")
    assert {t.name for t in OPS[base].signature.tensors} <= {
        line.strip().partition(":")[0] for line in text.splitlines()
    }
    for tensor, output in becomes.items():
        entry = next(e for e in text.split("\n    ") if e.strip().startswith(f"{tensor}:"))
        text = text.replace(entry, f"{entry.removesuffix('.')}; overwritten with {output}.")
    assert section(OPS[name].doc, "Args") == text


def test_an_in_place_form_says_what_it_does():
    doc = OPS["add_rms_norm_"].doc
    assert OPS["add_rms_norm_"].summary == (
        "Compute `add_rms_norm` in place: x becomes y and residual becomes residual_out."
    )
    assert "residual: The residual stream" in doc
    assert section(doc, "Source") == section(OPS["add_rms_norm"].doc, "Source")
    assert "As for `add_rms_norm`, or if x or residual requires grad or overlaps" in section(doc, "Raises")


def test_a_reference_fills_in_the_defaults():
    q, k, v = torch.randn(3, 1, 4, 2, 8).unbind()
    out, lse = opmux.attention_lse.reference(q, k, v)
    torch.testing.assert_close(out, opmux.attention.reference(q, k, v))
    assert lse.shape == (1, 2, 4)
    with pytest.raises(TypeError, match="missing a required argument: 'v'"):
        opmux.attention_lse.reference(q, k)


def test_every_output_needs_a_tensor():
    with pytest.raises(TypeError) as refused:
        in_place(opmux.add_rms_norm, residual="residual_out")
    assert str(refused.value) == (
        "add_rms_norm_: every output of add_rms_norm is written into a tensor, in order; "
        "got {'residual': 'residual_out'}"
    )


def test_an_op_of_ones_own():
    @define_op
    def doubled_for_this_test(x: Real[Tensor, "*tokens n"]) -> Real[Tensor, "*tokens n"]:
        """Double.

        Args:
            x: The values.

        Source:
            Arithmetic.
        """
        return 2 * x

    try:
        form = in_place(doubled_for_this_test, x="out")
        x = torch.ones(3, 4)
        assert form(x) is None
        assert torch.equal(x, torch.full((3, 4), 2.0))
    finally:
        for name in ("doubled_for_this_test", "doubled_for_this_test_"):
            OPS.pop(name, None)
