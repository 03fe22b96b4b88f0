"""Log lines: their form, their level, and where they go.

All lines of hexkv come from loggers below ``hexkv``. A program's own logging decides where they go,
until a configuration sets ``log.format``. Commands, which are programs of ours, write them to the
standard error stream.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TextIO

LEVELS = ("debug", "info", "warning", "error")
FORMATS = ("text", "json")

ROOT = "hexkv"
"""The logger above all others."""

LISTENING = "hexkv.listening"
"""The logger of one line for each address that a process listens at."""

_FOLDERS = ("adapters", "core", "plugins")


def component(logger: str) -> str:
    """Return the part of hexkv that *logger* belongs to: ``tiers``, ``node``, ``redis``."""
    words = logger.split(".")
    if words[0] == ROOT:
        words = words[2:] if words[1:2] and words[1] in _FOLDERS else words[1:]
    return words[0] if words else ROOT


class _Lines(logging.Formatter):
    """The facts of a line, for every form."""

    def __init__(self, process: str = "") -> None:
        """Make lines of a process.

        Args:
            process: its name; empty for the name that Python knows it by.
        """
        super().__init__()
        self.process = process

    def facts(self, record: logging.LogRecord) -> dict[str, object]:
        """Return time, level, process, number of the process, component and message."""
        time = datetime.fromtimestamp(record.created, UTC)
        return {
            "time": f"{time:%Y-%m-%dT%H:%M:%S}.{int(record.msecs):03d}Z",
            "level": record.levelname,
            "process": self.process or record.processName or "",
            "pid": record.process or 0,
            "component": component(record.name),
            "message": record.getMessage(),
        }


class TextLines(_Lines):
    """``TIME LEVEL PROCESS[NUMBER] COMPONENT: MESSAGE``, a traceback below it."""

    def format(self, record: logging.LogRecord) -> str:
        """Return one line; text from outside can neither add another nor control a terminal."""
        facts = self.facts(record)
        words = str(facts.pop("message"))
        message = "".join(sign if sign.isprintable() else " " for sign in words)
        head = "{time} {level} {process}[{pid}] {component}:".format(**facts)
        trace = self.formatException(record.exc_info) if record.exc_info else ""
        return f"{head} {message}\n{trace}" if trace else f"{head} {message}"


class JsonLines(_Lines):
    """An object on each line, with a traceback as ``error``, and the whole name of the logger."""

    def format(self, record: logging.LogRecord) -> str:
        """Return one line."""
        facts = self.facts(record) | {"logger": record.name}
        if record.exc_info:
            facts["error"] = self.formatException(record.exc_info)
        return json.dumps(facts)


class _ToStderr(logging.StreamHandler[TextIO]):
    """Writes to the standard error stream of the moment."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)

    @property
    def stream(self) -> TextIO:
        return sys.stderr

    @stream.setter
    def stream(self, _: TextIO) -> None:
        """Keep no stream."""


def _ours() -> _ToStderr | None:
    """Return the handler that writes our lines, if there is one."""
    found = (it for it in logging.getLogger(ROOT).handlers if isinstance(it, _ToStderr))
    return next(found, None)


def configure(level: str = "", form: str = "") -> None:
    """Set the level of all lines of this process, and their form, if they are given.

    Args:
        level: of ``LEVELS``; empty: as it is.
        form: of ``FORMATS``: then the lines go to the standard error stream. Empty: as it is, which
            is what the program has set up.
    """
    log, handler = logging.getLogger(ROOT), _ours()
    if form:
        if handler is None:
            handler = _ToStderr()
            log.handlers[:] = [handler]
            log.propagate = False
            level = level or logging.getLevelName(log.getEffectiveLevel()).lower()
        made = handler.formatter
        process = made.process if isinstance(made, _Lines) else ""
        handler.setFormatter(JsonLines(process) if form == "json" else TextLines(process))
    if level:
        log.setLevel(level.upper())
        if handler is not None:
            handler.setLevel(logging.NOTSET)


def share(host: str) -> None:
    """Let the handlers of an engine's logger *host* write our lines, from its level on.

    For engines whose handlers are not those of all loggers. Nothing changes if our lines have
    handlers already.
    """
    log, other = logging.getLogger(ROOT), logging.getLogger(host)
    if not log.handlers:
        log.propagate = False
        log.handlers = list(other.handlers)
        if not log.level:
            log.setLevel(other.getEffectiveLevel())


@contextmanager
def shown(process: str) -> Iterator[None]:
    """Write lines to the standard error stream during the block, from warnings on.

    Nothing changes in a program that has set up its logging, and runs a command itself.

    Args:
        process: the name of this process in them.
    """
    if logging.getLogger().handlers:
        yield
        return
    log, handler = logging.getLogger(ROOT), _ToStderr()
    handler.setFormatter(TextLines(process))
    handler.setLevel(logging.WARNING)
    before = log.level, log.handlers, log.propagate
    log.handlers = [*log.handlers, handler]
    log.setLevel(logging.INFO)
    try:
        yield
    finally:
        log.level, log.handlers, log.propagate = before
        log.setLevel(log.level)


def show_all() -> None:
    """Write lines of less weight than warnings, too: in commands that run until they are ended."""
    handler = _ours()
    if handler is not None:
        handler.setLevel(logging.NOTSET)


def as_json() -> bool:
    """True if lines are JSON objects that this module writes."""
    handler = _ours()
    return handler is not None and isinstance(handler.formatter, JsonLines)
