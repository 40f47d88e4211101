"""`opmux conformance`: a backend compared with the references."""

import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from opmux.cli import output, words

_EXTRA = ("pytest", "_pytest", "hypothesis", "numpy")
"""What the extra ``testing`` brings."""

Backend = Annotated[
    str, typer.Argument(metavar="BACKEND", help="A backend, as `opmux backends` lists them.", show_default=False)
]
OnlyOps = Annotated[list[str] | None, typer.Option("--op", help="Test only this op; may be given several times.")]
Report = Annotated[Path | None, typer.Option("--report", help="Also write the JSON object to this file.")]
Profile = Annotated[str, typer.Option("--profile", help="The sizes and numbers of the cases.")]
Jobs = Annotated[
    int | None,
    typer.Option("--jobs", min=1, help="Run ops in processes of their own, this many at a time.", show_default=False),
]
Limit = Annotated[
    float | None,
    typer.Option("--limit", min=0, help="Seconds that a process may take; needs --jobs.", show_default=False),
]
Total = Annotated[
    float | None,
    typer.Option("--total", min=0, help="Seconds that the whole run may take; needs --jobs.", show_default=False),
]
Within = Annotated[
    str | None,
    typer.Option(
        "--within",
        help="Run everything in this context, as module:function(text): an emulator makes the CPU pass for an arch.",
        show_default=False,
    ),
]


def conformance(
    backend: Backend,
    op: OnlyOps = None,
    report: Report = None,
    profile: Profile = "default",
    jobs: Jobs = None,
    limit: Limit = None,
    total: Total = None,
    within: Within = None,
    as_json: output.AsJson = False,
) -> None:
    """Run every op that a backend claims against its reference.

    Exits with 1 on a failure, and if no case ran.
    """
    output.check_writable("--report", report)
    ops = [words.find_op("conformance", name).name for name in op or []]
    try:
        from opmux.testing import runner
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in _EXTRA:
            raise
        output.complain(f'conformance needs {error.name}, which is not installed: pip install "opmux[testing]"')
        raise typer.Exit(2) from None
    with _Bar() as advance:
        result = runner.run_conformance(backend, ops or None, profile, advance, jobs, limit, within, total)
    if report is not None:
        output.write("--report", report, output.to_json(result) + "\n")
    if as_json:
        output.emit_json(result)
    else:
        _show(result, output.console())
    if result["failed"] or not result["passed"]:
        raise typer.Exit(1)


class _Bar:
    """A progress bar on stderr if that is a terminal; yields the callback that moves it."""

    def __init__(self) -> None:
        console = output.console(stderr=True)
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
        )
        self._bar = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)

    def __enter__(self) -> Callable[[str, int, int], None]:
        self._bar.start()
        task = self._bar.add_task("cases", total=None)
        return lambda name, done, total: self._bar.update(task, description=name, completed=done, total=total)

    def __exit__(self, *exception: object) -> None:
        self._bar.stop()


def _show(result: dict[str, Any], console: Console) -> None:
    rows = []
    for op in result["ops"]:
        errors = [_error(op["max_error"].get(kind)) for kind in ("global", "row", "element")]
        good = "failed" if op["failures"] else "passed" if op["claimed"] else "-"
        skips = sum(op["skips"].values())
        rows.append([op["op"], op["claimed"], op["cases"], f"{op['coverage']:.0%}", *errors, skips, output.state(good)])
    numbers = ["claimed", "cases", "coverage", "global", "row", "element", "skipped"]
    console.print(output.table("", ["op", *numbers, ""], rows, numbers))
    shown: set[str] = set()
    for op in result["ops"]:
        for failure in op["failures"]:
            console.print(f"\n{op['op']}  {failure['case']}  {failure['check']}", style="bold red")
            console.print(f"  {failure['message']}\n  {failure['repro']}", soft_wrap=True)
            traceback = failure.get("traceback", "")
            if traceback and traceback not in shown:  # many cases fail at the same line
                shown.add(traceback)
                console.print(textwrap.indent(traceback, "  "), soft_wrap=True, markup=False, highlight=False)
        for probe, reason in op.get("not_run", {}).items():
            console.print(
                f"{op['op']}: no claimed case ran the probe {probe}: {reason}", style="yellow", soft_wrap=True
            )
        for reason, count in op["skips"].items():
            console.print(f"{op['op']}: {count} skipped: {reason}", style="yellow", soft_wrap=True)
    for reason in result.get("not_loaded", []):
        console.print(f"\nnot loaded: {result['backend']} {reason}", style="bold red", soft_wrap=True)
    environment = result["environment"]
    for what, why in environment.get("not_checked", {}).items():
        console.print(f"not checked: {what}: {why}", style="yellow", soft_wrap=True)
    for constraint in environment.get("constraints_not_broken", []):
        console.print(f"no case breaks the constraint {constraint}", style="yellow", soft_wrap=True)
    console.print(
        f"\n{result['backend']} {result['version']}: "
        f"{result['passed']} passed, {result['failed']} failed, {result['skipped']} skipped",
        style="bold red" if result["failed"] or not result["passed"] else "bold green",
    )
    if not result["passed"] and not result["failed"]:
        console.print("no case ran, so nothing is proved", style="bold red")


def _error(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"
