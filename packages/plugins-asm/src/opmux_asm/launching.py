"""Launches of the kernels, through opmux-jit's native launcher, on torch's current stream."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from opmux.plugin import Arch, BuildFailed, CaptureRefused, InvalidArgument, device_arch
from opmux_asm.objects.reading import code_object
from opmux_jit.launching.devices import current_stream, device
from opmux_jit.launching.hosting import current_host
from opmux_jit.launching.modules import Module, failure
from opmux_jit.native.library import launcher

_launches: dict[tuple[str, str, int, str], Callable[..., None]] = {}
_modules: dict[tuple[str, int, str], Module] = {}


def launch(family: str, kernel: str, grid: tuple[int, int, int], *arguments: Any) -> None:
    """Launch a kernel on the current stream of the device of its first argument.

    Args:
        family: the kernel's code object.
        kernel: its name.
        grid: workgroups in x, y, z, none of them 0.
        *arguments: the kernel's, the first one a tensor.

    Raises:
        BuildFailed: the code object is damaged or missing, or the driver does not load it; nothing was launched.
        CaptureRefused: it would have to be loaded while a graph is captured.
        InvalidArgument: the tensors are on the CPU, and no emulator plays a device.
        LaunchFailed: the driver refuses the launch.
    """
    first: Tensor = arguments[0]
    index = first.get_device()
    if index < 0:
        host = current_host()
        if host is None:
            raise InvalidArgument(f"asm: {kernel}: `arguments` expected tensors on a GPU, got one on the CPU; move it")
        run = _loaded(family, kernel, 0, arch_of(first).name)
        with host(arguments):
            run(*grid, 0, *arguments)
        return
    run = _loaded(family, kernel, index, arch_of(first).name)
    run(*grid, current_stream(index), *arguments)


def arch_of(tensor: Tensor) -> Arch:
    """The arch of a tensor's device, or that which an emulator plays for the CPU's tensors."""
    index = tensor.get_device()
    return device_arch("cpu", 0) if index < 0 else device_arch("cuda", index)


def _loaded(family: str, kernel: str, index: int, arch: str) -> Callable[..., None]:
    key = (family, kernel, index, arch)
    return _launches.get(key) or _launches.setdefault(key, _load(*key))


def _load(family: str, kernel: str, index: int, arch: str) -> Callable[..., None]:
    if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
        raise CaptureRefused(
            f"asm: kernel {kernel} is not loaded yet, and a graph is being captured; "
            "run the call once before the capture"
        )
    found = code_object(family, arch)
    facts = found.kernels.get(kernel)
    if facts is None:
        raise BuildFailed(f"asm: {family} for {arch} has no kernel {kernel}; it has {', '.join(found.kernels)}")
    where, native = device(index, "amd"), launcher()
    module = _modules.get((family, index, arch)) or _modules.setdefault(
        (family, index, arch), Module(found.code, where)
    )
    block, cluster = (facts["threads"], 1, 1), (1, 1, 1)
    handle = module.function(kernel).handle
    try:
        made: Callable[..., None] = native.launch(
            native.shape(
                where.driver, index, handle, kernel, facts["signature"], block, 0, cluster, False, False, False, module
            )
        )
    except native.DriverError as error:
        raise failure(kernel, error, str(error.args[0])) from None
    return made
