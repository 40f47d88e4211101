"""The records in force in this process: looked up by the resolver, replaced as a whole when files are read again."""

import itertools
import threading
from collections.abc import Iterable
from typing import TYPE_CHECKING

from opmux.callpath import names
from opmux.callpath.op import OPS, Op
from opmux.declared.call import Call
from opmux.plugins import loading
from opmux.plugins.reading import LoadedPlugin
from opmux.tuning.choice import TunedChoice

if TYPE_CHECKING:
    from opmux.tuning.layers import Loaded, TuningReport
    from opmux.tuning.table import OpTable

_lock = threading.RLock()
_loaded: "Loaded | None" = None
_newest = 0
"""The number of the reading that is in force."""
_readings = itertools.count(1)
_numbers = itertools.count(1)


def lookup(op: Op, call: Call) -> TunedChoice | None:
    """What the tuned records say about a call; None if none fits."""
    loaded = _loaded
    table = None if loaded is None else loaded.tables.get(op.name)
    return None if table is None else table.find(call)


def report() -> "TuningReport":
    """Which files were read, which records are in force, and what was refused and why. Loads the plugins first."""
    from opmux.tuning.layers import TuningReport  # what reads files is imported late: `import opmux` does not need it

    loading.ensure_loaded()
    return TuningReport() if _loaded is None else _loaded.report


def reload() -> "TuningReport":
    """Read every file again, put the valid records in force, and drop the plans of the affected ops.

    Calls that are already running finish with the records they started with.
    """
    if not loading.ensure_loaded():
        install(loading.loaded_plugins())
    return report()


def install(plugins: Iterable[LoadedPlugin]) -> None:
    """Read the files of these plugins, the user's and the environment's, and put the valid records in force.

    Subscribed to `opmux.plugins.loading`: it runs whenever the loaded plugins change.
    """
    global _loaded, _newest
    from opmux.tuning import layers  # late, as in `report`

    number = next(_readings)
    read = layers.load_all(plugins)  # outside of the lock, as it calls the readers of plugins
    with _lock:
        if number < _newest:
            return  # another thread began to read later, and is done
        before = {} if _loaded is None else _loaded.tables
        _loaded, _newest = read, number
        for name in sorted({*before, *_loaded.tables}):
            if name in OPS:
                _give_feature(OPS[name], _loaded.tables.get(name))


def _give_feature(op: Op, table: "OpTable | None") -> None:
    """Generate the op's call path for its records, and start an empty plan table."""
    name = names.tuned_cell_name(next(_numbers))
    made = None if table is None else table.feature(name)
    op.tuned_feature = None
    if made is not None:
        # A name of its own for each set of records: code that is still running keeps the function it was written for.
        op.tuned_feature, op.namespace[name] = made
    functions = [each for each in op.namespace if each.startswith(names.TUNED_CELL)]
    op.rebuild()
    for outdated in functions[:-2]:
        op.namespace.pop(outdated, None)


loading.subscribe(install)
