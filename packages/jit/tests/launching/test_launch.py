"""Launches, on a driver that keeps what it is given: every kind of argument, every way to launch, every refusal."""

import gc
import re
import struct
import threading
from typing import Any

import pytest
import torch
from kernels import Counting

from opmux.plugin import BackendFault, BuildFailed, InvalidArgument
from opmux_jit import Entry, LaunchFailed, LoadFailed, Source
from opmux_jit.compilers import choice
from opmux_jit.launching import Address, MapOf, Module, device, devices, load
from opmux_jit.native.library import launcher

SIZES = {"p": 8, "b": 1, "h": 2, "i": 4, "q": 8, "B": 1, "H": 2, "I": 4, "Q": 8, "?": 1, "e": 2, "E": 2, "f": 4, "d": 8,
         "m": 128}  # fmt: skip


@pytest.fixture
def make(driver, monkeypatch):
    """Kernels whose machine code is what the fake driver reads."""
    compiler = Counting()
    monkeypatch.setattr(choice, "find", lambda name: compiler)
    monkeypatch.setattr(compiler, "compile", lambda source, folder: source.text.encode() + b"\0", raising=False)

    def made(signature: str, arch: str = "sm_90", **shape: Any):
        text = " ".join(["k", *(str(SIZES[letter]) for letter in signature)])
        return load(Source("k", text, arch), "k", signature, **{"block": 128, **shape})

    return made


def packed(driver, make, signature: str, *values: Any) -> list[bytes]:
    make(signature).on(0)(1, 1, 1, 7, *values)
    (line,) = driver.log()
    return [bytes.fromhex(word) for word in line.partition(" args")[2].split()]


@pytest.mark.parametrize(
    ("letter", "value", "form"),
    [
        ("b", -128, "b"), ("b", 127, "b"), ("h", -(2**15), "h"), ("h", 2**15 - 1, "h"), ("i", -(2**31), "i"),
        ("i", 2**31 - 1, "i"), ("q", -(2**63), "q"), ("q", 2**63 - 1, "q"), ("B", 255, "B"), ("H", 2**16 - 1, "H"),
        ("I", 2**32 - 1, "I"), ("Q", 2**64 - 1, "Q"), ("?", True, "?"), ("?", False, "?"), ("e", 1.5, "e"),
        ("e", -65504.0, "e"), ("f", 0.1, "f"), ("f", 3, "f"), ("f", 1e300, None), ("d", 0.1, "d"), ("d", -2, "d"),
        ("p", 0xFFFF_FFFF_FFFF_FFF0, "Q"), ("p", None, None), ("i", True, "i"),
    ],
)  # fmt: skip
def test_each_kind_of_argument_reaches_the_kernel(driver, make, letter, value, form) -> None:
    (found,) = packed(driver, make, letter, value)
    special = {("p", None): bytes(8), ("f", 1e300): struct.pack("f", float("inf"))}
    assert found == (special[letter, value] if form is None else struct.pack(form, value))


@pytest.mark.parametrize(
    "value", [0.0, -0.0, 1.0, 1.00390625, 1.01171875, 3.3895314e38, 3.4e38, 1e-40, float("inf"), float("nan"), -0.1]
)
def test_bfloat16_is_rounded_as_torch_rounds(driver, make, value) -> None:
    (found,) = packed(driver, make, "E", value)
    wanted = torch.tensor(value, dtype=torch.bfloat16)
    given = torch.frombuffer(bytearray(found), dtype=torch.bfloat16)[0]
    assert torch.equal(given, wanted) or (given.isnan() and wanted.isnan())


def test_a_tensor_is_its_address_and_arguments_are_in_order(driver, make) -> None:
    tensor = torch.zeros(4)
    map_ = bytes(range(128))
    found = packed(driver, make, "bpmhd?i", 1, tensor, map_, -2, 0.5, True, 6)
    assert found == [
        b"\1", struct.pack("Q", tensor.data_ptr()), map_, struct.pack("h", -2), struct.pack("d", 0.5), b"\1",
        struct.pack("i", 6),
    ]  # fmt: skip


