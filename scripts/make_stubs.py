"""Makes packages/core/src/opmux/__init__.pyi, the types of the public functions, from the signatures of the ops.

The ops are made from their definitions at import, where no type checker sees them. `python scripts/make_stubs.py`
writes the stub; with `--check` it writes nothing and exits 1 where the stub is not what it would write. Ops of
installed plugins are left out: their types are those of their own package.
"""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

import opmux
from opmux.callpath.op import OPS, Op
from opmux.signatures.signature import Option

ROOT = Path(__file__).resolve().parent.parent
STUB = Path("packages/core/src/opmux/__init__.pyi")

HEADER = '''\
# Made by scripts/make_stubs.py from the signatures of the ops: do not edit.
"""One API for the operators of language models; many backends; the best one chosen at call time."""

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

'''

IMPORTS = {
    "opmux": ("bench", "nn", "policy", "rope", "tuner"),
    "opmux.__about__": ("__version__",),
    "opmux.arch": ("fp8_dtype",),
    "opmux.callpath.op": ("Op as _DefinedOp",),
    "opmux.ops.kv_cache": ("block_table_from_csr",),
    "opmux.planning.explanation": ("Candidate", "Explanation", "explain"),
    "opmux.running.observe": ("Trace", "TraceRow", "trace"),
    "opmux.running.quarantine": ("Quarantined", "quarantine_clear", "quarantined"),
    "opmux.tuner.session": ("tune",),
}
"""Module -> what `opmux` has of it besides the ops."""

BASE = '''
class _Op:
    """What every op has beside its call."""

    op: _DefinedOp
    __name__: str

'''

SCALARS = {"float": "float", "int": "int", "bool": "bool", "str": "str", "dtype": "torch.dtype"}


def core_ops() -> list[Op]:
    """The ops that the core defines, by name."""
    return [OPS[name] for name in sorted(OPS) if OPS[name].reference.__module__.startswith("opmux.")]


def option_type(option: Option) -> str:
    """The annotation of an option."""
    if option.choices:
        written = f"Literal[{', '.join(map(repr, option.choices))}]".replace("'", '"')
    elif option.kind in ("ints", "bools"):
        element = option.kind.removesuffix("s")
        length = ", ".join([element] * option.length) if option.length else f"{element}, ..."
        written = f"tuple[{length}]"
    else:
        written = SCALARS[option.kind]
    return written + (" | None" if option.nullable else "")


def default_of(option: Option) -> str:
    """The default as it is written in a parameter list."""
    if option.required:
        return ""
    return f" = {option.default!r}".replace("'", '"')


def parameters(op: Op, out: bool) -> Iterator[str]:
    """The parameters of the op's function, one a line."""
    signature = op.signature
    for tensor in signature.tensors:
        yield f"{tensor.name}: Tensor | None = None" if tensor.optional else f"{tensor.name}: Tensor"
    yield "*"
    for option in signature.options:
        yield f"{option.name}: {option_type(option)}{default_of(option)}"
    yield "backend: str | None = None"
    if out and signature.takes_out:
        yield f"out: {returned(op)} | None = None"


def returned(op: Op) -> str:
    """The annotation of what the op returns."""
    count = len(op.signature.outputs)
    if count == 0:
        return "None"
    return "Tensor" if count == 1 else f"tuple[{', '.join(['Tensor'] * count)}]"


def op_class(op: Op) -> Iterator[str]:
    """The lines of one op: a class with its call, and the instance."""
    yield f"class _{op.name}(_Op):"
    yield f"    reference: Callable[..., {returned(op)}]"
    for method, result in (("__call__", returned(op)), ("bind", f"Callable[..., {returned(op)}]")):
        yield f"    def {method}("
        yield "        self,"
        yield from (f"        {parameter}," for parameter in parameters(op, out=method == "__call__"))
        yield f"    ) -> {result}: ..."
    yield ""
    yield f"{op.name}: _{op.name}"
    yield ""


def make() -> str:
    """The text of the stub."""
    imports = []
    for module, names in IMPORTS.items():
        for name in names:
            alias = name if " as " in name else f"{name} as {name}"
            imports.append(f"from {module} import {alias}")
    ops = core_ops()
    known = {op.name for op in ops} | {name for names in IMPORTS.values() for name in names}
    missing = sorted(set(opmux.__all__) - known)
    if missing:
        raise SystemExit(f"{STUB}: no type is known of {', '.join(missing)}; add them to IMPORTS of this script")
    exported = "".join(f'    "{name}",\n' for name in sorted(opmux.__all__))
    body = "\n".join(line for op in ops for line in op_class(op))
    return f"{HEADER}{chr(10).join(imports)}\n\n__all__ = [\n{exported}]\n{BASE}{body}"


def main() -> int:
    """Write the stub, or with --check compare it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 where the stub is out of date")
    arguments = parser.parse_args()
    text, path = make(), ROOT / STUB
    if not arguments.check:
        path.write_text(text)
        print(f"{STUB}: {len(core_ops())} ops")
    elif not path.exists() or path.read_text() != text:
        print(f"{STUB} is out of date; run: python scripts/make_stubs.py")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
