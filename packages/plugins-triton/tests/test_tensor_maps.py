"""Tensor maps of kept launches: made once for an address, and only for launchers that are known."""

from types import SimpleNamespace
from typing import Any

import pytest
import triton
from kept_calls import SM_90, Device, halves, linear_call, norm_call
from triton.backends.nvidia import driver

from opmux_triton import launch, repeats, tensor_maps
from opmux_triton.gemm import heuristics as gemm_heuristics
from opmux_triton.gemm import targets as gemm

VERSION = ".".join(triton.__version__.split(".")[:2])


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
