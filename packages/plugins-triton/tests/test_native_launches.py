"""Kept launches through opmux-jit's launcher: real kernels compiled for sm_90, launched on opmux-jit's fake driver."""

import ctypes
import re
import struct
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import triton
from kept_calls import CALLS, Device, hopper_backward_call, linear_backward_call, linear_call, norm_call
from triton.backends.nvidia import driver as triton_driver

from opmux_jit.launching import devices
from opmux_jit.native import build
from opmux_jit.native.library import launcher
from opmux_triton import launch, native_launches, repeats
from opmux_triton.aot.build import compile_launch
from opmux_triton.launch import Launch

FAKE = Path(__file__).resolve().parents[2] / "jit/tests/launching/fake_driver.cpp"
SIZES = {"8": 1, "16": 2, "32": 4, "64": 8}


class Fake:
    """opmux-jit's fake driver, and Triton's compiler for sm_90 in front of it."""

    def __init__(self, library: Path) -> None:
        self._library = ctypes.CDLL(str(library))
        self._library.fake_log.restype = ctypes.c_char_p

    def log(self) -> list[str]:
        return self._library.fake_log().decode().splitlines()

    def build(self, kernel: Any, grid: Any, arguments: tuple[Any, ...], meta: Any) -> launch.Handle:
        """Compile for real; "load" what the fake driver reads of it: the sizes of the parameters in the PTX."""
        compiled, _ = compile_launch(Launch(kernel, grid, arguments, meta), "sm_90")
        name = compiled.metadata.name
        sizes = parameter_sizes(compiled.asm["ptx"])
        native, where = launcher(), devices.device(0, "nvidia")
        module = native.load(where.driver, 0, f"{name} {' '.join(map(str, sizes))}\0".encode())
        run: Any = object.__new__(triton_driver.CudaLauncher)
        vars(run).update(
            global_scratch_size=compiled.metadata.global_scratch_size,
            profile_scratch_size=compiled.metadata.profile_scratch_size,
            launch_cooperative_grid=compiled.metadata.launch_cooperative_grid,
            launch_pdl=compiled.metadata.launch_pdl,
            launch=lambda *a: None,
            gsan_enabled=False,
            arg_annotations=(),
            kernel_signature=b"",
        )
        names = kernel.arg_names[len(arguments) :]
        packed = (compiled.metadata.num_warps, compiled.metadata.num_ctas, compiled.metadata.shared)
        function = native.function(where.driver, 0, module, name)
        return launch.Handle(compiled, run, function, packed, tuple(meta[n] for n in names))


def parameter_sizes(ptx: str) -> list[int]:
    """The bytes of each parameter of a kernel."""
    entry = re.search(r"\.entry \w+\((.*?)\)", ptx, re.DOTALL)
    assert entry is not None
    sizes = []
    for line in entry[1].split(","):
        array = re.search(r"\.b8 \w+\[(\d+)\]", line)
        scalar = re.search(r"\.[bufs](\d+)", line)
        assert scalar is not None
        sizes.append(int(array[1]) if array else SIZES[scalar[1]])
    return sizes


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("driver") / "libfake.so"
    subprocess.run([build.compiler(), "-std=c++17", "-fPIC", "-shared", str(FAKE), "-o", str(path)], check=True)
    launcher()  # built, as a wheel brings it
    return path


@pytest.fixture
def fake(device: Device, library: Path, monkeypatch: pytest.MonkeyPatch) -> Fake:
    made = Fake(library)
    monkeypatch.setattr(devices, "LIBRARIES", {"nvidia": (str(library),)})
    devices.driver.cache_clear()
    devices.device.cache_clear()
    native_launches._usable.cache_clear()
    monkeypatch.setenv(native_launches.VARIABLE, "1")
    monkeypatch.setattr(launch, "_build", made.build)
    monkeypatch.setattr(torch._C, "_cuda_getDevice", lambda: 0)
    monkeypatch.setattr(torch.Tensor, "get_device", lambda self: 0)
    monkeypatch.setattr(triton_driver.CudaLauncher, "__call__", lambda *a: None)
    active = SimpleNamespace(utils=SimpleNamespace(launch=None))
    monkeypatch.setattr(type(triton.runtime.driver), "active", active)
    made.log()
    return made


