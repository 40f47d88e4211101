"""What is done around a target: capture, the debug policy, the functional form of an in-place op."""

import pytest
import torch
from backends import backends, implementation
from planted import W, X, ones

import opmux
from opmux.errors import CaptureRefused, InvalidArgument
from opmux.running import modes


def test_what_is_not_capturable_refuses(monkeypatch):
    with backends(a=implementation(ones)):
        opmux.rms_norm(X, W)
        monkeypatch.setattr(modes, "capturing", lambda: True)
        with pytest.raises(CaptureRefused) as caught:
            opmux.rms_norm(X, W)
        assert str(caught.value) == (
            "rms_norm: a cannot run during graph capture (it declares capturable=False)\n"
            "  call:      x float32[4, 8], weight float32[8]\n"
            "  try:       a backend that can (see opmux.explain), or capture around this call"
        )
        assert opmux.quarantined() == ()


def test_the_debug_policy_checks_indices_and_every_output():
    runs = []

    def sloppy(k, v, k_cache, v_cache, slot_mapping, k_scale=None, v_scale=None, *, layout):
        runs.append(1)

    def late(x, weight, *, eps, weight_offset):
        runs.append(1)
        return torch.ones_like(x) if len(runs) < 3 else torch.ones(1)

    k = torch.randn(2, 1, 8)
    caches = torch.zeros(2, 16, 1, 8), torch.zeros(2, 16, 1, 8)
    with backends(a=[implementation(sloppy, op="write_kv_cache"), implementation(late)]):
        opmux.write_kv_cache(k, k, *caches, torch.tensor([0, 99]))
        assert len(runs) == 1, "by default indices are not read"
        with opmux.policy.override(check=True):
            with pytest.raises(InvalidArgument, match="write_kv_cache: `slot_mapping`"):
                opmux.write_kv_cache(k, k, *caches, torch.tensor([0, 99]))
            opmux.write_kv_cache(k, k, *caches, torch.tensor([0, 31]))
            with pytest.raises(InvalidArgument, match="write_kv_cache: `slot_mapping`"):
                opmux.write_kv_cache(k, k, *caches, torch.tensor([0, 99]))
            for _ in range(3):
                assert opmux.rms_norm(X, W).shape == X.shape, "an output that turns wrong is a fault too"
            assert opmux.quarantined()[0].name == "a"


def test_an_in_place_op_that_nobody_claims_is_the_functional_one_and_a_copy():
    def functional(x, residual, weight, *, eps, weight_offset):
        return torch.full_like(x, 3.0), torch.full_like(x, 4.0)

    with backends(a=implementation(functional, op="add_rms_norm")):
        for backend in (None, "a"):
            x, residual = X.clone(), X.clone()
            versions = x._version, residual._version
            opmux.add_rms_norm_(x, residual, W, backend=backend)
            assert (x == 3).all()
            assert (residual == 4).all()
            assert x._version > versions[0]
            assert residual._version > versions[1]
        assert opmux.explain(opmux.add_rms_norm_, X, X.clone(), W).chosen.name == "opmux:functional"
        x, residual = X.clone(), X.clone()
        opmux.add_rms_norm_(x, residual, W, backend="reference")
        assert torch.equal(residual, X + X)
