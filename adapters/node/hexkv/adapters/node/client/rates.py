"""Tiers of a node that bring KV more slowly than this client's host computes it."""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from struct import pack
from typing import Any, TypeVar

from hexkv.adapters.net.errors import BadMessage
from hexkv.adapters.net.rpc.answer import Answer
from hexkv.adapters.net.rpc.wire import Status
from hexkv.adapters.node.client.link import NodeLink
from hexkv.adapters.node.wire import Reader, Verb, pack_keys, read_words
from hexkv.ports import ChunkKey, Clock, Deadline, FarTiers, HoldTerms, Reason

T = TypeVar("T")

_MOST = 1 << 15
"""Chunks in one request at most."""

_EVERY = 5.0
"""Seconds between two questions for the rates of tiers."""

_ANSWER = 1.0

_KEPT = 60.0
"""Seconds for which a lookup's answer holds."""

_MOST_FOUND = 1024

_PROBE_EVERY = 16
"""Of this many requests that a slow tier would not serve, one is let through: the node measures its
tiers by their reads."""


class ServesSooner(FarTiers):
    """The part of a client that leaves tiers out where computing is sooner.

    The node measures its tiers, and the host how fast it computes. No call waits for the rates: an
    answer is used by the calls after it. The node gets the host's rate with the question for them,
    to explain misses by it, and with holds while it has slower tiers, to leave them out. What a
    lookup has found is held wherever it is.
    """

    def __init__(self, clock: Clock) -> None:
        self._time = clock
        self._rates: Mapping[str, float] = {}
        """Tokens per second of each tier that was measured."""

        self._first = ""
        """The fastest tier."""

        self._answer: Answer | None = None
        self._due = self._now = 0.0
        self._found: OrderedDict[ChunkKey, float] = OrderedDict()
        """The last chunks of lookups that found some on slower tiers, and until when that holds."""

        self._held = 0
        """Holds that slow tiers were left out of, or let into."""

        self._skipped: Counter[str] = Counter()
        self._slower: Collection[ChunkKey] = ()
        """Chunks that a lookup left out, the last one that did."""

    @abstractmethod
    def _ask(
        self, verb: Verb, body: bytes, deadline: Deadline, read: Callable[[Reader], T]
    ) -> T | None: ...

    @abstractmethod
    def _check(self) -> None: ...

    @abstractmethod
    def _link(self) -> NodeLink | None: ...

    def computes(self, tokens_per_second: float | None) -> None:
        self.compute_rate = tokens_per_second

    def match(
        self,
        keys: Sequence[ChunkKey],
        deadline: Deadline,
        *,
        served: bool = True,
        below: int = 0,
        loads: bool = False,
    ) -> Sequence[str | None]:
        del below, loads  # the node answers with the tiers that would serve
        found = self._find(keys, deadline)
        if self.compute_rate is None or not served:
            return found
        slow = self._slow()
        if some := not slow.isdisjoint(found):
            for name in slow.intersection(found):
                self._skipped[name] += 1
                if self._skipped[name] == _PROBE_EVERY:
                    self._skipped[name] = 0
                    slow = slow - {name}
            self._slower = {key for key, name in zip(keys, found, strict=True) if name in slow}
            found = [None if name in slow else name for name in found]
        if found.count(self._first) + found.count(None) < len(found):
            # These are held wherever they are: a retrieve ends with the last one found, or, where
            # no slow tier has the others, with the prompt's own tail behind it, or with all.
            run = found.index(None) if None in found else len(found)
            last = max(run - 1, 0)
            ends = keys[last:run] if some else (*keys[last : run + 1], keys[-1])
            self._found.update(dict.fromkeys(ends, self._now + _KEPT))
            while len(self._found) > _MOST_FOUND:
                self._found.popitem(last=False)
        return found

    def stored(
        self,
        keys: Sequence[ChunkKey],
        after: ChunkKey | None,
        owner: str,
        deadline: Deadline,
        *,
        below: int = 0,
        asks: bool = True,
    ) -> Sequence[bool]:
        del after, owner, below, asks
        found, slow = self._find(keys, deadline), self._slow()
        if slow and (link := self._link()) is not None:
            left = [key for key, name in zip(keys, found, strict=True) if name in slow]
            for start in range(0, len(left), _MOST):
                link.tell(Verb.USED, pack_keys(left[start : start + _MOST]), deadline)
        if self._first in slow:
            slow = frozenset()  # no faster tier would take the chunks that are computed again
        return [name is not None and name not in slow for name in found]

    def why_absent(self, key: ChunkKey) -> Reason | None:
        """Return ``SLOWER`` if the last lookup left the chunk out; holds have other reasons."""
        return Reason.SLOWER if key in self._slower else None

    def _find(self, keys: Sequence[ChunkKey], deadline: Deadline) -> Sequence[str | None]:
        """Return the first tier of each chunk that would serve it."""
        self._check()
        found: list[str | None] = []
        for start in range(0, len(keys), _MOST):
            count = len(part := keys[start : start + _MOST])
            read = partial(read_words, count=count)
            found += self._ask(Verb.MATCH, pack_keys(part), deadline, read) or [None] * count
        return found

    def _rated(self, last: ChunkKey, terms: HoldTerms) -> HoldTerms:
        """Return *terms* with the host's rate, if slow tiers are to be left out of a hold.

        *last* is its last chunk.
        """
        if not self._slow():
            return terms
        request = terms.last or last
        if self._found.get(request, 0.0) > self._now:
            if request == last:
                self._found.pop(request, None)
            return terms
        self._held += 1
        return terms._replace(rate=self.compute_rate) if self._held % _PROBE_EVERY else terms

    def _slow(self) -> frozenset[str]:
        """Return the names of the tiers that are slower than computing, as far as known."""
        rate, now = self.compute_rate, self._time.now()
        if rate is None:
            return frozenset()
        self._now = now
        answer = self._answer
        if answer is not None and answer.final:
            self._answer = None
            self._read(answer)
        if now >= self._due and (link := self._link()) is not None:
            self._due = now + _EVERY
            self._answer = link.ask(
                Verb.HEALTH, pack("<d", rate), Deadline.after(self._time, _ANSWER)
            )
        return frozenset(name for name, brings in self._rates.items() if brings < rate)

    def _read(self, answer: Answer) -> None:
        """Note the rates in a report of the node's health; an older node sends none."""
        try:
            report: Any = Reader(answer.body).json() if answer.status is Status.DONE else {}
            rates = {str(it["name"]): it.get("tokens_per_second") for it in report["tiers"]}
            known = {n: float(rate) for n, rate in rates.items() if isinstance(rate, int | float)}
        except (BadMessage, LookupError, TypeError, AttributeError, OverflowError):
            return
        self._first, self._rates = next(iter(rates), ""), known
