"""Makes docs/ops/index.md, the table of ops, from the signatures that the code runs on.

`python scripts/make_op_table.py` writes the page; with `--check` it writes nothing and exits 1 if the page is out of
date. Ops of installed plugins are omitted: the page lists only the core's own.
"""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

from opmux import dtypes
from opmux.callpath.op import OPS, Op
from opmux.dtypes import name_of
from opmux.signatures.output_dtypes import Accumulated, Chosen, Widened
from opmux.signatures.signature import REFUSED, Option, Output, TensorArgument

ROOT = Path(__file__).resolve().parent.parent
PAGE = Path("docs/ops/index.md")

FAMILIES: dict[str, tuple[str, tuple[str, ...]]] = {
    "norm": ("norm", ("norm", "layer_norm")),
    "activation": ("activation", ("activation",)),
    "rope": ("rope", ("rope",)),
    "gemm": ("gemm", ("gemm", "scaled_gemm", "grouped_gemm", "scaled_grouped_gemm")),
    "attention": ("attention", ("attention", "attention_varlen")),
    "paged KV cache": ("paged-kv-cache", ("kv_cache", "paged_attention")),
    "quantization": ("quantization", ("quantization", "conversion", "fused_quantization")),
    "loss": ("loss", ("loss", "fused_loss")),
}
"""Heading -> the page that explains it under docs/ops, and the modules of opmux.ops that define it."""

HEADER = """\
<!-- Made by scripts/make_op_table.py from the signatures: do not edit. -->

# The ops

Every op of the core: what it takes, what it returns, what it writes, how its gradient is computed. The pages of the
families explain the ops, with formulas and edge cases:

{pages}

How to read an entry:

- A tensor is `name [dims] group of dtypes`, an output `name [dims] dtype`. A dim name stands for the same number
  everywhere in an op; `*tokens` is any number of leading dims, including none; `{{block[0]}}` is the value of an
  option; `m/128` is rounded up. `?` marks an optional tensor, `None` if it is not given.
- Tensors are passed by position or by name, options by name only. Every op also takes `backend=`, a backend or
  implementation by name; an op with results takes `out=`, the tensor to write into, or a tuple of them.
- A gradient comes from a backward op, which backends can implement like any other. Its arguments `grad_y` and `x` have
  the shape and dtype of the forward's `y` and `x`, and so does a result `grad_x`; a gradient that `output_mask` does
  not ask for is an empty tensor of shape `(0,)`. A *generated* backward runs the reference's autograd. *refused* means
  that a call raises `GradientRefused` if an argument requires a gradient.
- A reference that *reads index data* looks at positions, offsets, slots or tables on the host: it waits for the device
  and cannot be captured in a CUDA graph. All others read no data, and can be captured.

Groups of dtypes:

{groups}
"""


def own_ops() -> list[Op]:
    """The core's ops, in the order of their definition."""
    # The body of an in-place op, and the public function of a generated backward, are made elsewhere.
    return [op for op in OPS.values() if "opmux.ops." in f"{op.public.__module__} {op.reference.__module__}"]


def family_of(op: Op) -> str:
    """The heading under which an op is listed; a family that is not in FAMILIES is its own heading."""
    return next((heading for heading, (_, modules) in FAMILIES.items() if op.family in modules), op.family)


def tensor_text(argument: TensorArgument) -> str:
    """``weight? [hidden] Real``."""
    optional = "?" if argument.optional else ""
    return f"{argument.name}{optional} [{', '.join(argument.shape.text.split())}] {argument.group}"


def option_text(option: Option) -> str:
    """``causal: bool = False``."""
    kind = option.kind
    if option.choices:
        kind = " or ".join(repr(choice) for choice in option.choices)
    elif option.group:
        kind = f"dtype of {option.group}"
    elif option.length is not None:
        kind = f"({', '.join([option.kind.removesuffix('s')] * option.length)})"
    nullable = " or None" if option.nullable else ""
    return f"{option.name}: {kind}{nullable}" + ("" if option.required else f" = {option.default!r}")


def dtype_text(op: Op, output: Output) -> str:
    """The dtype of an output, in words."""
    rule = output.dtype
    if isinstance(rule, Accumulated):
        return f"float32, float64 where {rule.argument} is"
    if isinstance(rule, str):
        is_option = any(option.name == rule for option in op.signature.options)
        return f"dtype by the option {rule}" if is_option else f"dtype of {rule}"
    if isinstance(rule, Widened):
        return f"dtype of {rule.argument}, bfloat16 where that is an 8-bit one"
    if isinstance(rule, Chosen):
        return f"dtype of {rule.argument}, or the one of its sums by the option {rule.option}"
    return name_of(rule)


