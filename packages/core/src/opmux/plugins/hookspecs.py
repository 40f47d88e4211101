"""The hooks of a plugin. Each is called once per plugin, when plugins are loaded; never per call of an op.

pluggy reads the signatures of these functions and never runs their bodies.
"""

from collections.abc import Callable, Iterable
from typing import Any

import pluggy

from opmux.declared.implementation import Implementation
from opmux.plugins.record_readers import RecordReader

hookspec = pluggy.HookspecMarker("opmux")
hookimpl = pluggy.HookimplMarker("opmux")


@hookspec
def opmux_implementations() -> Iterable[Implementation]:
    """Yield what the backend implements.

    Called when plugins are loaded: at the first call of an op, or by a command. Must import no toolchain and touch
    no device. Backend, distribution and version of each implementation are filled in from the entry point.
    """
    raise NotImplementedError


@hookspec
def opmux_ops() -> Iterable[Any]:
    """Return new ops, functions made by ``define_op``; they become attributes of ``opmux``.

    Called before `opmux_implementations`.
    """
    raise NotImplementedError


@hookspec
def opmux_commands() -> Iterable[tuple[str, Any]]:
    """Return commands for the command line: ``(name, function)``, with a function that typer can take.

    Called when plugins are loaded, also in programs without a command line: the module that defines the commands should
    import nothing heavy.
    """
    raise NotImplementedError


@hookspec
def opmux_tuned_records() -> Iterable[str]:
    """Return absolute paths of files of tuned records shipped with the plugin, or of folders of them.

    They are the lowest layer: the user's and the environment's records replace them. Called when plugins are loaded;
    `opmux.tuning.reload` reads the files again without calling it.
    """
    raise NotImplementedError


@hookspec
def opmux_record_readers() -> Iterable[tuple[str, RecordReader]]:
    """Return readers of other formats of tuned records: ``(file suffix, reader)``.

    The suffix begins with a dot. A reader takes a path and yields rows as dicts, with the columns of opmux's own CSV
    and ``line``, the row's line in the file. Called when plugins are loaded, before any file of records is read.
    """
    raise NotImplementedError


@hookspec
def opmux_toolchains() -> Iterable[Callable[[], Iterable[dict[str, str | None]]]]:
    """Return functions that look for compilers, for `opmux doctor`.

    Each returns dicts with ``name``, ``version`` and ``path``, the last two None if unknown. Called when plugins are
    loaded; the functions are called only when the toolchains are shown, and may then load libraries.
    """
    raise NotImplementedError


@hookspec
def opmux_prebuilders() -> Iterable[Callable[..., Any]]:
    """Return the function that compiles the backend's kernels ahead, for `opmux prebuild`: see `Prebuilt`.

    Called when plugins are loaded; the function is called on a machine that need not have a GPU.
    """
    raise NotImplementedError