WRONG = [
    ("b", 128, "int8 that holds the value, got 128"),
    ("h", -32769, "int16 that holds the value, got -32769"),
    ("i", 2**31, "int32 that holds the value, got 2147483648"),
    ("i", 1.0, "int32 that holds the value, got 1.0"),
    ("q", 2**63, "int64 that holds the value, got 9223372036854775808"),
    ("B", -1, "uint8 that holds the value, got -1"),
    ("H", 65536, "uint16 that holds the value, got 65536"),
    ("I", 2**32, "uint32 that holds the value, got 4294967296"),
    ("Q", 2**64, "uint64 that holds the value, got 18446744073709551616"),
    ("?", 1, "bool that holds the value, got 1"),
    ("e", 1e6, "float16 that holds the value, got 1000000.0"),
    ("E", "1", "bfloat16 that holds the value, got '1'"),
    ("f", None, "float32 that holds the value, got None"),
    ("d", 10**400, "float64 that holds the value, got 1"),
    ("p", 1.5, "a pointer (a tensor, an address or None), got 1.5"),
    ("p", -1, "a pointer (a tensor, an address or None), got -1"),
    ("m", b"short", "a tensor map (128 bytes, as tensor_map returns), got b'short'"),
    ("m", 5, "a tensor map (128 bytes, as tensor_map returns), got 5"),
]


@pytest.mark.parametrize(("letter", "value", "expected"), WRONG)
def test_an_argument_that_does_not_fit_is_named(driver, make, letter, value, expected) -> None:
    launch = make(f"i{letter}").on(0)
    with pytest.raises(TypeError) as caught:
        launch(1, 1, 1, 7, 5, value)
    assert str(caught.value).startswith(f"k: argument 1 expected {expected}")
    assert driver.log() == []


def test_what_a_tensors_own_method_raises_is_not_hidden(make) -> None:
    class Broken:
        def data_ptr(self) -> int:
            raise RuntimeError("it has no storage")

    with pytest.raises(RuntimeError, match="it has no storage"):
        make("p").on(0)(1, 1, 1, 7, Broken())


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ((1, 1, 1, 7), "k: expected a grid of 3 numbers, a stream and 1 arguments, got 4 values"),
        ((1, 1, 1, 7, 1, 2), "k: expected a grid of 3 numbers, a stream and 1 arguments, got 6 values"),
        ((1, -1, 1, 7, 1), "k: the grid expected numbers from 0 to 2147483647, got -1"),
        ((1, 1, 2**31, 7, 1), "k: the grid expected numbers from 0 to 2147483647, got 2147483648"),
        ((1, 1, 2**70, 7, 1), "k: the grid expected numbers from 0 to 2147483647, got 1180591620717411303424"),
        ((1, 1.0, 1, 7, 1), "k: the grid expected numbers from 0 to 2147483647, got 1.0"),
        ((1, 1, 1, None, 1), "k: the stream expected an address, got None"),
        ((1, 1, 1, -3, 1), "k: the stream expected an address, got -3"),
    ],
)
def test_a_wrong_launch_is_refused(make, values, message) -> None:
    with pytest.raises(TypeError) as caught:
        make("i").on(0)(*values)
    assert str(caught.value) == message


def test_keywords_are_refused(make) -> None:
    with pytest.raises(TypeError, match="expected a grid"):
        make("i").on(0)(1, 1, 1, 7, 1, stream=2)


LAUNCHES = [
    ({}, "plain", "block 128,1,1 shared 0 stream 7"),
    ({"block": (8, 4, 2), "shared": 1024}, "plain", "block 8,4,2 shared 1024 stream 7"),
    ({"dependent": True}, "extended", "block 128,1,1 shared 0 stream 7 attribute 6:1,0,0"),
    ({"cooperative": True}, "extended", "block 128,1,1 shared 0 stream 7 attribute 2:1,0,0"),
    ({"cluster": 2}, "extended", "block 128,1,1 shared 0 stream 7 attribute 4:2,1,1"),
    (
        {"cluster": (2, 2), "dependent": True, "cooperative": True},
        "extended",
        "block 128,1,1 shared 0 stream 7 attribute 2:1,0,0 attribute 6:1,0,0 attribute 4:2,2,1",
    ),
]


@pytest.mark.parametrize(("shape", "how", "rest"), LAUNCHES)
def test_each_way_to_launch(driver, make, shape, how, rest) -> None:
    make("i", **shape).on(2)(3, 2, 1, 7, 5)
    assert driver.log() == [f"{how} k on 2 grid 3,2,1 {rest} args 05000000"]


def test_much_shared_memory_and_large_clusters_are_asked_for(driver, make) -> None:
    make("i", shared=100_000).on(0)
    assert driver.log() == ["set k 8 100000"]
    make("i", cluster=16).on(0)
    assert driver.log() == ["set k 14 1"]


