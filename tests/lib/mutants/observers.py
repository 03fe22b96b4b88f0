"""Observers that show something else than there is, or stop who tells them."""

from __future__ import annotations

from threading import Event, Lock

import pytest

from hexkv.contracts.observer import ObserverContract, Reading
from hexkv.ports import Change

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


class TestShowsWhatWas(BoardContract):
    """The page is made once, when it begins to serve."""

    breaks = "observer.1"

    class Make(Board):
        def serve(self, observed, *, rank=0):
            super().serve(observed)
            self.page = observed.metrics()

        def metrics(self):
            return super().metrics() and self.page


class TestIsAlwaysReady(BoardContract):
    """It says nothing of a process that takes no requests."""

    breaks = "observer.1"

    class Make(Board):
        def unready(self):
            return super().unready() and ""


class TestStaysOpen(BoardContract):
    """What it showed last is there for ever."""

    breaks = "observer.2"

    class Make(Board):
        def close(self):
            pass


class TestClosesOnce(BoardContract):
    """A second end is an error."""

    breaks = "observer.2"

    class Make(Board):
        def close(self):
            assert self.observed is not None
            super().close()


class TestServesOneAtATime(BoardContract):
    """Whoever comes while another one reads gets nothing."""

    breaks = "observer.3"

    class Make(Board):
        def __init__(self):
            super().__init__()
            self.busy = Lock()

        def metrics(self):
            if not self.busy.acquire(blocking=False):
                return ""
            try:
                Event().wait(0.01)
                return super().metrics()
            finally:
                self.busy.release()


class TestEachRankFollows(BoardContract):
    """Every rank publishes what it holds."""

    breaks = "observer.4"

    class Make(Board):
        def follow(self, tiers, *, rank=0):
            return super().follow(tiers)


class TestRaisesWhenFull(BoardContract):
    """A queue that is full is the caller's problem."""

    breaks = "observer.5"

    class Make(Board):
        class Calls(Calls):
            def ended(self, call):
                super().ended(call)
                if len(self.waiting) >= MOST:
                    raise OverflowError


class TestIsGoneAfterItsEnd(BoardContract):
    """What is told to it after its end raises."""

    breaks = "observer.5"

    class Make(Board):
        def close(self):
            super().close()
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


class TestLosesTheLastCalls(BoardContract):
    """What waits when it ends is not sent."""

    breaks = "observer.7"

    class Make(Board):
        def close(self):
            self.observed = None


class TestSendsTwice(BoardContract):
    """Each call is counted again."""

    breaks = "observer.7"

    class Make(Board):
        class Calls(Calls):
            def ended(self, call):
                super().ended(call)
                super().ended(call)
