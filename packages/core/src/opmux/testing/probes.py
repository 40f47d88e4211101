"""The probes: functions that call the target of a `Subject`, check one aspect, and report what is wrong.

`values` is the usual one. A probe runs one case; `opmux.testing.cases` decides which cases have which probe.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from opmux.declared.implementation import Implementation
from opmux.errors import InvalidArgument
from opmux.testing import large
from opmux.testing.case import all_options
from opmux.testing.checks import check_forms, check_memory, check_unwritten, check_values, same_bits
from opmux.testing.gradient_probes import autograd, gradient
from opmux.testing.inputs import make_arguments
from opmux.testing.magnitudes import doublings_of
from opmux.testing.making import Arguments
from opmux.testing.memory import guarded_empty
from opmux.testing.oracle import mutated
from opmux.testing.poison import poison_freed, poisoned
from opmux.testing.subject import NotClaimed, Subject, TargetRaised, forms, refill, run
from opmux.testing.unspecified import kinds_are_open, unspecified_results
from opmux.testing.unwritten import settled


def values(subject: Subject) -> None:
    """Check one call in poisoned memory against the oracle and its buffers, and likewise one in ordinary memory."""
    if not subject.op.signature.mutates:
        poison_freed(forms(subject), subject.device)
    with poisoned() as allocated:
        results = run(subject)
    if not subject.op.signature.mutates:
        check_forms(subject, results)
        check_unwritten(subject, results)
    check_memory(subject, allocated)
    check_values(subject, results, subject.arguments)
    if subject.op.signature.mutates:
        return
    again = run(subject)
    if not same_bits(_settled(subject, results), _settled(subject, again)):
        check_values(subject, again, subject.arguments)


def _settled(subject: Subject, results: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Results without what the op leaves unwritten, which may differ from call to call."""
    return settled(subject.op, subject.arguments.tensors, results)


def nonfinite(subject: Subject) -> None:
    """Put one NaN or infinity into one tensor: it must reach the same elements as in the oracle, and no others.

    Elements that a declared caveat leaves unspecified are not compared.
    """
    name, value = subject.case.data, float(subject.case.probe)
    tensor = subject.arguments.tensors[name]
    if tensor is None or not tensor.numel():
        return
    plant(subject, name, value)
    results = run(subject)
    check_memory(subject)
    free = unspecified_results(subject.op, subject.arguments, subject.claim.implementation)
    kinds = kinds_are_open(subject.claim.implementation)
    check_values(subject, results, subject.arguments, unspecified=free, any_nonfinite=kinds)


def magnitude(subject: Subject) -> None:
    """Fill one tensor with numbers so large that the reference just stays finite: the target must stay exact too."""
    if not doublings_of(subject.case, subject.device):
        raise NotClaimed(f"no larger numbers in `{subject.case.data}` leave the reference finite and determined")
    results = run(subject)
    check_memory(subject)
    check_values(subject, results, subject.arguments)


