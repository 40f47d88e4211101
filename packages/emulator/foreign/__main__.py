"""Runs programs that nobody here wrote: AMD's hand-written code objects in the wheel of AITER, against numpy.

``python packages/emulator/foreign`` fetches the wheel once (40 MB, kept in the user's cache folder), loads and
decodes all code objects, runs some of them, and prints a table. It exits with 1 if a code object cannot be decoded, a
result is wrong, or a judgement is of a kind that ``traced.py`` lacks. ``--write`` writes the page
``docs/backends/emulator-programs.md`` and the figures beside this file.
"""

import argparse
import json
import os
import sys
from collections import Counter
from dataclasses import asdict
from pathlib import Path

import attention
import experts
import products
import rows
import wheel
from case import TURN, Outcome, run
from decoding import Decoded, decode_all
from traced import TRACED, kind_of

HERE = Path(__file__).parent
PAGE = HERE.parents[2] / "docs" / "backends" / "emulator-programs.md"
CASES = (*rows.CASES, *products.CASES, *attention.CASES, *experts.CASES)
MEMORY_OF_OTHER_GPUS = frozenset({"s_store_dword", "s_atomic_inc"})
"""Mnemonics without semantics: only programs that reduce over several GPUs use them."""

PAGE_TEXT = """\
<!-- Made by `nox -s test-foreign -- --write`: do not edit. -->

# Programs of others on the emulator

What [the AMD emulator](emulator.md) makes of machine code that nobody here wrote: AMD's hand-written kernels in the
wheel `{name}=={version}`. `nox -s test-foreign` fetches it, checks its hash, and makes the tables of this page.

All {files} code objects load and decode: {instructions} instructions, {mnemonics} different mnemonics. {without}

{right} of {count} runs give what numpy gives. The error is the largest one, as a share of the largest expected value.
Waves take turns of {turn} instructions; the last column says whether the result stays right if each wave instead runs
as far as it can before the next one starts.

{table}

## Judgements

Hand-written code breaks rules that compilers keep. Each kind was traced:

{judgements}

Faults of the emulator that these programs showed, mended since, each with a test: VGPR indexing (`s_set_gpr_idx_on`)
and VSKIP were missing, M0 was cut to 64 KiB in loads directly into the 160 KiB of LDS of gfx950, and two things were
judged that the hardware allows: waves that wait at barriers of their own, since it only counts arrivals, and reads of
LDS that more accesses follow than lgkmcnt holds, since a full counter holds these back.

Not run: the multi-GPU programs, the backward pass of attention, and programs with persistent workgroups. An earlier
version of this page had a wrong result of `mla_dec_stage1_bf16_a16w16_subQ128_mqa128.co`. The fault was in how it was
read: with one split, this program writes the final result, bfloat16, where it writes parts in float32 otherwise.
"""


def table(outcomes: list[Outcome]) -> list[list[str]]:
    """A row for each run."""
    shown = [["program", "arch", "computes", "sizes", "instructions", "error", "judgements", "in any order"]]
    for o in outcomes:
        kinds = Counter(kind_of(j) or f"? {j.rule}" for j in o.report.judgements)
        order = "yes" if o.one_by_one <= o.case.bound else f"no: {o.one_by_one:.0e}"
        shown.append([
            Path(o.case.file).name, o.case.arch, o.case.family, o.case.shape, str(o.report.counts.total),
            f"{o.error:.1e}" if o.is_right else f"**{o.error:.1e}**",
            "; ".join(f"{n} {kind}" for kind, n in kinds.items()) or "none", order,
        ])  # fmt: skip
    return shown


def page(decoded: Decoded, outcomes: list[Outcome]) -> str:
    """The committed page."""
    head, *body = table(outcomes)
    lines = [f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *([f"`{r[0]}`", *r[1:]] for r in body))]
    seen = Counter(kind_of(j) for o in outcomes for j in o.report.judgements)
    traced = [f"- **{name}** (`{rule}`, {seen[name]}). {words}" for name, rule, _, _, words in TRACED if seen[name]]
    missing = ", ".join(f"`{name}` ({n} files)" for name, n in decoded.without.items())
    return PAGE_TEXT.format(
        name=wheel.NAME, version=wheel.VERSION, files=f"{decoded.files:,}", instructions=f"{decoded.instructions:,}",
        mnemonics=len(decoded.mnemonics),
        without=f"Without semantics here: {missing}, which the multi-GPU reductions use." if missing else "",
        right=sum(o.is_right for o in outcomes), count=len(outcomes), turn=TURN, table="\n".join(lines),
        judgements="\n".join(traced),
    )  # fmt: skip


def main() -> int:
    """Fetch, decode, run, print; write where asked to."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="write the page and the figures")
    given = parser.parse_args()
    folder = wheel.folder()
    decoded = decode_all(folder, os.cpu_count() or 1)
    print(f"{decoded.files} code objects, {decoded.instructions} instructions, {len(decoded.mnemonics)} mnemonics")
    outcomes = [run(case, folder) for case in CASES]
    for line in table(outcomes):
        print("  ".join(line))
    problems = [*decoded.failed, *(f"{n}: no semantics" for n in decoded.without if n not in MEMORY_OF_OTHER_GPUS)]
    problems += [f"{o.case.file}: error {o.error:.1e}" for o in outcomes if not o.is_right]
    problems += [str(j) for o in outcomes for j in o.report.judgements if kind_of(j) is None]
    print(f"{sum(o.is_right for o in outcomes)} of {len(outcomes)} runs are right")
    for problem in problems:
        print(f"PROBLEM: {problem}")
    if given.write:
        PAGE.write_text(page(decoded, outcomes))
        figures = [
            {"file": o.case.file, "arch": o.case.arch, "error": o.error, "one_by_one": o.one_by_one,
             "counts": asdict(o.report.counts), "judgements": Counter(kind_of(j) for j in o.report.judgements)}
            for o in outcomes
        ]  # fmt: skip
        (HERE / "results.json").write_text(json.dumps(figures, indent=1) + "\n")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
