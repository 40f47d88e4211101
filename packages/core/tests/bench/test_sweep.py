"""Sweeps: what is wrong, raises, hangs or dies is reported and left out; the rest is timed beside its peers."""

import dataclasses
import json
from pathlib import Path

import pytest
import sweep_variants as v
import torch
from backends import backends, implementation

from opmux.bench import sweep
from opmux.bench.sweep import main, run
from opmux.bench.variants import Case, Configured, complaint
from opmux.errors import InvalidArgument

CPU = torch.device("cpu")


@dataclasses.dataclass(frozen=True)
class Rows:
    """A config."""

    rows: int


def normed(x, weight, *, eps, weight_offset, config):
    assert isinstance(config, Rows)
    return torch.nn.functional.rms_norm(x, weight.shape, weight + weight_offset, eps)


def configured(rows: int) -> Case:
    return Case("rms_norm", v.SHAPE, {"some": Configured("planted", Rows(rows))}, dtype=torch.float32)


PLANTED = implementation(normed, config=lambda arch, features: Rows(1), config_schema=Rows)


def case(**variants) -> Case:
    return Case(v.scaled, v.SHAPE, variants, make=v.make, peers={"plain": v.scaled}, dtype=torch.float32)


@pytest.mark.long
def test_what_is_wrong_raises_hangs_or_dies_is_left_out_with_its_reason() -> None:
    tried = case(
        right=v.summed, wrong=v.wrong, nan=v.undefined, raising=v.raising, hanging=v.hanging, dying=v.dying
    )  # fmt: skip
    (swept,) = run([tried], CPU, rounds=3, workers=2, check_limit_s=15.0)
    assert {x.name: x.reason for x in swept.left} == {
        "wrong": "differs from the reference by 1 of the largest magnitude",
        "nan": "differs from the reference by inf of the largest magnitude",
        "raising": "RuntimeError: no such instruction",
        "hanging": "not done within 15 s",
        "dying": "its process ended with exit code 7",
    }
    assert {x.name for x in swept.timings} == {"right", "plain"}


def test_the_fastest_comes_first_with_its_ratio_to_the_best_peer() -> None:
    tried = dataclasses.replace(case(slow=v.slow, right=v.summed), peers={"plain": v.scaled, "late": v.slow})
    (swept,) = run([tried], CPU, rounds=3, workers=1)
    medians = [t.median_us for t in swept.timings]
    assert medians == sorted(medians)
    assert {t.name for t in swept.timings[-2:]} == {"slow", "late"}
    by_name = {t.name: t for t in swept.timings}
    assert by_name["plain"].ratio == 1.0
    assert by_name["slow"].ratio == by_name["plain"].median_us / by_name["slow"].median_us
    assert by_name["slow"].kind == "implementation"
    assert by_name["late"].kind == "peer"
    assert all(t.rounds == 3 for t in swept.timings)


def test_variants_are_checked_on_a_shape_of_its_own_and_may_fail_on_the_timed_one() -> None:
    larger = dataclasses.replace(v.SHAPE, new=3, context=3)
    tried = dataclasses.replace(case(picky=v.only_on_two_rows), shape=larger, checked=v.SHAPE)
    (swept,) = run([tried], CPU, rounds=3, workers=1)
    assert [(x.name, x.reason) for x in swept.left] == [("picky", "RuntimeError: 3 rows")]
    assert [t.name for t in swept.timings] == ["plain"]


def test_the_table_and_the_file_say_the_same(tmp_path: Path) -> None:
    results = run([case(right=v.summed, wrong=v.wrong)], CPU, rounds=3, workers=1)
    sweep.write(tmp_path / "out.json", results)
    (written,) = json.loads((tmp_path / "out.json").read_text())["cases"]
    assert written["case"] == "scaled, 2 rows of 8"
    assert [t["name"] for t in written["timings"]] == [t.name for t in results[0].timings]
    assert [(x["name"], x["status"]) for x in written["left"]] == [("wrong", "failed")]
    first, head, *rows = str(results[0]).splitlines()
    assert first == "scaled, 2 rows of 8"
    assert head.split("  ")[-1].strip() == "quartiles"
    assert [row.split()[0] for row in rows[:2]] == [t.name for t in results[0].timings]
    assert rows[2] == "wrong failed: differs from the reference by 1 of the largest magnitude"


def test_an_implementation_gets_the_config_of_the_variant() -> None:
    seen = []

    def target(x, weight, *, eps, weight_offset, config):
        seen.append(config)
        return normed(x, weight, eps=eps, weight_offset=weight_offset, config=config)

    with backends(planted=dataclasses.replace(PLANTED, target=target)):
        assert complaint(configured(4), "some", CPU) == ""
    assert seen == [Rows(4)]


def test_an_op_is_timed_beside_its_own_peers() -> None:
    with backends(planted=PLANTED):
        swept = sweep._timed(configured(4), {}, CPU, rounds=3, limit_s=1.0, compiled=False)
    assert {(t.name, t.kind) for t in swept.timings} == {("some", "implementation"), ("torch eager", "peer")}


def test_an_op_that_changes_its_arguments_finds_them_as_they_were() -> None:
    def added(x, residual, weight, *, eps, weight_offset):
        residual += x
        x.copy_(torch.nn.functional.rms_norm(residual, weight.shape, weight + weight_offset, eps))

    with backends(planted=implementation(added, op="add_rms_norm_")):
        tried = Case("add_rms_norm_", v.SHAPE, {"some": Configured("planted", None)}, dtype=torch.float32)
        assert complaint(tried, "some", CPU) == ""


def test_a_dry_run_lists_the_cases_that_are_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    with backends(planted=PLANTED):
        assert main([case(right=v.summed), configured(1)], "A sweep.", ["--dry"]) == 0
        listed = "scaled, 2 rows of 8\n  right\nrms_norm, 2 rows of 8\n  some\n"
        assert capsys.readouterr().out == listed
        assert main([case(right=v.summed), configured(1)], "A sweep.", ["--dry", "--only", "norm"]) == 0
    assert capsys.readouterr().out == "rms_norm, 2 rows of 8\n  some\n"


def test_a_dry_run_refuses_an_unknown_implementation_and_a_config_of_another_kind() -> None:
    variants = {"some": Configured("planted", {"rows": "many"})}
    unfit = dataclasses.replace(configured(1), variants=variants)
    with backends(planted=PLANTED), pytest.raises(ValueError, match=r"rows expected int, got 'many'"):
        sweep.listing(unfit)
    with pytest.raises(InvalidArgument) as refused:
        sweep.listing(configured(1))
    assert str(refused.value) == (
        "sweep: `implementation` expected one of rms_norm's, reference, got 'planted'; "
        "install its backend or correct the name"
    )


def test_a_callable_has_no_implementations() -> None:
    with pytest.raises(InvalidArgument) as refused:
        complaint(case(some=Configured("planted", None)), "some", CPU)
    assert str(refused.value) == (
        "sweep: `variants` of scaled, 2 rows of 8 expected callables, "
        "got Configured(implementation='planted', config=None); only an op has configs"
    )


def test_without_a_gpu_only_a_dry_run_is_possible(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit):
        main([case(right=v.summed)], "A sweep.", [])
    assert "a sweep needs a GPU and there is none; --dry lists what would run" in capsys.readouterr().err
