"""`opmux ops` and `opmux backends`."""

import dataclasses
import json

import pytest
from backends import backends, implementation

import opmux
from opmux import policy
from opmux.arch import CPU
from opmux.callpath.op import OPS
from opmux.cli import listing
from opmux.plugin import Caveat
from opmux.plugins.loading import temporary_plugin


def by_name(text: str) -> dict:
    return {op["op"]: op for op in json.loads(text)["ops"]}


def test_ops_lists_every_op(opmux_cli) -> None:
    done = opmux_cli("ops", "--json")
    assert done.exit_code == 0
    assert set(by_name(done.stdout)) == set(OPS)


@pytest.mark.parametrize(
    ("op", "signature"),
    [
        (
            "rms_norm",
            "rms_norm(x[*tokens, hidden], weight[hidden], *, eps=1e-06, weight_offset=0.0) -> y[*tokens, hidden]",
        ),
        ("linear", "linear(x[*tokens, k], w[n, k], bias[n]=None, *, out_dtype=None) -> out[*tokens, n]"),
        (
            "quantize",
            "quantize(x[*batch, m, k], *, dtype, block=(1, 128), scale_major='k') -> "
            "(q[*batch, m, k], scale[*batch, m/{block[0]}, k/{block[1]}])",
        ),
        (
            "write_kv_cache",
            "write_kv_cache(k[tokens, kv_heads, head_dim], v[tokens, kv_heads, value_dim], "
            "k_cache[pages, page_size, kv_heads, head_dim], v_cache[pages, page_size, kv_heads, value_dim], "
            "slot_mapping[tokens], k_scale[kv_heads|1]=None, v_scale[kv_heads|1]=None, *, layout='nhd') -> None, "
            "writes k_cache, v_cache",
        ),
    ],
)
def test_a_signature_reads_as_in_the_docs(op: str, signature: str) -> None:
    assert listing.signature_text(OPS[op]) == signature


def test_gradients_are_told_apart(opmux_cli) -> None:
    ops = by_name(opmux_cli("ops", "--json").stdout)
    assert ops["rms_norm"]["gradient"] == {"kind": "op", "op": "rms_norm_backward"}
    assert ops["merge_attention_states"]["gradient"] == {
        "kind": "generated",
        "op": "merge_attention_states_backward",
    }
    assert ops["paged_attention"]["gradient"] == {"kind": "refused", "op": None}


def test_the_table_of_ops_shows_signature_gradient_and_backends(opmux_cli) -> None:
    lines = opmux_cli("ops").stdout.splitlines()
    assert lines[0].split() == ["op", "arguments", "gradient", "backends", "here"]
    place, row = next((place, line) for place, line in enumerate(lines) if line.startswith("rms_norm "))
    wanted = "(x[*tokens, hidden], weight[hidden], *, eps=1e-06, weight_offset=0.0) -> y[*tokens, hidden]"
    head, _, last = wanted.rpartition(" ")  # a table of long names breaks the line here
    assert head in row
    assert wanted in row or lines[place + 1].strip() == last
    assert row.split()[-2:] == ["rms_norm_backward", "reference"]
    assert any("merge_attention_states_backward (generated)" in line for line in lines)


def test_backends_here_are_those_that_can_run_here(opmux_cli, rows_plugin) -> None:
    with temporary_plugin(rows_plugin, "rows"):
        ops = by_name(opmux_cli("ops", "--json").stdout)
        assert ops["rms_norm"]["backends"] == ["reference", "rows"]
        assert ops["linear"]["backends"] == ["reference"]
        with policy.override(disable=["rows"]):
            assert by_name(opmux_cli("ops", "--json").stdout)["rms_norm"]["backends"] == ["reference"]


def test_backends_lists_what_each_claims(opmux_cli, rows_plugin) -> None:
    with temporary_plugin(rows_plugin, "rows", "opmux-rows", "1.2"):
        told = json.loads(opmux_cli("backends", "--json").stdout)
        table = opmux_cli("backends").stdout
    rows = next(b for b in told["backends"] if b["backend"] == "rows")
    assert rows["ops"] == ["rms_norm", "silu_mul"]
    assert rows["archs"] == [
        {"arch": "cpu", "count": 1, "ops": ["rms_norm"]},
        {"arch": "gfx9*", "count": 1, "ops": ["silu_mul"]},
        {"arch": "sm_80+", "count": 1, "ops": ["silu_mul"]},
    ]
    assert "rms_norm" in rows["here"]
    reference = next(b for b in told["backends"] if b["backend"] == "reference")
    assert (reference["version"], reference["ops"]) == (opmux.__version__, sorted(OPS))
    assert next(line for line in table.splitlines() if line.startswith("rows")).split()[:3] == [
        "rows",
        "opmux-rows",
        "1.2",
    ]
    assert "cpu: 1, gfx9*: 1, sm_80+: 1" in table


def test_backends_shows_the_declared_caveats(opmux_cli) -> None:
    loose = implementation("nowhere:attention", op="attention", caveats=(Caveat.MASKED_NONFINITE,))
    with backends(loose=loose):
        told = json.loads(opmux_cli("backends", "--json").stdout)
        table = opmux_cli("backends").stdout
    caveat = "a NaN or infinity in a masked-out key or value may spread"
    by_backend = {b["backend"]: b["caveats"] for b in told["backends"]}
    assert by_backend["loose"] == [{"caveat": caveat, "ops": ["attention"]}]
    assert by_backend["reference"] == []
    shown = table.partition("caveats")[2].splitlines()
    assert shown[1].split("  ")[0] == "backend"
    assert [cell.strip() for cell in shown[2].split("  ") if cell.strip()] == ["loose", "attention", caveat]


def test_backends_names_the_plugins_that_failed(opmux_cli) -> None:
    with temporary_plugin(ValueError("no luck"), "dead", "opmux-dead", "3"):
        done, table = opmux_cli("backends", "--json"), opmux_cli("backends").stdout
    assert json.loads(done.stdout)["failed_plugins"] == [
        {"name": "dead", "distribution": "opmux-dead", "version": "3", "reason": "ValueError: no luck"}
    ]
    assert done.exit_code == 0
    assert "plugins that failed to load" in table
    assert "ValueError: no luck" in table


@pytest.mark.parametrize("module", ["no_such_module", "no_such.module.at_all"])
def test_an_implementation_whose_module_is_missing_cannot_run(module: str) -> None:
    present = OPS["rms_norm"].implementations[0]
    assert listing.can_run(present, [CPU])
    assert not listing.can_run(dataclasses.replace(present, requires=(module,)), [CPU])
