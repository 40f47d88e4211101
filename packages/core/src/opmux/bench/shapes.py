"""The sizes of real models from which cases are made."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Shape:
    """One layer of a model at one moment of serving or training.

    Attributes:
        name: the model and what it does.
        batch: the number of sequences.
        new: new tokens per sequence.
        context: total tokens per sequence, including the new ones.
        causal: whether attention is masked.
        page_size: tokens per page of the KV cache.
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
    causal: bool = True
    page_size: int = 16

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
"""``small`` is for a CPU: it shows that everything works, and the cost of a call; ``model`` is for a GPU.

Source: Grattafiori et al., "The Llama 3 Herd of Models", 2024, table 3.
"""


def rows(tokens: int, width: int, name: str = "") -> Shape:
    """Rows of ``width``: hidden, half of a packed gate, and all heads of 128 together; tokens in sequences of 1024."""
    batch = max(1, tokens // 1024)
    new = tokens // batch
    return Shape(name or f"{tokens} rows of {width}", width, width, width // 128, 8, 128, batch, new, new)


def product(m: int, n: int, k: int) -> Shape:
    """The product of a linear layer, (m, n) over k."""
    return Shape(f"m {m}, n {n}, k {k}", k, n, 32, 8, 128, 1, m, m)


def attention(batch: int, seq: int, heads: int, kv_heads: int, head_dim: int, causal: bool) -> Shape:
    """Dense attention of sequences of one length."""
    name = f"{batch} x {seq}, {heads}/{kv_heads} heads of {head_dim}, {'causal' if causal else 'full'}"
    return Shape(name, heads * head_dim, 14336, heads, kv_heads, head_dim, batch, seq, seq, causal)


def paged(batch: int, new: int, context: int, page_size: int) -> Shape:
    """Llama 3 8B's heads over a paged cache: decoding where ``new`` is 1, otherwise a chunk of a prefill."""
    what = f"{batch} x {context}" if new == 1 else f"{new} new of {context}"
    return Shape(f"{what}, pages of {page_size}", 4096, 14336, 32, 8, 128, batch, new, context, True, page_size)


_MANY_ROWS = (rows(16384, 8192),)
_ROWS = (*_MANY_ROWS, *(rows(tokens, width) for tokens in (1, 16, 128) for width in (4096, 8192)))
_PRODUCTS = (
    *(product(m, n, k) for n, k in ((8192, 8192), (24576, 1536), (7168, 16384)) for m in (1, 16)),
    product(128, 7168, 16384),
    product(4096, 24576, 1536),
    product(4096, 7168, 16384),
    product(8192, 8192, 8192),
)
_DENSE = tuple(
    attention(*sizes, causal)
    for sizes in ((4, 4096, 32, 8, 128), (1, 16384, 32, 8, 128), (2, 4096, 32, 32, 64))
    for causal in (True, False)
)
_CHUNK = Shape("4096 new of 8192", 4096, 14336, 32, 8, 128, 1, 4096, 8192)
_CACHED = tuple(
    paged(*sizes, page_size)
    for sizes in ((64, 1, 8192), (1, 1, 131072), (256, 1, 1024), (1, 4096, 8192))
    for page_size in (16, 64)
)

FIGURES: dict[str, tuple[Shape, ...]] = {
    "rms_norm": _ROWS,
    "add_rms_norm": _ROWS,
    "add_rms_norm_": _ROWS,
    "layer_norm": _ROWS,
    "add_layer_norm": _ROWS,
    "silu_and_mul": _ROWS,
    "gelu_and_mul": _ROWS,
    "silu_mul": _ROWS,
    "gelu_mul": _ROWS,
    "apply_rope": _ROWS,
    "apply_rope_": _ROWS,
    "write_kv_cache": (rows(65536, 8192),),
    "linear": _PRODUCTS,
    "linear_backward": _PRODUCTS[-3:],
    "attention": (*_DENSE, _CHUNK),
    "attention_lse": _DENSE,
    "attention_backward": _DENSE,
    "paged_attention": _CACHED,
}
"""Op -> shapes that show what its kernels can reach; other ops have `_MANY_ROWS`."""


def shapes_of(size: str, op: str) -> tuple[Shape, ...]:
    """The shapes of an op in a size: ``small``, ``model`` or ``figures``."""
    return FIGURES.get(op, _MANY_ROWS) if size == "figures" else SIZES[size]


SIZE_NAMES = (*SIZES, "figures")
