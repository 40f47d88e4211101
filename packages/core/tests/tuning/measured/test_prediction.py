"""Times predicted from measured rows, on data whose law is known."""

import math
import random
from dataclasses import replace

import pytest
import torch
from backends import backends, implementation
from laws import DTYPES, H100, H200, call, drawn, grid, row, rows, smooth, stepped

import opmux
from opmux.arch import known_arch
from opmux.callpath.op import OPS
from opmux.running.attempt import attempt_of
from opmux.tuning import prediction
from opmux.tuning.estimates import Estimates
from opmux.tuning.measured.device import DeviceModel, device_of
from opmux.tuning.neighbours import LIMIT
from opmux.tuning.prediction import OpTimes, variants_of

LINEAR = opmux.linear.op


def times_of(*measured):
    return OpTimes(LINEAR, measured)


def errors(times: OpTimes, law, points, name: str = "one") -> list[float]:
    """How far predictions are off, as logarithms; at the end of each step of tokens, for which a choice is made."""
    found = []
    for point in points:
        estimate = times.estimates(call(point)).times[name]
        tokens = times.steps["tokens"][point[0]]
        found.append(abs(math.log(estimate.time_us / law(tokens, *point[1:]))))
    return sorted(found)


def test_a_smooth_law_between_the_points_of_a_grid():
    off = errors(times_of(*rows(smooth, grid())), smooth, drawn(1, 200))
    assert off[100] < 0.05, "half are within 5 %"
    assert off[190] < 0.20, "all but one in twenty are within 20 %"


def test_a_stepped_law_by_declared_tiles():
    config = {"config": {"block_m": 128, "block_n": 256}}
    with backends(
        one=implementation(
            lambda x, *t, **o: x, op="linear", config=lambda arch, features: {},
            tiles=(("tokens", "block_m"), ("n", "block_n")),
        )
    ):  # fmt: skip
        measured = rows(stepped, grid(), **config)
        off = errors(times_of(*measured), stepped, drawn(1, 200))
    assert off[100] < 0.03, "half are within 3 %"
    assert off[190] < 0.15, "all but one in twenty are within 15 %"
    blind = errors(times_of(*measured), stepped, drawn(1, 200))
    assert blind[100] > 2 * off[100], "without tiles the staircase is not seen between rows"