@pytest.mark.parametrize("make", CALLS, ids=lambda make: make.__name__)
def test_every_parameter_of_a_kernel_is_given_in_order(fake: Fake, make: Any) -> None:
    """The kernels' own PTX says how many parameters there are, and of what sizes."""
    run, tensors = make()
    for _ in range(3):
        run(*tensors)
    (kept,) = (r for kept in repeats._repeats.values() for r in kept)
    assert kept.native is not None
    fake.log()
    results = run(*tensors)
    lines = fake.log()
    assert len(lines) == len(kept.steps)
    every = [t for t in (*tensors, *(results if isinstance(results, tuple) else (results,))) if t is not None]
    own = {struct.pack("Q", t.data_ptr()) for t in every}
    for line, step, handle in zip(lines, kept.steps, kept.handles, strict=True):
        facts = handle.compiled.metadata
        warps, shared = facts.num_warps, facts.shared
        assert f"grid {step.x},{step.y},{step.z} block {32 * warps},1,1 shared {shared} stream 7" in line
        assert line.startswith("extended" if facts.launch_pdl or facts.launch_cooperative_grid else "plain")
        given = [bytes.fromhex(word) for word in line.partition(" args ")[2].split()]
        wanted = wanted_parameters(handle.compiled.src.signature.values(), step.fixed)
        assert [w for w in wanted if w is not None] == [
            g for g, w in zip(given, wanted, strict=True) if w is not None
        ]  # fmt: skip
        addresses = {g for g, w in zip(given, wanted, strict=True) if w is None}
        assert addresses & own or len(lines) > 1


def wanted_parameters(signature: Any, values: Any) -> list[bytes | None]:
    """The bytes of each parameter, as Triton would hand them to the driver; None for an address."""
    forms = {"i32": "i", "i64": "q", "fp32": "f"}
    found: list[bytes | None] = []
    for kind, value in zip(signature, values, strict=True):
        if kind.startswith("*"):
            found.append(None)
        elif kind != "constexpr":
            found.append(struct.pack(forms[kind], value))
    return [*found, bytes(8), bytes(8)]


def test_addresses_of_another_call_take_the_places_of_the_first(fake: Fake) -> None:
    run, (x, w) = norm_call()
    for _ in range(3):
        run(x, w)
    fake.log()
    others = [torch.zeros_like(t) for t in (x, w)]
    y = run(*others)
    (line,) = fake.log()
    words = line.partition(" args ")[2].split()
    assert words[:3] == [struct.pack("Q", t.data_ptr()).hex() for t in (*others, y)]


