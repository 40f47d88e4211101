"""Commands that plugins bring."""

import json
import logging
from typing import Annotated, Any

import pytest
import typer
from backends import plugin

from opmux.cli import plugins
from opmux.cli.app import build_app
from opmux.errors import BackendFault, InvalidArgument
from opmux.plugins.loading import temporary_plugin


def greet(name: str, loud: Annotated[bool, typer.Option("--loud")] = False) -> None:
    """Say hello."""
    typer.echo(f"hello {name}".upper() if loud else f"hello {name}")


def takes_what_no_command_line_has(thing: int | str) -> None:
    """Do what cannot be asked for."""


def bringing(*commands: Any) -> Any:
    return plugin(opmux_commands=lambda: list(commands))


def test_a_plugins_command_runs(opmux_cli) -> None:
    with temporary_plugin(bringing(("greet", greet)), "polite"):
        assert opmux_cli("greet", "you", "--loud").stdout == "HELLO YOU\n"
        assert "Say hello." in opmux_cli("--help").stdout
    assert opmux_cli("greet", "you").exit_code == 2


@pytest.mark.parametrize(
    ("commands", "reason"),
    [
        ([("doctor", greet)], "command `doctor` is the core's own: rename it"),
        ([("Greet!", greet)], "command 'Greet!' expected a name of lower-case letters, digits and dashes"),
        ([("greet", "polite:greet")], "command `greet` expected a function, got 'polite:greet'"),
        ([greet], "expected (name, function)"),
        ([("strange", takes_what_no_command_line_has)], "command `strange` cannot be read by typer: "),
        ([("greet", greet), ("greet", greet)], "command `greet` is declared twice: neither is added"),
    ],
)
def test_one_that_cannot_be_added_is_said_and_breaks_no_other(
    opmux_cli, caplog: pytest.LogCaptureFixture, commands: list[Any], reason: str
) -> None:
    good = bringing(("hello", greet))
    with temporary_plugin(bringing(*commands), "bad", "opmux-bad", "7"), temporary_plugin(good, "polite"):
        _, failed = plugins.commands_of_plugins()
        assert {(f.name, f.distribution, f.version) for f in failed} == {("bad", "opmux-bad", "7")}
        assert all(reason in f.reason for f in failed)
        with caplog.at_level(logging.WARNING, logger="opmux"):
            assert opmux_cli("hello", "you").stdout == "hello you\n"
        assert any(reason in record.getMessage() for record in caplog.records)
        assert json.loads(opmux_cli("explain", "silu_mul", "gate=f32[2]", "up=f32[2]", "--json").stdout)["chosen"]


def test_two_plugins_with_one_command_are_both_told(opmux_cli) -> None:
    with temporary_plugin(bringing(("greet", greet)), "one"), temporary_plugin(bringing(("greet", greet)), "two"):
        good, failed = plugins.commands_of_plugins()
        assert opmux_cli("greet", "you").exit_code == 2
    assert good == []
    assert [f.name for f in failed] == ["one", "two"]


@pytest.mark.parametrize(("error", "code"), [(InvalidArgument("no"), 2), (BackendFault("broken"), 1)])
def test_opmuxs_errors_in_a_plugins_command_become_messages(opmux_cli, error: Exception, code: int) -> None:
    def fails() -> None:
        raise error

    with temporary_plugin(bringing(("fails", fails)), "unlucky"):
        done = opmux_cli("fails")
    assert (done.exit_code, done.stdout, done.stderr) == (code, "", f"error: {error}\n")


def test_the_cores_commands_are_those_it_guards() -> None:
    names = {command.name for command in build_app().registered_commands}
    assert names == plugins.CORE_COMMANDS