def plant(subject: Subject, name: str, value: float) -> None:
    """Put a value into the middle of a tensor; of a paged cache, where a token lies."""
    tensor = subject.arguments.tensors[name]
    assert tensor is not None
    index = [size // 2 for size in tensor.shape]
    table, lengths = subject.arguments.tensors.get("block_table"), subject.arguments.tensors.get("seq_lens")
    if name.endswith("_cache") and table is not None and lengths is not None:
        row = int(lengths.argmax())
        token = int(lengths[row]) // 2
        index[:2] = [int(table[row, token // tensor.shape[1]]), token % tensor.shape[1]]
    for one in (tensor, subject.placed[name].tensor):
        one[tuple(index)] = value
    subject.placed[name].remember()


def out(subject: Subject) -> None:
    """``out=`` writes into the given tensors, which lie in guarded memory, and returns them."""
    run(subject)  # makes the plan; without one, out= would be a copy
    given = [guarded_empty(shape, dtype, subject.device, subject.case.view) for shape, dtype in forms(subject)]
    for buffer in given:
        buffer.remember()
    targets = tuple(buffer.tensor for buffer in given)
    results = run(subject, out=targets if len(targets) > 1 else targets[0])
    if len(results) != len(targets) or any(a is not b for a, b in zip(results, targets, strict=True)):
        subject.report("out=", "the call does not return the tensors that were given as out=")
    for output, buffer in zip(subject.op.signature.outputs, given, strict=True):
        count = buffer.changed_outside()
        if count:
            subject.report("writes outside", f"{count} elements around out= `{output.name}` were written")
    check_memory(subject)
    check_values(subject, targets, subject.arguments)


def repeat(subject: Subject) -> None:
    """Check that equal inputs give equal bits, whatever the memory held before."""
    results = [t.clone() for t in _settled(subject, run(subject))]
    for _ in range(3):
        if subject.op.signature.mutates:
            refill(subject, subject.arguments)
        else:
            poison_freed(forms(subject), subject.device)
        again = _settled(subject, run(subject))
        if not same_bits(results, again):
            subject.report("determinism", "equal inputs gave different bits, and deterministic=True is declared")
            return


def stale(subject: Subject) -> None:
    """Call with the same tensors and other contents: nothing of the first call may remain in the second."""
    other = _other_contents(subject)
    run(subject)
    refill(subject, other)
    results = run(subject)
    check_memory(subject)
    check_values(subject, results, other, check="stale contents")


def _other_contents(subject: Subject) -> Arguments:
    """Other contents of the same shapes; bounds that follow from the contents become the larger of both."""
    other = make_arguments(subject.case, subject.device, round_=1)
    fixed = all_options(subject.op.signature, subject.case)
    for name, value in other.options.items():
        if name not in fixed:
            other.options[name] = max(value, subject.arguments.options[name])
    subject.arguments.options = other.options
    return other


def capture(subject: Subject) -> None:
    """Capture the call in a CUDA/HIP graph and replay it on other contents."""
    try:
        other, results = _captured(subject)
    except TargetRaised:
        raise
    except RuntimeError as error:  # raised by a capture that became invalid
        raise TargetRaised(f"in graph capture: {error}") from error
    check_values(subject, results, other, check="graph capture")


def _captured(subject: Subject) -> tuple[Arguments, tuple[Tensor, ...]]:
    """Contents other than those of the capture, and the results of the replay on them."""
    other = _other_contents(subject)
    stream = torch.cuda.Stream(subject.device)
    stream.wait_stream(torch.cuda.current_stream(subject.device))
    with torch.cuda.stream(stream):
        run(subject)
        run(subject)
    torch.cuda.current_stream(subject.device).wait_stream(stream)
    if subject.op.signature.mutates:
        refill(subject, subject.arguments)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        results = run(subject)
    refill(subject, other)
    graph.replay()
    torch.cuda.synchronize(subject.device)
    return other, results


def rubbish(subject: Subject) -> None:
    """Pass invalid slots: the call may raise or ignore them, but must not write outside the caches."""
    slots = subject.placed["slot_mapping"]
    beyond = subject.case.dims["pages"] * subject.case.dims["page_size"]
    slots.tensor[0::3] = beyond
    slots.tensor[1::3] = -2
    slots.remember()
    try:
        run(subject)
    except TargetRaised as error:
        if not isinstance(error.__cause__, InvalidArgument):
            raise
    check_memory(subject)


def past_32_bits(subject: Subject) -> None:
    """Call with tensors past 2**31 elements, and check some entries against the oracle."""
    results: Sequence[Tensor] = run(subject)
    if not subject.op.signature.mutates:
        check_forms(subject, results)
    check_memory(subject)
    changed = None
    pages = large.used_pages_of(subject)
    grouped = "groups" in subject.op.signature.binders
    if pages is not None:
        changes = {n: subject.placed[n].changed_inside() for n in mutated(subject.op)}
        changed = {n: c.index_select(0, pages) for n, c in changes.items()}
        results = [r.index_select(0, pages) for r in results]
        for name, change in changes.items():
            if int(change.sum()) > int(changed[name].sum()):
                subject.report("writes elsewhere", f"pages of `{name}` have changed that no slot names")
    elif subject.op.signature.mutates and (grouped or large.leading_dim(subject.op) is not None):
        rows = large.checked_groups(subject) if grouped else large.checked_entries(subject)
        changed = {n: subject.placed[n].changed_inside().index_select(0, rows) for n in mutated(subject.op)}
    arguments, some = large.part(subject, results)
    check_values(subject, some, arguments, changed=changed, skip=large.sums_over_entries(subject.op))


Probe = Callable[[Subject], None]

PROBES: dict[str, Probe] = {
    "values": values,
    "nan": nonfinite,
    "inf": nonfinite,
    "-inf": nonfinite,
    "magnitude": magnitude,
    "out": out,
    "repeat": repeat,
    "stale": stale,
    "gradient": gradient,
    "autograd": autograd,
    "capture": capture,
    "rubbish": rubbish,
    "large": past_32_bits,
}
"""The probes by name."""

OF_THE_OP = ("autograd",)
"""Probes that check an op's own definition and run no target."""


def not_declared(implementation: Implementation, probe: str) -> str | None:
    """Why the record of an implementation that claims the call exempts it from a probe; None if it does not."""
    if implementation.numerics is not None:
        return f"different numerics are declared ({implementation.numerics})"
    if probe == "repeat" and not implementation.deterministic:
        return "not deterministic (deterministic=False)"
    if probe == "capture" and not implementation.capturable:
        return "not for graph capture (capturable=False)"
    return None
