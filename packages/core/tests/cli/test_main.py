"""The command line as a process of its own, with and without its extra."""

import os
import subprocess
import sys

import pytest


def python(*words: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("OPMUX_")}
    environment["OPMUX_PLUGINS"] = ""  # whatever is installed beside the core
    return subprocess.run([sys.executable, *words], capture_output=True, text=True, env=environment, check=False)


def without(module: str, code: str) -> subprocess.CompletedProcess[str]:
    return python("-c", f"import sys; sys.modules[{module!r}] = None\n{code}")


def test_module_runs_the_command_line() -> None:
    done = python("-m", "opmux", "explain", "rms_norm", "x=bf16[4,8]", "weight=bf16[8]", "--arch", "sm_90")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[0] == "rms_norm on sm_90 -> reference                        plan key: bf16 bf16"


def test_wrong_use_exits_with_2_and_says_why_on_stderr() -> None:
    done = python("-m", "opmux", "explain", "rmsnorm")
    assert (done.returncode, done.stdout) == (2, "")
    assert "did you mean rms_norm?" in done.stderr


@pytest.mark.parametrize("module", ["typer", "rich"])
def test_without_the_extra_it_says_how_to_install_it(module: str) -> None:
    done = without(module, "from opmux.cli import main; main()")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        f'opmux: the command line needs {module}, which is not installed: pip install "opmux[cli]"\n'
    )


def test_another_missing_module_is_not_blamed_on_the_extra() -> None:
    done = without("opmux.cli.listing", "from opmux.cli import main; main()")
    assert done.returncode == 1
    assert "ModuleNotFoundError: import of opmux.cli.listing halted" in done.stderr


def test_importing_the_package_of_commands_imports_no_extra() -> None:
    code = "import sys, opmux.cli; print(sorted({'typer', 'rich', 'click', 'triton'} & set(sys.modules)))"
    assert python("-c", code).stdout == "[]\n"
