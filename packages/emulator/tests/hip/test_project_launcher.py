"""This project's own launcher (opmux-jit) on the emulator: it opens libamdhip64.so as on a machine with a GPU."""

import os
import subprocess
import sys
from pathlib import Path

from assembling import assemble_bytes

from opmux_emulator.hip import environment

COPY = """
  s_load_dwordx4 s[4:7], s[0:1], 0x0
  v_lshlrev_b32 v1, 2, v0
  v_and_b32 v1, 0xffc, v1
  s_waitcnt lgkmcnt(0)
  global_load_dword v2, v1, s[4:5]
  s_waitcnt vmcnt(0)
  global_store_dword v1, v2, s[6:7]
"""
SCRIPT = """
import sys
import numpy as np
from opmux_emulator.hip import Runtime
from opmux_jit.launching.devices import device
from opmux_jit.launching.modules import Module
from opmux_jit.native.library import launcher

hip, where, native = Runtime(), device(0, "amd"), launcher()
function = Module(open(sys.argv[1], "rb").read(), where).function("k")
block, cluster = (64, 1, 1), (1, 1, 1)
shape = native.shape(
    where.driver, 0, function.handle, "k", "pp", block, 0, cluster, False, False, False, function
)
x = np.arange(64, dtype="u4")
source, target = hip.upload(x), hip.allocate(256)
native.launch(shape)(1, 1, 1, 0, source, target)
assert np.array_equal(hip.download(target, np.zeros(64, "u4")), x)
print(where.driver_version)
"""


def test_the_launcher_of_opmux_jit(tmp_path: Path) -> None:
    (tmp_path / "copy.hsaco").write_bytes(assemble_bytes(COPY, "gfx942", arguments=2))
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path / "copy.hsaco")],
        env={**os.environ, **environment("gfx942")}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "7.1\n"), done.stderr
