"""`opmux explain`: which implementation takes a call, and why the others do not."""

from typing import Annotated

import typer
from rich.text import Text

from opmux import arch as archs
from opmux.cli import output, words
from opmux.planning import explanation

Op = Annotated[str, typer.Argument(metavar="OP", help="An op, as `opmux ops` lists them.", show_default=False)]
Words = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="NAME=VALUE...",
        help="Tensors and options: x=bf16[4096,8192] eps=1e-5 causal=true window=-1,0 dtype=e4m3fn.",
        show_default=False,
    ),
]
AsIfOn = Annotated[
    str | None,
    typer.Option("--arch", help="Explain for this arch, such as gfx942 or sm_90; it need not be present."),
]
Backend = Annotated[str | None, typer.Option("--backend", help="Like the op's own backend=: this backend or none.")]


def explain(
    op: Op, arguments: Words = None, arch: AsIfOn = None, backend: Backend = None, as_json: output.AsJson = False
) -> None:
    """Say which implementation would take a call, and why the others do not.

    Exits with 1 if none takes it.
    """
    definition = words.find_op("explain", op)
    where = archs.known_arch(arch) if arch is not None else archs.assumed_arch()
    call = words.read_call(definition, arguments or [], where)
    explained = explanation.explain(definition.public, arch=where.name, backend=backend, **call)
    if as_json:
        output.emit_json(explained.as_dict())
    else:
        output.console().print(_coloured(str(explained)), soft_wrap=True)
    if explained.chosen is None:
        raise typer.Exit(1)


def _coloured(table: str) -> Text:
    """The explanation's own text; a terminal shows the states in colour."""
    text = Text(table)
    for word, style in output.STYLES.items():
        text.highlight_regex(rf"(?m)(?<=  ){word}(?=  |$)", style)
    text.highlight_regex(r"\A.* -> \S+", "bold")
    text.highlight_regex(r"(?m)^plugins that failed to load$", "bold red")
    return text
