"""Builds in the background: which implementations are awaited, for which plans, and the change to them when built.

Under the policy ``build="background"`` a target that lacks a kernel raises `BuildDeferred`. The build goes to the
helper process, and while it is awaited the implementation is no candidate for calls of that plan. The plan that runs
instead looks at each call whether the build is over; then it drops itself, and the call makes a new plan.
"""

import logging
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from opmux import policy
from opmux.callpath.op import Op
from opmux.callpath.plans import PlanTable
from opmux.declared.implementation import Implementation
from opmux.errors import BuildFailed
from opmux.running import modes
from opmux.running.attempt import Attempt
from opmux.running.build_process import Build, Job, helper
from opmux.signatures.outputs import copy_into

logger = logging.getLogger("opmux")


class _Here(threading.local):
    depth = 0


_here = _Here()
_lock = threading.Lock()
_jobs: dict[str, Job] = {}
"""By the build's key."""
_awaited: dict[tuple[str, str, str, Any], Job] = {}
"""By op, implementation, arch and plan key."""
_built_in_call: set[tuple[str, str, str, Any]] = set()
"""The same, of what is to be built by the next call."""


def builds_deferred() -> bool:
    """Whether a target must not build a kernel now, but raise `BuildDeferred`."""
    if policy.current().build != policy.BACKGROUND:
        return False
    return not (_here.depth or policy.current().strict or modes.deterministic_mode())


@contextmanager
def building_here() -> Iterator[None]:
    """In this context, targets build what they lack, whatever the policy is."""
    _here.depth += 1
    try:
        yield
    finally:
        _here.depth -= 1


def run_and_build(run: Callable[..., Any], /, *tensors: Any, **options: Any) -> Any:
    """Run a target, which builds what it lacks."""
    with building_here():
        return run(*tensors, **options)


class BuildAbandoned(BuildFailed):
    """The helper process died of a build. The implementation is at fault for calls of this plan only."""


def awaited_for(op: str, arch: str, key: Any) -> dict[str, Job]:
    """Full name -> what is being built for it: the implementations that calls of this plan do not wait for."""
    if not _awaited or not builds_deferred():
        return {}
    with _lock:
        for place in [place for place, job in _awaited.items() if job.finished]:
            del _awaited[place]
        found = list(_awaited.items())
    return {name: job for (o, name, a, k), job in found if (o, a) == (op, arch) and k == key and not job.finished}


def built_in_call(attempt: Attempt, implementation: Implementation) -> bool:
    """Whether the call that is being planned has to build what an implementation lacks; true once."""
    place = _place(attempt, implementation)
    if place not in _built_in_call:
        return False
    _built_in_call.discard(place)
    return True


def _place(attempt: Attempt, implementation: Implementation) -> tuple[str, str, str, Any]:
    return attempt.op.name, implementation.full_name, attempt.call.arch.name, attempt.key


def problem_of(attempt: Attempt, implementation: Implementation, build: Build) -> BuildFailed | None:
    """Have something built that an implementation lacks for a call.

    Returns:
        None where the call is to be planned again: the implementation is no candidate until it is built, or the plan
        waits for it. Otherwise why it cannot be built.
    """
    if attempt.forced is not None:
        return None
    job = _await(attempt, implementation, build)
    if not job.finished:
        return None
    if job.problem is None:
        logger.warning("%s was built in the background and is not found here: the call builds it", build.name)
        _built_in_call.add(_place(attempt, implementation))
        return None
    reason = f"{build.name} could not be built in the background: {job.problem}"
    return BuildFailed(reason) if job.refused else BuildAbandoned(reason)


def _await(attempt: Attempt, implementation: Implementation, build: Build) -> Job:
    """The job of a build, begun if it is not known; until it is finished, the implementation is awaited."""
    place = _place(attempt, implementation)
    with _lock:
        job = _jobs.get(build.key)
        known = job is not None
        if job is None:
            job = _jobs[build.key] = helper().give(build)
        if job.finished:
            _awaited.pop(place, None)
            if job.problem is not None:
                del _jobs[build.key]  # the caller quarantines it: whoever clears the quarantine has it tried again
            return job
        _awaited[place] = job
    if not known:
        logger.info(
            "%s: %s lacks %s, which is built in the background; the next choice runs until then",
            attempt.op.name,
            implementation.full_name,
            build.name,
        )
    return job


def is_awaited_by_another(attempt: Attempt, implementation: Implementation, build: Build) -> bool:
    """Whether another implementation waits for this very build, for calls like this one."""
    mine = _place(attempt, implementation)
    with _lock:
        found = list(_awaited.items())
    return any(
        place != mine and (place[0], *place[2:]) == (mine[0], *mine[2:]) and job.build.key == build.key
        for place, job in found
    )


def until_built(op: Op, table: PlanTable, key: Any, run: Callable[..., Any], name: str, job: Job) -> Callable[..., Any]:
    """The callable of a plan that runs while a better implementation, ``name``, is being built."""

    def meanwhile(*tensors: Any, out: Any = None, **options: Any) -> Any:
        if (job.finished or not builds_deferred()) and not modes.capturing():
            op.forget_plan(key)
            table.pop(key, None)  # also where this table has been replaced, and a thread finishes on it
            if job.finished and job.problem is None:
                logger.info("%s: %s is built, and runs from now on", op.name, name)
            results = table[key](*tensors, **options)
            if out is not None:  # a plan is made, and first run, without it
                copy_into(out, results)
            return results
        return run(*tensors, **options) if out is None else run(*tensors, **options, out=out)

    return meanwhile


def _after_fork() -> None:
    """In a forked process nothing is being built: its own helper begins afresh."""
    global _lock
    _lock = threading.Lock()
    for job in _jobs.values():
        if not job.finished:
            job.problem, job.finished = "the process was forked meanwhile", True
    _jobs.clear()
    _awaited.clear()
    _built_in_call.clear()


os.register_at_fork(after_in_child=_after_fork)
