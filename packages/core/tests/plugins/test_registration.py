"""Registration: a name that two packages declare is registered by neither."""

import torch
from backends import implementation, plugin
from planted import filled

import opmux
from opmux.plugins import loading
from opmux.plugins.loading import temporary_plugin

X, W = torch.randn(4, 8), torch.randn(8)


def ones(x, weight, *, eps, weight_offset):
    return torch.ones_like(x)


def failures(name="planted"):
    return [f.reason for f in loading.failed_plugins() if f.name == name]


def test_of_two_with_one_name_neither_loads_and_both_packages_are_named():
    """Which package was installed first must not decide what runs."""
    with (
        temporary_plugin(plugin(implementation(ones)), "planted", "opmux-a", "1.0"),
        temporary_plugin(plugin(implementation(ones)), "planted", "opmux-b", "2.0"),
    ):
        assert (
            failures()
            == ["planted of rms_norm is declared twice, by opmux-a 1.0 and opmux-b 2.0: neither is loaded"] * 2
        )
        assert opmux.explain(opmux.rms_norm, X, W).chosen.name == "reference"


def test_a_third_with_a_name_that_two_declared_does_not_load_either():
    made = [plugin(implementation(filled(float(i)))) for i in range(3)]
    with (
        temporary_plugin(made[0], "a", "p0"),
        temporary_plugin(made[1], "a", "p1"),
        temporary_plugin(made[2], "a", "p2"),
    ):
        assert opmux.explain(opmux.rms_norm, X, W).chosen.name == "reference"
    with temporary_plugin(made[1], "a", "p1"):
        assert opmux.rms_norm(X, W).sum() == 32
