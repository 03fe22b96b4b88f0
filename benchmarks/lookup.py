"""Looking up a long prompt that memory holds, against the bare hash of its tokens."""

from __future__ import annotations

from collections.abc import Generator

from benchmarks.keys import LIMIT, bare_chain
from benchmarks.measure import Comparison, Goal, Turn, must
from benchmarks.rig import cached
from benchmarks.scale import Scale


def lookup(scale: Scale) -> Generator[Comparison, None, None]:
    """How long a prefix is cached; alone, and keeping it from eviction for a while."""
    with cached(scale) as held:
        engine, tokens = held.engine, held.tokens
        limit = bare_chain(tokens, scale.chunk)

        def look(pin: str | None = None) -> None:
            must(engine.lookup(tokens, pin=pin).hit_tokens == len(tokens), "not all was found")

        def look_and_pin() -> None:
            look(pin="benchmark")
            must(engine.unpin("benchmark") > 0, "nothing was pinned")

        for name, path in (("lookup", look), ("lookup, pin, unpin", look_and_pin)):
            yield Comparison(name, LIMIT, tokens.nbytes, Turn(path), limit, Goal("cost"))
