"""The command line, ``opmux ...``. It needs the extra ``cli``; without it, `main` says how to install that."""

import sys

__all__ = ["main"]

_EXTRA = ("typer", "rich")
_HOW_TO_INSTALL = 'opmux: the command line needs {missing}, which is not installed: pip install "opmux[cli]"\n'


def main() -> None:
    """Run the command line and exit with 0 for success, 1 if the thing asked about failed, 2 for wrong use."""
    try:
        from opmux.cli.app import build_app
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in _EXTRA:
            raise
        sys.stderr.write(_HOW_TO_INSTALL.format(missing=missing))
        sys.exit(2)
    build_app()(prog_name="opmux")
