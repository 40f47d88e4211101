"""The application: the core's commands, those of plugins, and how errors become exit codes."""

from collections.abc import Callable
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from opmux import __about__
from opmux.cli import bench, conformance, demo, doctor, explain, listing, output, plugins, tune
from opmux.errors import InvalidArgument, OpmuxError, UnknownBackend
from opmux.log import logger

WRONG_USE = (InvalidArgument, UnknownBackend)
"""Errors that the caller can avoid by asking differently."""


class _Group(TyperGroup):
    """Turns opmux's own errors into a message and an exit code, in every command, the plugins' too."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command that was asked for."""
        try:
            return super().invoke(ctx)
        except OpmuxError as error:
            output.complain(str(error))
            raise typer.Exit(2 if isinstance(error, WRONG_USE) else 1) from None


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"opmux {__about__.__version__}")
        raise typer.Exit


def _opmux(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print opmux's version.")
    ] = False,
) -> None:
    """Inspect, test and time operators for language models and their backends.

    Exit codes: 0 success, 1 the thing asked about failed, 2 wrong use.
    """


def build_app() -> typer.Typer:
    """Make the application with every command; commands of plugins that cannot be added are reported on stderr."""
    app = typer.Typer(
        cls=_Group, callback=_opmux, no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode="markdown"
    )
    own: dict[str, Callable[..., Any]] = {
        "doctor": doctor.doctor,
        "ops": listing.ops,
        "backends": listing.backends,
        "explain": explain.explain,
        "conformance": conformance.conformance,
        "bench": bench.bench,
        "tune": tune.tune,
        "demo": demo.demo,
    }
    for name, command in own.items():
        app.command(name)(command)
    with output.stdout_to_stderr():  # plugins are loaded here, and what they print must not mix with a command's output
        commands, failures = plugins.commands_of_plugins()
    for name, function in commands:
        app.command(name, rich_help_panel="From plugins")(function)
    for failure in failures:
        logger.warning("plugin %s (%s %s) %s", failure.name, failure.distribution, failure.version, failure.reason)
    return app
