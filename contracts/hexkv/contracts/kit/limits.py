"""A time limit for each promise: the kit continues past an adapter that hangs, and reports where.

A separate process measures the time, because an adapter may hold the interpreter's lock; on a busy
machine the main thread's waits for a processor do not count. At the limit it interrupts the main
thread with a signal, and repeats that while the promise goes on. At last it names the promise,
prints where each thread is, and kills the process, so that every run of the kit ends.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import subprocess
import sys
import sysconfig
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import pytest

from hexkv.contracts.kit.waiting import still_running

DEFAULT = 75.0
"""The default limit of a promise in seconds, and of each step of a thorough one."""

MOST_HITS = 3
"""The number of promises of one adapter that reach their limits before the others are skipped."""

_AGAIN = 1.0
"""Seconds at most until the next interrupt, if one did not end the promise."""

_INTERRUPTS = 12
"""The number of interrupts before the process is killed."""

_FAREWELL = 10.0
"""Seconds that threads have to end with the program, after a promise has reached its limit."""

_SIGNAL = getattr(signal, "SIGRTMIN", signal.SIGALRM - 7) + 7
"""A signal that other code is unlikely to use."""

_TRACE = _SIGNAL + 1
"""Another one, which prints the position of each thread, also of those in foreign code."""

_active: list[Limits] = []
"""The limits of the pytest runs under way in this process, the innermost last."""

_WATCH = """
import os, select, signal, sys, time
parent, number, trace, most, sentence = *map(int, sys.argv[1:5]), ""
tick, sent, read = 0.1, 0, b""
limit, each, again, left = None, 0.0, 0.0, 0.0
signal.signal(signal.SIGINT, signal.SIG_IGN)  # of the terminal's, the kit makes an end

def say(what):
    print(f"{what}, during promise {sentence}", file=sys.stderr, flush=True)

