"""The cache of segments of one engine: KV for any place in a prompt, beside its prefix.

A segment's chunks are stored under keys of their own, of the scheme ``segment/<n>``, on the same
tiers as all others: the layers below the keys do not distinguish them.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING

from hexkv.blending.anywhere import WindowFinder
from hexkv.blending.chunking import SegmentChunker
from hexkv.blending.named_parts import NamedParts, PartsByLayer, answer, join, merged
from hexkv.blending.ports import (
    BLEND_KINDS,
    BlendReport,
    Piece,
    PromptParts,
    RetrievedParts,
    SegmentCache,
)
from hexkv.core.engine.beside import EngineParts
from hexkv.core.keys.hashing import NamespaceHasher
from hexkv.core.keys.prompts import Prompt
from hexkv.core.keys.tokens import TOKEN_BYTES, pack
from hexkv.core.requests.accounts import Accounts, Arrived, Laps
from hexkv.core.requests.checks import check_window, skipped
from hexkv.core.requests.layers.limits import TimeBudget
from hexkv.core.requests.layers.retrieve import LayeredRetrieve
from hexkv.core.requests.prefix import find_prefix
from hexkv.core.requests.request import PromptRequest
from hexkv.core.requests.retrieve import Loading
from hexkv.core.requests.store import Storing
from hexkv.ports import (
    Bounds,
    ChunkKey,
    CounterName,
    Deadline,
    DeviceKV,
    HistogramName,
    InvalidRequest,
    Namespace,
    Reason,
    Retrieved,
    StoreReport,
    Tokens,
)

_FINDERS = 16
"""The most namespaces whose segments are found at any offset: those used last."""


@dataclass(frozen=True, slots=True)
class SegmentRules:
    """How segments are found."""

    separator: Sequence[int] = ()
    """Token ids between segments; empty: prompts are not cut."""

    minimum: int = 32
    """Tokens of the shortest chunk of a segment that is kept."""

    index_bytes: int = 16 << 20
    """Memory of each namespace's index of any offset; 0: find segments only between separators."""


