"""The candidates of a point: every implementation that takes the call, in every config of its space."""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from opmux.arch import Arch
from opmux.bench.isolated import in_one_line
from opmux.declared.configs import as_mapping, make_config
from opmux.declared.implementation import Priority
from opmux.planning.takers import Taker, takers
from opmux.shapes.point import Point


@dataclass(frozen=True)
class Candidate:
    """An implementation with one config.

    Attributes:
        implementation: its full name.
        version: the version of its package.
        config: the config as JSON; empty where it takes none.
    """

    implementation: str
    version: str
    config: str

    @property
    def name(self) -> str:
        """The implementation and its config in one line."""
        return f"{self.implementation} {self.config}".rstrip()


@dataclass(frozen=True)
class Failure:
    """A candidate that was not timed, and why.

    Attributes:
        config: as in `Candidate`; None where the space itself failed, or yielded what is no config.
    """

    implementation: str
    config: str | None
    reason: str


@dataclass(frozen=True)
class Entrant:
    """A candidate that can be run here.

    Attributes:
        make: imports the target and binds the config; what it returns takes the call's tensors and options.
    """

    candidate: Candidate
    make: Callable[[], Callable[..., Any]]


def takers_of(point: Point, arch: Arch, backends: Sequence[str] | None) -> list[Taker]:
    """The implementations that take a point's call, each once.

    Args:
        point: the call.
        arch: where it would run.
        backends: only backends and implementations of these names, those that are chosen by name alone included.
    """
    op, tensors = point.definition.public, point.tensors()
    found: dict[str, Taker] = {}
    for backend in backends or (None,):
        for taker in takers(op, *tensors.values(), arch=arch, backend=backend, **point.all_options):
            found.setdefault(taker.implementation.full_name, taker)
    return list(found.values())


def worth_timing(takers: Sequence[Taker], device: torch.device) -> list[Taker]:
    """The takers without the reference, where the device is a GPU and something else takes the call.

    There the reference runs many kernels, and reads index data on the host: it would take most of a point's time.
    """
    others = [taker for taker in takers if taker.implementation.priority > Priority.REFERENCE]
    return others if others and device.type == "cuda" else list(takers)


def entrants_of(
    taker: Taker, only: Sequence[str] | None = None, most: int | None = None
) -> Iterator[Entrant | Failure]:
    """A taker with each of its configs, or why one of them is left out.

    Args:
        taker: the implementation that takes the call.
        only: these configs, as JSON, instead of those of its space.
        most: no more configs than this: the heuristic's, then the first of the space.
    """
    name, version = taker.implementation.full_name, taker.implementation.version
    if taker.implementation.config is None:
        yield Entrant(Candidate(name, version, ""), lambda: taker.bound(None))
        return
    configs = _configs(taker) if only is None else map(json.loads, only)
    seen: set[str] = set()
    while most is None or len(seen) < most:
        try:
            given = next(configs, None)
        except Exception as error:  # the space is a plugin's code
            yield Failure(name, None, f"its space raised {in_one_line(error)}")
            return
        if given is None:
            return
        try:
            text = written(make_config(taker.implementation, given))
        except ValueError as error:
            yield Failure(name, None, f"{given} is no config of it: {error}")
            continue
        if text not in seen:
            seen.add(text)
            yield Entrant(Candidate(name, version, text), _binder(taker, json.loads(text)))


def _configs(taker: Taker) -> Iterator[Any]:
    yield taker.heuristic()
    yield from taker.space()


def _binder(taker: Taker, config: Any) -> Callable[[], Callable[..., Any]]:
    return lambda: taker.bound(config)


def written(config: Any) -> str:
    """A config as JSON, as records hold it.

    Raises:
        ValueError: where JSON cannot hold it.
    """
    try:
        return json.dumps(as_mapping(config), allow_nan=False)
    except TypeError as error:
        raise ValueError(f"JSON cannot hold it: {error}") from None
