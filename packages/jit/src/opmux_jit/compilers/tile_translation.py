"""Translates a kernel in cuda.tile Python to Tile IR. A program of its own, run by `opmux_jit.compilers.tile`.

    python tile_translation.py MODULE.py OUT --arch=sm_90 --bytecode=13.4 --kernel=NAME --parameter=JSON ... \
        --hint=occupancy=2 ...

Each parameter of the kernel is an object with ``kind``:

``array``
    ``dtype``, ``rank``; ``shape`` and ``stride``, lists with a number for each dim that is constant and null for
    others; ``divides``, by which the strides that are not constant are divisible, in elements; ``alignment`` of the
    address in bytes; ``groups``, names: arrays with a name in common may overlap.
``scalar``
    ``dtype``.
``constant``
    ``value``.

It imports nothing of opmux, so that it starts fast.
"""

import argparse
import importlib.util
import json
import sys
from collections.abc import Mapping
from typing import Any


def constraint(given: Mapping[str, Any]) -> Any:
    """The constraint that cuda.tile has for a parameter."""
    import cuda.tile as ct
    from cuda.tile import compilation

    if given["kind"] == "constant":
        return compilation.ConstantConstraint(given["value"])
    dtype = getattr(ct, given["dtype"])
    if given["kind"] == "scalar":
        return compilation.ScalarConstraint(dtype)
    divides = [1 if constant is not None else given["divides"] for constant in given["stride"]]
    return compilation.ArrayConstraint(
        dtype,
        given["rank"],
        index_dtype=ct.int32,
        stride_lower_bound_incl=0,
        alias_groups=given["groups"],
        may_alias_internally=False,
        stride_constant=given["stride"],
        shape_constant=given["shape"],
        stride_divisible_by=divides,
        base_addr_divisible_by=given["alignment"],
    )


def main() -> None:
    """Translate one kernel."""
    parser = argparse.ArgumentParser()
    parser.add_argument("module")
    parser.add_argument("out")
    parser.add_argument("--arch", required=True)
    parser.add_argument("--bytecode", required=True, help="the version of Tile IR")
    parser.add_argument("--kernel", required=True)
    parser.add_argument("--parameter", action="append", default=[])
    parser.add_argument("--hint", action="append", default=[])
    given = parser.parse_args()

    # cuda.tile imports torch where there is one, to know its dtypes; that takes longer than all the rest.
    sys.modules["torch"] = None  # type: ignore[assignment]
    from cuda.tile import compilation

    spec = importlib.util.spec_from_file_location("kernels", given.module)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    hints = {name: int(value) for name, _, value in (hint.partition("=") for hint in given.hint)}
    signature = compilation.KernelSignature(
        [constraint(json.loads(parameter)) for parameter in given.parameter],
        compilation.CallingConvention.cutile_python_v2(),
        symbol=given.kernel,
    )
    compilation.export_kernel(
        getattr(module, given.kernel).replace_hints(**hints), [signature], given.out, gpu_code=given.arch,
        output_format="tileir_bytecode", bytecode_version=given.bytecode,
    )  # fmt: skip


if __name__ == "__main__":
    main()
