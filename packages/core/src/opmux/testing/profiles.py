"""Profiles: how large the cases are, how many odd ones are drawn, and which models' shapes are included."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from opmux.errors import InvalidArgument


@dataclass(frozen=True, slots=True)
class Profile:
    """A size of the suite.

    Attributes:
        summary: what it is for.
        sizes: the base size of each dim, by name; a tuple for a leading ``*name``.
        tile: a size just past a tile of 128, for dims that kernels cut into tiles; 0 omits such cases.
        models: names of `opmux.testing.model_shapes.MODELS` whose shapes are included.
        divisor: what the models' shapes are divided by; 1 keeps them unchanged.
        model_tokens: the number of tokens for a model's shape.
        context: how long a sequence in a paged cache is where kernels divide its keys among programs; 0 for none.
        odd: how many odd cases hypothesis draws for an op.
        odd_limit: the largest odd size.
        spread: how many sizes of each dim are tried from 1 to ``odd_limit``, evenly spread.
        doubled: whether special cases come in both bfloat16 and float32, instead of alternating between them.
        contains: a profile whose cases are included.
        large: whether the profile consists of cases in which some tensor exceeds 2**31 elements.
        needs_gpu: whether to refuse to run it on a CPU.
        most: how many cases of an op that the backend claims are run, evenly spread over them; 0 for all.
    """

    name: str
    summary: str
    sizes: Mapping[str, int | tuple[int, ...]]
    tile: int
    models: tuple[str, ...]
    divisor: int
    model_tokens: int
    odd: int
    odd_limit: int
    spread: int = 0
    context: int = 0
    doubled: bool = False
    contains: str = ""
    large: bool = False
    needs_gpu: bool = False
    most: int = 0
    default_size: int = field(default=24)
    default_star: tuple[int, ...] = field(default=(2, 3))


_SMALL: dict[str, int | tuple[int, ...]] = {
    "tokens": 24,
    "*tokens": (3, 5),
    "*batch": (2,),
    "hidden": 192,
    "m": 130,
    "max_m": 33,
    "n": 96,
    "k": 160,
    "batch": 3,
    "seq": 9,
    "seq_q": 21,
    "seq_k": 29,
    "tokens_q": 45,
    "tokens_k": 61,
    "heads": 4,
    "kv_heads": 2,
    "head_dim": 32,
    "value_dim": 32,
    "half": 16,
    "max_positions": 64,
    "pages": 12,
    "page_size": 16,
    "max_pages": 4,
    "groups": 3,
    "experts": 6,
    "top_k": 2,
}

_DEFAULT: dict[str, int | tuple[int, ...]] = {
    **_SMALL,
    "tokens": 200,
    "*tokens": (7, 37),
    "hidden": 1024,
    "m": 260,
    "max_m": 130,
    "n": 384,
    "k": 512,
    "seq": 37,
    "seq_q": 130,
    "seq_k": 197,
    "tokens_q": 250,
    "tokens_k": 300,
    "heads": 8,
    "head_dim": 64,
    "value_dim": 64,
    "half": 32,
    "max_positions": 512,
    "pages": 64,
    "max_pages": 16,
}

_MODEL: dict[str, int | tuple[int, ...]] = {
    **_DEFAULT,
    "tokens": 512,
    "batch": 2,
    "seq_q": 512,
    "seq_k": 1024,
    "tokens_q": 1500,
    "tokens_k": 2000,
    "max_positions": 4096,
    "pages": 512,
    "max_pages": 64,
}

_TINY: dict[str, int | tuple[int, ...]] = {
    **_SMALL,
    "tokens": 6,
    "*tokens": (2, 2),
    "hidden": 24,
    "m": 5,
    "max_m": 5,
    "n": 16,
    "k": 24,
    "batch": 2,
    "seq": 4,
    "seq_q": 5,
    "seq_k": 7,
    "tokens_q": 8,
    "tokens_k": 9,
    "heads": 2,
    "kv_heads": 1,
    "head_dim": 16,
    "value_dim": 16,
    "half": 8,
    "max_positions": 16,
    "pages": 4,
    "max_pages": 2,
}

_FEW = ("llama3_8b", "gpt_oss_20b", "gemma2_9b")
_ALL = (
    *_FEW,
    "llama3_70b",
    "qwen3_8b",
    "qwen3_32b",
    "gemma3_12b",
    "gpt_oss_120b",
    "mistral_7b",
    "mixtral_8x7b",
    "phi4",
)

PROFILES: dict[str, Profile] = {
    p.name: p
    for p in (
        Profile(
            "small",
            "small sizes, every kind of case; for CPUs and quick runs",
            _SMALL,
            136,
            _FEW,
            32,
            12,
            8,
            130,
            spread=8,
            context=1300,
            doubled=True,
        ),
        Profile(
            "default",
            "the cases of small, and sizes that fill several tiles and blocks",
            _DEFAULT,
            264,
            _ALL,
            8,
            64,
            24,
            300,
            spread=8,
            context=5000,
            doubled=True,
            contains="small",
        ),
        Profile(
            "model",
            "the shapes of real models, whole",
            _MODEL,
            264,
            _ALL,
            1,
            512,
            24,
            600,
            context=20000,
            needs_gpu=True,
        ),
        Profile(
            "interpreter",
            "tiny sizes, for interpreters and simulators",
            _TINY,
            0,
            ("llama3_8b",),
            128,
            3,
            3,
            17,
            spread=2,
            context=1100,
        ),
        Profile(
            "interpreter-some",
            "an even selection of interpreter's cases, twelve of each op",
            _TINY,
            0,
            ("llama3_8b",),
            128,
            3,
            3,
            17,
            spread=2,
            context=1100,
            most=12,
        ),
        Profile(
            "emulator",
            "tiny sizes, fewer of them; for instruction-level emulators, which compile each kernel",
            _TINY,
            0,
            (),
            128,
            3,
            1,
            17,
        ),
        Profile(
            "emulator-some",
            "an even selection of emulator's cases, four of each op",
            _TINY,
            0,
            (),
            128,
            3,
            1,
            17,
            most=4,
        ),
        Profile(
            "large",
            "tensors past 2**31 elements",
            _DEFAULT,
            0,
            (),
            1,
            0,
            0,
            0,
            large=True,
            needs_gpu=True,
        ),
    )
}
"""Every profile by name."""


def profile_named(name: str) -> Profile:
    """The profile of that name.

    Raises:
        InvalidArgument: If there is none.
    """
    if name not in PROFILES:
        raise InvalidArgument(
            f"conformance: `profile` expected one of {', '.join(PROFILES)}, got {name!r}; "
            "`small` is the one for CPUs and quick runs"
        )
    return PROFILES[name]