def output_text(op: Op, output: Output) -> str:
    """``grad_x [*tokens, hidden] dtype of x``."""
    strides = "; strides by the options" if output.strides is not None else ""
    reduced = f"; one number unless {output.reduction} is 'none'" if output.reduction else ""
    return f"{output.name} [{', '.join(output.shape.text.split())}] {dtype_text(op, output)}{strides}{reduced}"


def notes(op: Op, said: set[str]) -> Iterator[str]:
    """Further facts about an op, a sentence each; a relation that several ops of a family share is stated once."""
    signature = op.signature
    if signature.mutates:
        yield "Writes into " + " and ".join(f"`{name}`" for name in signature.mutates) + "."
    if op.in_place_of:
        yield f"The in-place form of `{op.in_place_of}`."
    for group in signature.same_dtype:
        yield "One dtype: " + ", ".join(f"`{name}`" for name in group) + "."
    for requirement in signature.require:
        if requirement.expression not in said:
            yield f"`{requirement.expression}`: {requirement.text}."
    if signature.require and all(requirement.expression in said for requirement in signature.require):
        yield "The relations of the ops above."
    said |= {requirement.expression for requirement in signature.require}
    yield f"Gradient: {gradient_text(op)}."
    if not op.capturable:
        yield "The reference reads index data."


def gradient_text(op: Op) -> str:
    """How the gradient of an op is computed: the backward op, with the names of its arguments and results."""
    if op.gradient == REFUSED:
        return "*refused*"
    backward = OPS[op.gradient]
    tensors = [f"{t.name}{'?' if t.optional else ''}" for t in backward.signature.tensors]
    options = [option.name for option in backward.signature.options]
    taken = ", ".join([*tensors, "*", *options])
    given = ", ".join(output.name for output in backward.signature.outputs)
    through = f", through `{op.gradient_through}`" if op.gradient_through else ""
    return f"`{op.gradient}({taken}) -> {given}`" + (", *generated*" if backward.generated else "") + through


def entry(op: Op, said: set[str]) -> str:
    """The entry of one forward op, its backward among the notes."""
    signature = op.signature
    arguments = [tensor_text(t) for t in signature.tensors]
    if signature.options:
        arguments += ["*", *map(option_text, signature.options)]
    results = [output_text(op, output) for output in signature.outputs] or ["nothing"]
    lines = [f"{op.name}(", *(f"    {argument}," for argument in arguments), ")"]
    lines += [f"  -> {results[0]}", *(f"     {result}" for result in results[1:])]
    block, remarks = "\n".join(lines), "\n".join(f"- {note}" for note in notes(op, said))
    return f"### {op.name}\n\n{op.summary}\n\n```text\n{block}\n```\n\n{remarks}"


def groups_text(ops: list[Op]) -> str:
    """The dtype groups that the ops use."""
    used = {t.group for op in ops for t in op.signature.tensors} | {o.group for op in ops for o in op.signature.options}
    return "\n".join(f"- `{name}`: {', '.join(getattr(dtypes, name).dtypes)}" for name in sorted(used - {""}))


def page() -> str:
    """The whole page."""
    ops = own_ops()
    families: dict[str, list[Op]] = {heading: [] for heading in FAMILIES}
    for op in ops:
        families.setdefault(family_of(op), []).append(op)
    links = "\n".join(f"- [{heading}]({name}.md)" for heading, (name, _) in FAMILIES.items())
    parts = [HEADER.format(pages=links, groups=groups_text(ops))]
    for heading, members in families.items():
        said: set[str] = set()
        parts.append(f"## {heading}\n")
        parts += [entry(op, said) + "\n" for op in members if not op.is_backward]
    return "\n".join(parts)


def main() -> int:
    """Write or check the page; return the exit code."""
    parser = argparse.ArgumentParser(description="Makes docs/ops/index.md from the signatures of the ops.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if the page is out of date")
    parser.add_argument("--root", type=Path, default=ROOT, help="the repository (default: this script's)")
    arguments = parser.parse_args()
    text, target = page(), arguments.root / PAGE
    if not arguments.check:
        target.write_text(text, encoding="utf-8", newline="\n")
        print(f"{PAGE}: {len(own_ops())} ops")
        return 0
    if not target.exists() or target.read_bytes() != text.encode():
        print(f"{PAGE} is out of date; run: python scripts/make_op_table.py", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