def starved():
    # Seconds for which the main thread has waited for a processor, where Linux counts them.
    try:
        with open(f"/proc/{parent}/schedstat") as file:
            return int(file.read().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0

def taken(ticks, before):
    # Of these seconds, those in which a machine that is less busy would be as far.
    return max(ticks - (starved() - before), ticks / 4)

while True:
    # However long the machine lets this process stand still, it is one tick.
    if select.select([0], [], [], None if limit is None else tick)[0]:
        if not (data := os.read(0, 65536)):
            if limit is not None:
                say("the process that checked the adapter has ended")
            break
        *lines, read = (read + data).split(b"\\n")
        for line in filter(None, lines):
            seconds, one, pause, sentence = line.decode().split(" ", 3)
            limit, each, again = float(seconds) or None, float(one), float(pause)
            ticks, sent, begun = 0.0, 0, starved()
        own, stepped = 0.0, starved()  # an empty line is a step
        continue
    ticks, own, left = ticks + tick, own + tick, left - tick
    if (left > 0) if sent else (taken(ticks, begun) < limit and taken(own, stepped) < each):
        continue
    if sent == most:
        say("the adapter does not end, and cannot be interrupted: the kit is killed")
        os.kill(parent, trace)
        time.sleep(0.5)
        os.kill(parent, signal.SIGKILL)
        limit = None
    else:
        os.kill(parent, number)
        sent, left = sent + 1, again
"""


class Overdue(BaseException):
    """A promise has reached its limit. No ``Exception``, which an adapter might catch."""


class OverdueFixture(pytest.fail.Exception):  # type: ignore[name-defined, misc]
    """The same during fixture set-up or teardown, where pytest handles no other errors."""


@dataclass(slots=True)
class _Current:
    """The promise that is under way."""

    sentence: str
    seconds: float
    """The limit of each of its steps."""

    most: float
    """That of all of them."""

    error: type[BaseException]
    began: float
    stepped: float = 0.0
    """The time of its last step that was noted."""

    hit: str = ""


class Limits:
    """Interrupts promises at their time limit; close it after the last one.

    Args:
        seconds: the limit of each promise, and of each step of a thorough one.
        errors: a file descriptor for messages that cannot wait for the report; closed here.
    """

    THOROUGH = 5
    """The factor on the limit of a promise with the marker ``thorough``, for all of its steps."""

    def __init__(self, seconds: float, errors: int) -> None:
        self.seconds = seconds
        self._errors = errors
        self._current: _Current | None = None
        self._hits: dict[str, list[str]] = defaultdict(list)
        try:
            self._before = signal.signal(_SIGNAL, self._interrupted)
            number = _SIGNAL
        except ValueError:  # outside the main thread nothing can be interrupted
            self._before, number = None, 0
        faulthandler.register(_TRACE, errors, all_threads=True)
        self._watch = subprocess.Popen(  # noqa: S603 - our own interpreter and our own script
            [
                *(sys.executable, "-ISc", _WATCH),
                *map(str, (os.getpid(), number, _TRACE, _INTERRUPTS)),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=errors,
        )
        _active.append(self)

    def given_up(self, adapter: str) -> str:
        """The reason why promises of *adapter* are skipped from now on; empty if they are tried."""
        if len(hits := self._hits[adapter]) < MOST_HITS:
            return ""
        return f"not tried, for it did not end others within their limits: {', '.join(hits)}"

    @contextlib.contextmanager
    def within(
        self, adapter: str, number: str, text: str, times: int = 1, *, fixture: bool = False
    ) -> Iterator[None]:
        """Interrupt the block when its time is up.

        Args:
            adapter: the adapter under test.
            number: of the promise.
            text: of the promise.
            times: factor on the limit, which each step has; see :func:`step`.
            fixture: True during fixture set-up or teardown.

        Raises:
            Overdue: its time was up, and nothing else was raised.
            OverdueFixture: the same, if *fixture*.
        """
        seconds = self.seconds
        error = OverdueFixture if fixture else Overdue
        current = _Current(f"{number}: {text}", seconds, seconds * times, error, time.monotonic())
        self._current = current
        self._order(f"{current.most} {seconds} {min(_AGAIN, seconds)} {current.sentence}")
        try:
            yield
        except error:
            raise
        except BaseException as other:
            if current.hit:
                other.add_note(current.hit)
            raise
        finally:
            self._current = None
            self._order("0 0 0 ")
            if current.hit:
                self._hits[adapter].append(number)
        if current.hit:
            raise error(current.hit)

    def step(self) -> None:
        """Note that the promise under way has made a step, if there is one."""
        current, now = self._current, time.monotonic()
        # Once a second: the process that measures counts no time in which it reads.
        if current is not None and now - current.stepped >= _AGAIN:
            current.stepped = now
            self._order("")

    def report(self, text: str) -> None:
        """Write *text* at once, past pytest's capturing."""
        with contextlib.suppress(OSError):
            os.write(self._errors, f"{text}\n".encode())

    def close(self) -> None:
        """End the process that measures the time."""
        _active.remove(self)
        assert self._watch.stdin is not None
        with contextlib.suppress(OSError):
            self._watch.stdin.close()
        self._watch.wait()
        faulthandler.unregister(_TRACE)
        if self._before is not None:
            signal.signal(_SIGNAL, self._before)
        if self._hits:
            _leave_anyway()
        os.close(self._errors)

    def _order(self, line: str) -> None:
        assert self._watch.stdin is not None
        with contextlib.suppress(OSError):  # it was killed: there are no limits from now on
            self._watch.stdin.write(" ".join(line.split("\n")).encode() + b"\n")
            self._watch.stdin.flush()

    def _interrupted(self, number: int, frame: FrameType | None) -> None:
        del number
        current = self._current
        took = 0.0 if current is None else time.monotonic() - current.began
        if current is None or took < current.seconds / 2:
            return  # a late signal for a promise that has just ended
        if not current.hit:
            seconds = current.seconds if took < current.most else current.most
            current.hit = f"did not end within {seconds:g} seconds{_place(frame)}"
            self.report(f"promise {current.sentence}: {current.hit}")
        raise current.error(current.hit)


def step() -> None:
    """Note a step of the promise under way; a thorough one has its limit anew from here."""
    if _active:
        _active[-1].step()


def report(text: str) -> None:
    """Write *text* at once, past pytest's capturing; without limits, to standard error."""
    if _active:
        _active[-1].report(text)
    else:
        print(text, file=sys.stderr)  # noqa: T201


def _place(frame: FrameType | None) -> str:
    """The innermost position of the main thread outside the standard library."""
    library = sysconfig.get_path("stdlib")
    while frame is not None:
        code = frame.f_code
        if not code.co_filename.startswith((library, "<")) or "-packages" in code.co_filename:
            return f": in {code.co_qualname}, {Path(code.co_filename).name}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


def _leave_anyway() -> None:
    """Make the program end even if an adapter's threads do not."""

    def leave() -> None:
        main = threading.main_thread()
        own = [thread for thread in threading.enumerate() if not thread.daemon]
        if still_running([thread for thread in own if thread is not main], _FAREWELL):
            os._exit(1)  # a promise was broken

    def end() -> None:
        threading.Thread(target=leave, daemon=True).start()

    # `atexit` functions run too late: after the interpreter has joined every thread.
    threading._register_atexit(end)  # type: ignore[attr-defined]
