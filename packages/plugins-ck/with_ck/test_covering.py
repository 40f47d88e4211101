"""One instance of each family through the whole way, as a user's call takes it; also with an older CK.

What a CK lacks is refused with what it lacks; nothing else is left out.
"""

import os
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from building import check_kernel, entry_of
from covering import ARCH, Covered, covered

import opmux
from opmux.errors import BackendFault
from opmux_ck.library.places import Library, first_named
from opmux_emulator.codeobject.program import Program
from opmux_emulator.isa.matrix import shape_of
from opmux_emulator.jit_launches import on
from opmux_jit.cache import layers

CALLS = covered()


@pytest.fixture(scope="module")
def lacking() -> dict[str, str]:
    """What this CK lacks, by op; everything else is built, on all cores."""
    library = first_named()
    assert isinstance(library, Library), library
    missing = library.lacks()
    wanted = [one for call in CALLS if not missing_of(call, missing) for one in call.instances()]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for one in wanted:
            pool.submit(entry_of, one, ARCH)  # one that the compiler refuses fails its own test
    return missing


def missing_of(call: Covered, missing: dict[str, str]) -> str | None:
    """What a call's op, or the part of it that is called, is lacking."""
    return missing.get(call.op) or missing.get(call.part)


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.name)
def test_a_call_from_end_to_end(call, lacking, tmp_path, monkeypatch) -> None:
    """The machine code is checked, and the results are the reference's."""
    missing = missing_of(call, lacking)
    called = getattr(opmux, call.op)
    if missing:
        monkeypatch.setenv("OPMUX_CACHE", str(tmp_path))  # what another CK built is not asked for here
        layers.forget()
        with on(ARCH), pytest.raises(BackendFault) as caught:
            called(*call.tensors, **call.options, backend="ck")
        assert f"lacks {missing}" in str(caught.value)
        layers.forget()
        return
    for instance in call.instances():
        check_kernel(instance, ARCH)
    _, code = Program(entry_of(call.instances()[0], ARCH).code).code
    assert any(shape_of(line.name) for line in code) == call.multiplies
    with on(ARCH):
        found = called(*call.tensors, **call.options, backend="ck")
    expected = called(*call.tensors, **call.options, backend="reference")
    found, expected = (one if isinstance(one, tuple) else (one,) for one in (found, expected))
    if call.codes:
        apart = (found[0].int() - expected[0].int()).abs()
        assert apart.max() <= 1
        assert apart.sum() <= 1 + apart.numel() // 1000
        found, expected = found[1:], expected[1:]
    if "grouped" in call.op:
        rows = int(call.tensors[2][-1])  # those past the last group are not written
        found, expected = (found[0][:rows],), (expected[0][:rows],)
    torch.testing.assert_close(found, expected, rtol=2**-6, atol=2e-2 if call.op.startswith("attention") else 2e-3)
