"""What is known of each kind of judgement on these programs."""

import re

from opmux_emulator import Judgement

TRACED = (
    (
        "scalar register read too soon", "wait-states", r"^s\d+ needs 2 ", ".*",
        "Real by the rule: on gfx942 and gfx950, two wait states belong between a VALU instruction that writes a "
        "scalar register and one that reads it. These programs leave none.",
    ),
    (
        "M0 used too soon", "wait-states", "^m0 needs 1 ", "buffer_load",
        "Real by the rule: one wait state belongs between a SALU write of M0 and a load into LDS that uses it. LLVM "
        "inserts it; these programs do not.",
    ),
    (
        "matrix result read too soon", "wait-states", r"^v\d+ needs (7|11|12) ", ".*",
        "Real by the rule: a VALU instruction reads the result of a matrix instruction before its passes are over. In "
        "`fwd_hd128_bf16_rtne.co` at 0xbd4, a branch skips the mask that otherwise lies between, and one `s_nop 0` is "
        "left.",
    ),
    (
        "permuted too soon", "wait-states", r"^v\d+ needs 2 ", "v_permlane",
        "Real by the rule: two wait states belong between a VALU write and `v_permlane16_swap_b32` of the same "
        "register.",
    ),
    (
        "wait that is one load short", "outstanding", "no s_waitcnt vmcnt", ".*",
        "Real: in `pa_bf16_noquant_gqa16_1tg_4w.co`, the load at 0x700 is the 24th most recent at the `vmcnt(24)` of "
        "0xd84, which lets it be under way at 0xe90; in `fmoe_b16.co`, `vmcnt(30)` at 0x2c90 leaves the 30th. It goes "
        "unnoticed if loads arrive early.",
    ),
    (
        "LDS read without a wait", "outstanding", "no s_waitcnt lgkmcnt", ".*",
        "Open: the waits of `fwd_hd192_hd128_bf16.co` and of the experts' program with VSKIP were not counted by hand. "
        "The results are right.",
    ),
    (
        "LDS shared without a barrier", "lds-race", ".*", ".*",
        "Real by the rule: nothing orders the waves. In the int8 product of 128x128 it is a prefetch after the last "
        "step, whose value nobody uses, and the buffer that the epilogue uses again; in the other programs that are "
        "right in any order, what it touches was not looked up. Where the last column says so, the result depends on "
        "it: the waves must proceed at about the same pace, as they do on a compute unit.",
    ),
)  # fmt: skip
"""Name, rule, pattern of the detail, pattern of the instruction, and what was found."""


def kind_of(judgement: Judgement) -> str | None:
    """The name of the entry that covers a judgement; None where none does."""
    for name, rule, detail, instruction, _ in TRACED:
        covers = re.search(detail, judgement.detail) and re.match(instruction, judgement.instruction)
        if judgement.rule == rule and covers:
            return name
    return None
