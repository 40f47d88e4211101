"""`opmux ops` and `opmux backends`: the ops and backends, and which of them can run here."""

import importlib.util
from typing import Any

from opmux import arch, policy
from opmux.callpath.op import OPS, Op, implementations_of
from opmux.cli import output
from opmux.declared.caveats import Caveat
from opmux.declared.implementation import Implementation
from opmux.dtypes import name_of
from opmux.plugins import loading
from opmux.signatures.signature import REFUSED, Option, Output, TensorArgument


def ops(as_json: output.AsJson = False) -> None:
    """List the ops: arguments, gradients, and the backends that can compute them here."""
    loading.ensure_loaded()
    here = [found for _, found, _ in arch.present_archs()]
    listed = [_op_data(OPS[name], here) for name in sorted(OPS, key=lambda name: (OPS[name].family, name))]
    if as_json:
        output.emit_json({"ops": listed})
        return
    console = output.console()
    rows = [
        [op["op"], op["signature"].removeprefix(op["op"]), _gradient_text(op["gradient"]), ", ".join(op["backends"])]
        for op in listed
    ]
    console.print(output.table("", ["op", "arguments", "gradient", "backends here"], rows))


def backends(as_json: output.AsJson = False) -> None:
    """List the backends: package, version, and the ops that each claims, per arch."""
    loading.ensure_loaded()
    here = [found for _, found, _ in arch.present_archs()]
    grouped: dict[tuple[str, str, str], list[Implementation]] = {}
    for i in implementations_of(OPS):
        grouped.setdefault((i.backend, i.distribution, i.version), []).append(i)
    listed = [_backend_data(key, grouped[key], here) for key in sorted(grouped)]
    failed = [failed_data(f) for f in loading.failed_plugins()]
    if as_json:
        output.emit_json({"backends": listed, "failed_plugins": failed})
        return
    console = output.console()
    rows = [
        [
            backend["backend"],
            f"{backend['distribution']} {backend['version']}",
            ", ".join(f"{claimed['arch']}: {claimed['count']}" for claimed in backend["archs"]),
            str(len(backend["here"])),
        ]
        for backend in listed
    ]
    console.print(output.table("", ["backend", "package", "ops claimed per arch", "ops here"], rows, ["ops here"]))
    caveats = [[b["backend"], ", ".join(c["ops"]), c["caveat"]] for b in listed for c in b["caveats"]]
    if caveats:
        console.print()
        console.print(output.table("caveats", ["backend", "ops", "what they leave unspecified"], caveats))
    if failed:
        console.print()
        print_failed(console, failed)


def print_failed(console: Any, failed: list[dict[str, str]]) -> None:
    """The plugins that did not load, as `Explanation` shows them."""
    rows = [[f["name"], f"{f['distribution']} {f['version']}", f["reason"]] for f in failed]
    console.print(output.table("plugins that failed to load", ["plugin", "package", "reason"], rows))


def failed_data(failed: loading.FailedPlugin) -> dict[str, str]:
    """A plugin that did not load, as JSON."""
    return {
        "name": failed.name,
        "distribution": failed.distribution,
        "version": failed.version,
        "reason": failed.reason,
    }


def _backend_data(key: tuple[str, str, str], claims: list[Implementation], here: list[arch.Arch]) -> dict[str, Any]:
    patterns = sorted({pattern for i in claims for pattern in i.archs})
    per_arch = {p: sorted({i.op for i in claims if p in i.archs}) for p in patterns}
    return {
        "backend": key[0],
        "distribution": key[1],
        "version": key[2],
        "ops": sorted({i.op for i in claims}),
        "archs": [{"arch": p, "count": len(names), "ops": names} for p, names in per_arch.items()],
        "here": sorted({i.op for i in claims if can_run(i, here)}),
        "caveats": [
            {"caveat": str(c), "ops": ops} for c in Caveat if (ops := sorted({i.op for i in claims if c in i.caveats}))
        ],
    }


def can_run(implementation: Implementation, here: list[arch.Arch]) -> bool:
    """Whether the archs, the installed modules and the policy let it run here, for at least some calls."""
    return (
        any(found.matches(pattern) for found in here for pattern in implementation.archs)
        and all(_importable(module) for module in implementation.requires)
        and not any(
            entry.rules_out(implementation.op, implementation.backend, implementation.full_name)
            for entry in policy.current().disabled
        )
    )


def _importable(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def _op_data(op: Op, here: list[arch.Arch]) -> dict[str, Any]:
    return {
        "op": op.name,
        "family": op.family,
        "summary": op.summary,
        "signature": signature_text(op),
        "tensors": [_tensor_data(op, tensor) for tensor in op.signature.tensors],
        "options": [_option_data(option) for option in op.signature.options],
        "outputs": [{"name": result.name, "shape": result.shape.text} for result in op.signature.outputs],
        "gradient": _gradient(op),
        "backends": [i.full_name for i in op.implementations if can_run(i, here)],
    }


def _tensor_data(op: Op, tensor: TensorArgument) -> dict[str, Any]:
    return {
        "name": tensor.name,
        "shape": tensor.shape.text,
        "dtypes": sorted(name_of(dtype) for dtype in tensor.dtypes),
        "optional": tensor.optional,
        "mutated": tensor.name in op.signature.mutates,
    }


def _option_data(option: Option) -> dict[str, Any]:
    return {
        "name": option.name,
        "kind": option.kind,
        "required": option.required,
        "default": None if option.required else option.default,
        "choices": list(option.choices),
    }


def _gradient(op: Op) -> dict[str, str | None]:
    """How the op's gradient is computed: by a backward op, generated from the reference, or not at all."""
    if op.gradient == REFUSED:
        return {"kind": "refused", "op": None}
    return {"kind": "generated" if OPS[op.gradient].generated else "op", "op": op.gradient}


def _gradient_text(gradient: dict[str, str | None]) -> str:
    named = gradient["op"] or gradient["kind"] or ""
    return f"{named} (generated)" if gradient["kind"] == "generated" else named


def signature_text(op: Op) -> str:
    """``rms_norm(x[*tokens, hidden], weight[hidden], *, eps=1e-06) -> y[*tokens, hidden]``."""
    parts = [_shaped(t) + ("=None" if t.optional else "") for t in op.signature.tensors]
    if op.signature.options:
        parts += ["*", *(o.name if o.required else f"{o.name}={o.default!r}" for o in op.signature.options)]
    results = ", ".join(_shaped(result) for result in op.signature.outputs)
    if not op.signature.outputs:
        results = f"None, writes {', '.join(op.signature.mutates)}"
    elif len(op.signature.outputs) > 1:
        results = f"({results})"
    return f"{op.name}({', '.join(parts)}) -> {results}"


def _shaped(tensor: TensorArgument | Output) -> str:
    shape = f"{tensor.name}[{', '.join(tensor.shape.text.split())}]"
    reduction = tensor.reduction if isinstance(tensor, Output) else None
    return f"{shape} or {tensor.name}[] by {reduction}" if reduction else shape
