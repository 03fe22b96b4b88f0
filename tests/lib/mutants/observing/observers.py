"""Observers that show something else than there is, or stop who tells them."""

from __future__ import annotations

from threading import Event, Lock, Thread

import pytest

from hexkv.contracts.observer import ObserverContract, Reading
from hexkv.ports import Change
from mutants.rows import Wrong, broken

MOST = 64
"""What waits at most in a queue of the board's."""


class Content:
    """What tiers hold, of prompts whose tokens were named."""

    def __init__(self):
        self.known, self.held = {}, set()

    def emit(self, event):
        if event.change is Change.STORED:
            self.held |= set(event.keys)
        else:
            self.held -= set(event.keys)

    def named(self, prompt):
        tokens, start = prompt.tokens.cast("I"), 0
        for key, end in zip(prompt.keys, prompt.ends, strict=True):
            self.known[self.kept(tokens[start:end])] = key
            start = end

    def kept(self, tokens):
        return tuple(tokens)

    def announced(self, tokens):
        count = 0
        for start in range(0, len(tokens), 16):
            if self.known.get(tuple(tokens[start : start + 16])) not in self.held:
                break
            count += 16
        return count


class Calls:
    """Those that ended, up to a bound."""

    def __init__(self):
        self.waiting, self.sent, self.lock = [], 0, Lock()

    def ended(self, call):
        with self.lock:
            if len(self.waiting) < MOST:
                self.waiting.append(call)

    def send(self):
        with self.lock:
            self.sent += len(self.waiting)
            self.waiting.clear()


class Board:
    """An observer in the same process, which whoever likes may look at."""

    Content, Calls = Content, Calls

    def __init__(self):
        self.observed, self.content, self.calls = None, None, None

    def follow(self, tiers, *, rank=0):
        if rank:
            return None
        self.content = self.Content()
        return self.content

    def trace(self, model, *, rank=0):
        self.calls = self.Calls()
        return self.calls

    def serve(self, observed, *, rank=0):
        self.observed = observed

    def close(self):
        self.observed = None
        if self.calls is not None:
            self.calls.send()

    def metrics(self):
        return None if self.observed is None else self.observed.metrics()

    def unready(self):
        return None if self.observed is None else self.observed.unready()


class BoardContract(ObserverContract):
    Make = Board
    patience = 0.5

    @pytest.fixture(autouse=True)
    def impatience(self, monkeypatch):
        """A thread that stays is waited for a little only."""
        monkeypatch.setattr("hexkv.contracts.observer._GOING", 1.0)

    @pytest.fixture
    def observer(self):
        return self.Make()

    @pytest.fixture
    def reading(self, observer):
        return Reading(observer.metrics, observer.unready)

    @pytest.fixture
    def announced(self, observer):
        return lambda tokens: observer.content.announced(tokens) if observer.observed else 0

    @pytest.fixture
    def collected(self, observer):
        def collected():
            if observer.observed is not None:
                observer.calls.send()
            return observer.calls.sent

        return collected


def shows_what_was(self, real, observed, *, rank=0):
    real(observed)
    self.page = observed.metrics()


def closes_once(self, real):
    assert self.observed is not None
    real()


def serves_one_at_a_time(self, real):
    real()
    self.busy = Lock()


def serves_one_at_a_time_metrics(self, real):
    if not self.busy.acquire(blocking=False):
        return ""
    try:
        Event().wait(0.01)
        return real()
    finally:
        self.busy.release()


class TestRaisesWhenFull(BoardContract):
    """A queue that is full is the caller's problem."""

    breaks = "observer.5"

    class Make(Board):
        class Calls(Calls):
            def ended(self, call):
                super().ended(call)
                if len(self.waiting) >= MOST:
                    raise OverflowError


def is_gone_after_its_end(self, real):
    real()
    if self.content is not None:
        self.content.known = None


class TestKeepsTheCallersTokens(BoardContract):
    """Tokens are looked up in memory that is the caller's again."""

    breaks = "observer.6"

    class Make(Board):
        class Content(Content):
            def __init__(self):
                super().__init__()
                self.lent = []

            def named(self, prompt):
                self.lent.append(prompt)

            def announced(self, tokens):
                for prompt in self.lent:
                    super().named(prompt)
                return super().announced(tokens)


class TestNeverForgets(BoardContract):
    """What a tier lost is announced for ever."""

    breaks = "observer.6"

    class Make(Board):
        class Content(Content):
            def emit(self, event):
                self.held |= set(event.keys)


def loses_the_last_calls(self):
    self.observed = None


class TestSendsTwice(BoardContract):
    """Each call is counted again."""

    breaks = "observer.7"

    class Make(Board):
        class Calls(Calls):
            def ended(self, call):
                super().ended(call)
                super().ended(call)


def closes_in_a_while(self, real):
    if self.observed is not None:
        Event().wait(4.0)
    real()


def leaves_its_thread(self, real, observed, *, rank=0):
    real(observed)
    Thread(target=Event().wait, args=(60.0,), daemon=True).start()


def is_ready_when_closed(self, real):
    return "" if self.observed is None else real()


ROWS = {
    "observer.2 is ready when it is closed": Wrong(
        "A process whose observer does not serve is ready.", unready=is_ready_when_closed
    ),
    "observer.2 closes in a while": Wrong(
        "Its end waits for an answer of the collector.", close=closes_in_a_while
    ),
    "observer.2 leaves its thread": Wrong(
        "The thread that collects numbers goes on.", serve=leaves_its_thread
    ),
    "observer.1 shows what was": Wrong(
        "The page is made once, when it begins to serve.",
        serve=shows_what_was,
        metrics=lambda self, real: real() and self.page,
    ),
    "observer.1 is always ready": Wrong(
        "It says nothing of a process that takes no requests.",
        unready=lambda self, real: real() and "",
    ),
    "observer.2 stays open": Wrong(
        "What it showed last is there for ever.", close=lambda self: None
    ),
    "observer.2 closes once": Wrong("A second end is an error.", close=closes_once),
    "observer.3 serves one at a time": Wrong(
        "Whoever comes while another one reads gets nothing.",
        __init__=serves_one_at_a_time,
        metrics=serves_one_at_a_time_metrics,
    ),
    "observer.4 each rank follows": Wrong(
        "Every rank publishes what it holds.",
        follow=lambda self, real, tiers, *, rank=0: real(tiers),
    ),
    "observer.5 is gone after its end": Wrong(
        "What is told to it after its end raises.", close=is_gone_after_its_end
    ),
    "observer.7 loses the last calls": Wrong(
        "What waits when it ends is not sent.", close=loses_the_last_calls
    ),
}
globals().update(broken(__name__, BoardContract, Board, ROWS))
