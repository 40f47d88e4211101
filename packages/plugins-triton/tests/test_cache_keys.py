"""Keys of kernels in Triton's cache: the same in every process, whatever it compiled first."""

import subprocess
import sys

from opmux_triton.activation import kernels as activation
from opmux_triton.cache_keys import called, settle

PROGRAM = """
import importlib, sys
from opmux_triton.cache_keys import settle
for name in sys.argv[1:]:
    module, _, function = name.rpartition(".")
    kernel = getattr(importlib.import_module(module), function)
    settle(kernel)
    print(name, kernel.cache_key)
"""
KERNELS = (
    "opmux_triton.activation.kernels.gated",
    "opmux_triton.norm.kernels.norm",
    "opmux_triton.paged.join_kernels.join",
    "opmux_triton.attention.forward.hopper_kernels.attention_forward",
    "opmux_triton.attention.forward.kernels.attention_forward",
)


def keys(names: tuple[str, ...]) -> set[str]:
    command = [sys.executable, "-c", PROGRAM, *names]
    return set(subprocess.run(command, check=True, capture_output=True, text=True, timeout=120).stdout.splitlines())


def test_keys_do_not_depend_on_the_order() -> None:
    found = keys(KERNELS)
    assert len(found) == len(KERNELS)
    assert keys(KERNELS[::-1]) == found


def test_functions_of_modules_count_as_called() -> None:
    names = {function.fn.__name__ for function in called(activation.gated)}
    assert {"load_tile", "row_starts", "store_tile", "await_predecessor", "share"} <= names
    assert "sigmoid" in {function.fn.__name__ for function in called(activation.share)}, "a function of triton.language"


def test_what_is_no_kernel_is_left_alone() -> None:
    settle(None)
    settle(len)
