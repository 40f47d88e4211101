"""The policy: which backends the process prefers or disables, whether faults raise, and who waits for compilers.

It is one immutable snapshot that each change replaces, and it holds for every thread. It is not a ContextVar, because
that would break ``torch.compile(fullgraph=True)``. The environment is read when opmux is imported, and by `reset`.
"""

import os
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from opmux.errors import InvalidArgument, UnknownBackend
from opmux.near import backend_remedy, did_you_mean


@dataclass(frozen=True)
class Disabled:
    """A backend or implementation that is disabled, for all ops or for some."""

    name: str
    ops: frozenset[str] | None
    by: str

    def rules_out(self, op: str, backend: str, full_name: str) -> bool:
        return self.name in (backend, full_name) and (self.ops is None or op in self.ops)


@dataclass(frozen=True)
class Policy:
    """A snapshot of the policy.

    Attributes:
        prefer: backends or implementations, the most preferred first.
        disabled: what is disabled, and by what.
        strict: a fault, or a GPU call that finds nothing but the reference, raises.
        check: index data is checked before each call and outputs after it.
        build: ``wait``: a call waits for its kernels to be compiled; ``background``: another process compiles them.
    """

    prefer: tuple[str, ...] = ()
    disabled: tuple[Disabled, ...] = ()
    strict: bool = False
    check: bool = False
    build: str = "wait"

    def preference(self, backend: str, full_name: str) -> int:
        """The rank by preference: 0 is the most preferred; the length of the list if it is not named."""
        for rank, name in enumerate(self.prefer):
            if name in (backend, full_name):
                return rank
        return len(self.prefer)


ENVIRONMENT: dict[str, str] = {
    "OPMUX_PREFER": "backends or implementations to prefer, the most preferred first, comma-separated",
    "OPMUX_DISABLE": "backends or implementations to disable, comma-separated",
    "OPMUX_STRICT": "1: a fault, or a GPU call that finds nothing but the reference, raises",
    "OPMUX_CHECK": "1: index data is checked before each call and outputs after it",
    "OPMUX_BUILD": "background: calls do not wait for compilers; another process compiles, and a ready backend runs",
    "OPMUX_PLUGINS": "allow-list of plugins to load, by entry-point name, comma-separated",
    "OPMUX_ARCH": "the arch that explain reasons for; a real call always uses its tensors' device",
    "OPMUX_TUNED": "a folder of tuned records, over the user's and the plugins' own",
    "OPMUX_CACHE": "the folder where compiled kernels are kept, instead of the user's cache folder",
    "OPMUX_BUNDLES": "folders of kernels that `opmux prebuild` made, separated as in PATH",
    "OPMUX_NO_JIT": "1: nothing is compiled; a kernel that is in no cache or bundle is an error",
    "OPMUX_NATIVE_LAUNCH": "0: the Triton backend launches through Triton's launcher, not through opmux-jit's",
    "OPMUX_HIP": "what the HIP library of opmux-emulator plays: an arch, then report=FILE, ignore=RULES, pageable, ...",
    "OPMUX_CK_DIR": "a folder or a source archive of Composable Kernel, which the CK backend builds its kernels from",
    "OPMUX_LOG": "level of the `opmux` logger: debug, info, warning or error",
}
"""Every environment variable that opmux reads, and its meaning."""


WAIT, BACKGROUND = "wait", "background"
BUILDS = (WAIT, BACKGROUND)
"""Who waits for a compiler: the call, or nobody."""

TRUE_WORDS, FALSE_WORDS = ("1", "true", "on", "yes"), ("", "0", "false", "off", "no")
"""The values of a switch in the environment that mean on and off."""


def split_names(text: str | None) -> tuple[str, ...]:
    """``"a, b"`` -> ``("a", "b")``."""
    return tuple(part.strip() for part in (text or "").split(",") if part.strip())


