"""CK's names of dtypes."""

import torch

CPP = {"bf16": "ck_tile::bf16_t", "fp16": "ck_tile::fp16_t", "fp32": "float"}
"""CK's short names of dtypes, and its types."""
SHORT = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32"}
"""CK's short name of a dtype."""
