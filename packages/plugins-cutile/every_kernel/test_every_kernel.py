"""Every kernel that the suite's calls of models get, compiled for four archs: arguments, local memory, registers."""

import pytest
from cubins import compiled, layout, meta

import opmux
from opmux.plugin import parse_arch, takers
from opmux.testing.cases import cases_of
from opmux_cutile.plugin import opmux_implementations
from opmux_cutile.prebuilding import kernels_of

ARCHS = ("sm_80", "sm_90", "sm_100", "sm_120")
CALLS = [
    (record.op, arch)
    for record in opmux_implementations()
    for arch in ARCHS
    if any(parse_arch(arch).matches(pattern) for pattern in record.archs)
]
"""Each op on each arch that its record names."""


@pytest.mark.parametrize(("op", "arch"), CALLS)
def test_kernels(op: str, arch: str, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("OPMUX_CACHE", str(tmp_path / "cache"))
    wanted = {}
    small = {case.id for case in cases_of(op, "small")}
    for case in cases_of(op, "model"):
        if case.id in small:
            continue
        shapes = case.shapes
        tensors = [
            meta(*shapes[t.name], dtype=case.dtypes[t.name]) if t.name in shapes else None
            for t in case.definition.signature.tensors
        ]
        for taker in takers(getattr(opmux, op), *tensors, arch=arch, backend="cutile", **case.options):
            for kernel in kernels_of(taker):
                wanted[kernel.source(arch).flags] = kernel
    assert wanted
    for kernel in wanted.values():
        found = compiled(kernel, arch, tmp_path)
        assert found.parameters == layout(kernel.letters), kernel
        assert (found.stack, found.count("LDL"), found.count("STL")) == (0, 0, 0), kernel
        assert 0 < found.registers <= 255, kernel
