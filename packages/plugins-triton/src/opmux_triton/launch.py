"""Launches kernels: through Triton the first time, through the compiled handle after that.

A launch through ``kernel[grid](...)`` costs 7 to 8 us of host time, most of it finding the compiled kernel again. Here
the compiled kernel is kept under what Triton specialises on: dtypes and 16-byte alignment of pointers, the value 1 and
divisibility by 16 of integers, and the constants.

For a target that makes the same launches again, even this is skipped: see `opmux_triton.repeats`.

While a `recording` is on, nothing is launched: each launch is noted instead. So the code that picks kernels and configs
in a call also shows, on a machine without a GPU, what an arch gets.
"""

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
import triton
from triton.runtime.jit import TensorWrapper

from opmux.plugin import (
    Arch,
    BuildDeferred,
    BuildFailed,
    CaptureRefused,
    builds_deferred,
    device_arch,
    parse_arch,
)
from opmux_triton import build_reports, bundled, deferred
from opmux_triton.archs import SATURATING, fp8_flavour
from opmux_triton.cache_keys import settle
from opmux_triton.interpreter import INTERPRETED

_HANDLES: dict[Any, "Handle"] = {}
_SPECIALISED: dict[int, tuple[bool, ...]] = {}
_MOST_HANDLES = 4096
"""Bounds the table, however many strides and sizes a process sees."""

FUSION = {"enable_fp_fusion": True}
"""Contract products and sums into fused multiply-adds. Set explicitly: Triton's default depends on its version."""

DEPENDENT = "DEPENDENT"
"""The constant of kernels that begin with `dependent_launch.await_predecessor`."""

FP8 = "FP8"
"""The constant of kernels that convert 8-bit floats: the flavour that the arch's instructions know (see `codes`)."""


@dataclass(frozen=True)
class Launch:
    """A launch that was noted, not made."""

    kernel: Any
    grid: tuple[int, ...]
    arguments: tuple[Any, ...]
    meta: Mapping[str, Any]


@dataclass
class Recording:
    """The launches noted for an arch while a recording was on."""

    arch: str
    launches: list[Launch] = field(default_factory=list)


_recording: list[Recording] = []


class Handle(NamedTuple):
    """A compiled kernel, loaded: what its launches have in common.

    Attributes:
        compiled: Triton's object, which unloads the kernel when it is freed.
        run: Triton's launcher.
        constants: the values of the kernel's last parameters, in order.
    """

    compiled: Any
    run: Any
    function: Any
    packed: Any
    constants: tuple[Any, ...]


class Made(NamedTuple):
    """A launch that was made, recorded so that it can be replayed."""

    handle: Handle
    grid: tuple[int, ...]
    arguments: tuple[Any, ...]
    device: int


@dataclass
class Notes:
    """A thread's launches and scratch memory, noted while the launches are made; see `opmux_triton.repeats`.

    Attributes:
        whole: whether every launch was noted: one that a profiler saw is not.
    """

    made: list[Made] = field(default_factory=list)
    scratch: list[torch.Tensor] = field(default_factory=list)
    whole: bool = True


class _Noting(threading.local):
    notes: Notes | None = None


noting = _Noting()


@contextmanager
def recording(arch: str, launches: list[Launch] | None = None) -> Iterator[Recording]:
    """Note launches instead of making them, as if on ``arch``; for tests and checks, not thread-safe.

    Args:
        arch: the arch whose launches are noted.
        launches: the list that they are appended to, in the order of the calls; an emulator's executes them.
    """
    _recording.append(Recording(arch, [] if launches is None else launches))
    try:
        yield _recording[-1]
    finally:
        _recording.pop()


def recorded_arch() -> str | None:
    """The arch of the recording that is on, or None."""
    return _recording[-1].arch if _recording else None


def watched() -> bool:
    """Whether a recording or a profiler's hooks must see launches."""
    hooks = triton.knobs.runtime
    return bool(_recording or hooks.launch_enter_hook.calls or hooks.launch_exit_hook.calls)


def as_bytes(tensor: torch.Tensor) -> TensorWrapper:
    """A tensor of 8-bit elements as a launch's argument of type uint8, whether or not the arch knows its dtype."""
    return TensorWrapper(tensor, triton.language.uint8)


def always(kernel: Any, arch: Arch) -> dict[str, Any]:
    """What every launch of a kernel on an arch has in addition to its own constants and options."""
    names = kernel.arg_names
    more: dict[str, Any] = {**FUSION}
    if FP8 in names:
        flavour = fp8_flavour(arch)
        more[FP8] = f"{flavour}{SATURATING}" if flavour and arch.vendor == "nvidia" else flavour
    if DEPENDENT not in names:
        return more
    if arch.vendor == "nvidia" and arch.number >= (9, 0):
        return {**more, DEPENDENT: True, "launch_pdl": True}
    return {**more, DEPENDENT: False}


_INTERPRETED = {DEPENDENT: False, FP8: ""}
"""The constants of an arch, as the interpreter has them."""


