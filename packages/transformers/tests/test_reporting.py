"""The report as data and as a table."""

from samples import model

import opmux_transformers


def test_the_report_is_data_and_a_table() -> None:
    patched = model("olmo2")
    report = opmux_transformers.patch(patched)
    data = report.as_dict()
    assert data["model"] == "Olmo2ForCausalLM"
    assert data["family"] == "olmo2"
    assert data["counts"]["norm"] == {"replaced": 9, "left": 0}
    assert data["rows"][0] == {
        "kind": "norm",
        "module": "model.layers.0.self_attn.q_norm",
        "status": "replaced",
        "op": "rms_norm",
        "reason": "",
        "class_name": "Olmo2RMSNorm",
    }
    text = str(report)
    assert "Olmo2ForCausalLM (olmo2)" in text
    assert ["norm", "9", "rms_norm", "model.layers.0.self_attn.q_norm", "and", "8", "more"] in [
        x.split() for x in text.splitlines()
    ]
    assert "it norms the outputs before it adds them to the residual" in " ".join(text.split())
    opmux_transformers.unpatch(patched)
    assert "Olmo2ForCausalLM (olmo2), undone" in str(report)
