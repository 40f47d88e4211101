"""`opmux tune`: measures implementations in every config of their spaces, and writes measured rows."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
from rich.progress import Progress as Bar

from opmux import tuner
from opmux.cli import output
from opmux.errors import InvalidArgument
from opmux.tuner.ranks import launched
from opmux.tuning.layers import user_folder
from opmux.tuning.measured import SUFFIX

Ops = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[OP]...",
        help="Ops, as `opmux ops` lists them; with --shapes or --from-trace all by default. "
        "With --merge and --check: files of measured rows.",
    ),
]
Shapes = Annotated[Path | None, typer.Option("--shapes", help="Measure the shapes in this file, in its order.")]
Random = Annotated[
    int | None, typer.Option("--random", help="Measure this many points for each op, drawn from real models' widths.")
]
Seed = Annotated[int, typer.Option("--seed", help="Seed of --random.")]
FromTrace = Annotated[
    Path | None,
    typer.Option(
        "--from-trace", help="Measure the shapes that `opmux.trace(record_shapes=FILE)` wrote, heaviest first."
    ),
]
Backends = Annotated[
    list[str] | None,
    typer.Option("--backend", help="Measure only this backend or implementation; may be given several times."),
]
Limit = Annotated[float | None, typer.Option("--limit", help="Seconds after which no further point is begun.")]
Out = Annotated[
    Path | None,
    typer.Option("--out", help="The file of measured rows; by default one for this device in your folder of records."),
]
Device = Annotated[
    str | None, typer.Option("--device", help="cpu, cuda (every GPU) or cuda:1; by default GPUs if there are some.")
]
Rounds = Annotated[int, typer.Option("--rounds", help="Maximum number of rounds for each point.")]
MostConfigs = Annotated[
    int | None,
    typer.Option(
        "--most-configs",
        help="Configs of an implementation to try at most: its heuristic's, then the first of its space.",
    ),
]
Patience = Annotated[
    float, typer.Option("--patience", help="Seconds that one step of a config may take, its compilation included.")
]

Jobs = Annotated[
    int | None,
    typer.Option("--jobs", help="Processes for each device that compile a point's configs before they are timed."),
]

Ray = Annotated[
    str | None,
    typer.Option("--ray", help="Measure on the Ray cluster at this address, or on one that is started here: local."),
]
Workers = Annotated[
    int | None, typer.Option("--workers", help="Workers on Ray; by default one for each GPU of the cluster.")
]
Merge = Annotated[bool, typer.Option("--merge", help="Merge the files that are named into --out; measure nothing.")]
Check = Annotated[
    bool, typer.Option("--check", help="Measure the rows of the files that are named again; by default your own files.")
]


def tune(
    op: Ops = None,
    shapes: Shapes = None,
    random: Random = None,
    seed: Seed = 0,
    from_trace: FromTrace = None,
    backend: Backends = None,
    limit: Limit = None,
    out: Out = None,
    device: Device = None,
    rounds: Rounds = 15,
    most_configs: MostConfigs = None,
    patience: Patience = 60.0,
    jobs: Jobs = None,
    ray: Ray = None,
    workers: Workers = None,
    merge: Merge = False,
    check: Check = False,
    as_json: output.AsJson = False,
) -> None:
    """Measure implementations in every config of their spaces, and write the best of each as measured rows.

    Each config is checked against the reference and timed in a process of its own; one that is wrong, fails or hangs is
    recorded as such. The same command goes on where a run stopped. Exits with 1 if no point was measured; with --check,
    if a row no longer holds; with --merge, if a row was refused. Under torchrun only rank 0 works.
    """
    if merge and check:
        raise InvalidArgument("tune: expected one of `--merge` and `--check`, got both; drop one")
    rank, ranks = launched() or (0, 1)
    if rank:
        output.console(stderr=True).print(
            f"tune: rank {rank} of {ranks} does nothing: rank 0 has every GPU of its machine"
        )
        return
    if merge:
        _merge(op or [], out, as_json)
        return
    with _bar() as told:
        if check:
            _check(op or _own_files(), limit, device, rounds, patience, told, as_json)
            return
        tuned = tuner.tune(
            op or (),
            shapes=shapes,
            random=random,
            seed=seed,
            from_trace=from_trace,
            backends=backend,
            limit_s=limit,
            out=out,
            device=device,
            rounds=rounds,
            most_configs=most_configs,
            patience_s=patience,
            jobs=jobs,
            ray=ray,
            workers=workers,
            progress=told,
        )
    _print(tuned, as_json)
    if tuned.problems and not tuned.skipped and len(tuned.problems) == tuned.measured:
        raise typer.Exit(1)


@contextmanager
def _bar() -> Iterator[Callable[[tuner.Progress], None]]:
    """A progress bar with the time left, on a terminal."""
    console = output.console(stderr=True)
    columns = (
        TextColumn("tune"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[left]}"),
        TextColumn("{task.description}", markup=False),
    )  # fmt: skip
    with Bar(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("", left="")

        def told(progress: tuner.Progress) -> None:
            left = left_in_words(progress.left_s)
            bar.update(task, completed=progress.done, total=progress.total, description=progress.now, left=left)

        yield told


def _merge(files: Sequence[str], out: Path | None, as_json: bool) -> None:
    if out is None:
        raise InvalidArgument("tune: `--merge` expected a file in --out, got none; name the merged file")
    merged = tuner.merge(files, out)
    _print(merged, as_json)
    if merged.refused:
        raise typer.Exit(1)


def _check(
    files: Sequence[str], limit: float | None, device: str | None, rounds: int, patience: float,
    told: Callable[[tuner.Progress], None], as_json: bool,
) -> None:  # fmt: skip
    checked = tuner.check(
        files, limit_s=limit, device=device, rounds=rounds, patience_s=patience, progress=told
    )  # fmt: skip
    _print(checked, as_json)
    if not checked.passed:
        raise typer.Exit(1)


def _own_files() -> list[str]:
    """The user's files of measured rows, and those in the folder that OPMUX_TUNED names."""
    folders = [user_folder(), *(Path(named).expanduser() for named in [os.environ.get("OPMUX_TUNED")] if named)]
    return [str(path) for folder in folders for path in sorted(folder.glob(f"*{SUFFIX}"))]


def _print(result: tuner.Tuned | tuner.Merged | tuner.Checked, as_json: bool) -> None:
    if as_json:
        output.emit_json(result.as_dict())
    else:
        output.console().print(str(result), soft_wrap=True)


def left_in_words(seconds: float | None) -> str:
    """``3:07 left``; empty while it is not known."""
    if seconds is None:
        return ""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02d} left"