def _truth(variable: str) -> bool:
    value = os.environ.get(variable, "").strip().lower()
    if value in FALSE_WORDS:
        return False
    if value in TRUE_WORDS:
        return True
    raise InvalidArgument(f"policy: `{variable}` expected 0 or 1, got {value!r}; unset it or set it to 1")


def _build() -> str:
    value = os.environ.get("OPMUX_BUILD", "").strip().lower() or WAIT
    if value not in BUILDS:
        raise InvalidArgument(
            f"policy: `OPMUX_BUILD` expected {' or '.join(BUILDS)}, got {value!r}; unset it or set it to {BACKGROUND}"
        )
    return value


def from_environment() -> Policy:
    """The policy that the environment asks for.

    Raises:
        InvalidArgument: where a variable has an invalid value.
    """
    return Policy(
        split_names(os.environ.get("OPMUX_PREFER")),
        tuple(Disabled(n, None, "OPMUX_DISABLE") for n in split_names(os.environ.get("OPMUX_DISABLE"))),
        _truth("OPMUX_STRICT"),
        _truth("OPMUX_CHECK"),
        _build(),
    )


def _at_import() -> tuple[Policy, InvalidArgument | None]:
    """What the environment asks for; an invalid value is reported at the first call, so that doctor can run."""
    try:
        return from_environment(), None
    except InvalidArgument as error:
        return Policy(), error


_lock = threading.RLock()
_current, _complaint = _at_import()
_listeners: list[Callable[[], None]] = []
_known_names: Callable[[], Iterable[str]] = tuple
_known_ops: Callable[[], Iterable[str]] = tuple


def current() -> Policy:
    """The snapshot in force.

    Raises:
        InvalidArgument: where the environment's policy is invalid, and none has been set since.
    """
    if _complaint is not None:
        raise InvalidArgument(str(_complaint))
    return _current


def environment_problem() -> str | None:
    """What is wrong with the environment's policy, if anything."""
    return None if _complaint is None else str(_complaint)


def subscribe(listener: Callable[[], None]) -> None:
    """Have ``listener`` called after each change (the dispatcher drops its plans)."""
    _listeners.append(listener)


def validate_with(names: Callable[[], Iterable[str]], ops: Callable[[], Iterable[str]]) -> None:
    """Tell the policy how to find out which backends, implementations and ops exist."""
    global _known_names, _known_ops
    _known_names, _known_ops = names, ops


def _install(change: Callable[[Policy], Policy]) -> None:
    """Replace the snapshot by ``change(snapshot)``; no change from another thread is lost."""
    global _current, _complaint
    with _lock:
        _current, _complaint = change(_current), None
        for listener in _listeners:
            listener()


def _check_names(function: str, names: Iterable[object]) -> None:
    known = sorted(set(_known_names()))
    for name in names:
        if isinstance(name, (list, tuple, set, frozenset)) and function != "override":
            raise InvalidArgument(
                f"policy.{function}: `names` expected names, each an argument of its own, got {name!r}; "
                f"unpack it: policy.{function}(*{name!r})"
            )
        if not isinstance(name, str):
            raise InvalidArgument(f"policy.{function}: `names` expected str, got {name!r}; see `opmux backends`")
        if name not in known:
            raise UnknownBackend(
                f"policy.{function}: `names` expected registered backends or implementations ({', '.join(known)}), "
                f"got {name!r}; {backend_remedy(name, known)} and, for plugins that failed to load, `opmux doctor`"
            )


def _check_switch(function: str, argument: str, value: object) -> None:
    if not isinstance(value, bool):
        raise InvalidArgument(f"policy.{function}: `{argument}` expected True or False, got {value!r}; pass a bool")


def _check_build(function: str, argument: str, value: object) -> None:
    if value not in BUILDS:
        expected = " or ".join(map(repr, BUILDS))
        raise InvalidArgument(f"policy.{function}: `{argument}` expected {expected}, got {value!r}; pass one of them")


