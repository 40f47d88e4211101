"""The frequencies of rotary embeddings, and the cos and sin tables that `apply_rope` takes: `opmux.rope`.

Each function takes the keywords of Hugging Face's rope parameters and returns
``(inv_freq, attention_factor)``: ``inv_freq`` float32 ``(rotary_dim / 2,)`` holds the angle in radians by
which pair i turns per position, with ``rotary_dim = int(head_dim * partial_rotary_factor)``;
cos and sin are multiplied by the attention factor. All arithmetic is in float64, and results are rounded once.

    inv_freq, attention_factor = opmux.rope.llama3(rope_theta=500000.0, head_dim=128, factor=8.0, ...)
    cos, sin = opmux.rope.tables(inv_freq, max_positions=8192, attention_factor=attention_factor)
"""

import math
from collections.abc import Sequence
from numbers import Real

import torch
from torch import Tensor

from opmux.dtypes import name_of
from opmux.errors import invalid

__all__ = ["default", "dynamic_ntk", "linear", "llama3", "longrope", "tables", "yarn"]


def default(*, rope_theta: float, head_dim: int, partial_rotary_factor: float = 1.0) -> tuple[Tensor, float]:
    """Make the frequencies of the original rotary embedding.

    ``inv_freq[i] = rope_theta ** (-2 * i / rotary_dim)``; the attention factor is 1.

    Args:
        rope_theta: The base of the geometric series, above 1; the longest wavelength is nearly
            ``2 * pi * rope_theta`` positions.
        head_dim: The size of a head.
        partial_rotary_factor: The fraction of a head that is rotated.

    Returns:
        inv_freq: ``(rotary_dim / 2,)`` float32, radians per position.
        attention_factor: 1.0.

    Raises:
        InvalidArgument: If an argument is out of range, or rotary_dim is odd or zero.

    Source:
        Su et al., "RoFormer: Enhanced Transformer with Rotary Position Embedding", 2021,
        https://arxiv.org/abs/2104.09864, section 3.2.2.
    """
    rotary_dim = _rotary_dim("default", rope_theta, head_dim, partial_rotary_factor)
    return _frequencies(rope_theta, rotary_dim).to(torch.float32), 1.0


def linear(
    *, rope_theta: float, head_dim: int, factor: float, partial_rotary_factor: float = 1.0
) -> tuple[Tensor, float]:
    """Make the frequencies of linear position interpolation: every position is divided by factor.

    ``inv_freq[i] = rope_theta ** (-2 * i / rotary_dim) / factor``; the attention factor is 1.

    Args:
        rope_theta: The base of the geometric series, above 1.
        head_dim: The size of a head.
        factor: How many times longer the context becomes.
        partial_rotary_factor: The fraction of a head that is rotated.

    Returns:
        inv_freq: ``(rotary_dim / 2,)`` float32, radians per position.
        attention_factor: 1.0.

    Raises:
        InvalidArgument: If an argument is out of range, or rotary_dim is odd or zero.

    Source:
        Chen et al., "Extending Context Window of Large Language Models via Positional Interpolation", 2023,
        https://arxiv.org/abs/2306.15595.
    """
    rotary_dim = _rotary_dim("linear", rope_theta, head_dim, partial_rotary_factor)
    _check_positive("linear", factor=factor)
    return (_frequencies(rope_theta, rotary_dim) / factor).to(torch.float32), 1.0


