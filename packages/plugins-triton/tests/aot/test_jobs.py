"""What there is to compile for an arch."""

import pytest

from opmux.errors import InvalidArgument
from opmux.testing import cases_of
from opmux_triton.aot import jobs


def test_the_jobs_are_enumerated_by_what_picks_them() -> None:
    found = jobs.enumerate_jobs("gfx942", ["rms_norm"])
    assert found.failures == []
    assert found.cases >= len({c.id for c in cases_of("rms_norm", "model")}) // 3
    assert 0 < found.claimed <= found.cases
    assert len(found.jobs) == len({job.key for job in found.jobs.values()})
    hidden = {job.launch.arguments[0].shape[-1] for job in found.jobs.values()}
    assert {4096, 8192} <= hidden  # models' own sizes are what stands for a config
    assert "different (kernel, config, flags)" in jobs.describe(found)


def test_large_cases_add_jobs_and_take_none_away() -> None:
    names = ["rms_norm", "layer_norm"]
    usual, both = (jobs.enumerate_jobs("sm_90", names, profiles) for profiles in (("model",), jobs.PROFILES))
    picked, more = ({jobs._identity(j) for j in jobs.representatives(e.jobs.values())} for e in (usual, both))
    assert picked < more
    blocks = {j.config["block"] for j in jobs.representatives(both.jobs.values()) if j.profile == "large"}
    assert blocks == {2048, 4096}  # rows of 8192 that are read twice


def test_decoding_is_enumerated_with_room_for_far_more_tokens() -> None:
    found = jobs.enumerate_jobs("sm_90", ["paged_attention"])
    joined = {job.launch.meta["BLOCK_S"] for job in found.jobs.values() if job.kernel == "combine"}
    assert max(joined) == 64


def test_an_op_that_there_is_not_is_refused() -> None:
    with pytest.raises(InvalidArgument) as raised:
        jobs.enumerate_jobs("gfx942", ["rmsnorm"])
    assert str(raised.value) == "machine-code: `--op` expected the name of an op, got 'rmsnorm'; see `opmux ops`"


def test_what_stands_for_a_kernel_does_not_depend_on_the_ops_that_are_asked_for() -> None:
    ops = ["rms_norm", "layer_norm", "add_rms_norm", "silu_mul"]
    found = jobs.enumerate_jobs("gfx942", ops, ["model"]).jobs.values()
    whole = {jobs._identity(job) for job in jobs.representatives(found)}
    parts = {op: {jobs._identity(job) for job in jobs.representatives(found, [op])} for op in ops}
    assert set.union(*parts.values()) == whole
    assert parts["silu_mul"].isdisjoint(parts["rms_norm"])
    alone = jobs.enumerate_jobs("gfx942", ["rms_norm"], ["model"]).jobs.values()
    configs = {(job.kernel, str(job.config)) for job in alone}
    assert configs <= {(job.kernel, str(job.config)) for job in found if "rms_norm" in job.ops}
    assert {job.kernel for job in alone} == {job.kernel for job in jobs.representatives(found, ["rms_norm"])}


def test_a_sample_is_the_largest_problem_of_each_kernel_and_width() -> None:
    found = jobs.representatives(jobs.enumerate_jobs("gfx942", ["silu_mul", "rms_norm"], ["model"]).jobs.values())
    picked = jobs.samples(found)
    kinds = [(job.kernel, jobs._width(job.launch)) for job in picked]
    assert len(set(kinds)) == len(kinds)
    assert set(kinds) == {(job.kernel, jobs._width(job.launch)) for job in found}
    for job in picked:
        assert job.size == max(
            other.size
            for other in found
            if (other.kernel, jobs._width(other.launch)) == (job.kernel, jobs._width(job.launch))
        )
