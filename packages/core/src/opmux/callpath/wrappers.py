"""Small functions around the callable of a plan, as source: with options fixed, with a config, into ``out=``."""

from collections.abc import Callable
from typing import Any

from opmux.callpath import names
from opmux.callpath.codegen import compile_function, forwarded
from opmux.signatures.signature import Signature


def bound_source(signature: Signature, options: dict[str, Any], present: frozenset[str]) -> str:
    """``bound``: the planned target with its options fixed."""
    tensors = ", ".join(t.name + ("=None" if t.optional and t.name not in present else "") for t in signature.tensors)
    passed = [t.name for t in signature.tensors] + [f"{name}={names.option_name(name)}" for name in options]
    rest = ", ".join(passed)
    return (
        f"def bound({tensors}):\n"
        f"    try:\n"
        f"        return {names.RUN}({rest})\n"
        f"    except {names.DEFERRED}:\n"
        f"        return {names.AGAIN}({names.RUN}, {rest})\n"
    )


def make_bound(
    signature: Signature,
    run: Callable[..., Any],
    options: dict[str, Any],
    present: frozenset[str],
    retry: tuple[type[Exception], Callable[..., Any]],
) -> Any:
    """Compile `bound_source` around a planned target.

    Args:
        signature: the op's.
        run: the planned target.
        options: the values of the options.
        present: the optional tensors that are given.
        retry: an exception of the target, and what runs it again then.
    """
    deferred, again = retry
    namespace = {names.RUN.text: run, names.DEFERRED.text: deferred, names.AGAIN.text: again}
    namespace |= {**{names.option_name(name): value for name, value in options.items()}}
    return compile_function("bound", bound_source(signature, options, present), namespace, shown=False)


def wrapper_source(signature: Signature, configured: bool) -> str:
    """``wrapper``: makes a plan's callable from a target and its config; it bumps the version of what was written."""
    keyword = ["*", *(o.name for o in signature.options)] if signature.options else []
    rest = forwarded(signature, [f"config={names.CONFIG}"] if configured else [])
    lines = [
        f"def wrapper({names.TARGET}, {names.CONFIG}):",
        f"    def run({', '.join([*(t.name for t in signature.tensors), *keyword])}):",
        f"        {'' if signature.mutates else 'return '}{names.TARGET}({rest})",
        *(f"        {names.BUMP}({name})" for name in signature.mutates),
        "    return run",
    ]
    return "\n".join(lines)


def make_writer(signature: Signature, takes_out: bool, bump: Callable[..., None]) -> Callable[..., Any]:
    """Compile ``wrapper``: from a plan's callable it makes one that takes ``out=`` and returns it.

    Args:
        signature: the op's.
        takes_out: whether the callable takes ``out=``; else its results are copied.
        bump: marks a tensor as written.
    """
    keyword, into = [*(o.name for o in signature.options), "out"], names.results(signature)
    rest = forwarded(signature)
    several = [f"        {', '.join(into)} = out"] if len(into) > 1 else []
    if takes_out:
        body = [
            f"        {names.TARGET}({rest}, out=out)",
            *several,
            *(f"        {names.BUMP}({name})" for name in into),
        ]
    else:
        made = [names.made_name(output.name) for output in signature.outputs]
        body = [
            f"        {', '.join(made)} = {names.TARGET}({rest})",
            *several,
            *(f"        {name}.copy_({result})" for name, result in zip(into, made, strict=True)),
        ]
    lines = [
        f"def wrapper({names.TARGET}):",
        f"    def run({', '.join([*(t.name for t in signature.tensors), '*', *keyword])}):",
        *body,
        "        return out",
        "    return run",
    ]
    return compile_function("wrapper", "\n".join(lines), {names.BUMP.text: bump}, shown=False)


def make_wrapper(signature: Signature, configured: bool, bump: Callable[..., None]) -> Callable[..., Any]:
    """Compile `wrapper_source`: a function of a target and its config; ``bump`` marks a tensor as written."""
    source = wrapper_source(signature, configured)
    return compile_function("wrapper", source, {names.BUMP.text: bump}, shown=False)
