"""`opmux demo`: trains and serves a small Llama on this machine."""

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.text import Text

import opmux.demo as opmux_demo
from opmux.cli import output, words

TextFile = Annotated[
    Path | None, typer.Option("--text", help="Learn from this UTF-8 file instead of opmux's own documentation.")
]
Device = Annotated[str | None, typer.Option("--device", help="cpu or cuda; by default a GPU if there is one.")]


def demo(text: TextFile = None, device: Device = None, as_json: output.AsJson = False) -> None:
    """Train a small Llama made of opmux ops, serve prompts with it, and check both.

    Exits with 0 only if it beats a bigram model and paged serving gives the same tokens as the full forward pass.
    """
    bars = _Bars()
    with bars:
        result = opmux_demo.run(text, device=words.read_device("demo", device), progress=bars.show)
    if as_json:
        output.emit_json(result.to_json())
    else:
        _show(result, output.console())
    if not result.passed:
        raise typer.Exit(1)


class _Bars:
    """A progress bar for each phase, on stderr; nothing if that is not a terminal."""

    def __init__(self) -> None:
        console = output.console(stderr=True)
        columns = (
            TextColumn("{task.description:<9}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
            TextColumn("{task.fields[note]}", markup=False),
        )  # fmt: skip
        self._bar = Progress(*columns, console=console, disable=not console.is_terminal)
        self._tasks: dict[str, TaskID] = {}

    def __enter__(self) -> "_Bars":
        self._bar.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._bar.stop()

    def show(self, progress: opmux_demo.Progress) -> None:
        """Move the bar of the phase."""
        if progress.phase not in self._tasks:
            self._tasks[progress.phase] = self._bar.add_task(progress.phase, total=progress.total, note="")
        task = self._tasks[progress.phase]
        self._bar.update(task, completed=progress.done, total=progress.total, note=progress.note)


def _show(result: opmux_demo.DemoResult, console: Console) -> None:
    text, training, serving = result.text, result.training, result.serving

    def section(title: str, rows: list[list[Any]]) -> None:
        console.print(output.table(title, ["", ""], rows))

    section(
        f"trained on {result.device}",
        [
            ["text", f"{text.source}: {text.characters} characters, {text.vocabulary} different ones"],
            ["model", f"{training.parameters} parameters, {training.steps} steps"],
            ["loss", f"{training.loss_before:.3f} before, {training.loss_after:.3f} after (nats per character)"],
            [
                "held-out loss",
                f"{training.held_out_before:.3f} before, {training.held_out_after:.3f} after; "
                f"a smoothed bigram model: {training.bigram:.3f}",
            ],
            ["speed", f"{training.tokens_per_second:.0f} tokens/s"],
            [
                "passes alone",
                f"{result.speeds.chosen:.0f} tokens/s as chosen, {result.speeds.references:.0f} on the references: "
                f"{result.speeds.chosen / result.speeds.references:.2f} x",
            ],
        ],
    )
    section(
        "\nserved through a paged cache",
        [
            ["tokens", f"{serving.generated_tokens} generated after {serving.prompt_tokens} of prompts"],
            ["requests", f"{len(serving.texts)}, in {len(serving.steps)} steps"],
            ["speed", f"{serving.tokens_per_second:.0f} tokens/s"],
            [
                "full forward pass",
                f"{result.tokens.equal} of {result.tokens.tokens} tokens equal, {result.tokens.ties} ties, "
                f"{len(result.tokens.different)} different",
            ],
            [
                "plain PyTorch",
                f"logits differ by {result.logits_difference.largest:.2e} at most, "
                f"gradients by {result.gradients_difference.largest:.2e}",
            ],
        ],
    )
    console.print()
    for generated in serving.texts:
        shown = Text.assemble((f"{generated.number}  ", "dim"), (generated.prompt, "dim"), (generated.text, "bold"))
        console.print(Text(shown.plain.replace("\n", " "), spans=shown.spans), soft_wrap=False)
    console.print()
    rows = [[u.op, u.backend, u.arch, u.calls, u.fallbacks, u.reason] for u in result.ops]
    console.print(
        output.table("", ["op", "backend", "arch", "calls", "fallbacks", "why"], rows, ["calls", "fallbacks"])
    )
    for failure in result.failures:
        output.complain(failure)
    verdict = output.state("passed" if result.passed else "failed")
    console.print(Text.assemble("\n", verdict, f" in {result.seconds:.0f} s"))
