"""Measured rows of the benchmarks' implementations, put in force for the length of a block."""

import os
import random
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from opmux import tuning
from opmux.tuning.measured import Machine, MeasuredRow, write_measured

TENSORS = {"rms_norm": ("x", "weight"), "add_layer_norm": ("x", "residual", "weight", "bias")}


@contextmanager
def measured_rows(count: int, points: int, ops: tuple[str, ...] = ("rms_norm",)) -> Iterator[None]:
    """Put rows in force: of so many implementations, each at so many points drawn at random."""
    draw = random.Random(0)
    places = draw.sample([(tokens, 8 * hidden) for tokens in range(1, 1000) for hidden in range(1, 1000)], points)
    machine = Machine("cpu", "some CPU", 2)
    rows = [
        MeasuredRow(
            op=op,
            dtypes=dict.fromkeys(TENSORS[op], torch.float32),
            options={},
            dims={"tokens": tokens, "hidden": hidden},
            implementation=f"budget:i{number:02}",
            machine=machine,
            time_us=5.0 + tokens * hidden / 1e4,
            spread=0.01,
            error=0.1,
            compared=(f"budget:i{number:02}",),
        )
        for op in ops
        for number in range(count)
        for tokens, hidden in places
    ]
    before = os.environ.get("OPMUX_TUNED")
    with tempfile.TemporaryDirectory() as folder:
        write_measured(Path(folder) / "rows.measured", rows)
        os.environ["OPMUX_TUNED"] = folder
        tuning.reload()
        try:
            yield
        finally:
            if before is None:
                del os.environ["OPMUX_TUNED"]
            else:
                os.environ["OPMUX_TUNED"] = before
    tuning.reload()
