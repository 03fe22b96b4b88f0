"""Log lines about repeated failures: the first at once, then one a minute with a count.

A line is of a *kind*: the operation that failed, and the error's words without numbers and paths.
Another kind is another cause, and has a line of its own. The end of a failure is one line, too, if
its beginning was one; so a failure that is the last line of a log lasts.

An *outage*, a store that does not answer, is one kind whichever operation finds it.
"""

from __future__ import annotations

from dataclasses import dataclass
from logging import Logger
from threading import Lock

from hexkv.ports import Clock

EVERY = 60.0
"""Seconds between two lines of one kind."""

_MOST = 64
"""The most kinds with a line in a minute; all others together have a count in the next line."""

_MOST_TROUBLES = 1024
"""The most failing operations remembered; the oldest is forgotten, without a line at its end."""

_LENGTH = 300
"""The number of characters of an error that determine its kind."""

OUTAGE = "does not answer"
OFF = "is switched off for"
BACK = "is back"
"""The verbs of an outage, of a breaker that opens, and of the end of both."""

READING, WRITING = "reading", "writing"
"""The directions of a store's operations."""

_STORE = ""
"""The operation of an outage: all that the store does."""


def kind_of(words: str) -> str:
    """Return the words that all errors of a kind share: no numbers, keys, addresses and paths."""
    return " ".join("*" if _varies(word) else word for word in words[:_LENGTH].split())


def _varies(word: str) -> bool:
    return any(char.isdigit() or char == "/" for char in word)


@dataclass(slots=True)
class _Kind:
    logged: float
    """The time of its last line."""

    held_back: int = 0
    """Failures since that line."""


@dataclass(slots=True)
class _Trouble:
    since: float
    end: str
    """The verb of the line at its end."""

    failures: int = 0
    logged: bool = False
    """True if the log has a line about it."""


class Notices:
    """The lines about one subject. Safe from any thread.

    Args:
        log: the logger that writes them.
        subject: the beginning of each line.
        clock: for the pauses between lines.
        verbs: for an operation that fails, and for one that works again.
    """

    def __init__(
        self,
        log: Logger,
        subject: str,
        clock: Clock,
        verbs: tuple[str, str] = ("failed", "works again"),
    ) -> None:
        self._log = log
        self._subject = subject
        self._clock = clock
        self._verbs = verbs
        self._lock = Lock()
        self._kinds: dict[tuple[str, str], _Kind] = {}
        """In the order of their last lines."""

        self._others = 0
        """Failures of kinds without a line of their own, since the last line."""

        self.troubles: dict[str, _Trouble] = {}
        """Operations that fail at present. Usually empty: then no call of :meth:`works` or
        :meth:`answers` is needed."""

        self.unanswered = 0
        """The number of failures by outages."""

        self._silent: set[str] = set()
        """The directions without an answer since the outage began."""

        self._off = False
        """True if a breaker has opened since then."""

    def failed(
        self,
        what: str,
        words: str,
        count: int = 1,
        *,
        detail: str = "",
        lasts: bool = True,
        outage: str = "",
    ) -> None:
        """Log that *what* failed, unless a line of the same kind is less than a minute old.

        Args:
            what: the operation.
            words: the error, as text.
            count: failures that this line stands for.
            detail: follows the error in the line, and does not make another kind.
            lasts: True if *what* fails until :meth:`works` is called.
            outage: the direction in which the store does not answer, until :meth:`answers`; empty
                for other errors.
        """
        if not outage:
            text = f"{what} {self._verbs[0]}: {words}{detail}"
            self._log_failure(what, kind_of(words), text, count, end=self._verbs[1], lasts=lasts)
            return
        with self._lock:
            self.unanswered += count
            self._silent.add(outage)
        self._log_failure(_STORE, OUTAGE, f"{OUTAGE}: {what}: {words}{detail}", count)

    def switched_off(self, direction: str, pauses: str, why: str) -> None:
        """Log that a breaker opened, in an outage once for both directions.

        Args:
            direction: the operations that are refused from now on.
            pauses: the seconds between probes, as text.
            why: the reason, as text.
        """
        with self._lock:
            what = direction
            if direction in self._silent or self.troubles.keys() <= {_STORE}:
                self._silent.add(direction)  # no other failure explains it
                what = _STORE
                if self._off:
                    return
                self._off = True
        self._log_failure(what, OFF, f"{what} {OFF} {pauses}: {why}", 1)

    def _log_failure(
        self, what: str, cause: str, text: str, count: int, *, end: str = BACK, lasts: bool = True
    ) -> None:
        text = " ".join(text.split())  # one line, whatever a store's error has in it
        kind = what, cause
        now = self._clock.now()
        with self._lock:
            if lasts:
                trouble = self.troubles.setdefault(what, _Trouble(now, end))
                trouble.failures += count
                if len(self.troubles) > _MOST_TROUBLES:
                    del self.troubles[next(iter(self.troubles))]
            found = self._kinds.get(kind)
            if found is not None and now - found.logged < EVERY:
                found.held_back += count
                return
            if found is None and not self._has_room(now):
                self._others += count
                return
            more = 0 if found is None else found.held_back
            others, self._others = self._others, 0
            self._kinds.pop(kind, None)
            self._kinds[kind] = _Kind(now)
            if lasts:
                trouble.logged = True
        also = f"; {more} more since the last line" if more else ""
        also += f"; {others} more of other kinds" if others else ""
        self._log.warning("%s", f"{self._subject}: {text}{also}")

    def _has_room(self, now: float) -> bool:
        """True if one more kind may have a line. Under the lock."""
        if len(self._kinds) < _MOST:
            return True
        oldest = next(iter(self._kinds))
        if now - self._kinds[oldest].logged < EVERY:
            return False
        self._others += self._kinds.pop(oldest).held_back
        return True

    def answers(self, direction: str, unanswered: int) -> None:
        """Log the end of an outage, and of a pause, by a success in one of their directions.

        Args:
            direction: that of the call.
            unanswered: the number of failures when the call began: an answer that was under way
                when the store went down is no sign that it is back.
        """
        if not self.troubles:
            return
        with self._lock:
            if over := direction in self._silent and unanswered == self.unanswered:
                self._silent.clear()
                self._off = False
        if over:
            self.works(_STORE)
        self.works(direction)

    def works(self, what: str) -> None:
        """Log that *what* works again, if the log has a line about its failure."""
        if what not in self.troubles:
            return
        with self._lock:
            trouble = self.troubles.pop(what, None)
        if trouble is not None and trouble.logged:
            seconds = self._clock.now() - trouble.since
            count = f" and {trouble.failures} failures" if trouble.failures > 1 else ""
            text = f"{what} {trouble.end} after {seconds:.3g} s{count}".strip()
            self._log.warning("%s", f"{self._subject}: {text}")
