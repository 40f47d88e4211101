"""``out=``: written by the target where it takes it, else by a copy."""

import pytest
import torch
from backends import backends, implementation
from planted import WANTED, W, X

import opmux
from opmux.errors import InvalidArgument


def test_outputs_are_written_where_out_says():
    out = torch.empty(4, 8)
    assert opmux.rms_norm(X, W, out=out) is out
    assert torch.equal(out, WANTED)
    y, total = torch.empty(4, 8), torch.empty(4, 8)
    assert opmux.add_rms_norm(X, X, W, out=(y, total))[1] is total
    assert torch.equal(total, X + X)
    x = X.clone()
    opmux.rms_norm(x, W, out=x)
    assert torch.equal(x, WANTED), "an out that is an input gets the result of the old input"
    strided = torch.empty(8, 4).T
    opmux.rms_norm(X, W, out=strided)
    assert torch.equal(strided, WANTED)


def test_a_target_with_a_config_gets_it_beside_out():
    given = []

    def target(x, weight, *, eps, weight_offset, config, out=None):
        given.append((config, out))
        result = torch.full_like(x, 5.0)
        return result if out is None else out.copy_(result)

    with backends(a=implementation(target, config=lambda arch, features: {"rows": 2}, takes_out=True)):
        out = torch.empty(4, 8)
        for _ in range(3):
            opmux.rms_norm(X, W, out=out)
        assert given[-1] == ({"rows": 2}, out)
        opmux.rms_norm(X, W)
        assert given[-1] == ({"rows": 2}, None)


def test_a_target_that_takes_out_gets_it():
    given = []

    def target(x, weight, *, eps, weight_offset, out=None):
        given.append(out)
        result = torch.full_like(x, 5.0)
        return result if out is None else out.copy_(result)

    with backends(a=implementation(target, takes_out=True)):
        out = torch.empty(4, 8)
        for _ in range(2):
            opmux.rms_norm(X, W, out=out)
            assert (out == 5).all()
        version = out._version
        opmux.rms_norm(X, W, out=out)
        assert out._version > version
    assert given[-1] is out


Y, BUFFER = torch.empty(4, 8), torch.empty(2, 4, 8)
REFUSED = [
    (
        lambda: opmux.rms_norm(X, W, out=(torch.empty(4, 8),)),
        "rms_norm: `out` expected a tensor, got a tuple of 1; pass the tensor itself",
    ),
    (
        lambda: opmux.add_rms_norm(X, X, W, out=(Y, Y)),
        "add_rms_norm: `out` expected tensors of their own, got two in one memory; pass tensors that share none",
    ),
    (
        lambda: opmux.rms_norm(X, W, out=torch.empty(12).as_strided((4, 8), (1, 1))),
        "rms_norm: `out` expected a tensor whose elements do not overlap, got strides [1, 1]; "
        "pass a tensor that is not expanded",
    ),
]


def test_slices_of_one_buffer_are_tensors_of_their_own():
    opmux.add_rms_norm(X, X, W, out=(BUFFER[0], BUFFER[1]))
    assert torch.equal(BUFFER[1], X + X)


@pytest.mark.parametrize(("call", "message"), REFUSED)
def test_an_out_that_does_not_fit_is_refused(call, message):
    with pytest.raises(InvalidArgument) as caught:
        call()
    assert str(caught.value) == message
