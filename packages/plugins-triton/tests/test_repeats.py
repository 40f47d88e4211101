"""Kept launches: that they are those of the ordinary way with other addresses, and when they are not taken."""

import gc
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import triton
from torch import Tensor
from triton.backends.nvidia import driver

from opmux.arch import parse_arch
from opmux_triton import launch, repeats, tensor_maps
from opmux_triton.activation import targets as activation
from opmux_triton.activation.configs import GatedConfig
from opmux_triton.attention.forward import configs as attention_configs
from opmux_triton.attention.forward import targets as attention
from opmux_triton.gemm import heuristics as gemm_heuristics
from opmux_triton.gemm import targets as gemm
from opmux_triton.kv_cache import targets as kv_cache
from opmux_triton.kv_cache.configs import WriteConfig
from opmux_triton.norm import backward_targets as norm_backward
from opmux_triton.norm import configs as norm_configs
from opmux_triton.norm import targets as norm
from opmux_triton.paged import configs as paged_configs
from opmux_triton.paged import targets as paged
from opmux_triton.rope import targets as rope
from opmux_triton.rope.configs import RopeConfig

SM_90 = parse_arch("sm_90")
NORM = norm_configs.RowsConfig(block=256, rows=1, num_warps=4)
ROPE = RopeConfig(block_heads=8, tokens=1, num_warps=4)
GATED = GatedConfig(block=256, rows=1, num_warps=4)
WRITE = WriteConfig(block=256, tokens=1, stream=False, num_warps=4)
VERSION = ".".join(triton.__version__.split(".")[:2])


class Compiled(SimpleNamespace):
    """Stands for Triton's object of a compiled kernel; weak references can be had of it."""


class Device:
    """Stands for a GPU: keeps what its launcher is given."""

    def __init__(self) -> None:
        self.launched: list[tuple[Any, ...]] = []
        self.built = 0

    def run(self, x: int, y: int, z: int, stream: int, function: Any, packed: Any, *rest: Any) -> None:
        """Triton's launcher."""
        self.launched.append((x, y, z, function, *rest[3:]))

    def build(self, kernel: Any, grid: Any, arguments: tuple[Any, ...], meta: Any) -> launch.Handle:
        """Stands for the compiler."""
        self.built += 1
        names = kernel.arg_names[len(arguments) :]
        compiled = Compiled(metadata=SimpleNamespace())
        function = " ".join([kernel.__name__, *(str(a.dtype) for a in arguments if isinstance(a, Tensor))])
        return launch.Handle(compiled, self.run, function, None, tuple(meta[name] for name in names))

    def taken(self) -> list[tuple[Any, ...]]:
        """What was launched since the last time."""
        found, self.launched = self.launched, []
        return found


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[Device]:
    """A GPU that is not there, whose tensors lie on the CPU."""
    made = Device()
    monkeypatch.setattr(torch._C, "_cuda_getDevice", lambda: -1, raising=False)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda index: 7, raising=False)
    monkeypatch.setattr(launch, "_build", made.build)
    monkeypatch.setattr(launch, "device_arch", lambda kind, index: SM_90)
    for table in (launch._HANDLES, repeats._repeats, repeats._replaced, tensor_maps._maps, tensor_maps._geometries):
        table.clear()
    yield made
    for table in (launch._HANDLES, repeats._repeats, repeats._replaced, tensor_maps._maps, tensor_maps._geometries):
        table.clear()


def halves(*shape: int) -> Tensor:
    return torch.zeros(shape, dtype=torch.bfloat16)


def norm_call() -> tuple[Callable[..., Any], tuple[Tensor | None, ...]]:
    return lambda *t: norm.rms_norm(*t, eps=1e-6, weight_offset=0.0, config=NORM), (halves(2, 64), halves(64))


def add_norm_call() -> tuple[Callable[..., Any], tuple[Tensor | None, ...]]:
    given = (halves(2, 64), halves(2, 64), halves(64))
    return lambda *t: norm.add_rms_norm_(*t, eps=1e-6, weight_offset=0.0, config=NORM), given


def rope_call() -> tuple[Callable[..., Any], tuple[Tensor | None, ...]]:
    tables = torch.zeros(2, 8, 16)
    given = (halves(2, 4, 2, 32), halves(2, 4, 1, 32), tables[0], tables[1], None)
    return lambda *t: rope.apply_rope(*t, interleaved=False, config=ROPE), given


def gated_call() -> tuple[Callable[..., Any], tuple[Tensor | None, ...]]:
    return lambda *t: activation.silu_mul(*t, config=GATED), (halves(3, 64), halves(3, 64))


def write_call() -> tuple[Callable[..., Any], tuple[Tensor | None, ...]]:
    given = (halves(3, 2, 64), halves(3, 2, 64), halves(4, 16, 2, 64), halves(4, 16, 2, 64), torch.arange(3))
    return lambda *t: kv_cache.write_kv_cache(*t, layout="nhd", config=WRITE), given


