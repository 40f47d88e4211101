"""Every kernel is launched by some conformance case of the smallest whole profile: what none launches, none checks."""

import ast
import functools
import importlib
import pkgutil
import textwrap
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from triton.runtime.jit import JITFunction

import opmux_triton
from opmux.arch import parse_arch
from opmux.callpath.op import Op
from opmux.plugin import registered_ops, takers
from opmux.testing import Case, all_options, fitted
from opmux.testing.inputs import make_arguments
from opmux_triton.aot import jobs
from opmux_triton.launch import recording

ARCH = "sm_90"
FAMILIES = (
    "activation", "attention", "gemm", "grouped_gemm", "kv_cache", "loss", "norm", "paged", "quantization", "rope",
    "scaled_gemm",
)  # fmt: skip
"""The packages that have kernels."""


@functools.cache
def kernels() -> dict[str, JITFunction[Any]]:
    """Of the functions that Triton compiles, those that no other one calls, by name: they are launched."""
    names = [m.name for m in pkgutil.walk_packages(opmux_triton.__path__, "opmux_triton.") if ".aot" not in m.name]
    made = [value for name in names for value in vars(importlib.import_module(name)).values()]
    every = {id(f): f for f in made if isinstance(f, JITFunction)}
    called = {id(used) for function in every.values() for used in used_by(function)}
    return {name_of(f): f for f in every.values() if id(f) not in called}


def used_by(function: JITFunction[Any]) -> Iterator[Any]:
    """What a function reads of its module and of those that it imports."""
    tree = ast.parse(textwrap.dedent(function.src))
    own = {a.arg for a in ast.walk(tree) if isinstance(a, ast.arg)}
    own |= {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    scope = function.fn.__globals__
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id not in own:
            yield scope.get(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            module = scope.get(node.value.id)
            yield getattr(module, node.attr, None) if isinstance(module, ModuleType) else None


def kernels_of(family: str) -> set[str]:
    """The names of a family's kernels."""
    return {name for name in kernels() if name.startswith(f"opmux_triton.{family}.")}


def name_of(kernel: Any) -> str:
    """A kernel's name with its module."""
    return f"{kernel.__module__}.{kernel.__name__}"


def launched_by(op: Op, case: Case) -> Iterator[str]:
    """The kernels that the implementations which take a case launch, with the options that its index data gives."""
    options = all_options(op.signature, case)
    if any(o.name not in options for o in op.signature.options):
        options = make_arguments(case, torch.device("cpu")).options
    for taker in takers(op.public, *jobs._tensors(op, case), arch=ARCH, **options):
        if taker.implementation.backend != "triton":
            continue
        with recording(ARCH) as recorded, torch.no_grad():
            taker.bound(taker.heuristic())(*taker.call.tensors.values(), **taker.call.options)
        yield from (name_of(launch.kernel) for launch in recorded.launches)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_kernel_is_launched_by_some_case(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    left = kernels_of(family)
    assert left
    monkeypatch.setattr(fitted, "arch_of", lambda device: parse_arch(ARCH))
    device: Any = SimpleNamespace(type="cuda")
    for registered in registered_ops().values():
        op = registered.op
        if not any(i.backend == "triton" and f"opmux_triton.{family}." in i.target for i in op.implementations):
            continue
        for case in fitted.cases_for("triton", op.name, "small", device) if left else ():
            if left and case.probe == "values":
                left -= set(launched_by(op, case))
    assert left == set()


def test_the_kernels_are_found() -> None:
    assert set().union(*map(kernels_of, FAMILIES)) == set(kernels())
    paged = {name.rpartition(".")[2] for name in kernels_of("paged")}
    assert paged == {"attend", "attend_shares", "combine", "join", "prefill"}