def test_static_shared_memory_counts_towards_what_must_be_asked_for(driver, make) -> None:
    """The fake driver's kernels have 101 bytes of it."""
    make("i", shared=48 * 1024 - 101).on(0)
    assert driver.log() == []
    make("i", shared=48 * 1024 - 100).on(0)
    assert driver.log() == ["set k 8 49052"]


@pytest.mark.parametrize("grid", [(), (1, 2, 3, 4)])
def test_a_grid_of_no_or_more_than_three_dims_is_refused(driver, make, grid) -> None:
    with pytest.raises(InvalidArgument) as caught:
        make("i")(grid, 5)
    assert str(caught.value) == f"k: `grid` expected one to three numbers of blocks, got {grid}"
    assert driver.log() == []


@pytest.mark.parametrize("grid", [(0, 1, 1), (1, 0, 1), (1, 1, 0)])
def test_an_empty_grid_launches_nothing(driver, make, grid) -> None:
    make("i").on(0)(*grid, 7, 5)
    assert driver.log() == []


def test_the_driver_is_asked_without_the_lock_and_its_context_is_left_as_it_was(driver, make) -> None:
    one, three = make("i").on(1), make("i").on(3)
    for launch in (one, three, one):
        launch(1, 1, 1, 7, 5)
    assert [line.split(" grid")[0] for line in driver.log()] == ["plain k on 1", "plain k on 3", "plain k on 1"]
    assert (driver.context, driver.depth) == (-1, 1)
    seen = []
    thread = threading.Thread(target=lambda: seen.append(one(1, 1, 1, 7, 5)))
    thread.start()
    thread.join()
    assert seen == [None]


def test_a_refused_launch_says_which(driver, make) -> None:
    launch = make("i", shared=64).on(1)
    driver.fail("launch", 701)
    with pytest.raises(LaunchFailed) as caught:
        launch(3, 2, 1, 7, 5)
    assert str(caught.value).splitlines() == [
        "k: the driver refused the launch on device 1: CUDA_ERROR_SOME (701): the text of the error",
        "  grid: (3, 2, 1), block: (128, 1, 1), shared memory: 64 bytes",
    ]
    assert issubclass(LaunchFailed, BackendFault)
    assert not issubclass(LaunchFailed, BuildFailed)
    driver.fail("launch", 0)
    driver.fail("push", 201)
    with pytest.raises(LaunchFailed, match="CUDA_ERROR_SOME"):
        launch(1, 1, 1, 7, 5)


def test_a_kernel_launches_on_the_stream_of_its_tensors(driver, make, monkeypatch) -> None:
    kernel = make("pi")
    with pytest.raises(InvalidArgument) as caught:
        kernel((1,), torch.zeros(1), 1)
    assert str(caught.value) == ("k: `arguments` expected tensors of one GPU, got cpu; move them, or use on(device)")
    with pytest.raises(InvalidArgument, match="got no tensor;"):
        kernel((1,), 5, 1)
    monkeypatch.setattr(type(kernel), "_device_of", lambda self, arguments: 1)
    kernel((2, 3), 64, 1)
    assert driver.log() == ["plain k on 1 grid 2,3,1 block 128,1,1 shared 0 stream 7 args 4000000000000000 01000000"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"block": 0}, "k: `block` expected one to three sizes of 1 or more, got 0"),
        ({"block": (1, 2, 3, 4)}, "k: `block` expected one to three sizes of 1 or more, got (1, 2, 3, 4)"),
        ({"cluster": (0,)}, "k: `cluster` expected one to three sizes of 1 or more, got (0,)"),
        ({"signature": "ix"}, "k: `signature` expected letters of pbhiqBHIQ?eEfdm, got 'x'; see opmux_jit.load"),
    ],
)
def test_a_wrong_shape_is_wrong_use(change, message) -> None:
    with pytest.raises(InvalidArgument) as caught:
        load(Source("k", "", "sm_90"), "k", **{"signature": "i", "block": 1, **change})
    assert str(caught.value) == message


def test_more_arguments_than_a_kernel_can_have_are_refused(make) -> None:
    with pytest.raises(LoadFailed) as caught:
        make("m" * 40).on(0)
    assert str(caught.value) == "k: it has 40 arguments of 5120 bytes, at most 512 of 4096 are taken"


# Modules


