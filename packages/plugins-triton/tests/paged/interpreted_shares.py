"""Run by `paged/test_targets` under TRITON_INTERPRET=1: decoding in equal shares, whatever memory held before."""

import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

import opmux
from opmux.arch import parse_arch
from opmux_triton.paged import configs, share_kernels, share_targets, targets

torch.manual_seed(0)
PAST = 2
"""Tokens past the last sequence."""


@dataclass(frozen=True)
class Step:
    """A decode step: ``programs`` for each of 4 units, and sequences of these lengths; 0 has no new token.

    ``transposed`` caches have slots further apart than pages; those of ``far`` ones take 64 bits.
    """

    lengths: tuple[int, ...]
    programs: int = 3
    heads: tuple[int, int] = (4, 2)
    dims: tuple[int, int] = (16, 16)
    page: int = 16
    block_n: int = 16
    rows: int = 16
    dtype: torch.dtype = torch.float16
    window: int = -1
    softcap: float = 0.0
    scale: float | None = None
    sinks: bool = False
    transposed: bool = False
    far: bool = False

    @property
    def reach(self) -> int:
        """The bound of the lengths."""
        return -(-max(self.lengths) // self.page) * self.page


def poisoned(shape: tuple[int, ...], like: Tensor) -> Tensor:
    """Memory that shows whether a slot was read that had not been written."""
    return like.new_full(shape, float("nan"), dtype=torch.float32)


def caches(step: Step) -> Iterator[Tensor]:
    """Keys and values."""
    for dim in step.dims:
        pages = torch.randn(128, step.page, step.heads[1], dim, dtype=step.dtype)
        yield pages.transpose(0, 1).contiguous().transpose(0, 1) if step.transposed else pages


def check(step: Step) -> None:
    """Both results against the reference's."""
    counts = torch.tensor([0, *(int(length > 0) for length in step.lengths)])
    offsets = counts.cumsum(0).to(torch.int32)
    q = torch.randn(int(offsets[-1]) + PAST, step.heads[0], step.dims[0], dtype=step.dtype)
    k_cache, v_cache = caches(step)
    v_cache[3, min(4, step.page - 1), 0, 5] = float("nan")
    pages = step.reach // step.page
    table = torch.randint(128, (len(step.lengths), pages), dtype=torch.int32)
    given = (q, k_cache, v_cache, offsets, torch.tensor(step.lengths, dtype=torch.int32), table)
    sink = torch.randn(step.heads[0]) if step.sinks else None
    options = {"scale": step.scale, "causal": True, "window": (step.window, -1), "softcap": step.softcap}
    options |= {"layout": "nhd", "max_seqlen_q": 1, "max_seqlen_k": step.reach}
    features = {"page_size": step.page, "head_dim": step.dims[0], "value_dim": step.dims[1], "bucket(batch)": 2}
    config = configs.halves_config(parse_arch("sm_90"), features)
    assert config.shares is not None
    sizes = {"block_n": step.block_n, "least": step.block_n, "rows": step.rows, "programs": step.programs}
    shares = replace(config.shares, **sizes, tiles=4, most=1024, reach=1)
    launched.clear()
    changes.clear()
    changes.update({"NARROW": False} if step.far else {})
    found = targets.paged_attention_lse(*given, sink, config=replace(config, shares=shares), **options)
    assert launched[0] is share_kernels.attend_shares, step
    expected = opmux.paged_attention_lse.reference(*given, sink, **options)
    for own, right in zip(found, expected, strict=True):
        torch.testing.assert_close(own, right, rtol=5e-3, atol=5e-3, equal_nan=True, msg=lambda m: f"{step}: {m}")


launched: list[object] = []
changes: dict[str, bool] = {}
launch = share_targets.launch


def noted(kernel: object, grid: object, arguments: object, meta: dict[str, object]) -> None:
    """Launch with other constants, and note what is launched."""
    launched.append(kernel)
    launch(kernel, grid, arguments, {name: changes.get(name, value) for name, value in meta.items()})


share_targets.scratch, share_targets.launch = poisoned, noted
UNEVEN = (5, 300, 64, 2, 0, 0, 131)
for lengths in (UNEVEN, (0, 7), (300,), (0, 0, 16, 0)):
    for programs in (1, 3, 50):
        check(Step(lengths, programs))
check(Step(UNEVEN, window=40, sinks=True))
check(Step(UNEVEN, softcap=5.0, sinks=True, scale=-0.3))
check(Step(UNEVEN, scale=0.0))
# a group in three tiles of rows, one that fills none, and values of another width
check(Step((70, 3), 50, heads=(40, 1), dims=(16, 24)))
check(Step((70, 3), 50, heads=(3, 1), dims=(24, 16)))
# 20 rows of 32, and half of the keys at a time
check(Step((70, 3), 50, heads=(20, 1), rows=32, block_n=32))
# pages that hold whole blocks, blocks that hold whole pages, and neither; one token a page
check(Step(UNEVEN, page=64))
check(Step(UNEVEN, block_n=64))
check(Step(UNEVEN, page=48, block_n=32))
check(Step((40, 17), page=1, block_n=32))
check(Step(UNEVEN, transposed=True))
check(Step(UNEVEN, far=True))
# float32, whose maxima are kept unscaled; more sequences than are looked at together
check(Step(UNEVEN, dtype=torch.float32, sinks=True))
check(Step((3, *(0, 18) * 70), 9))
sys.stdout.write("all equal")
