"""Checks of results and memory: form, values, and that nothing else was written."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from opmux.signatures.outputs import faults_of, forms
from opmux.signatures.validation import check_call
from opmux.testing.bounds import allowed_errors
from opmux.testing.comparison import compare
from opmux.testing.making import Arguments
from opmux.testing.memory import Guarded, bits
from opmux.testing.oracle import expected_results, mutated, result_names, upcast
from opmux.testing.subject import Subject
from opmux.testing.unwritten import unwritten_results


def check_forms(subject: Subject, results: Sequence[Tensor]) -> None:
    """Check number, shapes, dtypes, devices and strides of the outputs, and that they share no memory with anything."""
    signature = subject.op.signature
    dims, options = check_call(signature, subject.tensors, subject.arguments.options)
    for fault in faults_of(forms(signature, subject.tensors, dims, options), results, subject.tensors):
        subject.report(fault.check, fault.message)


def check_memory(subject: Subject, allocated: Sequence[Guarded] = ()) -> None:
    """Check that inputs, the memory around them and the memory around allocations are unchanged."""
    writes = set(subject.op.signature.mutates)
    for name, buffer in subject.placed.items():
        count = buffer.changed_outside()
        if count:
            subject.report("writes outside", f"{count} elements around `{name}` (not part of it) were written")
        if name not in writes and bool(buffer.changed_inside().any()):
            subject.report("inputs", f"`{name}` was written, and the op only reads it")
    for buffer in allocated:
        count = buffer.changed_outside()
        if count:
            subject.report(
                "writes outside", f"{count} elements around a tensor of shape {list(buffer.tensor.shape)} that the "
                "target allocated were written"
            )  # fmt: skip


def check_unwritten(subject: Subject, results: Sequence[Tensor]) -> None:
    """Check that what an op leaves unwritten still holds the poison that freshly allocated memory was filled with."""
    masks = unwritten_results(subject.op, subject.arguments.tensors)
    for output, got, mask in zip(subject.op.signature.outputs, results, masks, strict=True):
        if mask is not None and tuple(got.shape[:-1]) == tuple(mask.shape[:-1]):
            count = int((mask & ~got.isnan()).sum())
            if count:
                subject.report(
                    "padding", f"{count} elements of `{output.name}` in rows that belong to no group were written"
                )


def check_values(
    subject: Subject,
    results: Sequence[Tensor],
    arguments: Arguments,
    check: str = "",
    changed: Mapping[str, Tensor] | None = None,
    skip: Sequence[bool] = (),
    unspecified: Sequence[Tensor | None] = (),
    any_nonfinite: bool = False,
) -> None:
    """Compare results with the oracle for these arguments.

    Args:
        subject: where findings go.
        results: what the target returned.
        arguments: the arguments that it was called with.
        check: replaces the name of the check in findings.
        changed: where mutated tensors have changed; by default, as their buffers show.
        skip: outputs that are not checked.
        unspecified: for each output a mask of the elements that may hold anything, or None.
        any_nonfinite: NaN and infinities may stand for each other.
    """
    op = subject.op
    names = result_names(op)
    exact = expected_results(op, arguments, results)
    allowed, unit = allowed_errors(op, arguments, exact, subject.case.view == "expanded")
    unwritten = unwritten_results(op, arguments.tensors)
    for place, (name, got, right, allowance) in enumerate(zip(names, results, exact, allowed, strict=True)):
        if tuple(got.shape) != tuple(right.shape) or (skip and skip[place]):
            continue  # the wrong form is reported as such
        free = unspecified[place] if unspecified else None
        if unwritten and (untouched := unwritten[place]) is not None:
            free = untouched if free is None else free | untouched
        if any_nonfinite:
            either = ~got.isfinite() & ~right.isfinite()
            free = either if free is None else free | either
        if free is not None:
            got = torch.where(free, right.to(got.dtype), got)
        errors, findings = compare(name, got, right, allowance, unit)
        subject.errors.include(errors)
        for finding in findings:
            subject.report(check or finding.check, f"{finding.check}: {finding.message}" if check else finding.message)
    if op.signature.mutates and op.in_place_of is None:
        changes = changed or {name: subject.placed[name].changed_inside() for name in names}
        check_untouched(subject, arguments, exact, changes, [allowance.added for allowance in allowed])


def check_untouched(
    subject: Subject,
    arguments: Arguments,
    exact: Sequence[Tensor],
    changed: Mapping[str, Tensor],
    added: Sequence[Tensor | None],
) -> None:
    """Check that elements which a mutating op does not write are unchanged bit for bit.

    Those are the ones that the reference leaves as they are. Where an op adds to what is there, ``added`` is the size
    of the terms: these may cancel in the reference and leave a rounding error elsewhere.
    """
    for name, after, terms in zip(mutated(subject.op), exact, added, strict=True):
        before = upcast(arguments.tensors[name])
        assert before is not None
        same = (after == before) | (after.isnan() & before.isnan())
        if terms is not None:
            same &= terms == 0
        count = int((same & changed[name]).sum())
        if count:
            subject.report("writes elsewhere", f"{count} elements of `{name}` that the op does not write have changed")


def same_bits(a: Sequence[Tensor], b: Sequence[Tensor]) -> bool:
    """Whether two results are equal bit for bit."""
    return len(a) == len(b) and all(
        x.shape == y.shape and x.dtype == y.dtype and torch.equal(bits(x.contiguous()), bits(y.contiguous()))
        for x, y in zip(a, b, strict=True)
    )
