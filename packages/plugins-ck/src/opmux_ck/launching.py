"""Launches of instances, through opmux-jit's native launcher, on torch's current stream."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from opmux.plugin import CaptureRefused, InvalidArgument, device_arch
from opmux_ck.building.instances import Instance, code_of
from opmux_jit import load
from opmux_jit.launching import current_host
from opmux_jit.launching.devices import current_stream, device

MOST_BYTES = (1 << 31) - 1
"""Of a matrix, or of a head of a sequence, in a launch: CK counts its bytes, elements and strides in 32 bits."""

_launches: dict[tuple[Instance, int, str], Callable[..., None]] = {}


def launch(instance: Instance, grid: tuple[int, int, int], *arguments: Any) -> None:
    """Launch an instance on the current stream of the device of its first argument; build it first where it is not.

    Args:
        instance: what is launched; hashable.
        grid: workgroups in three dims, none 0.
        *arguments: the kernel's, the first one a tensor.

    Raises:
        BuildFailed: there is no CK or no compiler, the compiler refuses the instance, or the driver does not load it;
            nothing was launched.
        CaptureRefused: it would have to be built or loaded while a graph is captured.
        InvalidArgument: the tensors are on the CPU, and no emulator plays a device.
        LaunchFailed: the driver refuses the launch.
    """
    first: Tensor = arguments[0]
    index = first.get_device()
    if index >= 0:
        _loaded(instance, index, device_arch("cuda", index).name)(*grid, current_stream(index), *arguments)
        return
    host = current_host()
    if host is None:
        raise InvalidArgument(
            f"ck: {instance.name}: `arguments` expected tensors on a GPU, got one on the CPU; move it"
        )
    run = _loaded(instance, 0, device_arch("cpu", 0).name)
    with host(arguments):
        run(*grid, 0, *arguments)


def _loaded(instance: Instance, index: int, arch: str) -> Callable[..., None]:
    key = (instance, index, arch)
    return _launches.get(key) or _launches.setdefault(key, _load(*key))


def _load(instance: Instance, index: int, arch: str) -> Callable[..., None]:
    if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
        raise CaptureRefused(
            f"ck: {instance.name} is not loaded yet, and a graph is being captured; "
            "run the call once before the capture"
        )
    device(index, "amd")  # where there is no driver, fails before anything is compiled
    entry = code_of(instance, arch)
    kernel = load(entry.source, instance.kernel, instance.signature, block=instance.threads, entry=entry)
    return kernel.on(index)