def linear_call(arch: str = "sm_80", tokens: int = 2) -> tuple[Callable[..., Any], tuple[Tensor | None, ...]]:
    features = {"n": 64, "k": 96, "bucket(tokens)": (tokens - 1).bit_length()}
    config = gemm_heuristics.linear(parse_arch(arch), features)
    return lambda *t: gemm.linear(*t, config=config), (halves(tokens, 96), halves(64, 96), halves(64))


def paged_call(longest: int = 1) -> tuple[Callable[..., Any], tuple[Tensor | None, ...]]:
    features = {"page_size": 16, "head_dim": 64, "value_dim": 64, "bucket(batch)": 1}
    chosen = paged_configs.halves_config(SM_90, features)
    config = replace(chosen, decode=replace(chosen.decode, least=64, programs=64))
    options = {"scale": None, "causal": True, "window": (-1, -1), "softcap": 0.0, "layout": "nhd"}
    given = (
        halves(2, 4, 64), halves(64, 16, 2, 64), halves(64, 16, 2, 64), torch.arange(3, dtype=torch.int32),
        torch.full((2,), 300, dtype=torch.int32), torch.zeros(2, 32, dtype=torch.int32), None,
    )  # fmt: skip
    return lambda *t: paged.paged_attention(*t, max_seqlen_q=longest, max_seqlen_k=300, config=config, **options), given


def attention_call() -> tuple[Callable[..., Any], tuple[Tensor | None, ...]]:
    chosen = attention_configs.forward_config(SM_90, {"head_dim": 64, "value_dim": 64, "bucket(seq_q)": 6})
    config = replace(chosen, tma=False)
    options = {"scale": None, "causal": True, "window": (-1, -1), "softcap": 0.0}
    given = (halves(2, 40, 4, 64), halves(2, 48, 2, 64), halves(2, 48, 2, 64), None)
    return lambda *t: attention.attention_lse(*t, config=config, **options), given


def norm_backward_call() -> tuple[Callable[..., Any], tuple[Tensor | None, ...]]:
    config = norm_configs.backward_config(SM_90, {"hidden": 64})
    options: dict[str, Any] = {"eps": 1e-6, "weight_offset": 0.0, "output_mask": (True, True, True), "config": config}
    given = (halves(9, 64), halves(9, 64), halves(9, 64), halves(64))
    return lambda *t: norm_backward.add_rms_norm_backward(*t, **options), given


def linear_backward_call() -> tuple[Callable[..., Any], tuple[Tensor | None, ...]]:
    config = gemm_heuristics.linear_backward(parse_arch("sm_80"), {"n": 64, "k": 96, "bucket(tokens)": 4})
    given = (halves(9, 64), halves(9, 96), halves(64, 96))
    return lambda *t: gemm.linear_backward(*t, output_mask=(True, True, True), config=config), given


CALLS = (
    norm_call, add_norm_call, rope_call, gated_call, write_call, linear_call, paged_call, attention_call,
    norm_backward_call, linear_backward_call,
)  # fmt: skip


def named(launched: Sequence[tuple[Any, ...]], tensors: Sequence[Tensor | None], results: Any) -> list[Any]:
    """Launches with the call's own tensors by their places instead of by their addresses; others are scratch."""
    every = [*tensors, *(results if isinstance(results, tuple) else (results,))]
    places = {t.data_ptr(): f"tensor {place}" for place, t in enumerate(every) if t is not None}
    return [
        tuple(places.get(v, "scratch" if isinstance(v, int) and v > 1 << 24 else v) for v in values)
        for values in launched
    ]


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


def test_scratch_is_taken_anew(device: Device) -> None:
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
    """Of two that threads compile at a time Triton keeps one, and unloads a kernel that nobody has any more."""
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


