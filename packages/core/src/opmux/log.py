"""The logger ``opmux``, and messages that are logged once."""

import logging
import os
import threading

logger = logging.getLogger("opmux")
_announced: set[object] = set()
_lock = threading.Lock()


def configure() -> None:
    """Set the level from ``OPMUX_LOG``; without it, the application's logging configuration applies."""
    level = os.environ.get("OPMUX_LOG", "").strip().upper()
    if level in ("DEBUG", "INFO", "WARNING", "ERROR"):
        logger.setLevel(level)
        if not logger.handlers and not logging.getLogger().handlers:
            handler = logging.StreamHandler()
            handler.setFormatter(logging.Formatter("%(name)s %(levelname)s: %(message)s"))
            logger.addHandler(handler)


def announce_once(subject: object, level: int, message: str, *arguments: object) -> None:
    """Log a message the first time that it is about this subject."""
    with _lock:
        if subject in _announced:
            return
        _announced.add(subject)
    logger.log(level, message, *arguments)


def forget(subject: object) -> None:
    """Let a subject be announced once more."""
    with _lock:
        _announced.discard(subject)
