"""The error text for a call that nothing takes: every rejection with its reason, and what to do."""

import math
from collections.abc import Sequence

from opmux.callpath.op import Op
from opmux.declared.call import Call
from opmux.declared.constraints import Constraint, MultipleOf, refusal
from opmux.declared.implementation import Priority
from opmux.planning.resolver import ACCEPTED, CHOSEN, REJECTED, Resolution, Verdict
from opmux.signatures.validation import describe_call

CONVERSION = "opmux.convert_fp8"
"""What a constraint's reason names where the 8-bit floats of a call have the flavour of other archs."""


def refusal_text(op: Op, call: Call, resolution: Resolution, why: str) -> str:
    """Describe a call that no backend took: the call, every rejection with its reason, and what to do."""
    rows = []
    last = Priority.REFERENCE
    for verdict in sorted(resolution.verdicts, key=lambda v: (v.implementation.priority == last, v.name)):
        reason = verdict.reason
        if verdict.status in (CHOSEN, ACCEPTED):
            reason = "the implementation of last resort"
        i = verdict.implementation
        rows.append((i.full_name, f"({i.distribution} {i.version})", reason))
    widths = [max((len(row[c]) for row in rows), default=0) for c in (0, 1)]
    lines = [f"{n.ljust(widths[0])}  {d.ljust(widths[1])}  {r}" for n, d, r in rows]
    text = [
        f"{op.name}: no backend accepts this call on {call.arch}{why}",
        f"  call:      {describe_call(op.signature, tuple(call.tensors.values()), call.options)}",
    ]
    text += [f"  {'rejected:' if i == 0 else '':<10} {line}" for i, line in enumerate(lines)]
    text.append(f"  try:       {_remedy(op, call, resolution)}")
    return "\n".join(text)


def _remedy(op: Op, call: Call, resolution: Resolution) -> str:
    """What would help: whatever settles all that one implementation refuses, first the flavour of 8-bit floats."""
    last_resort = 'or pass backend="reference"'
    refused = [broken for verdict in resolution.verdicts if (broken := _broken(verdict, call))]
    flavour = f"convert the 8-bit floats, and their scales, to the flavour of {call.arch} with {CONVERSION}"
    for broken in refused:
        if all(CONVERSION in reason for _, reason in broken):
            return f"{flavour}, {last_resort}"
    for broken in refused:
        if all(isinstance(constraint, MultipleOf) for constraint, _ in broken):
            return f"pad {_padded(broken, call)}, {last_resort}"
    for broken in refused:
        if all(CONVERSION in reason or isinstance(constraint, MultipleOf) for constraint, reason in broken):
            return f"{flavour}, and pad {_padded(broken, call)}, {last_resort}"
    if len({v.implementation.backend for v in resolution.verdicts}) <= 1:
        return f"install a backend for {call.arch} (see `opmux backends`), {last_resort}"
    return f"change the arguments that the reasons name, {last_resort}"


def _broken(verdict: Verdict, call: Call) -> list[tuple[Constraint, str]]:
    """The constraints that refuse the call, with their reasons, if these are why the implementation is rejected."""
    when = verdict.implementation.when
    found = [(c, reason) for c in when if (reason := refusal(c, call)) is not None]
    return found if verdict.status == REJECTED and found and found[0][1] == verdict.reason else []


def _padded(broken: Sequence[tuple[Constraint, str]], call: Call) -> str:
    """``hidden to 128 and rows to 8``: the next sizes that the broken multiples allow."""
    steps: dict[str, list[int]] = {}
    for constraint, _ in broken:
        if isinstance(constraint, MultipleOf):
            bound = constraint.bound
            steps.setdefault(constraint.name, []).append(call.size(bound) if isinstance(bound, str) else bound)
    sizes = {name: (call.size(name), math.lcm(*bounds)) for name, bounds in steps.items()}
    return " and ".join(f"{name} to {-(-size // step) * step}" for name, (size, step) in sizes.items())