class Inside:
    """The installed Triton's launcher with a C function that notes what it is given in the place of the driver's.

    The launcher has to be one that was read (see `tensor_maps`): with another version, read it first.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.launched: list[tuple[Any, ...]] = []
        self.made: list[tuple[Any, ...]] = []
        monkeypatch.setattr(driver, "make_tensordesc_arg", self.make_map)
        self.monkeypatch = monkeypatch

    def make_map(self, descriptor: Any, layout: Any, *rest: Any) -> list[Any]:
        """The driver's function, down to the map."""
        self.made.append((descriptor.base.data_ptr(), tuple(descriptor.shape)))
        return [f"map {len(self.made)}", *descriptor.shape, *descriptor.strides]

    def note(self, *arguments: Any) -> None:
        """The function in C."""
        self.launched.append(tuple(arguments[-1] if VERSION == "3.9" else arguments[13:]))

    def build(self, kernel: Any, grid: Any, arguments: tuple[Any, ...], meta: Any) -> launch.Handle:
        """Stands for the compiler."""
        run: Any = object.__new__(driver.CudaLauncher)
        vars(run).update(global_scratch_size=0, profile_scratch_size=0, launch_cooperative_grid=False, launch_pdl=True)
        launcher = self.note
        if VERSION == "3.9":
            vars(run).update(gsan_enabled=False, arg_annotations=(), kernel_signature=b"")
            active = SimpleNamespace(utils=SimpleNamespace(launch=launcher))
            self.monkeypatch.setattr(type(triton.runtime.driver), "active", active)

        def wrapped(*given: Any) -> None:  # what makes the maps in Triton, by the name that it has there
            launcher(*given)

        vars(run)["launch"] = wrapped
        count = sum(hasattr(argument, "block_shape") for argument in arguments)
        compiled = SimpleNamespace(metadata=SimpleNamespace(tensordesc_meta=[{"swizzle": 3}] * count))
        names = kernel.arg_names[len(arguments) :]
        return launch.Handle(compiled, run, kernel.__name__, (4, 1, 0), tuple(meta[name] for name in names))


@pytest.fixture
def inside(device: Device, monkeypatch: pytest.MonkeyPatch) -> Inside:
    """Triton's launcher from inside; the ordinary way launches nothing."""
    made = Inside(monkeypatch)
    monkeypatch.setattr(launch, "_build", made.build)
    monkeypatch.setattr(driver.CudaLauncher, "__call__", lambda *a: None)
    return made


def test_tensor_maps_are_made_once_for_an_address(inside: Inside) -> None:
    run, (x, w, bias) = linear_call("sm_90", tokens=8)
    for _ in range(2):
        run(x, w, bias)
    assert inside.made == []
    results = [run(x, w, bias) for _ in range(4)]
    addresses = [address for address, _ in inside.made]
    assert len(addresses) == len(set(addresses)) == 2 + len({t.data_ptr() for t in results})
    other = halves(64, 96)
    run(x, other, bias)
    assert other.data_ptr() in [address for address, _ in inside.made]
    of_w = addresses.index(w.data_ptr())
    for values in inside.launched[:4]:
        assert values[values.index(f"map {of_w + 1}") :][:5] == (f"map {of_w + 1}", 64, 96, 96, 1)
    assert f"map {of_w + 1}" not in inside.launched[-1]


def test_a_map_tells_geometries_at_one_address_apart(inside: Inside) -> None:
    memory = halves(16 * 1024)
    for rows, columns in ((64, 96), (96, 64), (64, 96)):
        config = gemm_heuristics.linear(SM_90, {"n": rows, "k": columns, "bucket(tokens)": 3})
        for _ in range(3):
            gemm.linear(halves(8, columns), memory[: rows * columns].view(rows, columns), None, config=config)
    shapes = [shape for address, shape in inside.made if address == memory.data_ptr()]
    assert shapes == [(64, 96), (96, 64)]


def test_maps_are_bounded(inside: Inside, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensor_maps, "_MOST", 8)
    run, (x, _, bias) = linear_call("sm_90", tokens=8)
    weights = [halves(64, 96) for _ in range(30)]
    for w in weights * 2:
        run(x, w, bias)
        assert len(tensor_maps._maps) <= 8
    assert len(tensor_maps._geometries) <= 8


@pytest.mark.parametrize("version", [("3", "6"), ("3", "9"), ("3", "77")])
def test_an_unknown_launcher_is_left_alone(monkeypatch: pytest.MonkeyPatch, version: tuple[str, str]) -> None:
    monkeypatch.setattr(tensor_maps, "_VERSION", version)
    handle = launch.Handle(None, print, 0, (), ())
    assert tensor_maps.launcher_of(handle) is None
    run: Any = object.__new__(driver.CudaLauncher)
    assert tensor_maps.launcher_of(handle._replace(run=run)) is None
    vars(run).update(global_scratch_size=0, profile_scratch_size=0)
    assert tensor_maps.launcher_of(handle._replace(run=run)) is None


def test_a_kernel_with_scratch_memory_of_tritons_is_left_to_triton(inside: Inside) -> None:
    run, tensors = norm_call()
    run(*tensors)
    [handle] = launch._HANDLES.values()
    assert tensor_maps.launcher_of(handle) is not None
    handle.run.global_scratch_size = 128
    assert tensor_maps.launcher_of(handle) is None


def test_descriptors_without_maps_go_the_ordinary_way(device: Device) -> None:
    run, tensors = linear_call("sm_90", tokens=8)
    for _ in range(4):
        run(*tensors)
    assert len(device.taken()) == 4
    assert [r.steps for kept in repeats._repeats.values() for r in kept] == [[]]
