"""Turns of one length: a miss of each side beside vLLM alone, then hits from each place."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeAlias

import torch

from benchmarks.gpu_vllm.sides import Side
from engines.vllm.vllm_engines import Answer, Engine, prompt

LEAST = 3
"""Rounds without which a length is left out."""

TOKENS = 4
"""Generated for each prompt, and compared."""

FIXED = 4096
"""Tokens that a GPU computes in the time of what a turn takes for a prompt of any length."""

_PIECE = 256 << 20
_TRIES = 200
_BETWEEN = 0.02

Seconds: TypeAlias = dict[int, float]
"""By round."""


class Copy:
    """A bare copy of a prompt's KV from host memory, pinned where there is a GPU."""

    def __init__(self, device: str, size: int) -> None:
        piece = min(size, _PIECE)
        self._gpu = device == "cuda"
        self._host = torch.ones(piece, dtype=torch.uint8, pin_memory=self._gpu)
        self._there = torch.zeros(piece, dtype=torch.uint8, device=device)
        self._size = size
        self.timed()

    def timed(self) -> float:
        """Copy once. Seconds."""
        self._wait()
        began = time.perf_counter()
        for at in range(0, self._size, len(self._host)):
            end = min(len(self._host), self._size - at)
            self._there[:end].copy_(self._host[:end], non_blocking=True)
        self._wait()
        return time.perf_counter() - began

    def _wait(self) -> None:
        if self._gpu:
            torch.cuda.synchronize()


@dataclass
class Rows:
    """The times of a side to the first token, in seconds, and what was beside them."""

    alone: Seconds = field(default_factory=dict)
    """vLLM computes the same prompt."""

    miss: Seconds = field(default_factory=dict)
    own: Seconds = field(default_factory=dict)
    """vLLM's own prefix cache has it."""

    copy: Seconds = field(default_factory=dict)
    hits: dict[str, Seconds] = field(default_factory=dict)
    """By place."""

    cached: dict[str, list[int]] = field(default_factory=dict)
    """Tokens of each hit that were not computed."""

    same: int = 0
    """Answers with the tokens that vLLM alone gives."""

    as_computed: int = 0
    """Hits whose tokens are also those of the prompt computed as a whole."""

    in_parts: int = 0
    """Hits of which a part was loaded and the rest computed, which are not compared."""

    saved: tuple[float, float] = (0.0, 0.0)
    """Bytes that hexkv copied to save them, and the seconds of that."""


@dataclass(eq=False)
class OtherTokens(Exception):
    """An answer differs from the one without hexkv."""

    side: str
    what: str
    tokens: Sequence[int]
    expected: Sequence[int]

    def __str__(self) -> str:
        return f"{self.side}, {self.what}: {list(self.tokens)}, not {list(self.expected)}"


class EngineFailed(Exception):
    """An engine is gone, does not answer in time, or cannot do what it is for."""


