"""Shapes of real models, from which the conformance cases take their sizes.

The numbers are those of the published ``config.json`` files (hidden_size, num_attention_heads,
num_key_value_heads, head_dim, intermediate_size).
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ModelShape:
    """The sizes of one decoder layer.

    Attributes:
        hidden: width of the residual stream.
        intermediate: width of the feed-forward layer (of one expert, in a mixture).
        window: the sliding window of its local layers, in keys; -1 where there are none.
        softcap: the cap on attention scores; 0.0 where there is none.
        sinks: whether its attention has sinks.
        weight_offset: the offset that its RMS norm adds to the weight.
    """

    name: str
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    window: int = -1
    softcap: float = 0.0
    sinks: bool = False
    weight_offset: float = 0.0

    def scaled(self, divisor: int) -> "ModelShape":
        """The same proportions, scaled down: widths stay multiples of 8, kv heads keep their query heads."""
        if divisor == 1:
            return self
        kv_heads = max(1, self.kv_heads // divisor)
        return ModelShape(
            self.name,
            _scaled(self.hidden, divisor),
            kv_heads * (self.heads // self.kv_heads),
            kv_heads,
            _scaled(self.head_dim, max(1, divisor // 8)),
            _scaled(self.intermediate, divisor),
            self.window if self.window == -1 else max(1, self.window // divisor),
            self.softcap,
            self.sinks,
            self.weight_offset,
        )


def _scaled(size: int, divisor: int) -> int:
    return max(16, size // divisor // 8 * 8)


MODELS: dict[str, ModelShape] = {
    m.name: m
    for m in (
        ModelShape("llama3_8b", 4096, 32, 8, 128, 14336),
        ModelShape("llama3_70b", 8192, 64, 8, 128, 28672),
        ModelShape("qwen3_8b", 4096, 32, 8, 128, 12288),
        ModelShape("qwen3_32b", 5120, 64, 8, 128, 25600),
        ModelShape("gemma2_9b", 3584, 16, 8, 256, 14336, window=4096, softcap=50.0, weight_offset=1.0),
        ModelShape("gemma3_12b", 3840, 16, 8, 256, 15360, window=1024, weight_offset=1.0),
        ModelShape("gpt_oss_20b", 2880, 64, 8, 64, 2880, window=128, sinks=True),
        ModelShape("gpt_oss_120b", 2880, 64, 8, 64, 2880, window=128, sinks=True),
        ModelShape("mistral_7b", 4096, 32, 8, 128, 14336, window=4096),
        ModelShape("mixtral_8x7b", 4096, 32, 8, 128, 14336),
        ModelShape("phi4", 5120, 40, 10, 128, 17920),
    )
}
"""Every model by name."""
