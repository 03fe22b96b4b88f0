"""Caches by tokens that mix prompts up, promise too much, or keep what they should give back."""

from __future__ import annotations

from contextlib import contextmanager, suppress
from copy import copy
from dataclasses import replace
from threading import Event

import pytest

from configured import CHUNK, FRAME, NAMESPACE, PATIENT
from dict_store import BadSector, DictStore
from hexkv.contracts.faults import FaultyStore, Scripted
from hexkv.contracts.prefix_cache import Damaged, Faulty, PrefixCacheContract, Stuck
from hexkv.core.engine.engine import CacheEngine, Deadlines
from hexkv.plugins.clock import SystemClock
from hexkv.plugins.composition.compose import build
from hexkv.plugins.configuration.config import load
from hexkv.ports import InvalidRequest, Lookup, StoreReport, StoreUnreachable
from mutants.rows import Wrong, broken
from rigging import rigging, tier

LONG, SHORT = Deadlines(**PATIENT), Deadlines(lookup=0.1, retrieve=0.1, store=0.1, close=0.1)


class EngineContract(PrefixCacheContract):
    """The cache in this process, over memory."""

    Make = CacheEngine
    chunk = CHUNK
    most = 32

    @pytest.fixture
    def cache(self):
        tiers = [{"store": "memory", "budget": self.most * FRAME}]
        wanted = {"chunk": {"size": CHUNK}, "pool": {"bytes": 64 * FRAME}, "tiers": tiers}
        with build(load(None, {}, wanted | {"deadlines": PATIENT}), NAMESPACE) as engine:
            engine.__class__ = self.Make
            yield engine

    @pytest.fixture
    def damaged(self):
        medium = {}

        def spoil():
            for key, frame in medium.items():
                medium[key] = bytes(frame[:-1]) + bytes([frame[-1] ^ 1])

        with rigging() as built:
            yield Damaged(self._over(built, DictStore(medium)), spoil)

    @pytest.fixture
    def faulty(self):
        medium = {}

        def fail():
            second = list(medium)[1]
            medium[second] = BadSector(medium[second])

        with rigging() as built:
            yield Faulty(self._over(built, DictStore(medium)), fail)

    @pytest.fixture
    def stuck(self):
        store = FaultyStore(DictStore({}), Scripted())
        with rigging() as built:
            cache = self._over(built, store)

            def hang():
                store.hang()
                cache._deadlines = SHORT
                cache._calls._seconds = SHORT.close
                cache._chunks.stack.patience = SHORT.lookup

            yield Stuck(cache, hang)
            store.release()

    def _over(self, built, store):
        engine = built([tier("slow", store)], clock=SystemClock(), deadlines=LONG).engine
        engine.__class__ = self.Make
        return engine


def flips_a_bit(self, real, tokens, device, **options):
    got = real(tokens, device, **options)
    if got.loaded_tokens:
        device.memory[-1][-1][0] ^= 1
    return got


def promises_in_vain(self, real, tokens, device, **options):
    self.stored |= {*self.chunk_keys(tokens)}
    return real(tokens, device, **options)


def promises_in_vain_lookup(self, tokens, **options):
    there = [key in self.stored for key in self.chunk_keys(tokens)]
    return Lookup(len(tokens), [*there, False].index(False) * CHUNK)


class TestFoldsAdapters(EngineContract):
    """Adapters are files of a system that folds case."""

    breaks = "prefix.4"

    class Make(CacheEngine):
        @property
        def _naming(self):
            naming = copy(vars(self)["_naming"])
            named = naming.prompt

            def prompt(tokens, namespace, deadline=None, *pause):
                whose = namespace or self.namespace
                return named(tokens, replace(whose, lora=whose.lora.lower()), deadline)

            naming.prompt = prompt
            return naming


class TestNamesChunksAlone(EngineContract):
    """A chunk is named by its own tokens, whatever stands before it."""

    breaks = "prefix.2"

    class Make(CacheEngine):
        @property
        def _naming(self):
            naming = copy(vars(self)["_naming"])
            named = naming.prompt

            def prompt(tokens, namespace, deadline=None, *pause):
                whole = named(tokens, namespace, deadline)
                spans = zip(whole.starts, whole.ends, strict=True)
                alone = [named(tokens[a:b], namespace) for a, b in spans]
                return replace(whole, keys=[key for one in alone for key in one.keys])

            naming.prompt = prompt
            return naming


