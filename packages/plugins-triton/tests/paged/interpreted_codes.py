"""Run by `paged/test_codes` under TRITON_INTERPRET=1: fp8 and int8 caches, written and read."""

import sys

import pytest
import torch
from paged.coded_calls import OPTIONS, check, check_written, coded_call

from opmux_triton.paged import call

CODES = (torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz, torch.int8)

for codes in CODES:
    for scales in ("heads", "one", "none"):
        check_written(codes, torch.bfloat16, "cpu", 3, 24, scales)
        check(coded_call(codes, torch.bfloat16, "decode", "cpu", scales=scales))
    check(coded_call(codes, torch.float32, "decode", "cpu", sinks=True))
    if codes != torch.int8:
        check(coded_call(codes, codes, "decode", "cpu"))
for batch in ("decode", "long decode", "prefill"):  # "far decode" takes an interpreter minutes
    for options in OPTIONS.values():
        check(coded_call(torch.float8_e4m3fn, torch.bfloat16, batch, "cpu", sinks=batch == "prefill"), **options)
check(coded_call(torch.int8, torch.float16, "decode", "cpu", heads=(8, 1), dim=40, page_size=32))

# Pairs of codes, as NVIDIA's kernels read them: queries that float16 holds, and ones whose range is too wide for it.
with pytest.MonkeyPatch.context() as patched:
    patched.setattr(call, "converts_pairs", lambda tensor: True)
    for codes in CODES[:2]:
        for batch in ("decode", "long decode"):
            for wide in (1.0, 2.0**-40, 2.0**90):
                for heads in ((4, 2), (6, 1)):
                    given = coded_call(codes, torch.bfloat16, batch, "cpu", heads=heads, sinks=True)
                    given[0][0][:, :, 3] *= wide
                    check(given, **({"scale": 2.0**-92} if wide > 1 else {}))
    for options in OPTIONS.values():
        check(coded_call(torch.float8_e4m3fn, torch.bfloat16, "decode", "cpu", sinks=True), **options)
sys.stdout.write("all equal\n")
