"""Kernel times of attention on sm_90, on shapes of the published comparisons and on shapes drawn by a seed.

``python benchmarks/measure_attention.py --seed N --out FILE.json [--backward] [--dry]`` draws shapes for each head
size: sequences log-uniform from 128 to 7000, 1 to 64 heads, 4 to 32 thousand tokens. Each is checked against the
reference on a smaller one with the same masks, then timed with its peers: the forward, or with ``--backward`` the
gradients. ``scripts/attention_page.py`` makes the page from the results.
"""

import argparse
import random
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from opmux.bench.shapes import attention
from opmux.bench.sweep import Swept, run, write
from opmux.bench.variants import Case, Configured
from opmux.plugin import Arch, parse_arch
from opmux_triton.attention.backward import configs as backward_configs
from opmux_triton.attention.forward.configs import hopper_config

CHOSEN = "triton:hopper"
CHOSEN_WIDE = "triton:hopper_wide"
"""Of the gradients of heads of more than 128."""
NAMED = (
    (2, 4096, 32, 32, 64, True),
    (2, 4096, 32, 32, 64, False),
    (4, 4096, 32, 8, 128, True),
    (4, 4096, 32, 8, 128, False),
    (1, 16384, 32, 8, 128, True),
    (1, 16384, 32, 8, 128, False),
    (2, 8192, 24, 8, 96, True),
    (7, 2495, 4, 1, 192, True),
    (1, 16384, 16, 4, 256, False),
    (32, 449, 32, 8, 256, False),
    (23, 435, 64, 8, 80, False),
    (2, 4096, 16, 16, 256, True),
    (2, 4096, 16, 16, 192, True),
    (2, 4096, 16, 16, 192, False),
)
"""(batch, seq, heads, kv_heads, head_dim, causal) that were named before they were measured."""
DRAWN = (((64,), 10), ((80, 96), 10), ((128,), 8), ((192,), 8), ((256,), 8))
"""Head sizes in turn, and how many shapes of them."""


def sizes(source: random.Random) -> tuple[int, int, int, int]:
    """Batch, seq, heads and kv_heads of a call, whatever its head size."""
    seq = int(2 ** source.uniform(7, 12.8))
    kv_heads, groups = source.choice((1, 2, 4, 8)), source.choice((1, 2, 4, 8))
    batch = max(1, round(2 ** source.uniform(12, 15) / seq))
    return batch, seq, kv_heads * groups, kv_heads


def drawn(seed: int) -> list[tuple[int, int, int, int, int, bool]]:
    """The shapes of a seed."""
    source = random.Random(seed)
    shapes = []
    for head_dims, count in DRAWN:
        for number in range(count):
            head_dim, causal = head_dims[number % len(head_dims)], bool(number // len(head_dims) % 2)
            shapes.append((*sizes(source), head_dim, causal))
    return shapes


def case(
    batch: int, seq: int, heads: int, kv_heads: int, head_dim: int, causal: bool, backward: bool = False
) -> Case:  # fmt: skip
    """One shape with the config that a call gets."""
    arch = parse_arch("sm_90")
    features = {"head_dim": head_dim, "value_dim": head_dim, "bucket(seq_q)": (seq - 1).bit_length()}
    op, chosen = "attention", CHOSEN
    config_of: Callable[[Arch, Mapping[str, Any]], Any] = hopper_config
    if backward:
        op, config_of = "attention_backward", backward_configs.hopper_config
        if head_dim > 128:
            chosen, config_of = CHOSEN_WIDE, backward_configs.hopper_wide_config
    variants = {chosen: Configured(chosen, config_of(arch, features))}
    length = (384 if seq < 600 else 1152) if seq % 128 == 0 else (333 if seq < 600 else 1029)
    checked = attention(2, length, 2 * heads // kv_heads, 2, head_dim, causal)
    return Case(op, attention(batch, seq, heads, kv_heads, head_dim, causal), variants, checked=checked)


def main() -> int:
    """Measure, print and write; 1 where a shape was left out."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--backward", action="store_true", help="the gradients instead of the forward")
    parser.add_argument("--dry", action="store_true", help="list the shapes; needs no GPU")
    given = parser.parse_args()
    cases = [case(*shape, given.backward) for shape in (*NAMED, *drawn(given.seed))]
    if given.dry:
        sys.stdout.write("".join(f"{each.title}\n" for each in cases))
        return 0
    if not torch.cuda.is_available():
        parser.error("measuring needs a GPU and there is none; --dry lists the shapes")

    def told(swept: Swept) -> None:
        print(swept, flush=True)

    results = run(cases, torch.device("cuda"), rounds=12, limit_s=0.8, check_limit_s=90, told=told)
    if given.out is not None:
        write(given.out, results)
    return int(any(swept.left for swept in results))


if __name__ == "__main__":
    sys.exit(main())