def sees_beyond_gaps(self, tokens, **options):
    keys, deadline = self.chunk_keys(tokens), self.admin._until(60.0)
    there = sum(bool(self._chunks.stack.locate([key], deadline)) for key in keys)
    return Lookup(len(tokens), there * CHUNK)


class TestForgetsTheTenant(EngineContract):
    """The salt is not part of a chunk's name."""

    breaks = "prefix.4"

    class Make(CacheEngine):
        @property
        def _naming(self):
            naming = copy(vars(self)["_naming"])
            named = naming.prompt

            def prompt(tokens, namespace, deadline=None, *pause):
                return named(tokens, replace(namespace or self.namespace, salt=""), deadline)

            naming.prompt = prompt
            return naming


def loads_what_is_there(self, real, tokens, device, *, skip=0, **options):
    return real(tokens, device, **options)


def skips_behind_the_end(self, real, tokens, device, *, skip=0, **options):
    return real(tokens, device, skip=min(skip, len(tokens)), **options)


def hopes_for_all(self, real, tokens, **options):
    found = real(tokens, **options)
    if not found.hit_tokens:
        return found
    return replace(found, hit_tokens=len(tokens), tiers={"memory": len(tokens)})


def counts_the_first_miss(self, real, tokens, device, **options):
    got = real(tokens, device, **options)
    return replace(got, misses=dict.fromkeys(got.misses, 1))


def counts_bytes_of_what_was_there(self, real, tokens, device, **options):
    report = real(tokens, device, **options)
    tokens = report.present_tokens + report.stored_tokens
    return replace(report, stored_bytes=tokens * self.namespace.layout.token_bytes)


def cancels_anything(self, real, lookup_id):
    real(lookup_id)
    return True


class TestLoadsAtTheEnd(EngineContract):
    """Layers are given before they are loaded, which is done with the last one."""

    breaks = "prefix.12"

    class Make(CacheEngine):
        @contextmanager
        def retrieve_layers(self, tokens, device, **options):
            yield Eager(self, tokens, device, options)


class Eager:
    def __init__(self, cache, tokens, device, options):
        self.layers = iter(range(cache.namespace.layout.layers))
        self.load = lambda: cache.retrieve(tokens, device, **options)
        self.hit_tokens = cache.lookup(tokens).hit_tokens
        self.done = False

    def __iter__(self):
        yield from self.layers
        self.done = True

    def result(self):
        if not self.done:
            raise InvalidRequest("there are layers to come")
        return self.load()


class TestStoresWhatWasLeft(EngineContract):
    """Leaving the context stores the prompt."""

    breaks = "prefix.13"

    class Make(CacheEngine):
        @contextmanager
        def store_layers(self, tokens, device, **options):
            with super().store_layers(tokens, device, **options) as layers:
                yield layers
            self.store(tokens, device, **options)


class TestTakesALayerTwice(EngineContract):
    """A layer that is out of place is passed over."""

    breaks = "prefix.14"

    class Make(CacheEngine):
        @contextmanager
        def store_layers(self, tokens, device, **options):
            with super().store_layers(tokens, device, **options) as layers:
                yield Lenient(layers)


class Lenient:
    def __init__(self, layers):
        self.result = layers.result
        self.layers = layers

    def layer_done(self, layer):
        with suppress(InvalidRequest):
            self.layers.layer_done(layer)


class TestUnpinsForAll(EngineContract):
    """One owner's unpin ends the pins of all."""

    breaks = "prefix.15"

    class Make(CacheEngine):
        def unpin(self, owner):
            owners = {owner, *self.health().pins}
            return sum(super(type(self), self).unpin(one) for one in owners)


def spares_the_pinned(self, real, tokens=None, **options):
    return 0 if self.health().pins else real(tokens, **options)


class TestThawsByItself(EngineContract):
    """Layerwise stores do not know that it is frozen."""

    breaks = "prefix.17"

    class Make(CacheEngine):
        @contextmanager
        def store_layers(self, tokens, device, **options):
            calls = self._calls
            frozen, calls.frozen = calls.frozen, False
            with super().store_layers(tokens, device, **options) as layers:
                calls.frozen = frozen
                yield layers


