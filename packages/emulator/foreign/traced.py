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
        "matrix result read too soon", "wait-states", r"^v\d+ needs (7|8|11|12) ", ".*",
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
        "0xd84, which lets it be under way at 0xe90; in `fmoe_b16.co`, `vmcnt(30)` at 0x2c90 leaves the 30th. In MLA "
        "of 128 heads, the load of v11 at 0x1738 is the 19th most recent at the `vmcnt(19)` of 0x1860, before the "
        "loop, and 0x1fc4 reads it; the wait within the loop, at 0x3a00, is `vmcnt(18)`. It goes unnoticed if loads "
        "arrive early.",
    ),
    (
        "LDS shared without a barrier", "lds-race", ".*", ".*",
        "Real by the rule: nothing orders the waves. In the int8 product of 128x128 it is a prefetch after the last "
        "step, whose value nobody uses, and the buffer that the epilogue uses again. In MLA, the `lgkmcnt(8)` of "
        "0x3008 covers four of the eight writes before it, since only four reads come between; the others, from 0x2f70 "
        "on, may be under way when other waves read them behind the barrier, at 0x3018. In the int8 product of 192x128 "
        "there are three places. The last third of a step's rows, which all waves load into LDS, is read from 0xc68 "
        "and 0x1168 on, behind a `vmcnt(12)` that covers the wave's own loads (0xc50, 0x1150), but before the barrier "
        "(0xe00, 0x1300) behind which the other waves' have arrived: 32 judgements. The epilogue writes, from 0x32fc "
        "on, over rows that other waves may still prefetch without using them: 8. And loads into LDS for the step "
        "after the last are never waited for, while the epilogue uses the same buffer, from 0x3804 on: 29. Where the "
        "last column says so, the result depends on it: the waves must "
        "proceed at about the same pace, as they do on a compute unit.",
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
