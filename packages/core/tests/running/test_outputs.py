"""``out=``: written by the target where it takes it, else by a copy."""

import torch
from backends import backends, implementation
from planted import WANTED, W, X

import opmux


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