class Segments:
    """See :class:`hexkv.blending.ports.SegmentCache`. Ends with its engine."""

    def __init__(self, parts: EngineParts, rules: SegmentRules) -> None:
        """Find segments by *rules*, and load and store them by the *parts* of an engine."""
        self._naming = parts.naming
        self._requests = requests = parts.requests
        self._chunks = requests.chunks
        self._calls = parts.calls
        self._deadlines = parts.deadlines
        self._index_bytes = rules.index_bytes
        self._separated = bool(rules.separator)
        size = parts.chunk_tokens
        self._least = least = min(rules.minimum, size)
        self._cutter = SegmentChunker(rules.separator, maximum=1 << 32)
        self._between = SegmentChunker(rules.separator, maximum=size, minimum=least)
        self._whole = SegmentChunker(maximum=size, minimum=least)
        self._algorithm = parts.algorithm
        self._clock = requests.runtime.clock
        self._telemetry = requests.runtime.telemetry
        self._accounts = Accounts(requests.runtime)
        self._keyers: OrderedDict[Namespace, tuple[NamespaceHasher, WindowFinder]] = OrderedDict()
        self._lock = Lock()

    def cut(self, tokens: Tokens) -> Bounds:
        return self._cutter.cut(self._naming.packed(tokens))

    def find(
        self, tokens: Tokens, *, recomputed: float = 0.0, namespace: Namespace | None = None
    ) -> PromptParts:
        saved = 1 - _check_share(recomputed)
        with self._calls.call():
            return self._find(tokens, namespace, saved, self._until(self._deadlines.lookup))

    def retrieve(
        self,
        tokens: Tokens,
        device: DeviceKV,
        *,
        skip: int = 0,
        parts: PromptParts | None = None,
        recomputed: float = 0.0,
        namespace: Namespace | None = None,
    ) -> RetrievedParts:
        saved = 1 - _check_share(recomputed)
        with self._calls.call() as owner:
            laps, steps = Laps(self._clock), self._requests.runtime.steps
            until = self._until(self._deadlines.retrieve)
            found = self._found(tokens, namespace, parts, saved, until)
            check_window(device, found.front.layout, found.tokens)
            skip = skipped(skip, found.tokens)
            laps.mark(("find", "", laps.now()))
            front: Retrieved | None = None
            if found.prefix > skip:
                some = found.front.since(skip)
                got = Loading(self._requests, PromptRequest(some, device, owner, laps), until).run()
                spent = laps.end(steps, "retrieve", owner, some.keys)
                front = self._accounts.retrieved(some, skip, got, spent)
                laps = Laps(self._clock)
            chunks, total, at = found.chunks(), Arrived(), 0
            came = [False] * len(chunks)
            while at < len(chunks) and not until.expired:
                rest = chunks.part(at, len(chunks))
                got = Loading(self._requests, PromptRequest(rest, device, owner, laps), until).run()
                came[at : at + got.chunks] = [True] * got.chunks
                join(total, got, again=True)
                at += got.chunks + 1  # a missing chunk is a hole; those behind it may come
            if at < len(chunks):
                late = total.misses.get(Reason.TIMED_OUT, 0)
                total.misses[Reason.TIMED_OUT] = late + len(chunks) - at
            laps.end(steps, "retrieve segments", owner, chunks.keys)
            prefix = skip if front is None else front.hit_tokens
            return answer(self._telemetry, found.arrived(prefix, came), front, total, sum(came))

    @contextmanager
    def retrieve_layers(
        self,
        tokens: Tokens,
        device: DeviceKV,
        *,
        skip: int = 0,
        parts: PromptParts | None = None,
        recomputed: float = 0.0,
        namespace: Namespace | None = None,
    ) -> Iterator[PartsByLayer]:
        saved = 1 - _check_share(recomputed)
        door = self._calls.door
        # Two names: one of the two reads may release chunks that the other one still needs.
        with self._calls.in_steps() as first, self._calls.in_steps() as second, ExitStack() as held:
            with door.passing():
                laps = Laps(self._clock)
                patience = TimeBudget(self._clock, self._deadlines.retrieve)
                with patience.step() as until:
                    found = self._found(tokens, namespace, parts, saved, until)
                check_window(device, found.front.layout, found.tokens)
                skip = skipped(skip, found.tokens)
                front = found.front.since(skip)
                chunks, total = found.chunks(), Arrived()

                def in_front(got: Arrived) -> Retrieved:
                    return self._accounts.retrieved(front, skip, got, patience.so_far())

                def behind(got: Arrived) -> Retrieved:
                    join(total, got, again=False)
                    return Retrieved(
                        found.tokens, got.end_token, sum(got.tokens.values()), got.size
                    )

                before = LayeredRetrieve(
                    self._requests,
                    PromptRequest(front, device, first, laps),
                    patience,
                    in_front,
                    skip=0,
                )
                held.callback(door.give_back, before.close)
                before.begin()
                after = LayeredRetrieve(
                    self._requests,
                    PromptRequest(chunks, device, second, laps),
                    patience,
                    behind,
                    skip=0,
                )
                held.callback(door.give_back, after.close)
                after.begin()
            yield PartsByLayer(found, skip, (before, after), total, self._telemetry, door)

    def store(
        self,
        tokens: Tokens,
        device: DeviceKV,
        *,
        namespace: Namespace | None = None,
        wait: bool = True,
    ) -> StoreReport:
        with self._calls.call() as owner:
            laps = Laps(self._clock)
            until = self._until(self._deadlines.store)
            packed, segment, finder = self._segment(tokens, namespace, until)
            check_window(device, segment.layout, segment.length)
            if self._calls.frozen:
                return StoreReport(segment.length, frozen=True)
            laps.mark(("name", "", laps.now()))
            kept = Storing(
                self._requests, PromptRequest(segment, device, owner, laps), until, wait=wait
            ).run(segment)
            _index(finder, packed, segment, len(segment))
            spent = laps.end(self._requests.runtime.steps, "store segment", owner, segment.keys)
            return self._accounts.stored(segment, kept, spent)

    def register(self, tokens: Tokens, *, namespace: Namespace | None = None) -> int:
        with self._calls.call():
            until = self._until(self._deadlines.lookup)
            packed, segment, finder = self._segment(tokens, namespace, until)
            tiers = [*self._chunks.match(segment.keys, until), None]
            count = tiers.index(None)
            _index(finder, packed, segment, count)
            return segment.ends[count - 1] if count else 0

    def forget(self, tokens: Tokens, *, namespace: Namespace | None = None) -> int:
        with self._calls.call():
            until = self._until(self._deadlines.store)
            _, segment, finder = self._segment(tokens, namespace, until)
            for key in segment.keys[:1]:
                finder.forget(key)
            return self._chunks.forget(segment.keys, until)

    def report(self, blend: BlendReport) -> None:
        telemetry = self._telemetry
        telemetry.count(CounterName.BLEND_REQUESTS, 1, reason=blend.outcome)
        for kind in BLEND_KINDS:
            telemetry.count(CounterName.BLEND_TOKENS, getattr(blend, kind), reason=kind)
        for name, value in (
            (HistogramName.BLEND_SELECT, blend.select_seconds),
            (HistogramName.BLEND_ROTATE, blend.rotate_seconds),
            (HistogramName.BLEND_KL, blend.kl),
        ):
            if value is not None:
                telemetry.observe(name, value)

    def _find(
        self, tokens: Tokens, namespace: Namespace | None, saved: float, until: Deadline
    ) -> NamedParts:
        prompt = self._naming.prompt(tokens, namespace, until)
        front = find_prefix(self._chunks, prompt, until)
        keyer, finder = self._names(namespace)
        packed = pack(tokens)
        cut, anywhere = self._cut(keyer, packed, until), finder.find(packed, until)
        pieces = [piece for piece in (*cut, *anywhere) if piece.start >= front.tokens]
        tiers = self._chunks.match([piece.key for piece in pieces], until)
        # One query for each tier: a slow tier lets one request through that it would not serve.
        worth = {
            tier
            for tier in {*tiers}
            if tier is not None and self._chunks.worth_loading(tier, saved)
        }
        here = {piece for piece, tier in zip(pieces, tiers, strict=True) if tier in worth}
        stored = merged([*filter(here.__contains__, cut)], [*filter(here.__contains__, anywhere)])
        digest = self._algorithm.digest(packed)
        return NamedParts.of(front.found, front.tokens, keyer.identity, digest, stored)

    def _found(
        self,
        tokens: Tokens,
        namespace: Namespace | None,
        parts: PromptParts | None,
        saved: float,
        until: Deadline,
    ) -> NamedParts:
        """Return *parts* if they were found for these tokens, else find parts within them now."""
        if isinstance(parts, NamedParts):
            identity = self._names(namespace)[0].identity
            asked = identity, self._algorithm.digest(pack(tokens))
            if (parts.identity, parts.prompt) == asked:
                return parts
        found = self._find(tokens, namespace, saved, until)
        return found if parts is None else found.limited(parts)

    def _cut(self, keyer: NamespaceHasher, packed: memoryview, until: Deadline) -> list[Piece]:
        """Return the chunks between separators, stored or not."""
        pieces: list[Piece] = []
        if not self._separated:
            return pieces
        bounds = self._between.cut(packed)
        first = 0
        for key, start, end in zip(keyer.name(packed, until, bounds=bounds), *bounds, strict=False):
            first = first if pieces and pieces[-1].end == start else start
            pieces.append(Piece(key, start, end, start - first))
        return pieces

    def _segment(
        self, tokens: Tokens, namespace: Namespace | None, until: Deadline
    ) -> tuple[memoryview, Prompt, WindowFinder]:
        """Return a segment's packed tokens, its chunks at positions from 0 on, and its finder."""
        layout = self._naming.checked(namespace).layout
        keyer, finder = self._names(namespace)
        packed = self._naming.packed(tokens)
        starts, ends = self._whole.cut(packed)
        keys = keyer.name(packed, until, bounds=Bounds(starts, ends))
        count, length = len(keys), len(packed) // TOKEN_BYTES
        segment = Prompt(layout, keyer.identity, length, keys, starts[:count], ends[:count])
        return packed, segment, finder

    def _names(self, namespace: Namespace | None) -> tuple[NamespaceHasher, WindowFinder]:
        """Return the hasher and the finder of the segments of *namespace*."""
        space = self._naming.checked(namespace)
        with self._lock:
            known = self._keyers.get(space)
            if known is not None:
                self._keyers.move_to_end(space)
                return known
        keyer = NamespaceHasher(space, self._algorithm, self._whole)
        self._naming.begin_namespace(space, keyer.prefix)
        with self._lock:
            made = self._keyers.setdefault(
                space, (keyer, WindowFinder(keyer, self._index_bytes, self._least))
            )
            if len(self._keyers) > _FINDERS:
                self._keyers.popitem(last=False)
            return made

    def _until(self, seconds: float) -> Deadline:
        return Deadline.after(self._clock, seconds)


def build(
    parts: EngineParts, *, separator: Sequence[int], minimum: int, index_bytes: int
) -> Segments:
    """Return the cache of segments beside an engine with *parts*, by its configured rules."""
    return Segments(parts, SegmentRules(separator, minimum, index_bytes))


def _check_share(share: object) -> float:
    """Return *share* as a part of a whole: a number from 0 to 1.

    Raises:
        InvalidRequest: it is something else.
    """
    if isinstance(share, bool) or not isinstance(share, float | int) or not 0 <= share <= 1:
        raise InvalidRequest(f"a share is a number from 0 to 1, not {share!r:.40}")
    return float(share)


def _index(finder: WindowFinder, packed: memoryview, segment: Prompt, count: int) -> None:
    """Add the first *count* chunks of *segment* to *finder*, as far as there is room."""
    after: ChunkKey | None = None
    for key, start, end in zip(segment.keys[:count], segment.starts, segment.ends, strict=False):
        if not finder.add(key, packed[start * TOKEN_BYTES : end * TOKEN_BYTES], after):
            return
        after = key


if TYPE_CHECKING:

    def _is_a_cache(segments: Segments) -> SegmentCache:
        return segments
