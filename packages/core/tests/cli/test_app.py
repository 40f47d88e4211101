"""The application: its options, its commands, and what is wrong use."""

import pytest

import opmux


def test_version(opmux_cli) -> None:
    done = opmux_cli("--version")
    assert (done.exit_code, done.stdout) == (0, f"opmux {opmux.__version__}\n")


def test_help_lists_every_command(opmux_cli) -> None:
    done = opmux_cli("--help")
    assert done.exit_code == 0
    for command in ("doctor", "ops", "backends", "explain", "conformance", "bench", "demo"):
        assert f" {command} " in done.stdout


@pytest.mark.parametrize("words", [(), ("dance",), ("ops", "--dance")])
def test_no_such_command_or_option_is_wrong_use(opmux_cli, words: tuple[str, ...]) -> None:
    assert opmux_cli(*words).exit_code == 2
