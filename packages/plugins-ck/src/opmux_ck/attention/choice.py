"""The tile of attention for a call without a tuned record, and the space that tuning searches. Nothing is measured."""

from collections.abc import Iterator, Mapping
from typing import Any

from opmux.plugin import Arch
from opmux_ck.attention.configs import AttentionConfig, misfit

FEW_QUERIES = {
    32: AttentionConfig(16, 32, 16, 32, 1, 16),
    64: AttentionConfig(16, 32, 32, 32, 1, 16),
    128: AttentionConfig(16, 32, 32, 32, 1, 16),
    192: AttentionConfig(16, 32, 32, 32, 1, 16),
    256: AttentionConfig(16, 64, 32, 32, 1, 16),
}
"""By the size of a head: one wave. Heads take at least two steps, and those of 256 eight matrix instructions a step."""
MANY_QUERIES = {
    32: AttentionConfig(128, 64, 16, 32, 4, 32),
    64: AttentionConfig(128, 64, 32, 32, 4, 32),
    128: AttentionConfig(128, 128, 32, 32, 4, 32),
    192: AttentionConfig(128, 128, 32, 32, 4, 32),
    256: AttentionConfig(64, 64, 32, 32, 4, 16),
}
"""By the size of a head: CK's own choices, except for 256, where the compiler spills registers in CK's."""
SPACE = (
    FEW_QUERIES[32],
    AttentionConfig(128, 64, 16, 32, 4, 32),
    FEW_QUERIES[128],
    FEW_QUERIES[256],
    AttentionConfig(32, 64, 32, 32, 2, 16),
    AttentionConfig(64, 64, 32, 32, 4, 16),
    AttentionConfig(64, 64, 32, 32, 2, 32),
    AttentionConfig(64, 128, 32, 32, 4, 16),
    AttentionConfig(128, 64, 32, 16, 4, 32),
    AttentionConfig(128, 64, 32, 32, 4, 32),
    AttentionConfig(128, 128, 32, 32, 4, 32),
)


def attention_config(arch: Arch, features: Mapping[str, Any]) -> AttentionConfig:
    """The tile for a call: a wave's 16 queries where there are no more, else a workgroup of four waves."""
    head_dim = features["head_dim"]
    few = FEW_QUERIES[head_dim]
    return few if _queries(features) <= few.queries else MANY_QUERIES[head_dim]


def attention_space(arch: Arch, features: Mapping[str, Any]) -> Iterator[AttentionConfig]:
    """Every tile that fits the heads, without those that are mostly padding."""
    queries = _queries(features)
    for config in SPACE:
        wide = config.queries > 16 and config.queries >= 2 * queries
        if not wide and misfit(config, features["head_dim"], features["value_dim"]) is None:
            yield config


def _queries(features: Mapping[str, Any]) -> int:
    """Queries of a sequence, rounded up to a power of two."""
    bucket = next(features[name] for name in ("bucket(seq_q)", "bucket(max_seqlen_q)") if name in features)
    return 1 << min(int(bucket), 30)
