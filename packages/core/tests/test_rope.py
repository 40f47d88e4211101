"""The frequencies of the rotary embeddings, against the papers' formulas pair by pair in plain Python"
" floats."""

import math

import pytest
import torch
from torch import Tensor

from opmux import rope
from opmux.errors import InvalidArgument

HEADS = ((128, 1.0), (64, 0.5), (80, 0.4), (6, 1.0))  # head_dim, partial_rotary_factor
THETAS = (10000.0, 150000.0, 500000, 1e6)

llama3_options = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def pairs_of(head_dim: int, partial_rotary_factor: float) -> int:
    return int(head_dim * partial_rotary_factor) // 2


def plain(theta: float, pairs: int) -> list[float]:
    """theta_i = theta ** (-2 (i - 1) / d), i from 1 to d / 2 (RoFormer, section 3.2.2)."""
    return [theta ** (-2.0 * (i - 1) / (2 * pairs)) for i in range(1, pairs + 1)]


def assert_frequencies(actual: tuple[Tensor, float], expected: list[float], attention_factor: float) -> None:
    inv_freq, factor = actual
    assert inv_freq.dtype == torch.float32
    assert inv_freq.shape == (len(expected),)
    assert type(factor) is float
    assert factor == pytest.approx(attention_factor, rel=1e-12)
    expected = torch.tensor(expected, dtype=torch.float64)
    torch.testing.assert_close(inv_freq.double(), expected, rtol=2.0**-24 * 1.01, atol=0.0)  # one rounding


@pytest.mark.parametrize(("head_dim", "partial"), HEADS)
@pytest.mark.parametrize("theta", THETAS)
def test_default_and_linear(theta, head_dim, partial):
    expected = plain(theta, pairs_of(head_dim, partial))
    common = {"rope_theta": theta, "head_dim": head_dim, "partial_rotary_factor": partial}
    assert_frequencies(rope.default(**common), expected, 1.0)
    for factor in (1.0, 4, 0.5):
        # A position divided by factor turns a pair as far as its frequency divided by factor does.
        assert_frequencies(rope.linear(**common, factor=factor), [f / factor for f in expected], 1.0)


@pytest.mark.parametrize(("head_dim", "partial"), HEADS)
@pytest.mark.parametrize("theta", THETAS)
@pytest.mark.parametrize("factor", [1.0, 2.0, 8])
def test_dynamic_ntk(factor, theta, head_dim, partial):
    common = {"rope_theta": theta, "head_dim": head_dim, "partial_rotary_factor": partial}
    expected = plain(theta, pairs_of(head_dim, partial))
    dim = 2 * len(expected)
    for seq_len in (None, 1, 4096, 4097, 10000, 262144):
        actual = rope.dynamic_ntk(**common, factor=factor, max_position_embeddings=4096, seq_len=seq_len)
        if seq_len is None or seq_len <= 4096:
            assert_frequencies(actual, expected, 1.0)
            continue
        scale = factor * seq_len / 4096 - (factor - 1)
        base = theta * scale ** (dim / (dim - 2))  # NTK-aware: b' = b * s ** (d / (d - 2))
        assert_frequencies(actual, plain(base, len(expected)), 1.0)
        assert actual[0][0] == 1.0
        assert actual[0][-1].item() == pytest.approx(expected[-1] / scale, rel=1e-6)


def pair_with_turns(times: float, theta: float, dim: int, length: int) -> float:
    """The fractional pair that turns so many times in length positions, by bisection."""
    low, high = -2.0 * dim, 2.0 * dim
    for _ in range(100):
        middle = (low + high) / 2
        wavelength = 2 * math.pi * math.exp(math.log(theta) * 2 * middle / dim)
        low, high = (middle, high) if length / wavelength > times else (low, middle)
    return low