@dataclass
class Turns:
    """The turns of one length."""

    plain: Side
    sides: Sequence[Side]
    length: int
    copy: Copy
    rows: dict[str, Rows] = field(default_factory=dict)
    failures: list[OtherTokens] = field(default_factory=list)
    spent: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    """Seconds of everything, by what was done."""

    _now: Callable[[], float] = time.monotonic
    _own: Answer | None = None
    """What vLLM's own prefix cache gave in this round."""

    def rounds(self, most: int, until: float, now: Callable[[], float]) -> int:
        """Do up to *most* rounds until *until*, the first one to warm up. The number that counts.

        Raises:
            EngineFailed: vLLM alone has failed.
        """
        self._now = now
        self._round(-1)
        self.rows.clear()
        before = {one.name: saved(one) for one in self._running()}
        done, took = 0, 0.0
        while done < most and (done < LEAST or now() + took < until):
            # The first time, engines compile and touch memory: the second one tells how long.
            if now() + (LEAST - done) * took > until:
                self.rows.clear()
                return 0
            began = now()
            self._round(done)
            took = max(took / 2, now() - began)
            done += 1
        for one in self._running():
            size, seconds = saved(one)
            first = before[one.name]
            self.rows[one.name].saved = size - first[0], seconds - first[1]
        return done

    def _running(self) -> Iterator[Side]:
        return (one for one in self.sides if not one.missing)

    @contextmanager
    def _spending(self, what: str) -> Iterator[None]:
        began = self._now()
        yield
        self.spent[what] += self._now() - began

    def _round(self, number: int) -> None:
        words, self._own = prompt(f"{self.length} {number}", self.length), None
        for one in self._running():
            rows = self.rows.setdefault(one.name, Rows())
            try:
                self._pair(one, rows, words, number)
            except OtherTokens as error:
                self.failures.append(error)
            except (AssertionError, OSError, EngineFailed) as error:
                self._check_plain()
                one.missing = f"{error}\n{one.engine.log.read_text(errors='replace')}"
                one.end()

    def _check_plain(self) -> None:
        """See that the engine which all are compared with is there.

        Raises:
            EngineFailed: it is not.
        """
        engine = self.plain.engine
        try:
            engine.ask("rest", seconds=0)
        except (AssertionError, OSError) as error:
            raise EngineFailed(engine.log.read_text(errors="replace")) from error

    def _pair(self, one: Side, rows: Rows, words: Sequence[int], number: int) -> None:
        """A miss beside vLLM alone, each first in turn; then hits beside its own prefix cache."""
        plain = self.plain.engine
        both = [plain, one.engine]
        found: dict[Engine, Answer] = {}
        for engine in both if number % 2 else reversed(both):
            what = "vLLM alone" if engine is plain else "misses"
            found[engine] = self._asked(engine, words, what)
            if engine is one.engine:
                self._settle(one)
        alone, miss = found[plain], found[one.engine]
        if alone.cached or miss.cached:
            raise EngineFailed(f"a new prompt had {miss.cached} and {alone.cached} cached tokens")
        self._compare(one, "a miss", rows, miss, alone)
        rows.alone[number] = first_token(alone)
        rows.miss[number] = first_token(miss)
        own = self._own = self._own or self._asked(plain, words, "vLLM alone", kept=True)
        rows.own[number] = first_token(own)
        for place in one.places:
            if place != one.places[0]:
                one.engine.forget(words, one.places[0])
            rows.copy[number] = self.copy.timed()
            hit = self._asked(one.engine, words, "hits")
            self._settle(one)
            rows.hits.setdefault(place, {})[number] = first_token(hit)
            rows.cached.setdefault(place, []).append(hit.cached)
            rows.as_computed += hit.tokens == alone.tokens
            if hit.cached in (0, own.cached):
                other = own if hit.cached else alone
                self._compare(one, f"a hit from {place}", rows, hit, other)
            else:
                # Computed in other parts, a prompt's numbers may be rounded in another way.
                rows.in_parts += 1

    def _asked(
        self, engine: Engine, words: Sequence[int], what: str, *, kept: bool = False
    ) -> Answer:
        """What *engine* answers, without its own prefix cache unless that is *kept*."""
        if not kept:
            with self._spending("emptied caches"):
                forget(engine)
        with self._spending(what):
            [answer] = engine.generate(words, tokens=TOKENS)
        return answer

    def _compare(self, one: Side, what: str, rows: Rows, got: Answer, wanted: Answer) -> None:
        if got.tokens != wanted.tokens:
            what = f"{what} of {self.length:,} tokens, {got.cached:,} of them cached"
            raise OtherTokens(one.name, what, got.tokens, wanted.tokens)
        rows.same += 1

    def _settle(self, one: Side) -> None:
        """Wait until a side has saved what it computed; vLLM's own way does it in later steps."""
        with self._spending("saves"):
            if one.ours:
                one.engine.flush()
            else:
                one.engine.generate(prompt("steps", 20), tokens=4)


def forget(engine: Engine) -> None:
    """Empty vLLM's own prefix cache, which it may refuse while blocks are held for a copy.

    Raises:
        EngineFailed: it was refused for seconds.
    """
    for _ in range(_TRIES):
        if engine.ask("reset")["reset"]:
            return
        time.sleep(_BETWEEN)
        engine.generate(prompt("step", 20), tokens=1)
    raise EngineFailed("vLLM's own prefix cache cannot be emptied")


def saved(one: Side) -> tuple[float, float]:
    """Bytes that hexkv has copied to save them, and the seconds that it took."""
    if not one.ours:
        return 0.0, 0.0
    found = one.engine.samples()
    names = ("stored_bytes_total", "store_seconds_total")
    size, seconds = (sum(found.get(name, {}).values()) for name in names)
    return size, seconds


def first_token(answer: Answer) -> float:
    """Seconds until it."""
    seconds: float | None = answer.first_token_seconds
    assert seconds is not None, "no token came"
    return seconds
