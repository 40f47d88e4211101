"""Kept launches: that they are those of the ordinary way with other addresses, and when they are not taken."""

import gc
import threading
import weakref
from dataclasses import replace
from typing import Any

import pytest
import torch
from gpu_calls import DECODE, IMPLEMENTED, PREFILL, call
from kept_calls import (
    CALLS,
    NORM,
    SM_90,
    Device,
    gated_call,
    halves,
    linear_call,
    named,
    norm_call,
    paged_call,
    write_call,
)
from torch import Tensor

import opmux
from opmux.bench.cases import MAKERS
from opmux.bench.data import Arguments, Data
from opmux_triton import families, launch, repeats
from opmux_triton.norm import targets as norm
from opmux_triton.paged import configs as paged_configs
from opmux_triton.paged import targets as paged


@pytest.mark.parametrize("make", CALLS)
def test_what_is_repeated_is_what_was_launched(device: Device, make: Any) -> None:
    run, tensors = make()
    others = [None if t is None else t.clone() for t in tensors]
    results = run(*tensors)
    expected = named(device.taken(), tensors, results)
    results = run(*tensors)
    assert named(device.taken(), tensors, results) == expected
    [(kept,)] = repeats._repeats.values()
    assert len(kept.steps) == len(expected)
    built = device.built
    for given in (others, tensors, others):
        launch._HANDLES.clear()  # what is repeated needs none of them
        results = run(*given)
        assert named(device.taken(), given, results) == expected
    assert device.built == built


def test_scratch_is_allocated_at_every_call(device: Device) -> None:
    run, tensors = paged_call()
    for _ in range(3):
        run(*tensors)
    taken = device.taken()
    first, combine = taken[-2:]
    assert first[3].startswith("attend ")
    assert combine[3].startswith("combine ")
    [(kept,)] = repeats._repeats.values()
    [zero, place] = kept._places
    assert zero == 0
    # Sums and statistics, in one piece: what is between them holds the sums.
    sums, statistics = combine[4:6]
    assert statistics - sums == place
    assert place % 512 == 0
    assert place >= 4 * combine[13] * 2 * 4 * 64


@pytest.mark.parametrize("make", CALLS)
def test_no_tensor_is_kept(device: Device, make: Any) -> None:
    """One that lies in the pool of a CUDA graph would be alive there for good: `torch.compile` refuses that."""
    run, tensors = make()
    for _ in range(2):
        run(*tensors)
    gc.collect()  # of what other tests left
    before = {id(t) for t in gc.get_objects() if type(t) is Tensor}
    assert repeats._repeats
    repeats._repeats.clear()
    gc.collect()
    assert {id(t) for t in gc.get_objects() if type(t) is Tensor} == before


def test_an_address_that_is_no_multiple_of_16_goes_the_ordinary_way(device: Device) -> None:
    run, (x, weight) = norm_call()
    for _ in range(3):
        run(x, weight)
    built = device.built
    odd = halves(2 * 64 + 1)[1:].view(2, 64)
    y = run(odd, weight)
    assert device.built == built + 1
    assert device.taken()[-1][4:7] == (odd.data_ptr(), weight.data_ptr(), y.data_ptr())


def test_one_tensor_in_two_places_is_not_kept(device: Device) -> None:
    run, (gate, up) = gated_call()
    for _ in range(3):
        run(gate, gate)
    device.taken()
    out = run(gate, up)
    assert [v for v in device.taken()[0] if v in (gate.data_ptr(), up.data_ptr(), out.data_ptr())] == [
        gate.data_ptr(), out.data_ptr(), up.data_ptr(),
    ]  # fmt: skip


def test_rows_that_go_in_parts_are_not_kept(device: Device) -> None:
    run, (_, weight) = norm_call()
    x = halves(2, 3, 4, 64 * 2)[..., :64].permute(2, 0, 1, 3)[:, :, :2]
    for _ in range(4):
        run(x, weight)
    assert [r.steps for kept in repeats._repeats.values() for r in kept] == [[]]
    assert len(device.taken()) % 4 == 0


def test_under_one_key_few_are_kept(device: Device) -> None:
    run, (_, weight) = norm_call()
    wide = [halves(2, 64 + 16 * more)[:, :64] for more in range(8)]
    for _ in range(3):
        for each in wide:
            y = run(each, weight)
            assert named(device.taken(), (each, weight), y)[0][4:7] == ("tensor 0", "tensor 1", "tensor 2")
    assert [len(kept) for kept in repeats._repeats.values()] == [4]