def dynamic_ntk(
    *,
    rope_theta: float,
    head_dim: int,
    factor: float,
    max_position_embeddings: int,
    seq_len: int | None = None,
    partial_rotary_factor: float = 1.0,
) -> tuple[Tensor, float]:
    """Make the frequencies of dynamic NTK scaling: the base grows with the sequence past the trained length.

    With ``s = max(seq_len, max_position_embeddings) / max_position_embeddings``, the base is
    ``rope_theta * (factor * s - (factor - 1)) ** (rotary_dim / (rotary_dim - 2))``, so that the highest
    frequency is unchanged and the lowest is divided by ``factor * s - (factor - 1)``; the attention factor is 1.

    Args:
        rope_theta: The base of the geometric series, above 1.
        head_dim: The size of a head.
        factor: How fast the base grows with s; 1 divides the lowest frequency by s.
        max_position_embeddings: The trained length, in positions.
        seq_len: The length of the current sequence, in positions; None, or one below the trained length,
            counts as the trained length, which leaves the frequencies at their default.
        partial_rotary_factor: The fraction of a head that is rotated.

    Returns:
        inv_freq: ``(rotary_dim / 2,)`` float32, radians per position.
        attention_factor: 1.0.

    Raises:
        InvalidArgument: If an argument is out of range, or rotary_dim is odd or below 4.

    Source:
        Peng et al., "YaRN: Efficient Context Window Extension of Large Language Models", 2023,
        https://arxiv.org/abs/2309.00071, sections 3.1 and 3.3.
    """
    op = "dynamic_ntk"
    rotary_dim = _rotary_dim(op, rope_theta, head_dim, partial_rotary_factor, smallest=4)
    _check_positive(op, factor=factor, max_position_embeddings=max_position_embeddings)
    if seq_len is not None:
        _check_positive(op, seq_len=seq_len)
    stretch = max(seq_len or 0, max_position_embeddings) / max_position_embeddings
    base = rope_theta * (factor * stretch - (factor - 1.0)) ** (rotary_dim / (rotary_dim - 2))
    return _frequencies(base, rotary_dim).to(torch.float32), 1.0