def naive_yarn(theta, dim, factor, original, beta_fast, beta_slow, truncate):
    first = pair_with_turns(beta_fast, theta, dim, original)
    last = pair_with_turns(beta_slow, theta, dim, original)
    if truncate:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, dim - 1)
    result = []
    for i, frequency in enumerate(plain(theta, dim // 2)):
        if i <= first:
            gamma = 1.0
        elif i >= last:
            gamma = 0.0
        else:
            gamma = 1.0 - (i - first) / (last - first)
        result.append((1.0 - gamma) * frequency / factor + gamma * frequency)
    return result


@pytest.mark.parametrize(("head_dim", "partial"), HEADS)
@pytest.mark.parametrize("theta", THETAS)
@pytest.mark.parametrize("truncate", [True, False])
@pytest.mark.parametrize("betas", [{}, {"beta_fast": 16.0, "beta_slow": 2}, {"beta_fast": 4, "beta_slow": 4}], ids=str)
def test_yarn(betas, truncate, theta, head_dim, partial):
    pairs = pairs_of(head_dim, partial)
    common = {
        "rope_theta": theta,
        "head_dim": head_dim,
        "partial_rotary_factor": partial,
        "truncate": truncate,
    }
    expected = naive_yarn(theta, 2 * pairs, 32.0, 4096, betas.get("beta_fast", 32), betas.get("beta_slow", 1), truncate)
    scaled = 0.1 * math.log(32.0) + 1.0
    for lengths in (
        {"factor": 32.0, "original_max_position_embeddings": 4096},
        {"factor": 32.0, "max_position_embeddings": 4096},
        {"factor": 32, "max_position_embeddings": 10**6, "original_max_position_embeddings": 4096},
        {"max_position_embeddings": 131072, "original_max_position_embeddings": 4096},
    ):
        inv_freq, factor = rope.yarn(**common, **betas, **lengths)
        assert factor == pytest.approx(scaled, rel=1e-12)
        torch.testing.assert_close(inv_freq.double(), torch.tensor(expected).double(), rtol=2e-7, atol=0.0)


def test_yarn_attention_factor():
    def factor(**options):
        return rope.yarn(
            rope_theta=10000.0,
            head_dim=64,
            original_max_position_embeddings=4096,
            **{"factor": 40.0, **options},
        )[1]

    assert factor() == pytest.approx(0.1 * math.log(40.0) + 1.0)
    assert factor(attention_factor=1.25) == 1.25
    assert factor(mscale=0.707, mscale_all_dim=0.707) == 1.0
    numerator, denominator = 0.1 * 1.5 * math.log(40.0) + 1.0, 0.1 * 0.8 * math.log(40.0) + 1.0
    assert factor(mscale=1.5, mscale_all_dim=0.8) == pytest.approx(numerator / denominator)
    assert factor(mscale=1.5) == factor()
    assert factor(mscale=1.5, mscale_all_dim=0.0) == factor()
    assert factor(factor=1.0) == 1.0
    assert factor(factor=0.5, mscale=1.5, mscale_all_dim=0.8) == 1.0


def test_yarn_where_all_pairs_are_fast_or_slow():
    fast, _ = rope.yarn(rope_theta=2.0, head_dim=8, factor=4.0, original_max_position_embeddings=100000)
    torch.testing.assert_close(fast, rope.default(rope_theta=2.0, head_dim=8)[0], rtol=0, atol=0)
    slow, _ = rope.yarn(rope_theta=1e4, head_dim=8, factor=4.0, original_max_position_embeddings=2, truncate=False)
    torch.testing.assert_close(slow[1:], rope.default(rope_theta=1e4, head_dim=8)[0][1:] / 4, rtol=1e-6, atol=0)


@pytest.mark.parametrize(("head_dim", "partial"), HEADS)
@pytest.mark.parametrize("theta", THETAS)
@pytest.mark.parametrize("low_high", [(1.0, 4.0), (2, 3), (0.5, 16.0)])
def test_llama3(low_high, theta, head_dim, partial):
    low, high = low_high
    expected = []
    for frequency in plain(theta, pairs_of(head_dim, partial)):
        wavelength = 2 * math.pi / frequency
        if wavelength < 8192 / high:
            expected.append(frequency)
        elif wavelength > 8192 / low:
            expected.append(frequency / 8.0)
        else:
            smooth = (8192 / wavelength - low) / (high - low)
            expected.append((1 - smooth) * frequency / 8.0 + smooth * frequency)
    actual = rope.llama3(
        rope_theta=theta,
        head_dim=head_dim,
        partial_rotary_factor=partial,
        factor=8.0,
        low_freq_factor=low,
        high_freq_factor=high,
        original_max_position_embeddings=8192,
    )
    assert_frequencies(actual, expected, 1.0)


@pytest.mark.parametrize(("head_dim", "partial"), HEADS)
@pytest.mark.parametrize("theta", THETAS)
def test_longrope(theta, head_dim, partial):
    frequencies = plain(theta, pairs_of(head_dim, partial))
    short = [1.0 + 0.1 * i for i in range(len(frequencies))]
    long = tuple(1 + i for i in range(len(frequencies)))
    common = {
        "rope_theta": theta,
        "head_dim": head_dim,
        "partial_rotary_factor": partial,
        "short_factor": short,
        "long_factor": long,
    }
    root = math.sqrt(1 + math.log(32) / math.log(4096))
    for seq_len, factors in ((None, short), (1, short), (4096, short), (4097, long)):
        expected = [f / s for f, s in zip(frequencies, factors, strict=True)]
        for lengths, attention_factor in (
            ({"max_position_embeddings": 131072, "original_max_position_embeddings": 4096}, root),
            ({"factor": 32.0, "original_max_position_embeddings": 4096}, root),
            ({"factor": 32, "max_position_embeddings": 4096}, root),
            ({"factor": 1.0, "original_max_position_embeddings": 4096}, 1.0),
            ({"factor": 32.0, "original_max_position_embeddings": 4096, "attention_factor": 2}, 2.0),
        ):
            actual = rope.longrope(**common, **lengths, seq_len=seq_len)
            assert_frequencies(actual, expected, attention_factor)


PUBLISHED = (  # some pairs of configurations in use, as transformers 5 computes them in float32
    (
        rope.dynamic_ntk,
        {
            "rope_theta": 10000.0,
            "head_dim": 128,
            "factor": 2.0,
            "max_position_embeddings": 4096,
            "seq_len": 10000,
        },
        {0: 1.0, 1: 0.8475170731544495, 32: 0.005020546726882458, 63: 2.9740866011707112e-05},
        1.0,
    ),
    (  # gpt-oss
        rope.yarn,
        {
            "rope_theta": 150000.0,
            "head_dim": 64,
            "factor": 32.0,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "original_max_position_embeddings": 4096,
            "truncate": False,
        },
        {1: 0.6890442967414856, 8: 0.05081327259540558, 16: 0.0004564839182421565, 31: 3.023511396804679e-07},
        1.3465735902799727,
    ),
    (  # DeepSeek-V3, with another mscale
        rope.yarn,
        {
            "rope_theta": 10000.0,
            "head_dim": 64,
            "factor": 40.0,
            "max_position_embeddings": 163840,
            "original_max_position_embeddings": 4096,
            "mscale": 1.0,
            "mscale_all_dim": 0.8,
        },
        {1: 0.7498942017555237, 8: 0.10000000149011612, 16: 0.005500000435858965, 31: 3.3338035336782923e-06},
        1.0569662567531275,
    ),
    (  # Llama 3.1
        rope.llama3,
        {
            "rope_theta": 500000.0,
            "head_dim": 128,
            **llama3_options,
        },
        {
            1: 0.8146172165870667,
            16: 0.03760603070259094,
            32: 0.0005248460220173001,
            63: 3.068925877869333e-07,
        },
        1.0,
    ),
    (
        rope.longrope,
        {
            "rope_theta": 10000.0,
            "head_dim": 96,
            "partial_rotary_factor": 0.5,
            "short_factor": [1 + i / 10 for i in range(24)],
            "long_factor": [1.0 + i for i in range(24)],
            "max_position_embeddings": 131072,
            "original_max_position_embeddings": 4096,
            "seq_len": 5000,
        },
        {1: 0.34064602851867676, 12: 0.0007692307699471712, 23: 6.115831638453528e-06},
        1.1902380714238083,
    ),
)


@pytest.mark.parametrize(("function", "options", "values", "attention_factor"), PUBLISHED)
def test_published_configurations(function, options, values, attention_factor):
    inv_freq, factor = function(**options)
    assert factor == pytest.approx(attention_factor, rel=1e-12)
    for pair, value in values.items():
        assert inv_freq[pair].item() == pytest.approx(value, rel=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("attention_factor", [1.0, 1.25])
def test_tables(attention_factor, dtype):
    inv_freq = rope.default(rope_theta=10000.0, head_dim=10)[0].to(dtype)
    cos, sin = rope.tables(inv_freq, 37, attention_factor)
    for table, function in ((cos, math.cos), (sin, math.sin)):
        assert table.dtype == torch.float32
        assert table.shape == (37, 5)
        assert table.is_contiguous()
        expected = [[attention_factor * function(p * f) for f in inv_freq.tolist()] for p in range(37)]
        assert torch.equal(table, torch.tensor(expected, dtype=torch.float64).float())


def test_tables_are_exact_far_out():
    inv_freq, _ = rope.llama3(rope_theta=500000.0, head_dim=128, **llama3_options)
    cos, sin = rope.tables(inv_freq[:3], 131072)
    last = [131071 * f for f in inv_freq[:3].tolist()]
    torch.testing.assert_close(cos[-1].double(), torch.tensor([math.cos(a) for a in last]).double())
    torch.testing.assert_close(sin[-1].double(), torch.tensor([math.sin(a) for a in last]).double())
    assert cos[0].eq(1).all()
    assert sin[0].eq(0).all()
    default_cos, _ = rope.tables(inv_freq[::2], 5)
    assert torch.equal(default_cos, rope.tables(inv_freq[::2].clone(), 5, 1.0)[0])


BASE = {"rope_theta": 10000.0, "head_dim": 8}
LENGTHS = {"factor": 4.0, "original_max_position_embeddings": 4096}


@pytest.mark.parametrize(
    ("function", "options", "line"),
    [
        (
            rope.default,
            {**BASE, "rope_theta": 1.0},
            "rope.default: `rope_theta` expected a number above 1, got 1.0; models have 10000 or more",
        ),
        (
            rope.linear,
            {**BASE, "rope_theta": math.inf, "factor": 2.0},
            "rope.linear: `rope_theta` expected a number above 1, got inf; models have 10000 or more",
        ),
        (
            rope.linear,
            {**BASE, "rope_theta": "linear", "factor": 2.0},
            "rope.linear: `rope_theta` expected a number above 1, got 'linear'; models have 10000 or more",
        ),
        (
            rope.default,
            {**BASE, "head_dim": 0},
            "rope.default: `head_dim` expected a positive number, got 0; check the model's rope parameters",
        ),
        (
            rope.default,
            {**BASE, "partial_rotary_factor": 1.5},
            "rope.default: `partial_rotary_factor` expected at most 1, got 1.5; give it as a fraction of head_dim",
        ),
        (
            rope.default,
            {**BASE, "head_dim": 7},
            "rope.default: `head_dim` expected an even number of rotated dims, 2 or more, got 7 (head_dim = 7, "
            "partial_rotary_factor = 1.0); check both",
        ),
        (
            rope.default,
            {**BASE, "partial_rotary_factor": 0.1},
            "rope.default: `head_dim` expected an even number of rotated dims, 2 or more, got 0 (head_dim = 8, "
            "partial_rotary_factor = 0.1); check both",
        ),
        (
            rope.linear,
            {**BASE, "factor": 0.0},
            "rope.linear: `factor` expected a positive number, got 0.0; check the model's rope parameters",
        ),
        (
            rope.dynamic_ntk,
            {**BASE, "head_dim": 2, "factor": 2.0, "max_position_embeddings": 4096},
            "rope.dynamic_ntk: `head_dim` expected an even number of rotated dims, 4 or more, got 2 (head_dim = "
            "2, partial_rotary_factor = 1.0); check both",
        ),
        (
            rope.dynamic_ntk,
            {**BASE, "factor": 2.0, "max_position_embeddings": 0},
            "rope.dynamic_ntk: `max_position_embeddings` expected a positive number, got 0; check the model's "
            "rope parameters",
        ),
        (
            rope.dynamic_ntk,
            {**BASE, "factor": 2.0, "max_position_embeddings": 4096, "seq_len": -1},
            "rope.dynamic_ntk: `seq_len` expected a positive number, got -1; check the model's rope parameters",
        ),
        (
            rope.yarn,
            {**BASE, **LENGTHS, "beta_fast": 1.0, "beta_slow": 32.0},
            "rope.yarn: `beta_fast` expected at least beta_slow = 32.0, got 1.0; swap the two",
        ),
        (
            rope.yarn,
            {**BASE, **LENGTHS, "beta_slow": 0},
            "rope.yarn: `beta_slow` expected a positive number, got 0; check the model's rope parameters",
        ),
        (
            rope.yarn,
            {**BASE, "original_max_position_embeddings": 4096},
            "rope.yarn: `factor` expected a number, or max_position_embeddings and "
            "original_max_position_embeddings, whose ratio it is, got None; pass one or the other",
        ),
        (
            rope.yarn,
            {**BASE, "factor": 4.0},
            "rope.yarn: `original_max_position_embeddings` expected the context length of pretraining, got None; "
            "pass it, or max_position_embeddings if the two are the same",
        ),
        (
            rope.yarn,
            {**BASE, "factor": math.nan, "original_max_position_embeddings": 4096},
            "rope.yarn: `factor` expected a positive number, got nan; check the model's rope parameters",
        ),
        (
            rope.longrope,
            {**BASE, **LENGTHS, "short_factor": [1.0] * 4, "long_factor": [1.0] * 3},
            "rope.longrope: `long_factor` expected 4 numbers, one per pair of the 8 rotated dims, got 3; check "
            "head_dim and partial_rotary_factor",
        ),
        (
            rope.longrope,
            {**BASE, **LENGTHS, "short_factor": [1.0, 2.0, -3.0, 4.0], "long_factor": [1.0] * 4},
            "rope.longrope: `short_factor[2]` expected a positive number, got -3.0; check the model's rope parameters",
        ),
        (
            rope.longrope,
            {
                **BASE,
                "factor": 4.0,
                "original_max_position_embeddings": 1,
                "short_factor": [1.0] * 4,
                "long_factor": [1.0] * 4,
            },
            "rope.longrope: `original_max_position_embeddings` expected 2 or more, got 1; check the model's rope "
            "parameters",
        ),
        (
            rope.llama3,
            {**BASE, **llama3_options, "high_freq_factor": 1.0},
            "rope.llama3: `high_freq_factor` expected more than low_freq_factor = 1.0, got 1.0; swap the two",
        ),
        (
            rope.llama3,
            {**BASE, **llama3_options, "low_freq_factor": -1.0},
            "rope.llama3: `low_freq_factor` expected a positive number, got -1.0; check the model's rope parameters",
        ),
        (
            rope.tables,
            {"inv_freq": (torch.ones(2), 1.0), "max_positions": 4},
            "rope.tables: `inv_freq` expected a torch.Tensor, got a tuple; rope.default and its variants return "
            "(inv_freq, attention_factor): unpack them",
        ),
        (
            rope.tables,
            {"inv_freq": torch.ones(2, 3), "max_positions": 4},
            "rope.tables: `inv_freq` expected floats with one dim, got float32[2, 3]; pass what rope.default or "
            "one of its variants returns",
        ),
        (
            rope.tables,
            {"inv_freq": torch.ones(3, dtype=torch.int64), "max_positions": 4},
            "rope.tables: `inv_freq` expected floats with one dim, got int64[3]; pass what rope.default or one of"
            " its variants returns",
        ),
        (
            rope.tables,
            {"inv_freq": torch.ones(3), "max_positions": 0},
            "rope.tables: `max_positions` expected a positive number, got 0; check the model's rope parameters",
        ),
    ],
)
def test_errors(function, options, line):
    with pytest.raises(InvalidArgument) as raised:
        function(**options)
    assert str(raised.value).splitlines() == [line]
