"""The commands ``opmux prebuild`` and ``opmux warmup``.

The command line's library is imported when it reads these functions, and not when plugins are loaded: annotations are
evaluated late.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

if TYPE_CHECKING:
    import typer
else:

    class _Late:
        def __getattr__(self, name: str) -> Any:
            return getattr(importlib.import_module("typer"), name)

    typer = _Late()


def prebuild(
    shapes: Annotated[Path, typer.Option(help="The calls, as opmux.trace writes them.", exists=True, dir_okay=False)],
    out: Annotated[Path, typer.Option(help="The bundle's folder.")],
    arch: list[str] = [],  # noqa: B006  (typer reads the default as "may be given several times")
    backend: str | None = None,
    op: list[str] = [],  # noqa: B006
    processes: Annotated[int, typer.Option("--processes", "-j", help="How many compile at a time.")] = 0,
    json: bool = False,
) -> None:
    """Compile kernels ahead: `opmux prebuild --arch sm_90 --shapes FILE --out DIR`.

    Needs no GPU. FILE has the calls, as `opmux.trace` writes them. DIR becomes a bundle, which can be moved; name it in
    OPMUX_BUNDLES where the kernels run. --backend and --op limit what is built, -j how many compile at a time
    (by default as many as cores, memory and MAX_JOBS allow). Exits with 1 where a kernel cannot be built, in which
    case a bundle that DIR already has is kept, and where no backend has kernels for the calls. --arch may be given
    several times, and have a list: --arch "gfx942;gfx950".
    """
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from opmux.cli import output
    from opmux.plugin import InvalidArgument, registered_ops
    from opmux.shapes import read_shapes
    from opmux_jit.ahead.prebuild import prebuild as build

    known, out = registered_ops(), out.resolve()
    arch = list(dict.fromkeys(one.strip() for given in arch for one in given.split(";") if one.strip()))
    if not arch:
        raise InvalidArgument("prebuild: `--arch` expected an arch, got none; name one, as --arch sm_90")
    for name in op:
        if name not in known:
            raise InvalidArgument(f"prebuild: `--op` expected the name of an op, got {name!r}; see `opmux ops`")
    stderr = output.console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=stderr, transient=True, disable=not stderr.is_terminal) as bar:
        tasks: dict[str, int] = {}

        def tick(name: str, finished: int, total: int) -> None:
            if name not in tasks:
                tasks[name] = bar.add_task(name)
            bar.update(tasks[name], completed=finished, total=total)  # type: ignore[arg-type]

        done = build(arch, read_shapes(shapes), out, backend=backend, ops=op, processes=processes or None, tick=tick)
    if json:
        output.emit_json(
            {
                "bundle": str(out),
                "archs": arch,
                "kernels": done.kernels,
                "failures": done.failures,
                "written": done.written,
            }
        )
    else:
        for name, count in done.kernels.items():
            typer.echo(f"{name}: {count} kernels")
        if any(done.kernels.values()):
            typer.echo(f"use it: OPMUX_BUNDLES={out}")
    nothing = not done.failures and not any(done.kernels.values())
    if nothing:
        output.complain(f"prebuild: no backend has kernels for these calls on {', '.join(arch)}; see `opmux explain`")
    if not done.written:
        output.complain(f"prebuild: kernels could not be built, so the bundle {out} is kept as it was")
    for failure in done.failures:
        output.complain(failure)
    if done.failures or nothing:
        raise typer.Exit(1)


def warmup(
    shapes: Annotated[Path, typer.Option(help="The calls, as opmux.trace writes them.", exists=True, dir_okay=False)],
    device: str = "cuda",
    json: bool = False,
) -> None:
    """Make recorded calls, so that their kernels are in the caches: `opmux warmup --shapes FILE`.

    A process that is to be warm itself calls `opmux_jit.warmup`. Exits with 1 where a call fails.
    """
    from opmux.cli import output
    from opmux.plugin import registered_ops
    from opmux.shapes import read_shapes
    from opmux_jit.ahead.warmup import warmup as warm

    registered_ops()
    done = warm(read_shapes(shapes), device)
    if json:
        output.emit_json({"calls": done.calls, "seconds": done.seconds, "failures": done.failures})
    else:
        typer.echo(f"{done.calls} calls in {done.seconds:.2f} s")
    for failure in done.failures:
        output.complain(failure)
    if done.failures:
        raise typer.Exit(1)