def test_modules_stay_loaded_until_they_are_unloaded(driver) -> None:
    """A captured graph may launch a kernel that nothing else refers to."""
    gc.collect()
    before = driver.modules
    module = Module(b"one 4;two 8 8\0", device(0, "nvidia"))
    function = module.function("two")
    assert function.attribute("registers") == 104
    function.set_attribute("shared_carveout", 50)
    assert driver.log() == ["set two 9 50"]
    assert module.variable("table") == (0x7000, 96)
    handle = module.handle
    del module, function
    gc.collect()
    assert driver.modules == before + 1
    again = Module(b"one 4\0", device(0, "nvidia"))
    assert again.handle != handle
    again.unload()
    again.unload()  # once is enough
    assert driver.modules == before + 1
    refused = Module(b"one 4\0", device(0, "nvidia"))
    driver.fail("unload", 700)
    with pytest.raises(LoadFailed, match="machine code: "):
        refused.unload()


@pytest.mark.parametrize("code", [200, 209, 218, 222])
def test_a_driver_that_is_too_old_for_the_code_is_said(driver, make, code) -> None:
    driver.version(12080)
    kernel = make("i")
    driver.fail("load", code)
    with pytest.raises(LoadFailed) as caught:
        kernel.on(1)
    assert str(caught.value).splitlines() == [
        f"k: the driver does not load it on device 1: ModuleLoadData: CUDA_ERROR_SOME ({code}): the text of the error",
        f"  driver:    {driver.path}, for toolkits up to 12.8",
        "  code:      for sm_90, by nvrtc 13.5",
        "  try:       update the driver, or compile with a toolkit that is no newer than it "
        '(pip install "nvidia-cuda-nvrtc==X"), or for this GPU\'s own arch',
    ]


def test_code_of_cuda_tile_has_a_compiler_of_its_own_to_be_older(driver) -> None:
    driver.version(12080)
    source = Source("norm", "# a kernel", "sm_90", language="cutile")
    driver.fail("load", 200)
    with pytest.raises(LoadFailed) as caught:
        Module(Entry("norm", source, "cutile 1.7.0", b"norm 4\0"), device(0, "nvidia"))
    assert str(caught.value).splitlines()[2:] == [
        "  code:      for sm_90, by cutile 1.7.0",
        "  try:       update the driver, or compile with a toolkit that is no newer than it "
        '(pip install "nvidia-cuda-tileiras==X" "nvidia-cuda-nvcc==X" "nvidia-nvvm==X"), or for this GPU\'s own arch',
    ]


def test_another_failure_to_load_is_as_the_driver_says_it(driver) -> None:
    with pytest.raises(LoadFailed) as caught:
        Module(b"refuse 3\0", device(0, "nvidia"))
    assert str(caught.value) == (
        "machine code: the driver does not load it on device 0: ModuleLoadData: CUDA_ERROR_SOME (3): the text of the "
        "error"
    )


def test_too_little_memory_is_not_the_kernels_fault(driver, make) -> None:
    driver.fail("load", 2)
    with pytest.raises(torch.OutOfMemoryError) as caught:
        make("i").on(1)
    assert str(caught.value) == "k: ModuleLoadData: CUDA_ERROR_SOME (2): the text of the error"
    driver.fail("load", 0)
    launch = make("i").on(1)
    driver.fail("launch", 2)
    with pytest.raises(torch.OutOfMemoryError) as caught:
        launch(3, 2, 1, 7, 5)
    assert str(caught.value).splitlines()[0] == (
        "k: the driver refused the launch on device 1: CUDA_ERROR_SOME (2): the text of the error"
    )


def test_a_kernel_or_variable_that_is_not_there_is_said(driver) -> None:
    module = Module(b"one 4\0", device(0, "nvidia"))
    with pytest.raises(LoadFailed) as caught:
        module.function("two")
    assert str(caught.value) == (
        "machine code: it has no kernel 'two' (ModuleGetFunction: CUDA_ERROR_NOT_FOUND (500): the text of the error); "
        'declare it extern "C" __global__'
    )
    with pytest.raises(LoadFailed, match=r"^machine code: it has no variable 'other' "):
        module.variable("other")
    driver.fail("attribute", 1)
    with pytest.raises(LoadFailed, match=r"^one: FuncGetAttribute: CUDA_ERROR_SOME"):
        module.function("one").attribute("registers")


# Drivers


def test_a_device_that_is_not_there_is_said(driver) -> None:
    with pytest.raises(launcher().DriverError, match="cuDeviceGet: CUDA_ERROR_SOME"):
        launcher().load(device(9, "nvidia").driver, 9, b"k\0")
    with pytest.raises(launcher().DriverError, match="device -1 is no GPU"):
        launcher().load(device(0, "nvidia").driver, -1, b"k\0")


