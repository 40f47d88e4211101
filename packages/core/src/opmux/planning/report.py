"""The error text for a call that nothing takes: every rejection with its reason, and what to do."""

from opmux.callpath.op import Op
from opmux.declared.call import Call
from opmux.declared.constraints import MultipleOf, refusal
from opmux.declared.implementation import Priority
from opmux.planning.resolver import ACCEPTED, CHOSEN, REJECTED, Resolution
from opmux.signatures.validation import describe_call


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
    for verdict in resolution.verdicts:
        if verdict.status != REJECTED or not any(call.arch.matches(p) for p in verdict.implementation.archs):
            continue
        for constraint in verdict.implementation.when:
            if isinstance(constraint, MultipleOf) and refusal(constraint, call):
                size = call.size(constraint.name)
                padded = -(-size // constraint.bound) * constraint.bound
                return f'pad {constraint.name} to {padded}, or pass backend="reference"'
    if len({v.implementation.backend for v in resolution.verdicts}) <= 1:
        return f'install a backend for {call.arch} (see `opmux backends`), or pass backend="reference"'
    return 'change the arguments that the reasons name, or pass backend="reference"'
