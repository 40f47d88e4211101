"""What the core imports of this package in every process."""

import subprocess
import sys

PROGRAM = """
import sys, types
sys.modules["opmux"] = types.ModuleType("opmux")
sys.modules["opmux.plugin"] = types.SimpleNamespace(Implementation=None, hookimpl=lambda hook: hook)
import opmux_emulator.plugin
print(sorted({"numpy", "msgpack", "opmux_emulator.running.launch"} & set(sys.modules)))
print(opmux_emulator.launch.__module__)
print(all(hasattr(opmux_emulator, name) for name in opmux_emulator.__all__), hasattr(opmux_emulator, "nothing"))
"""


def test_the_plugin_imports_no_interpreter_and_the_package_has_it_on_demand() -> None:
    """In a process where nothing else imports numpy, as torch and the core may."""
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False)
    assert done.stdout.splitlines() == ["[]", "opmux_emulator.running.launch", "True False"], done.stderr
