"""Every exception class of opmux, in one tree.

A message names the op first, then the argument in backticks, what was expected, what was given, and what to do.
"""

from typing import Any


class OpmuxError(Exception):
    """The root of everything opmux raises on purpose."""


class InvalidArgument(OpmuxError, ValueError):
    """An argument breaks the op's signature: type, rank, dim, dtype, device, layout or a relation between them."""


class UnsupportedCall(OpmuxError, NotImplementedError):
    """The call is valid, but no implementation that may run accepts it."""


class GradientRefused(OpmuxError, NotImplementedError):
    """A gradient was asked for that the op does not define: unsupported, second-order or forward-mode."""


class UnknownBackend(OpmuxError, LookupError):
    """A backend or implementation was named that is not registered."""


class BackendFault(OpmuxError, RuntimeError):
    """An implementation failed and no other may run in its place, or a target reports a failed build."""


class BuildFailed(BackendFault):
    """A target raises this when its kernel could not be built and nothing was launched: the next choice may run.

    Attributes:
        one_kernel: whether it says nothing about the implementation's other kernels, as where only some of them have
            been built. The implementation is then quarantined for the calls of this plan, otherwise for the arch.
    """

    one_kernel = False


class BuildDeferred(BackendFault):
    """A target raises this where `builds_deferred` and its kernel is not built; nothing was launched.

    Attributes:
        build: what a helper process is to build.
    """

    def __init__(self, build: Any) -> None:
        super().__init__(f"{build.name} is not built yet")
        self.build = build


class CaptureRefused(OpmuxError, RuntimeError):
    """Something was asked for during CUDA/HIP graph capture that may only happen outside of it."""


class PluginError(OpmuxError):
    """A plugin is broken: at import, in a hook, or in what it declares."""


class TunedRecordError(OpmuxError, ValueError):
    """A tuned record, or a file of them, is malformed or impossible."""


PLUGIN_FAULTS = (Exception, SystemExit)
"""What counts as a plugin's own failure while its modules are imported and its functions asked: a plugin must not end
the user's process. A KeyboardInterrupt is the user's: it propagates."""


def invalid(op: str, argument: str, expected: str, got: str, remedy: str) -> InvalidArgument:
    """An `InvalidArgument` in the form that all have: op, argument, expected, got, what to do."""
    return InvalidArgument(f"{op}: `{argument}` expected {expected}, got {got}; {remedy}")
