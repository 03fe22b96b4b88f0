"""Storing a prompt a second time, against the bare hash of its tokens: nothing is copied."""

from __future__ import annotations

from collections.abc import Generator

from benchmarks.calls.keys import LIMIT, bare_chain
from benchmarks.rig.engines import cached
from benchmarks.rig.measure import Comparison, Goal, Turn, must
from benchmarks.rig.scale import Scale


def again(scale: Scale) -> Generator[Comparison, None, None]:
    """A store of a prompt that is stored already."""
    with cached(scale) as held:
        engine, tokens = held.engine, held.tokens

        def store() -> None:
            report = engine.store(tokens, held.window)
            must(report.present_tokens == len(tokens), "something was stored again")

        limit = bare_chain(tokens, scale.chunk)
        yield Comparison("second store", LIMIT, tokens.nbytes, Turn(store), limit, Goal("cost"))
