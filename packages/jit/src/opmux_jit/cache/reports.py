"""What the cache has to say while calls are served: a warning, once for each subject."""

import logging
import threading

logger = logging.getLogger("opmux.jit")
_said: set[object] = set()
_lock = threading.Lock()


def warn_once(subject: object, message: str, *arguments: object) -> None:
    """Log a warning the first time that it is about this subject."""
    with _lock:
        if subject in _said:
            return
        _said.add(subject)
    logger.warning(message, *arguments)


def forget() -> None:
    """Say everything again: for tests."""
    with _lock:
        _said.clear()
