"""The samples that the other tests here run on: every op has one, and it is valid."""

import pytest
import torch
from torch_bridge.samples import ALL, FUNCTIONAL, MUTATING, outputs, sample

from opmux.signatures.validation import check_call


def test_every_op_has_a_sample() -> None:
    assert len(ALL) >= 34
    assert {sample(name).op.name for name in ALL} == set(ALL)


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_a_sample_is_a_valid_call(name: str, dtype: torch.dtype) -> None:
    call = sample(name, dtype)
    check_call(call.op.signature, call.op.names(call.tensors), _with_defaults(call))
    call()


@pytest.mark.parametrize("name", FUNCTIONAL)
def test_the_public_function_gives_what_the_reference_gives(name: str) -> None:
    call = sample(name)
    expected = outputs(call.op.reference(*call.tensors, **call.options))
    for given, wanted in zip(outputs(call()), expected, strict=True):
        torch.testing.assert_close(given, wanted, rtol=0, atol=0)


@pytest.mark.parametrize("name", MUTATING)
def test_a_mutating_op_writes_what_the_reference_writes(name: str) -> None:
    call, expected = sample(name), sample(name)
    assert call() is None
    expected.op.reference(*expected.tensors, **_with_defaults(expected))
    for given, wanted in zip(call.tensors, expected.tensors, strict=True):
        torch.testing.assert_close(given, wanted, rtol=0, atol=0)


def _with_defaults(call: object) -> dict[str, object]:
    return {o.name: call.options.get(o.name, o.default) for o in call.op.signature.options}  # type: ignore[attr-defined]
