"""The records in force in this process: looked up by the resolver, replaced as a whole when files are read again."""

import itertools
import threading
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from opmux.callpath import names
from opmux.callpath.op import OPS, Op
from opmux.declared.call import Call
from opmux.plugins import loading
from opmux.plugins.reading import LoadedPlugin
from opmux.tuning.choice import TunedChoice
from opmux.tuning.estimates import NOTHING, Estimates

if TYPE_CHECKING:
    from opmux.tuning.layers import Loaded, TuningReport
    from opmux.tuning.prediction import OpTimes
    from opmux.tuning.table import OpTable


_lock = threading.RLock()
_loaded: "Loaded | None" = None
_adopted: Mapping[str, str] | None = None
"""Files by name whose contents count in place of all layers: those of another process."""
_newest = 0
"""The number of the reading that is in force."""
_readings = itertools.count(1)
_numbers = itertools.count(1)


def lookup(op: Op, call: Call) -> TunedChoice | None:
    """What the tuned records say about a call; None if none fits."""
    return _said(_loaded, op, call)


def evidence(op: Op, call: Call) -> tuple[TunedChoice | None, Estimates]:
    """What the tuned records say about a call, and how long each implementation takes it by the measured rows."""
    loaded = _loaded  # both answers are of one reading
    times = None if loaded is None else loaded.times.get(op.name)
    return _said(loaded, op, call), NOTHING if times is None else times.estimates(call)


def _said(loaded: "Loaded | None", op: Op, call: Call) -> TunedChoice | None:
    table = None if loaded is None else loaded.tables.get(op.name)
    if loaded is None or table is None:
        return None
    times = loaded.times.get(op.name)
    return table.find(call, None if times is None else times.steps)


def report() -> "TuningReport":
    """Which files were read, which records are in force, and what was refused and why. Loads the plugins first."""
    from opmux.tuning.layers import TuningReport  # what reads files is imported late: `import opmux` does not need it

    loading.ensure_loaded()
    return TuningReport() if _loaded is None else _loaded.report


def in_force() -> "tuple[Mapping[str, OpTable], Mapping[str, OpTimes]]":
    """The records and the measured rows in force, by op."""
    loaded = _loaded
    return ({}, {}) if loaded is None else (loaded.tables, loaded.times)


def adopt(texts: Mapping[str, str] | None) -> None:
    """Put the contents of these files in force, by name, in place of every layer; None returns to the layers."""
    global _adopted
    loading.ensure_loaded()
    _adopted = texts
    install(loading.loaded_plugins())


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
    read = (
        layers.load_all(plugins) if _adopted is None else layers.load_texts(_adopted)
    )  # outside of the lock, as it calls the readers of plugins
    with _lock:
        if number < _newest:
            return  # another thread began to read later, and is done
        before = set() if _loaded is None else {*_loaded.tables, *_loaded.times}
        _loaded, _newest = read, number
        for name in sorted({*before, *_loaded.tables, *_loaded.times}):
            if name in OPS:
                _give_features(OPS[name], _loaded.tables.get(name), _loaded.times.get(name))


def _give_features(op: Op, table: "OpTable | None", times: "OpTimes | None") -> None:
    """Generate the op's call path for its records and measured rows, and start an empty plan table."""
    # Names of their own for each set of records: code that is still running keeps what it was written for.
    name = names.tuned_cell_name(next(_numbers))
    op.tuned_features = ()
    made = None if table is None else table.feature(name)
    if made is not None:
        feature, op.namespace[name] = made
        op.tuned_features = (feature,)
    if times is not None:
        features, steps = times.features(name)
        op.tuned_features += features
        op.namespace.update(steps)
    op.rebuild()
    in_use = op.names_in_use()
    for bound in tuple(op.namespace):
        if bound.startswith(names.TUNED_CELL) and bound not in in_use:
            del op.namespace[bound]


loading.subscribe(install)
