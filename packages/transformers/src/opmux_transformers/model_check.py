"""``opmux models check``: all comparisons of one model, and what to say of them."""

import copy
from typing import Any

import torch

from opmux.errors import InvalidArgument
from opmux_transformers.check import Comparison, build, compare, prompts, size_of
from opmux_transformers.configs import first_line, small_config
from opmux_transformers.prompted import call, encodes, fills_masks, reads_text
from opmux_transformers.quantised_check import compare_quantised

LARGEST = 50_000_000
"""The most parameters of a model that is checked: one whose sizes have names of their own does not become small."""


def run(name: str, device: str | None = None, quantize: str | None = None) -> dict[str, Any]:
    """Check a family or a configuration, in float32 and bfloat16.

    Args:
        name: what `small_config` takes.
        device: ``"cpu"`` or ``"cuda"``; None means a GPU if there is one.
        quantize: ``"fp8"`` or ``"int8"`` also compares a quantised model; the report is then that one's.

    Returns:
        What ``opmux models check --json`` prints, and the report under ``"report_object"``.
    """
    config = small_config(name)
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    if device not in ("cpu", "cuda") or (device == "cuda" and not torch.cuda.is_available()):
        raise InvalidArgument(
            f"opmux models check: `device` expected cpu, or cuda where torch sees a GPU, got {device}; pass cpu"
        )
    if quantize not in (None, "fp8", "int8"):
        raise InvalidArgument(
            f"opmux models check: `quantize` expected fp8 or int8, got {quantize}; leave it out for none"
        )
    try:
        if (size := size_of(config)) > LARGEST:
            raise ValueError(f"it has {size} parameters when it is made small, more than {LARGEST}")
        with torch.no_grad():
            call(build(config, torch.float32), prompts(config))
    except Exception as error:  # transformers may raise anything, before anything is patched
        raise InvalidArgument(
            f"opmux models check: `name` expected a model for text that runs at a small size, got {name!r}:"
            f" {first_line(error)}; name another, or pass your model to opmux_transformers.patch"
        ) from None
    comparisons: list[Comparison] = []
    for dtype in (torch.float32, torch.bfloat16):
        found, report = compare(copy.deepcopy(config), dtype, device)
        comparisons += found
    if quantize is not None:
        quantised, report = compare_quantised(copy.deepcopy(config), quantize, device)
        comparisons += quantised
    if fills_masks(config):
        report.notes.append("it fills masks and generates no text: logits and gradients are compared, no tokens")
    if encodes(config):
        read = "the same prompts" if reads_text(config) else "random numbers in the place of sound"
        report.notes.append(f"its decoder's logits and tokens are compared, after an encoder that reads {read}")
    failures = [
        f"{c.what} in {c.dtype}: {c.error:.3g}, at most {c.bound:.3g} {c.detail}".rstrip()
        for c in comparisons
        if not c.passed
    ]
    return {
        "name": name,
        "family": str(config.model_type),
        "device": device,
        "passed": not failures,
        "failures": failures,
        "comparisons": [
            {
                "what": c.what,
                "dtype": c.dtype,
                "error": c.error,
                "bound": c.bound,
                "passed": c.passed,
                "detail": c.detail,
            }
            for c in comparisons
        ],
        "report": report.as_dict(),
        "report_object": report,
    }
