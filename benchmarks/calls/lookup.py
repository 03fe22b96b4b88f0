"""Looking up a long prompt that memory holds, against the bare hash of its tokens."""

from __future__ import annotations

from collections.abc import Generator
from itertools import cycle

import numpy as np

from benchmarks.calls.keys import LIMIT, bare_chain
from benchmarks.rig.engines import cached
from benchmarks.rig.measure import Comparison, Goal, Turn, must
from benchmarks.rig.scale import Scale


def lookup(scale: Scale) -> Generator[Comparison, None, None]:
    """How long a prefix is cached; alone, and keeping it from eviction for a while.

    Of a prompt that was not named lately, of one that was, and of a longer one.
    """
    with cached(scale) as held:
        engine, tokens = held.engine, held.tokens
        limit = bare_chain(tokens, scale.chunk)
        dice = np.random.default_rng(1)
        others = dice.integers(1 << 17, size=(16, len(tokens)), dtype=np.uint32)
        more = dice.integers(1 << 17, size=(64, 300), dtype=np.uint32)
        longer = cycle([np.concatenate((tokens, turn)) for turn in more])

        def forget() -> None:
            for other in others:
                engine.chunk_keys(other)

        def look(pin: str | None = None) -> None:
            must(engine.lookup(tokens, pin=pin).hit_tokens == len(tokens), "not all was found")

        def look_further() -> None:
            must(engine.lookup(next(longer)).hit_tokens == len(tokens), "not all was found")

        def look_and_pin() -> None:
            look(pin="benchmark")
            must(engine.unpin("benchmark") > 0, "nothing was pinned")

        for name, path in (
            ("lookup", Turn(look, before=forget)),
            ("lookup, again", Turn(look)),
            ("lookup, 300 tokens more", Turn(look_further)),
            ("lookup, pin, unpin", Turn(look_and_pin)),
        ):
            yield Comparison(name, LIMIT, tokens.nbytes, path, limit, Goal("cost"))