def test_more_forms_in_turn_than_are_kept_stop_being_noted(device: Device) -> None:
    run, (_, weight) = norm_call()
    wide = [halves(2, 64 + 16 * more)[:, :64] for more in range(6)]
    for _ in range(10):
        for each in wide:
            run(each, weight)
    [kept] = repeats._repeats.values()
    assert len(kept) == 4
    for each in wide * 2:
        run(each, weight)
    assert [*repeats._repeats.values()] == [kept]


def test_a_kernel_lives_as_long_as_its_launch_is_kept(device: Device) -> None:
    """Triton keeps one of two that threads compile at the same time, and unloads a kernel without references."""
    run, tensors = norm_call()
    for _ in range(2):
        run(*tensors)
    [(kept,)] = repeats._repeats.values()
    compiled = weakref.ref(kept.handles[0].compiled)
    del kept
    launch._HANDLES.clear()
    gc.collect()
    assert compiled() is not None
    repeats._repeats.clear()
    gc.collect()
    assert compiled() is None


def test_a_call_of_which_a_profiler_saw_a_part_is_not_kept(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    run, tensors = paged_call()
    run(*tensors)
    asked = iter([False, True, False])  # by `kept`, by the first launch, by the second
    monkeypatch.setattr(repeats, "watched", lambda: next(asked))
    monkeypatch.setattr(launch, "watched", lambda: next(asked))
    monkeypatch.setattr(type(paged.kernels.attend), "__getitem__", lambda self, grid: lambda *a, **k: None)
    run(*tensors)
    assert [*repeats._repeats.values()] == [()]
    assert [*asked] == []


def test_a_tensor_that_is_absent_is_told_from_one_that_is_there(device: Device) -> None:
    linear, (x, w, bias) = linear_call()
    attend, (*given, _) = paged_call()
    for _ in range(4):
        for run, tensors in ((linear, [x, w, None]), (linear, [x, w, bias]), (attend, [*given, None])):
            run(*tensors)
        attend(*given, torch.zeros(4))
        norm.layer_norm(x, x[0], None, eps=1e-5, config=NORM)
        norm.layer_norm(x, x[0], x[1].clone(), eps=1e-5, config=NORM)
    steps = [[len(one.steps) for one in kept] for kept in repeats._repeats.values()]
    assert len(steps) == 6
    assert all(len(kept) == 1 and kept[0] for kept in steps)


def test_what_came_first_at_an_odd_address_is_kept_later(device: Device) -> None:
    run, (x, weight) = norm_call()
    odd = halves(2 * 64 + 1)[1:].view(2, 64)
    for _ in range(3):
        run(odd, weight)
    assert list(repeats._repeats.values()) == [()]
    run(x, weight)
    [(kept,)] = repeats._repeats.values()
    assert len(kept.steps) == 1


@pytest.mark.parametrize("change", ["shape", "strides", "dtype", "option", "config"])
def test_another_call_is_another_key(device: Device, change: str) -> None:
    x, weight, eps, config = halves(4, 64), halves(64), 1e-6, NORM
    for _ in range(3):
        norm.rms_norm(x, weight, eps=eps, weight_offset=0.0, config=config)
    device.taken()
    if change == "shape":
        x = halves(2, 64)
    elif change == "strides":
        x = halves(4, 128)[:, :64]
    elif change == "dtype":
        x = x.float()
    elif change == "option":
        eps = 1e-5
    else:
        config = replace(NORM, rows=2)
    y = norm.rms_norm(x, weight, eps=eps, weight_offset=0.0, config=config)
    repeated = device.taken()
    repeats._repeats.clear()
    z = norm.rms_norm(x, weight, eps=eps, weight_offset=0.0, config=config)
    assert named(repeated, (x, weight), y) == named(device.taken(), (x, weight), z)


def test_a_config_that_is_named_lives_on(device: Device) -> None:
    config = replace(NORM)
    for _ in range(2):
        norm.rms_norm(halves(2, 64), halves(64), eps=1e-6, weight_offset=0.0, config=config)
    [(kept,)] = repeats._repeats.values()
    assert kept.config is config


def test_steps_of_a_growing_sequence_are_alike(device: Device) -> None:
    run, tensors = paged_call()
    del run
    features = {"page_size": 16, "head_dim": 64, "value_dim": 64, "bucket(batch)": 1}
    config = paged_configs.halves_config(SM_90, features)
    options = {"scale": None, "causal": True, "window": (-1, -1), "softcap": 0.0, "layout": "nhd"}
    for length in range(257, 257 + config.decode.least // 4):
        paged.paged_attention(*tensors, max_seqlen_q=1, max_seqlen_k=length, config=config, **options)
    assert len(repeats._repeats) <= 2


def test_a_recording_and_a_profiler_see_every_launch(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    run, tensors = norm_call()
    for _ in range(3):
        run(*tensors)
    with launch.recording("sm_90") as recorded:
        run(*tensors)
    assert len(recorded.launches) == 1
    assert len(device.taken()) == 3
    monkeypatch.setattr(repeats, "watched", lambda: True)
    monkeypatch.setattr(launch, "watched", lambda: True)
    kernel = recorded.launches[0].kernel
    seen = []
    monkeypatch.setattr(type(kernel), "__getitem__", lambda self, grid: lambda *a, **k: seen.append(grid))
    run(*tensors)
    assert seen == [recorded.launches[0].grid]
    assert device.taken() == []


def test_the_table_is_bounded(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repeats, "_MOST", 8)
    weight = halves(64)
    for rows in range(1, 40):
        for _ in range(3):
            norm.rms_norm(halves(rows, 64), weight, eps=1e-6, weight_offset=0.0, config=NORM)
        assert len(repeats._repeats) <= 8
    assert len(device.taken()) == 3 * 39


def test_an_error_keeps_nothing(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    run, tensors = norm_call()
    run(*tensors)

    def fails(*arguments: Any) -> None:
        raise RuntimeError("the device is gone")

    monkeypatch.setattr(launch, "_launch", fails)
    with pytest.raises(RuntimeError, match="the device is gone"):
        run(*tensors)
    assert list(repeats._repeats.values()) == [()]
    assert launch.noting.notes is None


def test_a_threads_launches_are_its_own(device: Device) -> None:
    run, tensors = norm_call()
    run(*tensors)
    other_run, others = write_call()
    key = next(iter(repeats._repeats))
    with repeats.kept(key, [t for t in tensors if t is not None], (), NORM):
        thread = threading.Thread(target=lambda: other_run(*others))
        thread.start()
        thread.join()
        assert launch.noting.notes is not None
        assert launch.noting.notes.made == []


@pytest.mark.gpu
@pytest.mark.parametrize("shape", [PREFILL, DECODE], ids=["prefill", "decode"])
@pytest.mark.parametrize("op", IMPLEMENTED)
def test_a_repeated_call_computes_with_the_tensors_it_is_given(op: str, shape: Any) -> None:
    def fresh(seed: int) -> Arguments:
        return MAKERS[op](Data.seeded(torch.device("cuda"), torch.bfloat16, seed), shape)

    exact = all(record.deterministic for record in families.records() if record.op == op)
    tolerance = 0 if exact else 1e-2
    expected = []
    for seed in range(3):
        repeats._repeats.clear()
        expected.append(call(op, fresh(seed)))
    repeats._repeats.clear()
    for _ in range(3):  # the second call of a kind is noted, the third is the first one that repeats
        for seed in range(3):  # new tensors each time, in memory that was freed
            for got, wanted in zip(call(op, fresh(seed)), expected[seed], strict=True):
                torch.testing.assert_close(got, wanted, rtol=tolerance, atol=tolerance, equal_nan=True)


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:The CUDA Graph is empty:UserWarning")  # the one with which torch begins its pool
def test_compiled_graphs_find_nothing_alive_in_their_pool() -> None:
    """`reduce-overhead` counts what is allocated in a graph's pool: what a call keeps must not lie there."""
    torch._dynamo.reset()
    made = [(4, 8, 64), (512, 512), (64, 16, 2, 64), (512,)]
    q, w, pages, weight = (torch.randn(*shape, dtype=torch.bfloat16, device="cuda") for shape in made)
    offsets = torch.arange(5, dtype=torch.int32, device="cuda")
    lengths = torch.full((4,), 250, dtype=torch.int32, device="cuda")
    table = torch.arange(64, dtype=torch.int32, device="cuda").view(4, 16)

    def step(q: torch.Tensor) -> torch.Tensor:
        out = opmux.paged_attention(q, pages, pages, offsets, lengths, table, max_seqlen_q=1, max_seqlen_k=256 * 16)
        x = opmux.linear(out.flatten(1), w)
        return opmux.rms_norm(x, weight).view(4, 8, 64)

    compiled = torch.compile(step, mode="reduce-overhead", fullgraph=True)
    expected = step(q)
    for _ in range(5):
        torch.compiler.cudagraph_mark_step_begin()
        torch.testing.assert_close(compiled(q), expected)
