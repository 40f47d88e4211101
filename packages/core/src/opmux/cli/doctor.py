"""`opmux doctor`: what is installed, and what is wrong with it."""

import platform
from typing import Any

import torch
import typer
from rich.console import Console

from opmux import __about__, arch, tuning
from opmux.cli import listing, output, plugins
from opmux.cli.toolchains import toolchains
from opmux.cli.variables import variables
from opmux.errors import OpmuxError
from opmux.plugins import loading


def doctor(as_json: output.AsJson = False) -> None:
    """Show the environment, devices, plugins, toolchains, tuned records and `OPMUX_` variables.

    Exits with 1 if a plugin, or a part of one, failed to load, or if a tuned record or a file of them was refused.
    """
    report = examine()
    if as_json:
        output.emit_json(report)
    else:
        _show(report, output.console())
    if not report["passed"]:
        raise typer.Exit(1)


def examine() -> dict[str, Any]:
    """Everything that doctor reports, as data."""
    loaded, devices_problem = loading.loaded_plugins(), None
    try:
        devices = [{"device": d, "arch": str(a), "name": n} for d, a, n in arch.present_archs()]
    except (OpmuxError, RuntimeError) as error:  # a driver that does not answer, or an arch that opmux cannot read
        devices, devices_problem = [{"device": "cpu", "arch": "cpu", "name": "CPU"}], str(error)
    _, failed_commands = plugins.commands_of_plugins()
    failed = [{**listing.failed_data(f), "details": f.details} for f in (*loading.failed_plugins(), *failed_commands)]
    tuned = tuning.report()
    return {
        "passed": not failed and not tuned.refused,
        "environment": _environment(),
        "devices": devices,
        "devices_problem": devices_problem,
        "plugins": {"loaded": [_loaded_data(plugin) for plugin in loaded], "failed": failed},
        "toolchains": toolchains(),
        "variables": variables(),
        "tuned": tuned.as_dict(),
    }


def _environment() -> dict[str, str | None]:
    return {
        "opmux": __about__.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "hip": torch.version.hip,
        "os": platform.platform(),
        "machine": platform.machine(),
    }


def _loaded_data(plugin: loading.LoadedPlugin) -> dict[str, Any]:
    return {
        "name": plugin.name,
        "distribution": plugin.distribution,
        "version": plugin.version,
        "implementations": len(plugin.implementations),
        "ops": list(plugin.ops),
        "commands": [str(c[0]) if isinstance(c, tuple) and c else str(c) for c in plugin.commands],
        "tuned_records": list(plugin.tuned_records),
    }


def _show(report: dict[str, Any], console: Console) -> None:
    def section(title: str, columns: list[str], rows: list[list[Any]]) -> None:
        console.print(output.table(title, columns, rows))
        console.print()

    section("environment", ["", ""], [[name, value or "-"] for name, value in report["environment"].items()])
    section("devices", ["device", "arch", "name"], [list(device.values()) for device in report["devices"]])
    if report["devices_problem"]:
        output.complain(report["devices_problem"])
    loaded = [
        [p["name"], f"{p['distribution']} {p['version']}", p["implementations"], " ".join([*p["ops"], *p["commands"]])]
        for p in report["plugins"]["loaded"]
    ]
    if loaded:
        section("plugins", ["plugin", "package", "implementations", "ops and commands of its own"], loaded)
    else:
        console.print("plugins: none is installed; the reference computes everything\n")
    if report["plugins"]["failed"]:
        listing.print_failed(console, report["plugins"]["failed"])
        console.print()
    tools = [[t["name"], t["version"] or "-", t["path"] or "-"] for t in report["toolchains"]]
    section("toolchains", ["tool", "version", "path"], tools)
    said = [
        [v["name"], "not set" if v["value"] is None else v["value"], v["problem"] or v["meaning"] or ""]
        for v in report["variables"]
    ]
    section("environment variables", ["variable", "value", "meaning, or what is wrong"], said)
    tuned = report["tuned"]
    if tuned["files"]:
        rows = [[f["layer"], f["records"], f["refused"], f["file"]] for f in tuned["files"]]
        section("tuned records", ["layer", "records", "refused", "file"], rows)
    else:
        console.print("tuned records: none\n")
    for refusal in tuned["refused"]:
        line = "" if refusal["line"] is None else f":{refusal['line']}"
        console.print(f"{refusal['file']}{line}: {refusal['reason']}", style="yellow", soft_wrap=True)
    console.print(_verdict(report))


def _verdict(report: dict[str, Any]) -> str:
    failed, refused = len(report["plugins"]["failed"]), len(report["tuned"]["refused"])
    problems = sum(v["problem"] is not None for v in report["variables"])
    parts = []
    if failed:
        parts.append(f"{failed} plugin{'s' * (failed > 1)}, or parts of one, failed to load")
    if problems:
        parts.append(f"{problems} environment variable{'s' * (problems > 1)} to look at")
    if refused:
        parts.append(f"{refused} tuned record{'s' * (refused > 1)}, or file{'s' * (refused > 1)} of them, refused")
    return "; ".join(parts) or "all is well"
