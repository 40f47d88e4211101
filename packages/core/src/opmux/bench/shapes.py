"""The sizes of real models, that cases are made from."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Shape:
    """One layer of a model at one moment of serving or training.

    Attributes:
        name: the model and what it does.
        batch: sequences.
        new: new tokens of each sequence.
        context: tokens of each sequence, the new ones counted in.
    """

    name: str
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    batch: int
    new: int
    context: int

    @property
    def tokens(self) -> int:
        """New tokens of all sequences."""
        return self.batch * self.new


SIZES: dict[str, tuple[Shape, ...]] = {
    "small": (
        Shape("small prefill", 512, 1408, 8, 2, 64, batch=2, new=128, context=128),
        Shape("small decode", 512, 1408, 8, 2, 64, batch=8, new=1, context=256),
    ),
    "model": (
        Shape("Llama 3 8B prefill", 4096, 14336, 32, 8, 128, batch=2, new=2048, context=2048),
        Shape("Llama 3 8B decode", 4096, 14336, 32, 8, 128, batch=64, new=1, context=2048),
        Shape("Llama 3 70B prefill", 8192, 28672, 64, 8, 128, batch=1, new=4096, context=4096),
    ),
}
"""``small`` is for a CPU: it shows that all works, and what a call costs; ``model`` is for a GPU.

Source: Grattafiori et al., "The Llama 3 Herd of Models", 2024, table 3.
"""