def yarn(
    *,
    rope_theta: float,
    head_dim: int,
    factor: float | None = None,
    max_position_embeddings: int | None = None,
    original_max_position_embeddings: int | None = None,
    attention_factor: float | None = None,
    beta_fast: float = 32.0,
    beta_slow: float = 1.0,
    mscale: float | None = None,
    mscale_all_dim: float | None = None,
    truncate: bool = True,
    partial_rotary_factor: float = 1.0,
) -> tuple[Tensor, float]:
    """Make the frequencies of YaRN: slow pairs are interpolated, fast ones are kept, and those in between are blended.

    With L the original length, pair i turns ``r(i) = L * rope_theta ** (-2 * i / rotary_dim) / (2 * pi)``
    times in it. Let low be the (fractional) index where r is beta_fast, rounded down and at least 0, and high
    the one where r is beta_slow, rounded up and at most ``rotary_dim - 1``. With
    ``ramp = clamp((i - low) / (high - low), 0, 1)``,
    ``inv_freq[i] = rope_theta ** (-2 * i / rotary_dim) * (ramp / factor + 1 - ramp)``.

    With ``m(scale) = 0.1 * scale * ln(factor) + 1`` (1 where factor <= 1), the attention factor is ``m(1)``,
    or ``m(mscale) / m(mscale_all_dim)`` where both are given and not zero (DeepSeek).

    Args:
        rope_theta: The base of the geometric series, above 1.
        head_dim: The size of a head.
        factor: How many times longer the context becomes; None means
            ``max_position_embeddings / original_max_position_embeddings``.
        max_position_embeddings: The extended length, in positions; stands in for the original one where that
            is None.
        original_max_position_embeddings: The context length of pretraining, in positions.
        attention_factor: Used instead of the factor computed here.
        beta_fast: Pairs that turn at least this many times in the original length are unchanged.
        beta_slow: Pairs that turn at most this many times in it are fully interpolated.
        mscale: The numerator's scale in the attention factor.
        mscale_all_dim: The denominator's scale in the attention factor.
        truncate: Whether low and high are rounded to whole pairs (gpt-oss does not).
        partial_rotary_factor: The fraction of a head that is rotated.

    Returns:
        inv_freq: ``(rotary_dim / 2,)`` float32, radians per position.
        attention_factor: The factor to multiply cos and sin by.

    Raises:
        InvalidArgument: If an argument is out of range, rotary_dim is odd or zero, or the lengths given
            do not determine the factor and the original length.

    Source:
        Peng et al., "YaRN: Efficient Context Window Extension of Large Language Models", 2023,
        https://arxiv.org/abs/2309.00071, sections 3.2 and 3.4; mscale: DeepSeek-AI, "DeepSeek-V2", 2024,
        https://arxiv.org/abs/2405.04434.
    """
    op = "yarn"
    rotary_dim = _rotary_dim(op, rope_theta, head_dim, partial_rotary_factor)
    factor, original = _factor_and_original(op, factor, max_position_embeddings, original_max_position_embeddings)
    _check_positive(op, beta_fast=beta_fast, beta_slow=beta_slow)
    if beta_fast < beta_slow:
        expected = f"at least beta_slow = {beta_slow}"
        raise invalid(f"rope.{op}", "beta_fast", expected, str(beta_fast), "swap the two")

    def pair_that_turns(times: float) -> float:
        return rotary_dim * math.log(original / (2.0 * math.pi * times)) / (2.0 * math.log(rope_theta))

    low, high = pair_that_turns(beta_fast), pair_that_turns(beta_slow)
    if truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rotary_dim - 1)
    high = max(high, low + 0.001)  # a step if there is no room for a ramp
    pairs = torch.arange(rotary_dim // 2, dtype=torch.float64)
    ramp = ((pairs - low) / (high - low)).clamp(0.0, 1.0)
    inv_freq = _frequencies(rope_theta, rotary_dim) * (ramp / factor + (1.0 - ramp))

    def magnitude(scale: float) -> float:
        return 0.1 * scale * math.log(factor) + 1.0 if factor > 1.0 else 1.0

    if attention_factor is None:
        attention_factor = magnitude(1.0)
        if mscale and mscale_all_dim:
            attention_factor = magnitude(mscale) / magnitude(mscale_all_dim)
    return inv_freq.to(torch.float32), float(attention_factor)


def llama3(
    *,
    rope_theta: float,
    head_dim: int,
    factor: float,
    low_freq_factor: float,
    high_freq_factor: float,
    original_max_position_embeddings: int,
    partial_rotary_factor: float = 1.0,
) -> tuple[Tensor, float]:
    """Make the frequencies of Llama 3.1: slow pairs are interpolated, fast ones are kept, and the others are blended.

    With ``f[i] = rope_theta ** (-2 * i / rotary_dim)`` and L the original length, pair i turns
    ``r = L * f[i] / (2 * pi)`` times in it. With
    ``smooth = clamp((r - low_freq_factor) / (high_freq_factor - low_freq_factor), 0, 1)``,
    ``inv_freq[i] = f[i] * ((1 - smooth) / factor + smooth)``; the attention factor is 1.

    Args:
        rope_theta: The base of the geometric series, above 1.
        head_dim: The size of a head.
        factor: The divisor of the slow pairs' frequencies.
        low_freq_factor: Pairs that turn at most this many times in the original length are divided in full.
        high_freq_factor: Pairs that turn at least this many times in it are unchanged.
        original_max_position_embeddings: The context length of pretraining, in positions.
        partial_rotary_factor: The fraction of a head that is rotated.

    Returns:
        inv_freq: ``(rotary_dim / 2,)`` float32, radians per position.
        attention_factor: 1.0.

    Raises:
        InvalidArgument: If an argument is out of range, or rotary_dim is odd or zero.

    Source:
        Meta, `apply_scaling` in https://github.com/meta-llama/llama-models/blob/main/models/llama3/model.py.
    """
    op = "llama3"
    rotary_dim = _rotary_dim(op, rope_theta, head_dim, partial_rotary_factor)
    original = original_max_position_embeddings
    _check_positive(op, factor=factor, low_freq_factor=low_freq_factor, original_max_position_embeddings=original)
    if not high_freq_factor > low_freq_factor:
        expected = f"more than low_freq_factor = {low_freq_factor}"
        raise invalid(f"rope.{op}", "high_freq_factor", expected, str(high_freq_factor), "swap the two")
    inv_freq = _frequencies(rope_theta, rotary_dim)
    turns = original * inv_freq / (2.0 * math.pi)
    smooth = ((turns - low_freq_factor) / (high_freq_factor - low_freq_factor)).clamp(0.0, 1.0)
    return (inv_freq * ((1.0 - smooth) / factor + smooth)).to(torch.float32), 1.0


def longrope(
    *,
    rope_theta: float,
    head_dim: int,
    short_factor: Sequence[float],
    long_factor: Sequence[float],
    factor: float | None = None,
    max_position_embeddings: int | None = None,
    original_max_position_embeddings: int | None = None,
    attention_factor: float | None = None,
    seq_len: int | None = None,
    partial_rotary_factor: float = 1.0,
) -> tuple[Tensor, float]:
    """Make the frequencies of LongRoPE: every pair has its own divisor, for short and for long sequences.

    ``inv_freq[i] = rope_theta ** (-2 * i / rotary_dim) / factors[i]``, where the factors are long_factor for
    a sequence longer than the original length, else short_factor. The attention factor is
    ``sqrt(1 + ln(factor) / ln(original_max_position_embeddings))``, or 1 where factor <= 1.

    Args:
        rope_theta: The base of the geometric series, above 1.
        head_dim: The size of a head.
        short_factor: The divisor of each pair's frequency up to the original length, ``rotary_dim / 2``
            numbers.
        long_factor: The divisor of each pair's frequency past the original length, ``rotary_dim / 2``
            numbers.
        factor: How many times longer the context becomes, for the attention factor; None means
            ``max_position_embeddings / original_max_position_embeddings``.
        max_position_embeddings: The extended length, in positions; stands in for the original one where that
            is None.
        original_max_position_embeddings: The context length of pretraining, in positions.
        attention_factor: Used instead of the factor computed here.
        seq_len: The length of the current sequence, in positions; None counts as short.
        partial_rotary_factor: The fraction of a head that is rotated.

    Returns:
        inv_freq: ``(rotary_dim / 2,)`` float32, radians per position.
        attention_factor: The factor to multiply cos and sin by.

    Raises:
        InvalidArgument: If an argument is out of range, rotary_dim is odd or zero, a list does not have
            one number per pair, or the lengths given do not determine the factor and the original length.

    Source:
        Ding et al., "LongRoPE: Extending LLM Context Window Beyond 2 Million Tokens", 2024,
        https://arxiv.org/abs/2402.13753; the attention factor: Abdin et al., "Phi-3 Technical Report", 2024,
        https://arxiv.org/abs/2404.14219, and its code.
    """
    op = "longrope"
    rotary_dim = _rotary_dim(op, rope_theta, head_dim, partial_rotary_factor)
    factor, original = _factor_and_original(op, factor, max_position_embeddings, original_max_position_embeddings)
    if seq_len is not None:
        _check_positive(op, seq_len=seq_len)
    for name, factors in (("short_factor", short_factor), ("long_factor", long_factor)):
        if len(factors) != rotary_dim // 2:
            expected = f"{rotary_dim // 2} numbers, one per pair of the {rotary_dim} rotated dims"
            remedy = "check head_dim and partial_rotary_factor"
            raise invalid(f"rope.{op}", name, expected, str(len(factors)), remedy)
        for i, value in enumerate(factors):
            _check_positive(op, **{f"{name}[{i}]": value})
    is_long = seq_len is not None and seq_len > original
    divisors = torch.tensor(list(long_factor if is_long else short_factor), dtype=torch.float64)
    if attention_factor is None:
        attention_factor = math.sqrt(1.0 + math.log(factor) / math.log(original)) if factor > 1.0 else 1.0
    return (_frequencies(rope_theta, rotary_dim) / divisors).to(torch.float32), float(attention_factor)


def tables(inv_freq: Tensor, max_positions: int, attention_factor: float = 1.0) -> tuple[Tensor, Tensor]:
    """Make the tables that `apply_rope` reads.

    ``cos[p, i] = attention_factor * cos(p * inv_freq[i])`` and ``sin`` likewise, computed in float64 and
    rounded once.

    Args:
        inv_freq: The frequencies, ``(half,)``, radians per position, of a floating dtype.
        max_positions: How many positions the tables hold, starting at 0.
        attention_factor: The factor that cos and sin are multiplied by.

    Returns:
        cos: ``(max_positions, half)`` float32, on inv_freq's device.
        sin: ``(max_positions, half)`` float32, on inv_freq's device.

    Raises:
        InvalidArgument: If inv_freq is not a vector of floats, or max_positions is not positive.

    Source:
        Su et al., "RoFormer: Enhanced Transformer with Rotary Position Embedding", 2021,
        https://arxiv.org/abs/2104.09864, section 3.4.2.
    """
    if not isinstance(inv_freq, Tensor):
        remedy = "rope.default and its variants return (inv_freq, attention_factor): unpack them"
        raise invalid("rope.tables", "inv_freq", "a torch.Tensor", f"a {type(inv_freq).__name__}", remedy)
    if inv_freq.ndim != 1 or not inv_freq.dtype.is_floating_point:
        got = f"{name_of(inv_freq.dtype)}{list(inv_freq.shape)}"
        remedy = "pass what rope.default or one of its variants returns"
        raise invalid("rope.tables", "inv_freq", "floats with one dim", got, remedy)
    _check_positive("tables", max_positions=max_positions)
    positions = torch.arange(max_positions, dtype=torch.float64, device=inv_freq.device)
    angles = torch.outer(positions, inv_freq.to(torch.float64))
    cos, sin = angles.cos() * attention_factor, angles.sin() * attention_factor
    return cos.to(torch.float32), sin.to(torch.float32)


def _frequencies(base: float, rotary_dim: int) -> Tensor:
    """Return base ** (-2 * i / rotary_dim) for each pair i, in float64."""
    exponents = torch.arange(0, rotary_dim, 2, dtype=torch.float64) / rotary_dim
    return torch.pow(base, -exponents)


def _check_positive(function: str, **values: float) -> None:
    """Raise for the first value that is not a positive finite number."""
    for name, value in values.items():
        if not (isinstance(value, Real) and value > 0 and math.isfinite(value)):
            remedy = "check the model's rope parameters"
            raise invalid(f"rope.{function}", name, "a positive number", repr(value), remedy)


def _rotary_dim(
    function: str, rope_theta: float, head_dim: int, partial_rotary_factor: float, smallest: int = 2
) -> int:
    """Check the arguments that all functions share, and return how many dims of a head are rotated."""
    if not (isinstance(rope_theta, Real) and rope_theta > 1 and math.isfinite(rope_theta)):
        remedy = "models have 10000 or more"
        raise invalid(f"rope.{function}", "rope_theta", "a number above 1", repr(rope_theta), remedy)
    _check_positive(function, head_dim=head_dim, partial_rotary_factor=partial_rotary_factor)
    if partial_rotary_factor > 1:
        remedy = "give it as a fraction of head_dim"
        raise invalid(f"rope.{function}", "partial_rotary_factor", "at most 1", str(partial_rotary_factor), remedy)
    rotary_dim = int(head_dim * partial_rotary_factor)
    if rotary_dim % 2 or rotary_dim < smallest:
        expected = f"an even number of rotated dims, {smallest} or more"
        got = f"{rotary_dim} (head_dim = {head_dim}, partial_rotary_factor = {partial_rotary_factor})"
        raise invalid(f"rope.{function}", "head_dim", expected, got, "check both")
    return rotary_dim


def _factor_and_original(
    function: str, factor: float | None, extended: int | None, original: int | None
) -> tuple[float, int]:
    """Return the factor and the original length, deriving what is missing from the extended length."""
    given = {
        "factor": factor,
        "max_position_embeddings": extended,
        "original_max_position_embeddings": original,
    }
    _check_positive(function, **{name: value for name, value in given.items() if value is not None})
    if factor is None:
        if extended is None or original is None:
            expected = "a number, or max_position_embeddings and original_max_position_embeddings, whose ratio it is"
            raise invalid(f"rope.{function}", "factor", expected, "None", "pass one or the other")
        factor = extended / original
    if original is None:
        original = extended
    if original is None:
        expected = "the context length of pretraining"
        remedy = "pass it, or max_position_embeddings if the two are the same"
        raise invalid(f"rope.{function}", "original_max_position_embeddings", expected, "None", remedy)
    if original < 2:
        remedy = "check the model's rope parameters"
        raise invalid(f"rope.{function}", "original_max_position_embeddings", "2 or more", str(original), remedy)
    return factor, original
