"""torch.compile of many functions at once: in several processes, which take turns on the GPU to time their configs.

What they find lies in a cache folder, from which the process that measures takes it.
"""

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

MODE = "max-autotune-no-cudagraphs"
Job = tuple[str, dict[str, int], str]


def use_cache(folder: Path) -> None:
    """For this process and those that it starts, before torch.compile is first called."""
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(folder)
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
    # Else inductor sets it at its first compilation, and Triton no longer finds what was compiled before that.
    os.environ["TRITON_CACHE_DIR"] = str(folder / "triton")


def compiled(name: str) -> Any:
    """The plain formulation, compiled at its best; nothing is left of what was compiled before."""
    import torch
    from memory_cases import SUBJECTS

    torch.compiler.reset()
    return torch.compile(SUBJECTS[name].plain, mode=MODE, dynamic=False)


def warm(job: Job) -> str | None:
    """Compile and tune one function; a worker's task. Returns what went wrong."""
    name, shape, folder = job
    try:
        _take_turns(Path(folder) / "lock")
        import torch
        from memory_cases import SUBJECTS

        tensors = SUBJECTS[name].make(shape, "cuda")
        run = compiled(name)
        for _ in range(2):
            run(*tensors)
        torch.cuda.synchronize()
        del tensors
        torch.cuda.empty_cache()
    except Exception as error:  # the measuring process compiles it once more, and tells
        return f"peer {name} {shape}: {type(error).__name__}: {' '.join(str(error).split())[:160]}"
    return None


@contextlib.contextmanager
def _turn(lock: Path) -> Iterator[None]:
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _take_turns(lock: Path) -> None:
    """Let inductor's timing wait for that of other processes; a tenth of its usual length is plenty here."""
    from torch._inductor.runtime import benchmarking

    kind: Any = type(benchmarking.benchmarker)
    if getattr(kind, "_in_turns", False):
        return
    timed = kind.benchmark_gpu

    def in_turn(self: Any, *args: Any, **kwargs: Any) -> Any:
        with _turn(lock):
            return timed(self, *args, **{**kwargs, "warmup": 5, "rep": 15, "max_benchmark_duration": 12})

    kind.benchmark_gpu, kind._in_turns = in_turn, True


def written(folder: Path, most: int = 60) -> list[dict[str, Any]]:
    """The kernels that inductor wrote, with the configs it chose."""
    found = []
    for path in sorted(folder.rglob("*.best_config"))[:most]:
        with contextlib.suppress(OSError, ValueError):
            beside = [text for p in path.parent.glob("*.py") if "@triton.jit" in (text := p.read_text())]
            found.append({"config": json.loads(path.read_text()), "sources": [text[-5000:] for text in beside[:3]]})
    return found