def test_a_stepped_law_by_rows_on_its_steps_alone():
    # Every step of tokens was measured, for widths of which the calls' lie between two.
    points = [(m, n, k) for m in range(128, 4097, 128) for n in (2048, 4096, 8192) for k in (2048, 4096, 8192)]
    asked = [(m, 4096, k) for m in range(200, 4000, 77) for k in (3072, 5120)]
    off = errors(times_of(*rows(stepped, points)), stepped, asked)
    assert off[len(off) // 2] < 0.10
    assert off[-len(off) // 20] < 0.30


def test_which_of_two_is_faster_between_measured_points():
    def other(tokens: int, n: int, k: int) -> float:
        return smooth(tokens, n, k) * (0.8 if tokens < 300 else 1.25)

    times = times_of(*rows(smooth, grid()), *rows(other, grid(), "two"))
    regret = []
    for point in drawn(2, 200):
        found = times.estimates(call(point)).times
        chosen = min(found, key=lambda name: found[name].time_us)
        real = {"one": smooth(*point), "two": other(*point)}
        regret.append(math.log(real[chosen] / min(real.values())))
    assert math.exp(sum(regret) / len(regret)) < 1.02


def test_a_measured_point_is_its_row():
    config = {"block_m": 128}
    here = replace(row((512, 4096, 4096), 31.2), compared=("one", "two"), config=config)
    found = times_of(here, row((512, 4096, 4096), 33.0, "two"), row((1024, 4096, 4096), 60.0)).estimates(
        call((512, 4096, 4096))
    )
    one, two = found.times["one"], found.times["two"]
    assert (one.time_us, one.measured, one.compared, one.config, one.where) == (
        31.2, True, True, config, "h200.measured:7",
    )  # fmt: skip
    assert (two.time_us, two.measured, two.compared) == (33.0, True, False)
    # There is no device, so the one of the rows is named.
    assert str(one) == "31.2 us (measured on NVIDIA H200)"


def test_how_many_rows_a_prediction_is_made_from():
    near = rows(smooth, [(64, 4096, 4096), (128, 4096, 4096)])
    found = times_of(*near).estimates(call((96, 4096, 4096))).times["one"]
    assert (found.measured, found.rows, found.compared) == (False, 2, False)
    assert found.source == "predicted, from 2 rows of NVIDIA H200"
    assert found._replace(rows=1, device="").source == "predicted, from 1 row"
    many = times_of(*rows(smooth, grid(1))).estimates(call((96, 4096, 4096))).times["one"]
    assert many.rows == 8


def test_rows_too_far_away_predict_nothing():
    times = times_of(*rows(smooth, grid()), *rows(smooth, [(4, 1024, 1024)], "two"))
    found = times.estimates(call((2048, 4096, 4096)))
    assert set(found.times) == {"one"}
    assert found.far == {"two": pytest.approx(8.7, abs=0.05)}
    assert found.why_not("two") == "not predicted: its nearest row is 8.7 octaves away, the limit is 8"
    assert found.why_not("one") == found.why_not("three") == ""
    assert set(times.estimates(call((1024, 4096, 4096))).times) == {"one", "two"}, "7.7 octaves are near enough"


def test_few_rows_far_away_still_tell_which_is_faster():
    few = [(1, 4096, 4096), (64, 2048, 2048), (4096, 8192, 1024)]
    times = times_of(*rows(smooth, few), *rows(lambda *sizes: 1.2 * smooth(*sizes), few, "two"))
    for point in drawn(5, 50):
        found = times.estimates(call(point)).times
        assert found["one"].time_us < found["two"].time_us


@pytest.mark.parametrize(
    "other",
    [
        {"dtype": torch.float32},
        {"arch": "sm_80"},
        {"point": (512, 4096, 4092)},
    ],
)
def test_archs_alignment_and_the_width_of_dtypes_must_be_equal(other):
    given = {"point": (512, 4096, 4096), **other}
    assert times_of(*rows(smooth, grid())).estimates(call(**given)) == Estimates(limit=LIMIT)


def test_without_rows_of_its_dtype_the_other_16_bit_float_counts():
    measured = rows(smooth, grid())
    found = times_of(*measured).estimates(call((1024, 4096, 4096), dtype=torch.float16)).times["one"]
    exact = times_of(*measured).estimates(call((1024, 4096, 4096))).times["one"]
    assert exact.measured
    assert (found.measured, found.like, found.config) == (False, True, None)
    assert found.source == "predicted, from 8 rows of like calls of NVIDIA H200"
    assert abs(math.log(found.time_us / exact.time_us)) < 0.1


ATTENTION = opmux.attention.op


def attended(op, times: OpTimes, head_dim: int = 64, heads: int = 8, **options):
    """What is said of a call of attention, or of its variant."""
    q = torch.empty(1, 512, heads, head_dim, dtype=torch.bfloat16, device="meta")
    filled = op.bind_arguments((q, q, q), {"causal": True, **options})[1]
    return times.estimates(attempt_of(op, op.state, (q, q, q, None), filled, None, known_arch("sm_90")).call).times


def attention_row(causal: bool = True, head_dim: int = 64, time_us: float = 30.0):
    dims = {"batch": 1, "seq_q": 512, "seq_k": 512, "heads": 8, "kv_heads": 8}
    dims |= {"head_dim": head_dim, "value_dim": head_dim}
    dtypes = dict.fromkeys("qkv", torch.bfloat16)
    options = {"causal": True} if causal else {}
    return replace(row((1, 8, 8), time_us), op="attention", dtypes=dtypes, dims=dims, options=options)


def test_rows_of_equal_flags_and_head_dim_come_first():
    times = OpTimes(ATTENTION, [attention_row(), attention_row(False, time_us=40.0), attention_row(head_dim=80)])
    assert attended(ATTENTION, times)["one"].measured
    assert attended(ATTENTION, times, causal=False)["one"].time_us == 40.0
    assert not attended(ATTENTION, times, heads=16)["one"].like, "heads are a size"
    assert attended(ATTENTION, times, scale=0.5)["one"].measured, "the value of a number costs no time"


def test_without_them_those_of_like_calls_count():
    times = OpTimes(ATTENTION, [attention_row()])
    for options in ({"causal": False}, {"window": (128, 0)}, {"softcap": 30.0}, {"head_dim": 72}):
        found = attended(ATTENTION, times, **options)["one"]
        assert (found.measured, found.like) == (False, True)
    assert attended(ATTENTION, times, causal=False)["one"].time_us > attended(ATTENTION, times)["one"].time_us
    assert not attended(ATTENTION, times, head_dim=128), "a head of twice the size is not like it"
    both = OpTimes(ATTENTION, [attention_row(), attention_row(False, head_dim=80, time_us=90.0)])
    assert attended(ATTENTION, both, causal=False)["one"].time_us < 60.0, "an equal head_dim before an equal mask"


def test_rows_of_a_variant_count_where_an_op_has_none():
    with_lse = opmux.attention_lse.op
    times = OpTimes(with_lse, [], [attention_row()])
    found = attended(with_lse, times)["one"]
    assert (found.measured, found.source) == (False, "predicted, from 1 row of like calls of NVIDIA H200")
    assert set(variants_of(with_lse, OPS)) == {"attention"}
    assert set(variants_of(OPS["rms_norm"], OPS)) == set()
    assert set(variants_of(OPS["add_rms_norm"], OPS)) == {"add_rms_norm_"}
    assert set(variants_of(OPS["add_rms_norm_"], OPS)) == {"add_rms_norm"}


def test_an_empty_call_has_no_time():
    assert times_of(*rows(smooth, grid())).estimates(call((0, 4096, 4096))) == Estimates()


def on(monkeypatch: pytest.MonkeyPatch, device: DeviceModel) -> None:
    monkeypatch.setattr(prediction, "_device_of", lambda call: device)


def model(machine) -> DeviceModel:
    return DeviceModel(machine.device, machine.multiprocessors, machine.clock_mhz, machine.memory_gbps)


def test_another_device_of_the_arch_is_scaled_by_its_roofline(monkeypatch):
    times = times_of(*rows(smooth, grid()))
    on(monkeypatch, model(H100))
    memory_bound = times.estimates(call((1, 8192, 8192))).times["one"]
    assert memory_bound.source == "predicted, from 8 rows of NVIDIA H200"
    assert not memory_bound.measured
    expected = LAUNCH + (smooth(1, 8192, 8192) - LAUNCH) * H200.memory_gbps / H100.memory_gbps
    assert memory_bound.time_us == pytest.approx(expected, rel=0.05)
    compute_bound = times.estimates(call((16384, 8192, 8192))).times["one"]
    assert compute_bound.time_us == pytest.approx(smooth(16384, 8192, 8192), rel=0.05)


LAUNCH = 3.0


def test_a_devices_own_rows_come_before_those_of_another(monkeypatch):
    times = times_of(*rows(smooth, grid()), *rows(lambda *p: 2 * smooth(*p), grid(), machine=H100))
    point = (64, 4096, 4096)
    for machine, factor in ((H200, 1), (H100, 2)):
        on(monkeypatch, model(machine))
        found = times.estimates(call(point)).times["one"]
        assert (found.measured, found.device, found.time_us) == (True, "", factor * smooth(*point))
        assert str(found).endswith("us (measured)")


def test_an_implementation_without_own_rows_is_scaled_beside_one_with_some(monkeypatch):
    times = times_of(*rows(smooth, grid()), *rows(smooth, grid(), "two", machine=H100))
    on(monkeypatch, model(H200))
    found = times.estimates(call((64, 4096, 4096))).times
    assert (found["one"].measured, found["two"].measured) == (True, False)
    assert found["two"].device == "NVIDIA H100 80GB HBM3"


def test_without_a_device_the_model_with_the_most_rows_counts():
    times = times_of(*rows(smooth, grid()), *rows(lambda *p: 2 * smooth(*p), [(64, 4096, 4096)], machine=H100))
    assert times.estimates(call((64, 4096, 4096))).times["one"].device == "NVIDIA H200"


def test_the_config_of_a_row_is_taken_within_half_an_octave_and_for_the_models_own_dims():
    measured = [
        row((64, 4096, 4096), 20.0, config={"block": 64}),
        row((1024, 4096, 4096), 60.0, config={"block": 256}),
    ]

    def config(*point: int):
        return times_of(*measured).estimates(call(point)).times["one"].config

    assert config(64, 4096, 4096) == config(72, 4096, 4096) == {"block": 64}
    assert config(800, 4096, 4096) == {"block": 256}
    assert config(160, 4096, 4096) is None
    assert config(64, 4096, 4104) is None


def test_estimates_do_not_depend_on_the_order_of_the_rows():
    measured = [*rows(smooth, grid()), *rows(stepped, grid(), "two"), *rows(smooth, grid(), machine=H100)]
    seen = set()
    for seed in range(4):
        random.Random(seed).shuffle(measured)
        times = times_of(*measured)
        seen.add(repr([times.estimates(call(point)) for point in drawn(3, 20)]))
    assert len(seen) == 1


def test_calls_of_a_step_have_equal_estimates():
    times = times_of(*rows(smooth, [*grid(), (142, 4096, 4096)]))
    assert [times.steps["tokens"][m] for m in (1, 15, 17, 18, 19, 137, 142, 144, 256, 257)] == [
        1, 15, 18, 18, 20, 144, 142, 144, 256, 288,
    ]  # fmt: skip
    assert times.estimates(call((140, 4096, 4096))) == times.estimates(call((144, 4096, 4096)))
    assert times.estimates(call((142, 4096, 4096))).times["one"].measured


def test_the_model_of_a_device():
    here = device_of(torch.device("cpu"))
    assert here is not None
    assert here.name
    assert here.multiprocessors > 0
    assert device_of(torch.device("cpu", 0)) is here
    assert device_of(torch.device("meta")) is None
    assert DTYPES["x"] is torch.bfloat16


def test_what_no_row_of_a_tensor_holds_aligns_nothing():
    """Heads are the size of the sinks, a vector; rows of keys and values hold columns of a head."""
    assert OpTimes(opmux.attention.op, ())._aligned == ()
    assert set(OpTimes(LINEAR, ())._aligned) == {"k", "n"}


def test_how_many_blocks_have_scales_does_not_matter_but_that_there_are_several() -> None:
    times = OpTimes(opmux.scaled_linear.op, ())
    assert set(times._aligned) == {"k", "n"}
    assert set(times._blocks) == {"k_blocks", "w_blocks"}
    sizes = {"m": 8, "k": 2560, "n": 4096, "m_blocks": 8, "w_rows": 32}
    options = {o.name: o.default for o in times.op.signature.options} | {"out_dtype": torch.bfloat16}
    kinds = [
        times._kind("sm_90", (torch.float8_e4m3fn,), {**options, **sizes, "k_blocks": blocks, "w_blocks": blocks})
        for blocks in (20, 32, 1)
    ]
    assert kinds[0] == kinds[1] != kinds[2]


def test_what_a_launch_costs_is_known_from_rows_of_any_kind():
    """Rows whose last dims are no multiples of 8 are another kind; the fastest of these shows what a launch takes."""
    large = [row((4096, n, 4096), smooth(4096, n, 4096)) for n in (4096, 8192)]
    small = row((1, 1025, 1025), smooth(1, 1025, 1025))
    near, alone = (times_of(*rows).estimates(call((16, 4096, 4096))).times["one"] for rows in ([*large, small], large))
    assert near.time_us < alone.time_us / 2
    assert abs(math.log(near.time_us / smooth(16, 4096, 4096))) < abs(math.log(alone.time_us / smooth(16, 4096, 4096)))