def launch(kernel: Any, grid: tuple[int, ...], arguments: tuple[Any, ...], meta: Mapping[str, Any]) -> None:
    """Launch a kernel on the current stream of its first argument's device.

    Args:
        kernel: a function under ``triton.jit`` whose constants come last.
        grid: the number of programs in up to three dims, none of them 0.
        arguments: what precedes the constants, in order; the first is a tensor (or a tensor descriptor).
        meta: the constants in order of the kernel's parameters, then Triton's options (``num_warps``, ...).

    Raises:
        BuildFailed: where the kernel does not compile or does not fit the device; nothing was launched.
        CaptureRefused: where it would have to be compiled while a graph is captured.
    """
    if _recording:
        more = always(kernel, parse_arch(_recording[-1].arch))
        _recording[-1].launches.append(Launch(kernel, grid, arguments, {**meta, **more}))
        return
    if INTERPRETED:
        from opmux_triton import interpreter_guard

        with interpreter_guard.held(kernel, arguments):
            more = {name: value for name, value in _INTERPRETED.items() if name in kernel.arg_names}
            kernel[grid](*arguments, **meta, **more)
        return
    first = arguments[0]
    index = first.get_device() if isinstance(first, torch.Tensor) else first.base.get_device()
    if index != torch._C._cuda_getDevice():
        with torch.cuda.device(index):
            _launch(kernel, grid, arguments, meta, index)
    else:
        _launch(kernel, grid, arguments, meta, index)


def _launch(
    kernel: Any, grid: tuple[int, ...], arguments: tuple[Any, ...], meta: Mapping[str, Any], index: int
) -> None:
    key: list[Any] = [id(kernel), index, *meta.values()]
    values: list[Any] = []
    specialised = _SPECIALISED.get(id(kernel)) or _specialised(kernel)
    for argument, special in zip(arguments, specialised, strict=False):
        kind = argument.__class__
        if kind is int:
            narrow = -0x80000000 <= argument < 0x80000000
            key.append((narrow, argument == 1, argument & 15 == 0) if special else narrow)
            values.append(argument)
        elif isinstance(argument, (torch.Tensor, TensorWrapper)):
            address = argument.data_ptr()
            key += (argument.dtype, address & 15 == 0)
            values.append(address)
        elif kind is float or argument is None:
            key.append(kind)
            values.append(argument)
        else:  # a tensor descriptor
            key += (argument.base.dtype, *argument.block_shape)
            values.append(argument)
    found = _HANDLES.get(tuple(key))
    if found is None:
        found = _build(kernel, grid, arguments, {**meta, **always(kernel, device_arch("cuda", index))})
        if len(_HANDLES) >= _MOST_HANDLES:
            _HANDLES.clear()
        _HANDLES[tuple(key)] = found
    if watched():  # a profiler listens: launch through Triton
        if noting.notes is not None:
            noting.notes.whole = False
        kernel[grid](*arguments, **meta, **always(kernel, device_arch("cuda", index)))
        return
    if noting.notes is not None:
        noting.notes.made.append(Made(found, grid, arguments, index))
    x, y, z = (*grid, 1, 1)[:3]
    stream = torch._C._cuda_getCurrentRawStream(index)
    found.run(x, y, z, stream, found.function, found.packed, None, None, None, *values, *found.constants)


def _specialised(kernel: Any) -> tuple[bool, ...]:
    """For each parameter of a kernel, whether Triton specialises it on the value 1 and on multiples of 16."""
    found = tuple(not parameter.do_not_specialize for parameter in kernel.params)
    _SPECIALISED[id(kernel)] = found
    return found


def _build(kernel: Any, grid: tuple[int, ...], arguments: tuple[Any, ...], meta: Mapping[str, Any]) -> Handle:
    if torch.cuda.is_current_stream_capturing():
        raise CaptureRefused(
            f"triton: kernel {kernel.__name__} is not compiled yet for arguments like these, and a graph is being "
            "captured; run the call once before the capture"
        )
    try:
        settle(kernel)
        with build_reports.reported(), bundled.layered(lambda: device_arch("cuda", torch.cuda.current_device()).name):
            compiled, run = _compiled(kernel, grid, arguments, meta)
    except (BuildFailed, BuildDeferred):  # compiling is forbidden, or not to be waited for: said as it is
        raise
    except Exception as error:
        if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
            raise
        raise BuildFailed(f"kernel {kernel.__name__} did not build: {_first_lines(error)}") from error
    names = kernel.arg_names[len(arguments) :]
    return Handle(compiled, run, compiled.function, compiled.packed_metadata, tuple(meta[name] for name in names))


def _compiled(kernel: Any, grid: tuple[int, ...], arguments: tuple[Any, ...], meta: Mapping[str, Any]) -> Any:
    """A kernel and what launches it, loaded; compiled here, unless calls are not to wait for that.

    Raises:
        BuildDeferred: where it must be compiled, and calls are not to wait.
        Exception: whatever the compiler raises.
    """
    if builds_deferred():
        arch = device_arch("cuda", torch.cuda.current_device()).name
        build = deferred.build_of(kernel, arguments, meta, arch, _specialised(kernel))
        if build is not None:
            try:
                with deferred.deferring():
                    compiled = kernel.warmup(*arguments, grid=grid, **meta)
                    return compiled, compiled.run
            except deferred.Missing:
                raise BuildDeferred(build) from None
    compiled = kernel.warmup(*arguments, grid=grid, **meta)
    return compiled, compiled.run  # which loads the module


def _first_lines(error: BaseException) -> str:
    text = str(error) or repr(error)
    return f"{type(error).__name__}: {' '.join(text.split())[:400]}"
