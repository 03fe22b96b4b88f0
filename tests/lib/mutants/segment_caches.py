"""Caches of segments that mix them up, keep them too long, or give what they should not."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from functools import wraps

import pytest

from configured import CHUNK, FRAME, NAMESPACE, PATIENT
from dict_store import DictStore
from hexkv.contracts.faults import FaultyStore, Scripted
from hexkv.contracts.prefix_cache import Damaged, Stuck
from hexkv.contracts.segments import MINIMUM, SEPARATOR, SegmentCacheContract
from hexkv.core.engine.engine import Deadlines
from hexkv.core.engine.parts import NamedParts
from hexkv.core.engine.segments import SegmentRules, Segments
from hexkv.plugins.clock import SystemClock
from hexkv.plugins.composition.compose import build
from hexkv.plugins.configuration.config import load
from hexkv.ports import PromptParts, RetrievedParts
from rigging import rigging, tier

LONG, SHORT = Deadlines(**PATIENT), Deadlines(lookup=0.1, retrieve=0.1, store=0.1, close=0.1)
RULES = SegmentRules(SEPARATOR, MINIMUM)


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
                cache._half.stack.patience = SHORT.lookup

            yield Stuck(cache, hang)
            store.release()

    def _over(self, built, store):
        plans = [tier("slow", store)]
        made = built(plans, clock=SystemClock(), deadlines=LONG, segments=RULES)
        made.engine.segments.__class__ = self.Make
        return made.engine


class TestFlipsABit(SegmentsContract):
    """One bit of what is loaded is wrong."""

    breaks = "segments.1"

    class Make(Segments):
        def retrieve(self, tokens, device, **options):
            got = super().retrieve(tokens, device, **options)
            if got.parts.segments:
                start = got.parts.segments[-1].start
                memory = device.memory[-1][-1]
                memory[start * (len(memory) // device.tokens)] ^= 1
            return got


class TestForgetsTheirPositions(SegmentsContract):
    """What continues a segment is said to begin it."""

    breaks = "segments.1"

    class Make(Segments):
        def _find(self, *given):
            found = super()._find(*given)
            pieces = [piece._replace(position=0) for piece in found.pieces]
            return NamedParts.of(found.front, found.prefix, found.identity, found.prompt, pieces)


class TestWritesBesideThem(SegmentsContract):
    """A segment takes the place of the token before it."""

    breaks = "segments.1"

    class Make(Segments):
        def retrieve(self, tokens, device, **options):
            got = super().retrieve(tokens, device, **options)
            for start, _, _ in got.parts.segments:
                for planes in device.memory:
                    for memory in planes:
                        row = len(memory) // device.tokens
                        memory[(start - 1) * row : start * row] = memory[
                            start * row : (start + 1) * row
                        ]
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


class TestLoadsAll(SegmentsContract):
    """The prefix is loaded again although the host has it."""

    breaks = "segments.3"

    class Make(Segments):
        def retrieve(self, tokens, device, *, skip=0, **options):
            return super().retrieve(tokens, device, **options)


class TestStoresPrefixes(SegmentsContract):
    """A segment is stored as a prompt of its own, too, for it is one at position 0."""

    breaks = "segments.4"

    class Make(Segments):
        def store(self, tokens, device, **options):
            report = super().store(tokens, device, **options)
            with self._calls.call() as owner:
                until = self._until(60.0)
                prompt = self._naming.prompt(tokens, options.get("namespace"), until)
                specs = prompt.specs()
                leases = self._half.allocate(specs, owner, until)
                device.gather(prompt.spans(leases)).wait(until)
                self._half.publish(leases, None, until).wait(until)
                for lease in leases:
                    lease.release()
            return report


class TestForgetsTheTenant(SegmentsContract):
    """The salt is not part of a segment's name."""

    breaks = "segments.5"

    class Make(Segments):
        def _names(self, namespace):
            space = self._naming.checked(namespace)
            return super()._names(replace(space, salt=""))


class TestClearsPrefixesOnly(SegmentsContract):
    """Clearing a namespace leaves its segments."""

    breaks = "segments.5"

    class Make(Segments):
        def prefix(self, namespace):
            return self._naming.prefix(namespace)


class TestPromisesWhatItFound(SegmentsContract):
    """What was found counts as loaded."""

    breaks = "segments.6"

    class Make(Segments):
        def retrieve(self, tokens, device, *, parts=None, namespace=None, **options):
            parts = parts or self.find(tokens, namespace=namespace)
            got = super().retrieve(tokens, device, parts=parts, namespace=namespace, **options)
            plain = PromptParts(parts.tokens, parts.prefix, parts.segments)
            return RetrievedParts(plain, got.loaded_bytes, got.tiers, got.misses)


class TestFindsItsOwn(SegmentsContract):
    """Only what this process has stored is found."""

    breaks = "segments.7"

    class Make(Segments):
        def find(self, tokens, **options):
            found = super().find(tokens, **options)
            mine = getattr(self, "stored", ())
            return found if mine else PromptParts(found.tokens, found.prefix)

        def store(self, tokens, device, **options):
            self.stored = True
            return super().store(tokens, device, **options)


class TestIsToldInVain(SegmentsContract):
    """A segment that is registered is not looked for."""

    breaks = "segments.7"

    class Make(Segments):
        def register(self, tokens, **options):
            names, self._names = self._names, self._none
            try:
                return super().register(tokens, **options)
            finally:
                self._names = names

        def _none(self, namespace):
            keyer, finder = Segments._names(self, namespace)
            return keyer, type(finder)(keyer, 0)


class TestForgetsInMemoryOnly(SegmentsContract):
    """What is forgotten stays on its tiers."""

    breaks = "segments.8"

    class Make(Segments):
        def forget(self, tokens, *, namespace=None):
            with self._calls.call():
                _, segment, finder = self._segment(tokens, namespace, self._until(60.0))
                for key in segment.keys:
                    finder.forget(key)
                return len(segment)


class TestCountsTheLastTokenTwice(SegmentsContract):
    """A segment at the end of a prompt is one token shorter, for that is computed anyway."""

    breaks = "segments.9"

    class Make(Segments):
        def find(self, tokens, **options):
            found = super().find(tokens, **options)
            return _Overlapping(found.tokens, found.prefix, found.segments)


class _Overlapping(PromptParts):
    @property
    def holes(self):
        end = self.tokens
        rest = PromptParts.holes.fget(self)
        return (*rest, (end - 1, end)) if self.segments and (end - 1, end) not in rest else rest


class TestTakesAnyWindow(SegmentsContract):
    """The length of the prompt is that of the window."""

    breaks = "segments.10"

    class Make(Segments):
        def retrieve(self, tokens, device, **options):
            options.pop("parts", None)
            return super().retrieve([*tokens][: device.tokens], device, **options)


class TestHasNoDeadline(SegmentsContract):
    """Each chunk has a deadline of its own, and so has each try."""

    breaks = "segments.11"

    class Make(Segments):
        def _until(self, seconds):
            return super()._until(600.0)


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
