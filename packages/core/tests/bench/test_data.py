"""The random tensors that timed calls are made of."""

import pytest
import torch

from opmux.bench.data import Data

CPU = torch.device("cpu")
DTYPES = (torch.bfloat16, torch.float16, torch.float32, torch.float64)


def seeded(dtype: torch.dtype = torch.float32, seed: int = 0) -> Data:
    return Data.seeded(CPU, dtype, seed)


def test_a_seed_gives_the_same_tensors_in_every_run() -> None:
    first, again, other = seeded(), seeded(), seeded(seed=1)
    one, two, three = (data.normal(4, 8) for data in (first, again, other))
    assert torch.equal(one, two)
    assert not torch.equal(one, three)
    assert not torch.equal(first.normal(4, 8), one)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_values_have_the_runs_dtype_and_log_sum_exps_the_accumulations(dtype: torch.dtype) -> None:
    data = seeded(dtype)
    assert {data.normal(2, 3).dtype, data.weight(2, 3).dtype, data.gain(3).dtype} == {dtype}
    assert data.lse(2, 3).dtype == (torch.float64 if dtype == torch.float64 else torch.float32)


def test_weights_have_rows_of_length_one_and_gains_are_about_one() -> None:
    data = seeded()
    torch.testing.assert_close(data.weight(16, 4096).norm(dim=1), torch.ones(16), rtol=0.1, atol=0)
    gain = data.gain(4096)
    assert float(gain.mean()) == pytest.approx(1, abs=0.02)
    assert float(gain.std()) == pytest.approx(0.1, rel=0.1)


def test_sequences_of_equal_length_follow_one_another() -> None:
    offsets = seeded().offsets(3, 7)
    assert offsets.tolist() == [0, 7, 14, 21]
    assert offsets.dtype == torch.int32


def test_ropes_tables_turn_by_the_position() -> None:
    cos, sin = seeded(torch.bfloat16).angles(5, 8)
    assert (cos.shape, cos.dtype, sin.dtype) == ((5, 4), torch.float32, torch.float32)
    torch.testing.assert_close(cos.square() + sin.square(), torch.ones(5, 4))
    torch.testing.assert_close(torch.atan2(sin[2], cos[2]), 2 * 10000.0 ** (-torch.arange(4) / 4))
