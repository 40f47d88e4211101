"""`opmux explain`."""

import json

import pytest
import torch

import opmux
from opmux.cli.explain import _coloured
from opmux.plugins.loading import temporary_plugin

CALL = ("rms_norm", "x=bf16[4096,8192]", "weight=bf16[8192]")


def plan(**where):
    x = torch.empty(4096, 8192, dtype=torch.bfloat16, device="meta")
    return opmux.explain(opmux.rms_norm, x, x.new_empty(8192), **where)


def test_it_prints_the_plans_own_text(opmux_cli, rows_plugin) -> None:
    with temporary_plugin(rows_plugin, "rows", "opmux-rows", "1.2"):
        done = opmux_cli("explain", *CALL, "--arch", "gfx942")
        assert (done.exit_code, done.stderr) == (0, "")
        assert done.stdout == f"{plan(arch='gfx942')}\n"
    assert "archs: cpu, this is gfx942" in done.stdout


def test_json_is_the_plan_as_data(opmux_cli, rows_plugin) -> None:
    with temporary_plugin(rows_plugin, "rows", "opmux-rows", "1.2"):
        done = opmux_cli("explain", *CALL, "--arch", "cpu", "--json")
        assert json.loads(done.stdout) == plan(arch="cpu").as_dict()
    assert json.loads(done.stdout)["chosen"] == "rows"


def test_options_and_backend_are_passed_on(opmux_cli) -> None:
    done = opmux_cli("explain", "--backend", "reference", *CALL, "eps=1e-5", "--json")
    told = json.loads(done.stdout)
    assert told["call"] == "x bfloat16[4096, 8192], weight bfloat16[8192], eps=1e-05"
    assert told["candidates"][0]["reason"] == "asked for by backend='reference'"


def test_fp8_follows_the_arch(opmux_cli) -> None:
    words = ("explain", "quantize", "x=bf16[64,256]", "dtype=fp8", "--json", "--arch")
    assert "dtype=e4m3fnuz" in json.loads(opmux_cli(*words, "gfx942").stdout)["key"]
    assert "dtype=e4m3fn " in json.loads(opmux_cli(*words, "sm_90").stdout)["key"]


def test_the_environment_says_the_arch(opmux_cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPMUX_ARCH", "gfx950")
    assert json.loads(opmux_cli("explain", *CALL, "--json").stdout)["arch"] == "gfx950"


def test_a_call_that_nobody_takes_exits_with_1(opmux_cli, rows_plugin) -> None:
    with temporary_plugin(rows_plugin, "rows"):
        done = opmux_cli("explain", *CALL, "--arch", "sm_90", "--backend", "rows")
    assert done.exit_code == 1
    assert done.stdout.startswith("rms_norm on sm_90 -> nothing")


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("rmsnorm",), "error: explain: `op` expected the name of an op, got 'rmsnorm'; did you mean rms_norm? "),
        ((*CALL, "--arch", "h100"), "error: arch: `h100` expected `cpu`, `sm_<number>` or `gfx<number>`, got 'h100'; "),
        ((*CALL, "--backend", "dance"), "error: rms_norm: `backend` expected one of reference, got 'dance', "),
        (
            ("rms_norm", "x=bf16[4,8]", "weight=bf16[9]"),
            "error: rms_norm: `weight` expected shape [hidden] = [8], got ",
        ),
        (("rms_norm", "x=i8[4,8]", "weight=bf16[8]"), "error: rms_norm: `x` expected a dtype of Real "),
        (("rms_norm", "x=bf16[4,8]"), "error: explain: `weight` of rms_norm expected a value, got none; "),
    ],
)
def test_wrong_use_exits_with_2_and_says_so_on_stderr(opmux_cli, words: tuple[str, ...], complaint: str) -> None:
    done = opmux_cli("explain", *words)
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.startswith(complaint)
    assert len(done.stderr.splitlines()) == 1


def test_states_are_coloured_and_the_text_is_unchanged(rows_plugin) -> None:
    with temporary_plugin(rows_plugin, "rows"), temporary_plugin(ValueError("dead"), "dead"):
        text = str(plan(arch="sm_90"))
    coloured = _coloured(text)
    assert coloured.plain == text
    styled = {(text[span.start : span.end], str(span.style)) for span in coloured.spans}
    assert {("chosen", "bold green"), ("rejected", "yellow"), ("plugins that failed to load", "bold red")} <= styled
