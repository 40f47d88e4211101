"""The section on whole models of docs/benchmarks/quantised.md: quantised ones, and a mixture of experts.

``models_fp8.json`` and ``mixture.json`` in ``data/quantised`` are what jobs ``llama-8b-fp8``, ``qwen3-4b-fp8`` and
``mixture`` of .ci/figures wrote: packages/transformers/benchmarks/models.py does the work. ``models_fp8_own.json`` is
of a run that had the kernels of transformers' own fp8, by ``--hf-path``, and has rows in fp8 alone.
``models_codes.json`` is of one whose rows keep 8-bit codes in the cache, or do not.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from models_page import Work
from page_parts import number, ratio, table

FILES = {"models_fp8": 2048, "models_fp8_own": 2048, "mixture": 4096, "models_codes": 2048}
"""The files that this section shows, where they are there, and the tokens of a prompt in each."""
OURS, FP8, THEIRS = "opmux", "opmux fp8", "hf fp8"
"""How the names of rows begin: patched ones, patched ones in fp8, and fp8 as transformers calls it."""
OVER_BF16 = {"prefill": 1.2, "decode-8": 1.35}
"""Targets of the best row in fp8 over the best one in bfloat16."""
OVER_OTHERS = 1.2
"""The target over transformers' own fp8, and of a patched mixture over transformers' best experts function."""

Wanted = tuple[str, float, float]
"""What a figure is, its value, and the least that is wanted."""


def measured(data: Mapping[str, Any]) -> list[str]:
    """The files of models that are there."""
    return [name for name in FILES if name in data]


def targets(data: Mapping[str, Any]) -> Iterator[Wanted]:
    """Each figure that can be made of what was measured."""
    for name in measured(data):
        if name == "models_codes":
            continue  # the targets are those of the models with a cache of 16 bits
        for model, works in data[name]["models"].items():
            for work in (Work(model, work, rows) for work, rows in works.items()):
                found = f"{model}, {_words(name, work.work, data[name])}"
                for what, value, least in _of_mixture(work) if name == "mixture" else _of_fp8(work):
                    yield f"{found}: {what}", value, least


def _words(name: str, work: str, data: Mapping[str, Any]) -> str:
    """The words for a kind of work."""
    kind, _, batch = work.partition("-")
    return f"prefill {FILES[name]}" if kind == "prefill" else f"decode {data['steps']}, batch {batch}"


def _of_fp8(work: Work) -> Iterator[Wanted]:
    ours, theirs = _best(work, FP8), _best(work, THEIRS)
    plain = max((rate for row, rate in work.rates.items() if "fp8" not in row), default=None)
    if ours and plain and work.work in OVER_BF16:
        yield "fp8 over bfloat16, best rows", ours / plain, OVER_BF16[work.work]
    if ours and theirs:
        which = "best rows" if f"{THEIRS} compiled" in work.rates else "not compiled, as compiled it was not measured"
        yield f"fp8 over transformers' own, {which}", ours / theirs, OVER_OTHERS


def _of_mixture(work: Work) -> Iterator[Wanted]:
    ours = _best(work, OURS)
    theirs = max((rate for row, rate in work.rates.items() if not row.startswith(OURS)), default=None)
    if ours and theirs:
        yield "patched over transformers' best experts function", ours / theirs, OVER_OTHERS


def _best(work: Work, start: str) -> float | None:
    """The rate of the best row whose name begins so."""
    return max((rate for row, rate in work.rates.items() if row.startswith(start)), default=None)


def tables(data: Mapping[str, Any]) -> Iterator[str]:
    """A table of every row for each file: also rows that failed or were left out, with the reason."""
    head = ["over the best of bfloat16 without opmux", "model", "work", "row", "tokens/s", "peak, GiB", ""]
    for name in measured(data):
        versions = ", ".join(f"{package} {version}" for package, version in data[name]["versions"].items())
        yield f"{data[name]['device']}, {versions}."
        yield ""
        yield from table(head, _rows(name, data[name]), left=(1, 2, 3, 6))


def _rows(name: str, data: Mapping[str, Any]) -> Iterator[list[str]]:
    for model, works in data["models"].items():
        for work in (Work(model, work, rows) for work, rows in works.items()):
            base = max((rate for row, rate in work.rates.items() if "fp8" not in row and OURS not in row), default=None)
            for row, figures in work.rows.items():
                rate, peak = work.rates.get(row), figures.get("peak_gib")
                yield [
                    "-" if rate is None or base is None else ratio(rate / base),
                    model,
                    _words(name, work.work, data),
                    row,
                    number(rate),
                    "-" if peak is None else f"{peak:.1f}",
                    work.why_none(row),
                ]
