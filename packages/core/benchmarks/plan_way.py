"""How far a reader goes who follows one plan miss through the source: stays, modules and returns.

A *stay* is a stretch of a miss during which control is in one module; a *return* is a stay in a module that had one
before. The miss begins where the plan table calls `plan_and_run`, and is one of ``rms_norm`` without other candidates.
Left out is what a reader follows without opening it: generated code, the op's reference, and the small modules of
`LEAVES`, whose functions say by their names what they do.

Run: ``python packages/core/benchmarks/plan_way.py [--json]``.
"""

import argparse
import json
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import torch

import opmux
from opmux.planning.dispatch import plan_and_run

ROOT = Path(opmux.__file__).parent
LEAVES = (
    "signatures/signature.py",
    "signatures/dims.py",
    "signatures/expressions.py",
    "signatures/memory.py",
    "declared/implementation.py",
    "arch.py",
    "dtypes.py",
    "running/modes.py",
)
LIMITS = {"stays": 31, "returns": 24}
"""Half of what the way of a miss was before planning and running had modules of their own."""


def module_of(frame: FrameType) -> str | None:
    """The module of opmux that a function is in, or None for one that is not counted."""
    path = Path(frame.f_code.co_filename)
    if not path.is_relative_to(ROOT):
        return None
    module = path.relative_to(ROOT).as_posix()
    return None if module in LEAVES or module.startswith("ops/") else module


def way() -> list[str]:
    """The modules that a plan miss is in, one after the other."""
    x, weight = torch.randn(4, 8), torch.randn(8)
    opmux.rms_norm(x, weight)  # loads the plugins
    opmux.rms_norm.op.drop_plans()
    inside: list[str | None] = []
    found: list[str] = []

    def follow(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and (inside or frame.f_code is plan_and_run.__code__):
            inside.append(module_of(frame))
        elif event == "return" and inside:
            inside.pop()
        here = next((module for module in reversed(inside) if module), None)
        if here is not None and found[-1:] != [here]:
            found.append(here)

    sys.setprofile(follow)
    try:
        opmux.rms_norm(x, weight)
    finally:
        sys.setprofile(None)
    return found


def measure() -> dict[str, int]:
    """The counts."""
    found = way()
    return {"stays": len(found), "modules": len(set(found)), "returns": len(found) - len(set(found))}


def main() -> int:
    """Print the way and its counts; 1 where it is longer than it should be."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true")
    as_json = parser.parse_args().json
    found = measure()
    if as_json:
        print(json.dumps(found))
    else:
        print(*way(), sep="\n")
        print(", ".join(f"{count} {name}" for name, count in found.items()))
    return 0 if all(found[name] <= limit for name, limit in LIMITS.items()) else 1


if __name__ == "__main__":
    sys.exit(main())
