"""All of an arch: which archs there are, and kernels that do not compile."""

import planted_kernels as planted
import pytest
from planted_launches import COPY, launch_of

from opmux.errors import InvalidArgument
from opmux_triton.aot import jobs
from opmux_triton.aot import run as aot
from opmux_triton.archs import PORTABLE


@pytest.mark.parametrize("arch", ["sm_70", "sm_999", "gfx1250"])
def test_an_arch_that_is_not_claimed_is_refused(arch: str) -> None:
    with pytest.raises(InvalidArgument) as raised:
        aot.check_arch(arch)
    assert str(raised.value) == (
        f"machine-code: `ARCH` expected an arch that backend triton claims, got {arch!r}; "
        f"it claims {', '.join(PORTABLE)}"
    )


def test_a_kernel_that_does_not_compile_is_a_complaint(monkeypatch: pytest.MonkeyPatch) -> None:
    bad = jobs.Job(
        "rms_norm", "triton", "not_compiling", {}, "", launch_of(planted.not_compiling, *COPY[1:], BLOCK=1024)
    )
    found = jobs.Enumeration("gfx942", {bad.key: bad})
    monkeypatch.setattr(aot, "enumerate_jobs", lambda arch: found)
    result = aot.check_arch("gfx942", workers=1)
    (complaint,) = result.complaints
    assert complaint.startswith("not_compiling||: did not compile: CompileTimeAssertionFailure: ")
    assert "planted" in complaint
