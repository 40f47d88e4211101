"""Workers on a Ray cluster: one for each GPU, or for each processor that is asked for where there are no GPUs.

A worker is an actor that owns a station: what hangs or dies there costs a config, as it does locally. An actor that is
lost with its node costs the point that it had; the others take the points that are left.
"""

from collections.abc import Callable, Iterator
from typing import Any

from opmux.errors import InvalidArgument, OpmuxError
from opmux.shapes.point import Point
from opmux.tuner.backlog import Backlog
from opmux.tuner.local_workers import Finding
from opmux.tuner.machine import identity
from opmux.tuner.measuring import Measured, Request
from opmux.tuner.station import Station
from opmux.tuning.measured import Machine

LOCAL = "local"
"""The address of a cluster that is started on this machine, for the length of the run."""


class RemoteStation:
    """What runs on a node: a station on the device that Ray gave this actor."""

    def __init__(self, device: str, patience_s: float, builders: int) -> None:
        self._station = Station(device, patience_s, builders)

    def machine(self) -> Machine:
        """See `Station.machine`."""
        return self._station.machine()

    def measure(self, request: Request) -> Measured:
        """See `Station.measure`."""
        return self._station.measure(request)


def measured_on_ray(
    backlog: Backlog,
    request_of: Callable[[Point], Request],
    address: str,
    patience_s: float,
    builders: int | None = None,
    workers: int | None = None,
) -> Iterator[Finding]:
    """Measure a backlog on a Ray cluster.

    Args:
        backlog: the points.
        request_of: what to measure at each.
        address: of an existing cluster, as ``ray.init`` takes it (``auto``, ``10.0.0.1:6379``), or `LOCAL`.
        patience_s, builders: see `Station`; by default no builders on a CPU, and 4 for a GPU.
        workers: how many; by default one for each GPU of the cluster, or one for each processor.

    Yields:
        What was found at each point, as it is finished.

    Raises:
        InvalidArgument: where Ray is not installed, or there is no cluster at the address.
        OpmuxError: where no worker starts.
    """
    try:
        import ray  # an extra
    except ImportError:
        raise InvalidArgument('tune: `ray` needs Ray, which is not installed: pip install "opmux[ray]"') from None
    mine = not ray.is_initialized()
    if mine:
        _connect(ray, address)
    try:
        yield from _measured(ray, backlog, request_of, patience_s, builders, workers)
    finally:
        backlog.stop()
        if mine:
            ray.shutdown()


def _connect(ray: Any, address: str) -> None:
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": "error"}
    try:
        if address == LOCAL:
            ray.init(address="local", include_dashboard=False, **options)
        else:
            ray.init(address=address, **options)
    except (ConnectionError, ValueError, RuntimeError) as error:
        said = " ".join(str(error).split())[:200]
        raise InvalidArgument(
            f"tune: `ray` expected the address of a cluster, or {LOCAL}, got {address!r} ({said}); see `ray status`"
        ) from None


def _measured(
    ray: Any,
    backlog: Backlog,
    request_of: Callable[[Point], Request],
    patience_s: float,
    builders: int | None,
    workers: int | None,
) -> Iterator[Finding]:
    has = ray.cluster_resources()
    gpus = int(has.get("GPU", 0))
    device, needs = ("cuda:0", {"num_gpus": 1}) if gpus else ("cpu", {"num_cpus": 1})
    helpers = (4 if gpus else 0) if builders is None else builders
    remote = ray.remote(**needs)(RemoteStation)
    count = workers or gpus or int(has.get("CPU", 1))
    machines: dict[Any, Machine] = {}
    pending: dict[Any, tuple[Any, Point | None]] = {}
    lost: list[str] = []

    def start() -> None:
        actor = remote.remote(device, patience_s, helpers)
        pending[actor.machine.remote()] = actor, None

    def give(actor: Any) -> None:
        point = backlog.take(identity(machines[actor]), actor)
        if point is not None:
            pending[actor.measure.remote(request_of(point))] = actor, point

    for _ in range(count):
        start()
    while pending:
        (ready,), _ = ray.wait(list(pending), num_returns=1)
        actor, point = pending.pop(ready)
        try:
            answer = ray.get(ready)
        except (ray.exceptions.RayActorError, ray.exceptions.RayTaskError, OpmuxError) as error:
            said = " ".join(str(error).split())[:200]
            lost.append(said)
            if point is not None:  # the worker is lost, and with it this point only
                yield Measured(point, problem=f"its worker was lost: {said}", lost=True), machines.pop(actor)
                start()
            continue
        if point is None:
            machines[actor] = answer
        else:
            yield answer, machines[actor]
        give(actor)
    if not machines and lost:
        raise OpmuxError(f"tune: no worker of the Ray cluster starts: {lost[0]}")
