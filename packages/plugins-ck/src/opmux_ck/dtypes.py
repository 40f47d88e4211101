"""CK's names of dtypes."""

import torch

CPP = {
    "bf16": "ck_tile::bf16_t",
    "fp16": "ck_tile::fp16_t",
    "fp32": "float",
    "fp8": "ck_tile::fp8_t",
    "int8": "ck_tile::int8_t",
}
"""CK's short names of dtypes, and its types."""
SHORT = {
    torch.bfloat16: "bf16",
    torch.float16: "fp16",
    torch.float32: "fp32",
    torch.float8_e4m3fnuz: "fp8",
    torch.float8_e4m3fn: "fp8",
    torch.int8: "int8",
}
"""CK's short name of a dtype. Its fp8 is the flavour that the arch's instructions know."""
