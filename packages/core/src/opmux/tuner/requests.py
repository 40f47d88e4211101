"""The arguments of a run: what to measure, with what, and on which devices; each is checked before anything starts."""

import os
from collections.abc import Sequence

import torch

from opmux.callpath.op import OPS
from opmux.declared.implementation import Priority
from opmux.errors import InvalidArgument, UnknownBackend
from opmux.near import did_you_mean
from opmux.plugins import loading
from opmux.shapes import Point, read_shapes
from opmux.tuner.drawing import draw
from opmux.tuner.weights import heaviest_first

_LEAST_PATIENCE_S = 1.0
_MOST_BUILDERS = 12


def checked_ops(ops: Sequence[str]) -> tuple[str, ...]:
    """Ops that exist, each once.

    Raises:
        InvalidArgument: where one does not exist.
    """
    for name in ops:
        if name not in OPS:
            raise InvalidArgument(
                f"tune: `op` expected the name of an op, got {name!r}; {did_you_mean(name, OPS)}see `opmux ops`"
            )
    return tuple(dict.fromkeys(ops))


def checked_backends(backends: Sequence[str] | None) -> tuple[str, ...] | None:
    """Backends that are registered; None for all.

    Raises:
        UnknownBackend: where one is not.
    """
    known = set(loading.known_names())
    for name in backends or ():
        if name not in known:
            raise UnknownBackend(
                f"tune: `backend` expected one of {', '.join(sorted(known))}, got {name!r}; "
                "see `opmux backends` and, for plugins that failed to load, `opmux doctor`"
            )
    return tuple(backends) if backends else None


def points_of(
    ops: Sequence[str],
    shapes: str | os.PathLike[str] | Sequence[Point] | None,
    random: int | None,
    seed: int,
    from_trace: str | os.PathLike[str] | None,
    device: str,
) -> list[Point]:
    """The points of a run, in the order in which they are measured.

    Raises:
        InvalidArgument: where there are none, or a file of them is refused.
    """
    sources = {"shapes": shapes, "random": random, "from_trace": from_trace}
    given = [name for name, value in sources.items() if value is not None]
    if len(given) != 1:
        raise InvalidArgument(
            f"tune: expected one of `shapes`, `random` and `from_trace`, got {' and '.join(given) or 'none'}; "
            "say what to measure"
        )
    if random is not None:
        if not ops:
            raise InvalidArgument("tune: `op` expected names of ops with `random`, got none; name those to draw for")
        return draw(ops, random, seed, device)
    source = shapes if shapes is not None else from_trace
    try:
        points = list(source) if isinstance(source, (list, tuple)) else read_shapes(source)  # type: ignore[arg-type]
    except OSError as error:
        name = "shapes" if shapes is not None else "from_trace"
        raise InvalidArgument(f"tune: `{name}` cannot be read: {error}; name a file of shapes") from None
    wanted = [point for point in points if not ops or point.op in ops]
    if not wanted:
        what = f" of {', '.join(ops)}" if ops and points else ""
        raise InvalidArgument(f"tune: expected shapes to measure, got none{what}; record some with opmux.trace")
    once = list({point.key: point for point in reversed(wanted)}.values())[::-1]
    return heaviest_first(once) if from_trace is not None else once


def devices_of(device: str | torch.device | None) -> tuple[str, ...]:
    """The devices of this machine that a name means; None means the GPUs, if there are some.

    Raises:
        InvalidArgument: where there is none of that name.
    """
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    gpus = tuple(f"cuda:{index}" for index in range(count))
    if device is None:
        return gpus or ("cpu",)
    name = str(device)
    if name == "cpu" or name in gpus:
        return (name,)
    if name == "cuda" and gpus:
        return gpus
    raise InvalidArgument(
        f"tune: `device` expected one of {', '.join(['cpu', *(['cuda'] if gpus else []), *gpus])}, got {name!r}; "
        "see `opmux doctor`"
    )


def builders_of(devices: Sequence[str]) -> int:
    """How many processes compile for each device."""
    return 0 if devices == ("cpu",) else min(_MOST_BUILDERS, (os.cpu_count() or 2) // 2 // len(devices))


def check_numbers(
    limit_s: float | None, rounds: int, patience_s: float, jobs: int | None, most_configs: int | None = None
) -> None:
    """Check the numbers of a run.

    Raises:
        InvalidArgument: where one is out of range.
    """
    if jobs is not None and jobs < 0:
        raise InvalidArgument(f"tune: `jobs` expected 0 or more, got {jobs}; omit it for the default")
    if most_configs is not None and most_configs < 1:
        raise InvalidArgument(
            f"tune: `most_configs` expected 1 or more, got {most_configs}; omit it to try every config of a space"
        )
    if limit_s is not None and not limit_s > 0:  # NaN too
        raise InvalidArgument(f"tune: `limit` expected more than 0 seconds, got {limit_s:g}; omit it for no limit")
    if rounds < 1:
        raise InvalidArgument(f"tune: `rounds` expected 1 or more, got {rounds}; omit it for the default of 15")
    if not patience_s >= _LEAST_PATIENCE_S:
        raise InvalidArgument(
            f"tune: `patience` expected {_LEAST_PATIENCE_S:g} second or more, got {patience_s:g}; "
            "omit it for the default of 60"
        )


def check_workers(workers: int | None, ray: str | None) -> None:
    """Check the number of workers, which is Ray's: without Ray each device has one process.

    Raises:
        InvalidArgument: where it is given without Ray, or is not 1 or more.
    """
    if workers is not None and ray is None:
        raise InvalidArgument(
            f"tune: `workers` expected a run on Ray, got {workers} without `ray`; "
            "omit it, as each device has a process of its own, or name a cluster"
        )
    if workers is not None and workers < 1:
        raise InvalidArgument(f"tune: `workers` expected 1 or more, got {workers}; omit it for the default")


def implemented(
    points: Sequence[Point], named: Sequence[str], backends: Sequence[str] | None
) -> tuple[list[Point], tuple[str, ...]]:
    """The points of ops for which more than the reference is registered, and why other ops are left out.

    Args:
        points: of any ops.
        named: ops that were asked for by name; none of them is left out.
        backends: only these backends and implementations count; the reference does where it is among them.

    Raises:
        InvalidArgument: where an op that was named has nothing to measure, or no op has; names it.
    """
    reasons: dict[str, str] = {}
    for name in dict.fromkeys(point.op for point in points):
        found = OPS[name].implementations
        if backends is not None:
            found = tuple(i for i in found if any(i.is_named(backend) for backend in backends))
        if not any(i.priority != Priority.REFERENCE for i in found) and not (backends and found):
            who = f"{', '.join(backends)} does not implement it" if backends else "only the reference implements it"
            reasons[name] = who
    kept = [point for point in points if point.op not in reasons]
    for name, reason in reasons.items():
        if name in named or not kept:
            raise InvalidArgument(
                f"tune: {name}: expected an op with something to measure, got one of which {reason}; "
                "install a backend for it, or leave it out (see `opmux backends`)"
            )
    return kept, tuple(f"{name}: {reason}" for name, reason in reasons.items())
