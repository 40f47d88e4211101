"""The errors of this package. Those that stop one kernel are build failures: the core then takes the next candidate."""

from opmux.plugin import BackendFault, BuildFailed, PluginError


class CompilerMissing(BuildFailed):
    """No compiler for the arch is installed, or the one that was asked for is missing or too old."""

    one_kernel = True  # the cache and the bundles may have others


class CompileFailed(BuildFailed):
    """A compiler refused the source; the message has all that it said and the path of the source."""


class KernelMissing(BuildFailed):
    """Compiling is forbidden (``OPMUX_NO_JIT=1``), and neither the cache nor a bundle has the kernel."""

    one_kernel = True


class LoadFailed(BuildFailed):
    """The driver refused the machine code: too old for it, or the code is for another arch."""


class LaunchFailed(BackendFault):
    """The driver refused a launch."""


class CacheRefused(PluginError):
    """A cache folder or a bundle is not used: others may write to it, or it is of another format."""
