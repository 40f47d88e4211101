"""Compiles the kernels of recorded calls ahead, as entries of a bundle that opmux-jit reads."""

import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import torch

from opmux.plugin import BuildFailed, Call, Prebuilt, registered_ops, takers
from opmux.shapes import Point
from opmux_deepgemm.configs import Config
from opmux_deepgemm.generation.source import Layout, Product, name
from opmux_deepgemm.implementations import BACKEND, RECORDS
from opmux_deepgemm.launching import ARCH, source
from opmux_deepgemm.operand_maps import lies_across, with_scales
from opmux_deepgemm.summing import gradient
from opmux_jit import choose
from opmux_jit.cache import bundles, entry, keys
from opmux_jit.cache.layers import compile_entry
from opmux_jit.compilers import identity


def prebuild(
    arch: str, points: Sequence[Point], folder: Path, workers: int, tick: Callable[[int, int], None]
) -> Prebuilt:
    """Compile every kernel that the calls would launch.

    Args:
        arch: only ``sm_90`` has kernels.
        points: the calls.
        folder: this backend's in the bundle; entries lie beside it.
        workers: threads that compile; NVRTC does not hold Python's lock.
        tick: told the number of finished and of all kernels.
    """
    failures: list[str] = []
    wanted = list(dict.fromkeys(_kernels(arch, points, failures)))
    place = folder.parent / bundles.ENTRIES
    made_with: dict[str, str] = {}
    built = 0
    with ThreadPoolExecutor(workers) as pool:
        for done, (compiler, problem) in enumerate(pool.map(partial(_compile, place), wanted), 1):
            if problem:
                failures.append(problem)
            else:
                built += 1
                made_with["nvrtc"] = compiler
            tick(done, len(wanted))
    return Prebuilt(built, failures, made_with)


def product_of(call: Call) -> Product:
    """The product of a call of an op that this backend implements."""
    x = call.tensors["x"]
    if "dy" in call.tensors:
        n, k = call.tensors["out"].shape[-2:]
        if x.dtype != torch.bfloat16:  # codes lie with rows next to each other, or are copied so
            return Product("float8_e4m3fn", "float32", n, k, groups="ragged", accumulate=True)
        return gradient(n, k, call.tensors["dy"], x)
    w = call.tensors["w"]
    out = call.options.get("out_dtype") or x.dtype
    dtype, result = (str(dtype).removeprefix("torch.") for dtype in (x.dtype, out))
    n, k = w.shape[-2:]
    layout: Layout = "masked" if "masked_m" in call.tensors else "ragged" if "group_offsets" in call.tensors else ""
    if "out" in call.tensors:
        return Product(dtype, "float32", n, k, accumulate=True)
    across = lies_across(x), lies_across(w)
    return Product(dtype, result, n, k, call.tensors.get("bias") is not None, layout, False, *across)


def kernel_of(call: Call, config: Config) -> tuple[Product, Config]:
    """The kernel of a call with a config, of which it also depends how scales lie."""
    given = call.tensors
    return with_scales(product_of(call), config, given.get("x_scale"), given.get("w_scale")), config


def _kernels(arch: str, points: Sequence[Point], failures: list[str]) -> Iterator[tuple[Product, Config]]:
    ops = registered_ops()
    for point in points:
        if point.op not in {record.op for record in RECORDS}:
            continue
        for taker in takers(ops[point.op], *point.tensors().values(), arch=arch, backend=BACKEND, **point.options):
            try:
                yield kernel_of(taker.call, taker.config())
            except Exception as error:  # one call's failure must not hide the others
                failures.append(f"{point.key} {BACKEND}: {type(error).__name__}: {error}")


def _compile(place: Path, kernel: tuple[Product, Config]) -> tuple[str, str]:
    """Compile one kernel; returns the compiler's version, and what went wrong."""
    try:
        wanted = source(*kernel)
    except ValueError as error:  # a tuned config that this product cannot have must not end the others' compilation
        return "", f"{name(*kernel)} for {ARCH}: {error}"
    try:
        compiler = choose(wanted, "nvrtc")
        key = keys.entry_key(keys.source_key(wanted), identity(compiler))
        with tempfile.TemporaryDirectory() as folder:
            made = compile_entry(wanted, compiler, key, Path(folder))
        (place / key).mkdir(parents=True, exist_ok=True)
        entry.write(place / key, made)
    except (BuildFailed, OSError) as error:
        return "", f"{wanted.name} for {wanted.arch}: {error}"
    return compiler.version, ""
