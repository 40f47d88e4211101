"""``python -m opmux``: the command line."""

from opmux.cli import main

main()