def test_the_version_of_a_driver(driver) -> None:
    assert device(0, "nvidia").driver_version == "13.0"
    assert device(0, "amd").driver_version == "6.4"
    assert device(0, "nvidia").stream() == 7


def test_a_driver_that_is_not_installed_is_said(driver, monkeypatch) -> None:
    monkeypatch.setattr(devices, "LIBRARIES", {"nvidia": ("libno-such-driver.so.1", "libc.so.6")})
    with pytest.raises(LoadFailed) as caught:
        device(0, "nvidia")
    assert str(caught.value).startswith(
        "launcher: no driver for nvidia's GPUs: libno-such-driver.so.1 cannot be opened: libno-such-driver.so.1: "
    )
    assert str(caught.value).endswith("; libc.so.6 has no cuInit: the driver is too old, or this is another library")


def test_a_driver_that_does_not_start_is_said(driver) -> None:
    driver.fail("init", 803)
    with pytest.raises(LoadFailed, match=r"cuInit: CUDA_ERROR_SOME \(803\): the text of the error$"):
        device(0, "nvidia")


@pytest.mark.parametrize("shape", [{"cluster": 2}, {"dependent": True}, {"cooperative": True}])
def test_an_old_driver_has_no_extended_launches(old_driver, make, shape) -> None:
    with pytest.raises(LoadFailed) as caught:
        make("i", **shape).on(0)
    assert re.fullmatch(
        "k: .*libold.so has no cuLaunchKernelEx: the driver is too old for clusters, dependent and cooperative "
        "launches",
        str(caught.value),
    )
    make("i").on(0)(1, 1, 1, 7, 5)


# HIP


def test_hip_launches_on_the_tensors_device(driver, make) -> None:
    make("pf", "gfx942", shared=65536).on(2)(4, 1, 1, 7, 32, 1.0)
    make("i", "gfx942", cooperative=True).on(0)(4, 1, 1, 7, 5)
    assert driver.log() == [
        "hip k on 2 grid 4,1,1 block 128,1,1 shared 65536 stream 7 args 2000000000000000 0000803f",
        "hip cooperative k on 0 grid 4,1,1 block 128,1,1 shared 0 stream 7 args 05000000",
    ]
    module = Module(b"one 4\0", device(0, "amd"))
    assert module.function("one").attribute("registers") == 204
    with pytest.raises(LoadFailed, match="HIP's kernels have no attributes that can be set"):
        module.function("one").set_attribute("shared_carveout", 1)


@pytest.mark.parametrize("shape", [{"cluster": 2}, {"dependent": True}])
def test_what_hip_does_not_have_is_refused(make, shape) -> None:
    with pytest.raises(LoadFailed) as caught:
        make("i", "gfx942", **shape).on(0)
    assert str(caught.value) == "k: HIP has neither clusters nor dependent launches"


def test_a_code_object_for_another_arch_is_said(driver) -> None:
    with pytest.raises(LoadFailed) as caught:
        Module(b"refuse 209\0", device(0, "amd"))
    assert str(caught.value).splitlines()[-1] == ("  try:       compile for this GPU's own arch, or update ROCm")


def test_a_kept_launch_takes_other_tensors_and_keeps_their_maps(driver, make) -> None:
    asked: list[int] = []

    def map_of(tensor: torch.Tensor) -> bytes:
        asked.append(tensor.data_ptr())
        return bytes([len(asked)]) * 128

    memory = torch.zeros(64)
    launch = make("mpi").repeating(0, (3, 2, 1), [MapOf(1, map_of), Address(0), 5], 2)
    a, b = memory[:16], memory[16:32]
    assert [launch(a, b), launch(b, a), launch(a, b)] == [True] * 3
    found = driver.log()
    assert [line.partition(" args ")[0] for line in found] == [
        "plain k on 0 grid 3,2,1 block 128,1,1 shared 0 stream 7"
    ] * 3
    words = [[bytes.fromhex(word) for word in line.partition(" args ")[2].split()] for line in found]
    assert words == [
        [bytes([which]) * 128, struct.pack("Q", tensor.data_ptr()), struct.pack("i", 5)]
        for which, tensor in ((1, a), (2, b), (1, a))
    ]
    assert asked == [b.data_ptr(), a.data_ptr()]
    assert not launch(memory[1:], b)
    assert driver.log() == []
