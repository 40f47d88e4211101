"""Workers on this machine: a station for each device, all taking points from one backlog."""

import queue
import threading
from collections.abc import Callable, Iterator, Sequence

from opmux.errors import OpmuxError
from opmux.shapes.point import Point
from opmux.tuner.backlog import Backlog
from opmux.tuner.machine import identity
from opmux.tuner.measuring import Measured, Request
from opmux.tuner.station import Station
from opmux.tuning.measured import Machine

Finding = tuple[Measured, Machine]
_Answer = Finding | BaseException | None


def measured_locally(
    backlog: Backlog,
    request_of: Callable[[Point], Request],
    devices: Sequence[str],
    patience_s: float,
    builders: int = 0,
) -> Iterator[Finding]:
    """Measure a backlog on devices of this machine, one process for each.

    Args:
        backlog: the points.
        request_of: what to measure at each.
        devices: ``("cpu",)`` or ``("cuda:0", "cuda:1")``.
        patience_s, builders: see `Station`; as many builders for each device.

    Yields:
        What was found at each point, as it is finished.

    Raises:
        OpmuxError: where no measuring process starts.
    """
    answers: queue.Queue[_Answer] = queue.Queue()
    stations = [Station(device, patience_s, builders) for device in devices]
    threads = [
        threading.Thread(target=_work, args=(station, backlog, request_of, answers, len(stations)), daemon=True)
        for station in stations
    ]
    for thread in threads:
        thread.start()
    working, failed, finished = len(threads), [], 0
    try:
        while working:
            answer = answers.get()
            if answer is None:
                working -= 1
            elif isinstance(answer, BaseException):
                failed.append(answer)
            else:
                finished += 1
                yield answer
    finally:
        backlog.stop()
        for station in stations:
            station.close()
    if failed and not finished:
        raise failed[0]


def _work(
    station: Station,
    backlog: Backlog,
    request_of: Callable[[Point], Request],
    answers: "queue.Queue[_Answer]",
    stations: int,
) -> None:
    """The thread of one of the stations: it only waits for the measuring process."""
    requests: list[Request] = []
    try:
        machine = station.machine()
        while (point := backlog.take(identity(machine), station.device)) is not None:
            requests.append(request_of(point))
            ahead = min(station.ahead(requests[0]) - 1, backlog.left // stations)  # the others have work too
            requests += map(request_of, backlog.take_several(identity(machine), ahead, station.device))
            station.build(requests)
            while True:  # the first is measured however long building took: a run makes progress
                answers.put((station.measure(requests.pop(0)), machine))
                if not requests or backlog.late:
                    break
            backlog.put_back([request.point for request in requests])
            requests.clear()
    except OpmuxError as error:
        backlog.put_back([request.point for request in requests])  # another station may measure them
        answers.put(error)
    finally:
        station.close()
        answers.put(None)
