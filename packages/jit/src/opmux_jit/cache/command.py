"""The command ``opmux cache``: list, verify, prune, rebuild the kernels of the user's cache, or print its path."""

import enum


class Action(enum.StrEnum):
    """What to do with the cache."""

    LIST = "list"
    VERIFY = "verify"
    PRUNE = "prune"
    PATH = "path"
    REBUILD = "rebuild"


def cache(
    action: Action,
    older_than: float | None = None,
    everything: bool = False,
    only: str | None = None,
    json: bool = False,
) -> None:
    """Show or tend the cache of compiled kernels: `opmux cache list|verify|prune|path|rebuild`.

    list: the entries. verify: check every file of the cache and of the bundles against its checksum. prune: remove
    damaged entries and what killed and failed builds left; --older-than DAYS also older entries, --everything all.
    path: print the folder. rebuild: compile again the entries that are damaged or whose compiler has changed;
    --everything all, --only NAME those of this name, or whose key begins so. Exits with 1 where verify finds something
    wrong, or a rebuild fails.
    """
    import typer

    from opmux.cli import output
    from opmux_jit.cache import tending
    from opmux_jit.cache.layers import cache_root

    if action is Action.PATH:
        typer.echo(output.to_json({"path": str(cache_root())}) if json else str(cache_root()))
        return
    if action is Action.LIST:
        rows = tending.listed()
        if json:
            output.emit_json({"path": str(cache_root()), "entries": rows})
            return
        columns = ["name", "arch", "compiler", "bytes", "builds", "seconds", "key", "damage"]
        cells = [[row[column] if row[column] is not None else "" for column in columns] for row in rows]
        output.console().print(output.table("", columns, cells, ["bytes", "builds", "seconds"]))
        return
    if action is Action.VERIFY:
        done = tending.verify()
    elif action is Action.PRUNE:
        done = tending.prune(older_than, everything)
    else:
        done = tending.rebuild(everything, only)
    if json:
        output.emit_json({"path": str(cache_root()), "done": done.lines, "problems": done.problems})
    else:
        for line in done.lines:
            typer.echo(line)
    for problem in done.problems:
        output.complain(problem)
    if done.problems:
        raise typer.Exit(1)
