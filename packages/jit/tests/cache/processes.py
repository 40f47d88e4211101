"""Programs of the tests with many processes. They fork, because importing torch takes longer than the tests.

``processes.py wanting COUNT``: that many processes want one kernel at once; prints what each got, as JSON.
``processes.py killed ROUNDS SEED``: as often, a builder is killed at a random point, and another process then wants the
kernel; prints how the builders ended and how long the others waited, as JSON.

Both use the real NVRTC and the cache that ``OPMUX_CACHE`` names.
"""

import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

from kernels import add

from opmux_jit import machine_code
from opmux_jit.cache import layers

PATIENCE_S = 60.0


def fork(task: Callable[[], Any]) -> tuple[int, int]:
    """Run a task in a process of its own; returns its id and where its result can be read."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(reader)
            os.write(writer, json.dumps(task()).encode())
        finally:
            os._exit(0)
    os.close(writer)
    return child, reader


def result(child: tuple[int, int]) -> Any:
    """What a process of `fork` returned; None where it was killed."""
    with os.fdopen(child[1], "rb") as file:
        text = file.read()
    os.waitpid(child[0], 0)
    return json.loads(text) if text else None


def wanted(name: str) -> dict[str, Any]:
    """Want a kernel, as a process that has nothing in memory."""
    layers.forget()
    started = time.monotonic()
    entry = machine_code(add(name))
    return {
        "code": entry.code.hex(),
        "builds": entry.builds,
        "kept": entry.place is not None,
        "seconds": time.monotonic() - started,
    }


def wanting(count: int) -> list[Any]:
    """Have processes want one kernel; they start together."""
    begin, hold = os.pipe()

    def task() -> Any:
        os.close(hold)
        os.read(begin, 1)  # ends when the parent closes its end
        return wanted("one")

    children = [fork(task) for _ in range(count)]
    os.close(hold)
    return [result(child) for child in children]


def killed(rounds: int, seed: int) -> dict[str, Any]:
    """Kill builders."""
    draw = random.Random(seed)
    usual = result(fork(lambda: wanted("first")))["seconds"]
    ended = died = repaired = 0
    longest = 0.0
    for number in range(rounds):
        name = f"kernel{number}"
        child = fork(lambda name=name: wanted(name))  # type: ignore[misc]
        time.sleep(draw.uniform(0, 1.2 * usual))
        os.kill(child[0], signal.SIGKILL)
        before = result(child)
        died += before is None
        ended += before is not None
        signal.alarm(int(PATIENCE_S))
        after = result(fork(lambda name=name: wanted(name)))  # type: ignore[misc]
        signal.alarm(0)
        assert after is not None
        assert bytes.fromhex(after["code"])[:4] == b"\x7fELF"
        assert after["kept"]
        assert before is None or before["code"] == after["code"]
        repaired += after["builds"] > 1
        longest = max(longest, after["seconds"])
    left = len(os.listdir(os.path.join(os.environ["OPMUX_CACHE"], "building")))
    return {"died": died, "ended": ended, "repaired": repaired, "longest_s": longest, "usual_s": usual, "left": left}


if __name__ == "__main__":
    what, *numbers = sys.argv[1:]
    found = wanting(int(numbers[0])) if what == "wanting" else killed(int(numbers[0]), int(numbers[1]))
    sys.stdout.write(json.dumps(found) + "\n")