def test_scratch_memory_is_one_tensor_of_each_call(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    run, tensors = linear_backward_call()
    for _ in range(3):
        run(*tensors)
    (kept,) = (r for kept in repeats._repeats.values() for r in kept)
    assert kept._places
    memory = torch.zeros(kept._size)
    monkeypatch.setattr(type(kept), "scratch", lambda self: (memory,))
    fake.log()
    run(*tensors)
    given = {word for line in fake.log() for word in line.partition(" args ")[2].split()}
    assert {struct.pack("Q", memory.data_ptr() + place).hex() for place in kept._places} <= given


def test_tensor_maps_go_by_value_and_are_made_once_for_an_address(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []

    def make_map(descriptor: Any, layout: Any, *rest: Any) -> list[Any]:
        made.append(descriptor.base.data_ptr())
        return [len(made), *descriptor.shape, *descriptor.strides]

    monkeypatch.setattr(triton_driver, "make_tensordesc_arg", make_map)
    monkeypatch.setattr(native_launches, "_bytes_of", lambda number: bytes([number]) * 128)
    run, (x, w, bias) = linear_call("sm_90", tokens=8)
    results = [run(x, w, bias) for _ in range(3)]
    (kept,) = (r for kept in repeats._repeats.values() for r in kept)
    assert kept.native is not None
    fake.log()
    results.append(run(x, w, bias))
    (line,) = fake.log()
    words = line.partition(" args ")[2].split()
    of_w = made.index(w.data_ptr()) + 1
    place = words.index(bytes([of_w]).hex() * 128)
    rest = [int.from_bytes(bytes.fromhex(word), "little") for word in words[place + 1 : place + 5]]
    assert rest == [*w.shape, *w.stride()]
    assert len(made) == len(set(made)) == 2 + len({t.data_ptr() for t in results[2:]})


@pytest.mark.parametrize(
    ("options", "kernels"),
    [
        ({"wide": False, "causal": False}, ["row_statistics", "attention_backward", "sum_of_queries"]),
        (
            {"wide": False, "shares": 2},
            [
                "row_statistics", "attention_backward", "sum_of_shares", "sum_of_queries", "keys_values", "queries_of",
            ],
        ),
        ({"wide": True}, ["row_statistics", "wide_keys_values", "wide_queries", "keys_values", "queries_of"]),
    ],
    ids=["full", "shared", "wide"],
)  # fmt: skip
def test_gradients_of_attention_are_one_native_call_with_maps_of_scratch_memory(
    fake: Fake, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], kernels: list[str]
) -> None:
    """Views of scratch memory are found where it lies at the later call, by pointers and in tensor maps."""
    maps: list[int] = []

    def make_map(descriptor: Any, layout: Any, *rest: Any) -> list[Any]:
        maps.append(descriptor.base.data_ptr())
        return [len(maps), *descriptor.shape, *descriptor.strides]

    monkeypatch.setattr(triton_driver, "make_tensordesc_arg", make_map)
    monkeypatch.setattr(native_launches, "_bytes_of", lambda number: bytes([number]) * 128)
    run, tensors = hopper_backward_call(**options)
    for _ in range(2):
        run(*tensors)
    (kept,) = (r for kept in repeats._repeats.values() for r in kept)
    assert kept.native is not None
    assert [handle.compiled.metadata.name for handle in kept.handles] == kernels
    memory = torch.zeros(kept._size)
    monkeypatch.setattr(type(kept), "scratch", lambda self: (memory,))
    fake.log()
    grads = run(*tensors)
    lines = fake.log()
    assert len(lines) == len(kernels)
    inside = range(memory.data_ptr(), memory.data_ptr() + 4 * memory.numel())
    log_sum, shift = statistics_given(lines[0])
    assert shift - log_sum == 4 * 2 * 4 * (192 if options["wide"] else 256)
    assert log_sum in inside
    assert log_sum in maps, "the statistics come by TMA from where the first kernel wrote them"
    given = {word for line in lines for word in line.partition(" args ")[2].split()}
    for tensor in (*tensors[:6], *grads[:3]):
        of_maps = {bytes([n + 1]).hex() * 128 for n, base in enumerate(maps) if base == tensor.data_ptr()}
        assert given & (of_maps | {struct.pack("Q", tensor.data_ptr()).hex()})


def statistics_given(line: str) -> list[int]:
    """Where `row_statistics` was told to write both numbers of each row."""
    words = line.partition(" args ")[2].split()
    return [int.from_bytes(bytes.fromhex(word), "little") for word in words[3:5]]


def test_a_misaligned_address_takes_the_ordinary_way(fake: Fake) -> None:
    run, (x, w) = norm_call()
    for _ in range(3):
        run(x, w)
    fake.log()
    run(torch.zeros(129, dtype=x.dtype)[1:].view(2, 64), w)
    assert fake.log() == []


@pytest.mark.parametrize("change", ["scratch", "clusters", "no source", "unknown kind"])
def test_what_is_not_known_is_left_to_triton(fake: Fake, monkeypatch: pytest.MonkeyPatch, change: str) -> None:
    real = fake.build

    def build(*arguments: Any) -> launch.Handle:
        handle = real(*arguments)
        if change == "scratch":
            handle.run.global_scratch_size = 128
        elif change == "clusters":
            return handle._replace(packed=(4, 2, 0))
        elif change == "no source":
            return handle._replace(compiled=SimpleNamespace(metadata=handle.compiled.metadata))
        else:
            monkeypatch.setattr(native_launches, "KINDS", {})
        return handle

    monkeypatch.setattr(launch, "_build", build)
    run, tensors = norm_call()
    for _ in range(2):
        run(*tensors)
    (kept,) = (r for kept in repeats._repeats.values() for r in kept)
    assert kept.native is None
    assert kept.steps


@pytest.mark.parametrize("present", [False, True])
def test_without_a_built_launcher_triton_launches(
    fake: Fake, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, present: bool
) -> None:
    monkeypatch.setattr(native_launches, "INSTALLED", present)
    monkeypatch.setattr(native_launches, "is_built", lambda: False)
    caplog.set_level("INFO", "opmux.triton")
    run, tensors = norm_call()
    for _ in range(2):
        run(*tensors)
    (kept,) = (r for kept in repeats._repeats.values() for r in kept)
    assert kept.native is None
    said = "opmux-jit's launcher is not built, Triton's is used: python -m opmux_jit.native builds it"
    assert [r.getMessage() for r in caplog.records] == [said] * present


@pytest.mark.parametrize(("value", "native"), [(None, True), ("1", True), ("0", False), ("off", False)])
def test_the_environment_can_switch_native_launches_off(
    fake: Fake, monkeypatch: pytest.MonkeyPatch, value: str | None, native: bool
) -> None:
    monkeypatch.delenv(native_launches.VARIABLE)
    if value is not None:
        monkeypatch.setenv(native_launches.VARIABLE, value)
    run, tensors = norm_call()
    for _ in range(2):
        run(*tensors)
    (kept,) = (r for kept in repeats._repeats.values() for r in kept)
    assert (kept.native is not None) == native


@pytest.mark.parametrize("error", [ImportError("GLIBCXX_3.4.40 not found"), OSError("no such file")])
def test_a_launcher_that_does_not_load_is_said_and_left(
    fake: Fake, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    def broken() -> None:
        raise error

    run, tensors = norm_call()
    run(*tensors)
    devices.driver.cache_clear()
    devices.device.cache_clear()
    monkeypatch.setattr(devices, "launcher", broken)
    run(*tensors)
    (line,) = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
    assert line == f"kernels are launched through Triton, not through opmux-jit: launcher: {error}"


def test_a_driver_that_does_not_open_is_said_once(
    fake: Fake, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    run, tensors = norm_call()
    run(*tensors)
    devices.driver.cache_clear()
    devices.device.cache_clear()
    monkeypatch.setattr(devices, "LIBRARIES", {"nvidia": ("libno-driver.so.1",)})
    run(*tensors)
    (line,) = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
    assert line.startswith(
        "kernels are launched through Triton, not through opmux-jit: launcher: no driver for nvidia's GPUs: "
    )