def _check_ops(ops: Iterable[str]) -> frozenset[str]:
    if isinstance(ops, str):
        raise InvalidArgument(f"policy.disable: `ops` expected a list of op names, got the str {ops!r}; pass [{ops!r}]")
    known, ops = set(_known_ops()), tuple(ops)
    for op in ops:
        if op not in known:
            meant = did_you_mean(op, known) if isinstance(op, str) else ""
            raise InvalidArgument(f"policy.disable: `ops` expected names of ops, got {op!r}; {meant}see `opmux ops`")
    return frozenset(ops)


def prefer(*names: str) -> None:
    """Prefer these backends or implementations (``triton``, ``triton:gluon``), the most preferred first.

    Replaces the former preference; without names, nothing is preferred.

    Raises:
        UnknownBackend: where a name is not registered.
    """
    _check_names("prefer", names)
    _install(lambda now: replace(now, prefer=names))


def disable(*names: str, ops: Iterable[str] | None = None) -> None:
    """Disable backends or implementations, for all ops or for ``ops``, in addition to those that are disabled already.

    Raises:
        UnknownBackend: where a name is not registered.
        InvalidArgument: where ``ops`` names no op.
    """
    _check_names("disable", names)
    scope = None if ops is None else _check_ops(ops)
    added = tuple(Disabled(name, scope, "policy.disable") for name in names)
    _install(lambda now: replace(now, disabled=now.disabled + added))


def strict(on: bool = True) -> None:
    """Make a fault, or a GPU call that finds nothing but the reference, raise instead of fall back.

    Raises:
        InvalidArgument: if ``on`` is not a bool.
    """
    _check_switch("strict", "on", on)
    _install(lambda now: replace(now, strict=on))


def check(on: bool = True) -> None:
    """Check index data before each call and outputs after it (reads the device: for debugging).

    Raises:
        InvalidArgument: if ``on`` is not a bool.
    """
    _check_switch("check", "on", on)
    _install(lambda now: replace(now, check=on))


def build(how: str = BACKGROUND) -> None:
    """Say who waits where a call needs a kernel that is not compiled yet.

    Args:
        how: ``"wait"``: the call does. ``"background"``: no call; the best implementation that is ready runs, a helper
            process compiles, and a later call changes over. Under `strict` and in torch's deterministic mode calls wait
            all the same.

    Raises:
        InvalidArgument: if ``how`` is neither.
    """
    _check_build("build", "how", how)
    _install(lambda now: replace(now, build=how))


def reset() -> None:
    """Return to the policy that the environment asks for."""
    asked = from_environment()
    _install(lambda now: asked)


@contextmanager
def override(
    *,
    prefer: Iterable[str] | None = None,
    disable: Iterable[str] | None = None,
    strict: bool | None = None,
    check: bool | None = None,
    build: str | None = None,
) -> Iterator[Policy]:
    """Change the policy of the whole process inside a ``with`` block; the former one is restored at its end.

    Raises:
        UnknownBackend: where a name is not registered.
        InvalidArgument: where ``strict`` or ``check`` is neither a bool nor None, or ``build`` no way to build.
    """
    for argument, switch in (("strict", strict), ("check", check)):
        if switch is not None:
            _check_switch("override", argument, switch)
    if build is not None:
        _check_build("override", "build", build)
    preferred, ruled_out = _names("prefer", prefer), _names("disable", disable)
    _check_names("override", (*preferred, *ruled_out))
    added = tuple(Disabled(name, None, "policy.override") for name in ruled_out)
    before = current()
    _install(
        lambda now: Policy(
            now.prefer if prefer is None else preferred,
            now.disabled + added,
            now.strict if strict is None else strict,
            now.check if check is None else check,
            now.build if build is None else build,
        )
    )
    try:
        yield _current
    finally:
        _install(lambda now: before)


def _names(argument: str, names: Iterable[str] | None) -> tuple[str, ...]:
    if isinstance(names, str):
        raise InvalidArgument(
            f"policy.override: `{argument}` expected a list of names, got the str {names!r}; pass [{names!r}]"
        )
    return tuple(names or ())