def forgets_the_queue(self, real, tokens, device, *, wait=True, **options):
    if wait:
        return real(tokens, device, **options)
    return StoreReport(len(tokens), queued_tokens=len(tokens) // CHUNK * CHUNK)


def remembers_its_hits(self, real, tokens, device, **options):
    known = vars(self).setdefault("known", {})
    if tuple(tokens) not in known:
        known[tuple(tokens)] = real(tokens, device, **options)
    return known[tuple(tokens)]


def raises_what_a_tier_raises(self, real, tokens, device, **options):
    got = real(tokens, device, **options)
    if "timed out" in got.misses or "tier off" in got.misses:
        raise StoreUnreachable("the tier did not answer")
    return got


def asks_for_the_latest_prompt(self, real, tokens, device, **options):
    self.tokens = tokens
    Event().wait(0.005)
    return real(self.tokens, device, **options)


class TestKeepsWhatWasLeftByAnError(EngineContract):
    """The pins of a layerwise retrieve end with the context, unless an error ends it."""

    breaks = "prefix.23"

    class Make(CacheEngine):
        @contextmanager
        def retrieve_layers(self, tokens, device, **options):
            with super().retrieve_layers(tokens, device, **options) as layers:
                self.pin(tokens, "layers")
                yield layers
                self.unpin("layers")


ROWS = {
    "prefix.1 flips a bit": Wrong("One bit of what is loaded is wrong.", retrieve=flips_a_bit),
    "prefix.24 promises in vain": Wrong(
        "What was ever stored is promised, whether or not it can be read.",
        stored=frozenset(),
        store=promises_in_vain,
        lookup=promises_in_vain_lookup,
    ),
    "prefix.3 sees beyond gaps": Wrong(
        "Chunks behind a missing one count as found.", lookup=sees_beyond_gaps
    ),
    "prefix.5 loads what is there": Wrong(
        "What is to be skipped is loaded all the same.", retrieve=loads_what_is_there
    ),
    "prefix.6 names from the end": Wrong(
        "The keys of the last chunks come first.",
        chunk_keys=lambda self, real, tokens, **options: real(tokens, **options)[::-1],
    ),
    "prefix.7 has no unpin": Wrong("A method of the port is missing.", unpin=None),
    "prefix.8 skips behind the end": Wrong(
        "To skip more tokens than the prompt has is to skip all.", retrieve=skips_behind_the_end
    ),
    "prefix.9 hopes for all": Wrong(
        "A lookup that finds something promises everything.", lookup=hopes_for_all
    ),
    "prefix.10 counts the first miss": Wrong(
        "Of all chunks that miss for one reason, one is counted.", retrieve=counts_the_first_miss
    ),
    "prefix.10 counts bytes of what was there": Wrong(
        "Bytes of chunks that a tier held already count as stored.",
        store=counts_bytes_of_what_was_there,
    ),
    "prefix.11 cancels anything": Wrong(
        "A cancelled prefetch is one that never was, and the answer the same.",
        cancel=cancels_anything,
    ),
    "prefix.16 spares the pinned": Wrong(
        "As long as anything is pinned, nothing is cleared.", clear=spares_the_pinned
    ),
    "prefix.18 forgets the queue": Wrong(
        "What is not waited for is reported as queued, and never written.", store=forgets_the_queue
    ),
    "prefix.19 unpins after the end": Wrong(
        "A call that finds nothing to do does not notice that it is closed.",
        unpin=lambda self, owner: self._chunks.stack.pins.unpin(owner),
    ),
    "prefix.20 remembers its hits": Wrong(
        "What was a hit once is one for ever.", retrieve=remembers_its_hits
    ),
    "prefix.21 raises what a tier raises": Wrong(
        "A tier that does not answer is an error of the call.", retrieve=raises_what_a_tier_raises
    ),
    "prefix.22 asks for the latest prompt": Wrong(
        "The prompt of a call is an attribute, which the next call overwrites.",
        retrieve=asks_for_the_latest_prompt,
    ),
}
globals().update(broken(__name__, EngineContract, CacheEngine, ROWS))
