"""``backend=``: the error for a name that no implementation of an op has."""

from opmux import near
from opmux.callpath.op import OPS, Op
from opmux.errors import OpmuxError, UnknownBackend, invalid
from opmux.plugins import loading


def unknown_backend(op: Op, backend: str) -> OpmuxError | None:
    """The error for a name under which nothing is registered for this op; None where something is."""
    if not isinstance(backend, str):
        return invalid(op.name, "backend", "a name (str) or None", f"{backend!r}", "see `opmux backends`")
    if any(i.is_named(backend) for i in op.implementations):
        return None
    if op.in_place_of is not None and any(i.is_named(backend) for i in OPS[op.in_place_of].implementations):
        return None
    here = ", ".join(dict.fromkeys(n for i in op.implementations for n in (i.backend, i.full_name)))
    known = sorted(set(loading.known_names()))
    failed = [f for f in loading.failed_plugins() if f.name == backend.partition(":")[0]]
    if failed:
        return UnknownBackend(
            f"{op.name}: `backend` expected one of {here}, got {backend!r}, whose plugin failed to load: "
            f"{failed[0].reason}; fix the cause, and see `opmux doctor`"
        )
    if backend in known:
        return UnknownBackend(
            f"{op.name}: `backend` expected one of {here}, got {backend!r}, which does not implement this op; "
            "omit backend= to let opmux choose"
        )
    return UnknownBackend(
        f"{op.name}: `backend` expected one of {here}, got {backend!r}, which no installed plugin registers; "
        f"{near.backend_remedy(backend, known)}"
    )
