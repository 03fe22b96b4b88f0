"""Caches of segments that mix them up, keep them too long, or give what they should not."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from functools import partial, wraps

import pytest

from configured import CHUNK, FRAME, NAMESPACE, PATIENT
from dict_store import DictStore
from hexkv.blending.named_parts import NamedParts
from hexkv.blending.ports import PromptParts, RetrievedParts
from hexkv.blending.segments import SegmentRules, Segments
from hexkv.contracts.faults import FaultyStore, Scripted
from hexkv.contracts.prefix_cache import Damaged, Stuck
from hexkv.contracts.segments import MINIMUM, SEPARATOR, SegmentCacheContract
from hexkv.core.engine.engine import Deadlines
from hexkv.plugins.clock import SystemClock
from hexkv.plugins.composition.compose import build
from hexkv.plugins.configuration.config import load
from mutants.rows import Wrong, broken
from rigging import rigging, tier

LONG, SHORT = Deadlines(**PATIENT), Deadlines(lookup=0.1, retrieve=0.1, store=0.1, close=0.1)
RULES = partial(Segments, rules=SegmentRules(SEPARATOR, MINIMUM))


class SegmentsContract(SegmentCacheContract):
    """The cache in this process."""

    Make = Segments
    chunk = CHUNK

    def open(self, tiers):
        wanted = {
            "chunk": {"size": CHUNK},
            "pool": {"bytes": 96 * FRAME},
            "tiers": tiers,
            "segments": {"separator": [*SEPARATOR], "minimum": MINIMUM},
            "deadlines": PATIENT,
        }
        engine = build(load(None, {}, wanted), NAMESPACE)
        engine.segments.__class__ = self.Make
        return engine

    @pytest.fixture
    def cache(self, tmp_path):
        disk = {"store": "disk", "settings": {"root": str(tmp_path)}}
        with self.open([{"store": "memory", "budget": 64 * FRAME}, disk]) as engine:
            yield engine

    @pytest.fixture
    def other(self, cache, tmp_path):
        with self.open([{"store": "disk", "settings": {"root": str(tmp_path)}}]) as engine:
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
    def stuck(self):
        store = FaultyStore(DictStore({}), Scripted())
        with rigging() as built:
            cache = self._over(built, store)

            def hang():
                store.hang()
                cache._deadlines = cache.segments._deadlines = SHORT
                cache._calls._seconds = SHORT.close
                cache._chunks.stack.patience = SHORT.lookup

            yield Stuck(cache, hang)
            store.release()

    def _over(self, built, store):
        plans = [tier("slow", store)]
        made = built(plans, clock=SystemClock(), deadlines=LONG, segments=RULES)
        made.engine.segments.__class__ = self.Make
        return made.engine


def flips_a_bit(self, real, tokens, device, **options):
    got = real(tokens, device, **options)
    if got.parts.segments:
        start = got.parts.segments[-1].start
        memory = device.memory[-1][-1]
        memory[start * (len(memory) // device.tokens)] ^= 1
    return got


def forgets_their_positions(self, real, *given):
    found = real(*given)
    pieces = [piece._replace(position=0) for piece in found.pieces]
    return NamedParts.of(found.front, found.prefix, found.identity, found.prompt, pieces)


def writes_beside_them(self, real, tokens, device, **options):
    got = real(tokens, device, **options)
    for start, _, _ in got.parts.segments:
        for planes in device.memory:
            for memory in planes:
                row = len(memory) // device.tokens
                memory[(start - 1) * row : start * row] = memory[start * row : (start + 1) * row]
    return got


def by_layer(change):
    """A cache whose retrieves by layers are what *change* makes of them."""

    class Make(Segments):
        @contextmanager
        @wraps(Segments.retrieve_layers)
        def retrieve_layers(self, tokens, device, **options):
            with super().retrieve_layers(tokens, device, **options) as layers:
                yield change(layers, device)

    return Make


class _Late:
    """Gives a layer and takes its KV away again until the next one."""

    def __init__(self, layers, device):
        self.layers, self.device, self.held = layers, device, None

    @property
    def parts(self):
        return self.layers.parts

    def __iter__(self):
        return self

    def __next__(self):
        number = next(self.layers)
        for memory in self.device.memory[number]:
            memory[:] = bytes(len(memory))
        return number

    def result(self):
        return self.layers.result()


class TestIsOneLayerLate(SegmentsContract):
    """A layer is given before its KV is there."""

    breaks = "segments.2"
    Make = by_layer(_Late)


def loads_all(self, real, tokens, device, *, skip=0, **options):
    return real(tokens, device, **options)


def stores_prefixes(self, real, tokens, device, **options):
    report = real(tokens, device, **options)
    with self._calls.call() as owner:
        until = self._until(60.0)
        prompt = self._naming.prompt(tokens, options.get("namespace"), until)
        specs = prompt.specs()
        leases = self._chunks.allocate(specs, owner, until)
        device.gather(prompt.spans(leases)).wait(until)
        self._chunks.publish(leases, None, until).wait(until)
        for lease in leases:
            lease.release()
    return report


def forgets_the_tenant(self, real, namespace):
    space = self._naming.checked(namespace)
    return real(replace(space, salt=""))


def promises_what_it_found(self, real, tokens, device, *, parts=None, namespace=None, **options):
    parts = parts or self.find(tokens, namespace=namespace)
    got = real(tokens, device, parts=parts, namespace=namespace, **options)
    plain = PromptParts(parts.tokens, parts.prefix, parts.segments)
    return RetrievedParts(plain, got.loaded_bytes, got.tiers, got.misses)


def finds_its_own(self, real, tokens, **options):
    found = real(tokens, **options)
    mine = getattr(self, "stored", ())
    return found if mine else PromptParts(found.tokens, found.prefix)


def finds_its_own_store(self, real, tokens, device, **options):
    self.stored = True
    return real(tokens, device, **options)


def is_told_in_vain(self, real, tokens, **options):
    names, self._names = self._names, self._none
    try:
        return real(tokens, **options)
    finally:
        self._names = names


def is_told_in_vain_none(self, namespace):
    keyer, finder = Segments._names(self, namespace)
    return keyer, type(finder)(keyer, 0)


def forgets_in_memory_only(self, tokens, *, namespace=None):
    with self._calls.call():
        _, segment, finder = self._segment(tokens, namespace, self._until(60.0))
        for key in segment.keys:
            finder.forget(key)
        return len(segment)


def counts_the_last_token_twice(self, real, tokens, **options):
    found = real(tokens, **options)
    return _Overlapping(found.tokens, found.prefix, found.segments)


class _Overlapping(PromptParts):
    @property
    def holes(self):
        end = self.tokens
        rest = PromptParts.holes.fget(self)
        return (*rest, (end - 1, end)) if self.segments and (end - 1, end) not in rest else rest


def takes_any_window(self, real, tokens, device, **options):
    options.pop("parts", None)
    return real([*tokens][: device.tokens], device, **options)


class TestKeepsAHold(SegmentsContract):
    """A request that was given up keeps its chunks."""

    breaks = "segments.12"

    class Make(Segments):
        @contextmanager
        def retrieve_layers(self, tokens, device, **options):
            context = super().retrieve_layers(tokens, device, **options)
            layers = context.__enter__()
            self.kept = [*getattr(self, "kept", ()), context]
            yield layers
            context.__exit__(None, None, None)


def clears_prefixes_only(self, real, namespace):
    naming = self._naming
    naming._segments = lambda space: naming.keyer(space).prefix
    return real(namespace)


ROWS = {
    "segments.1 flips a bit": Wrong("One bit of what is loaded is wrong.", retrieve=flips_a_bit),
    "segments.1 forgets their positions": Wrong(
        "What continues a segment is said to begin it.", _find=forgets_their_positions
    ),
    "segments.1 writes beside them": Wrong(
        "A segment takes the place of the token before it.", retrieve=writes_beside_them
    ),
    "segments.3 loads all": Wrong(
        "The prefix is loaded again although the host has it.", retrieve=loads_all
    ),
    "segments.4 stores prefixes": Wrong(
        "A segment is stored as a prompt of its own, too, for it is one at position 0.",
        store=stores_prefixes,
    ),
    "segments.5 forgets the tenant": Wrong(
        "The salt is not part of a segment's name.", _names=forgets_the_tenant
    ),
    "segments.5 clears prefixes only": Wrong(
        "Clearing a namespace leaves its segments.",
        _names=clears_prefixes_only,
    ),
    "segments.6 promises what it found": Wrong(
        "What was found counts as loaded.", retrieve=promises_what_it_found
    ),
    "segments.7 finds its own": Wrong(
        "Only what this process has stored is found.", find=finds_its_own, store=finds_its_own_store
    ),
    "segments.7 is told in vain": Wrong(
        "A segment that is registered is not looked for.",
        register=is_told_in_vain,
        _none=is_told_in_vain_none,
    ),
    "segments.8 forgets in memory only": Wrong(
        "What is forgotten stays on its tiers.", forget=forgets_in_memory_only
    ),
    "segments.9 counts the last token twice": Wrong(
        "A segment at the end of a prompt is one token shorter, for that is computed anyway.",
        find=counts_the_last_token_twice,
    ),
    "segments.10 takes any window": Wrong(
        "The length of the prompt is that of the window.", retrieve=takes_any_window
    ),
    "segments.11 has no deadline": Wrong(
        "Each chunk has a deadline of its own, and so has each try.",
        _until=lambda self, real, seconds: real(600.0),
    ),
}
globals().update(broken(__name__, SegmentsContract, Segments, ROWS))
