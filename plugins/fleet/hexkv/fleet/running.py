"""Runs a plan: nodes answer its requests until it has its result."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any, TypeVar

from hexkv.fleet.nodes import FleetNode
from hexkv.fleet.relocation import Ask
from hexkv.ports import HexKVError, Progress, Watch

T = TypeVar("T")


class Going:
    """A watch that is called again, between a few chunks, with the last progress."""

    def __init__(self, watch: Watch | None) -> None:
        self._watch = watch
        self._last = Progress(0, 0)

    def __call__(self, progress: Progress) -> bool:
        self._last = progress
        return self._watch is None or self._watch(progress)

    def again(self, progress: Progress) -> bool:
        """Return True to continue."""
        del progress
        return self(self._last)


def run(asking: Generator[Ask, Any, T], nodes: Sequence[FleetNode], going: Going) -> T:
    """Let the nodes answer the requests of *asking*, until it returns its result."""
    by_name = {node.name: node for node in nodes}
    try:
        ask = next(asking)
        while True:
            try:
                admin = by_name[ask.node].asked()
                given = (*ask.arguments, going.again) if ask.verb == "fetch" else ask.arguments
                answer = getattr(admin, ask.verb)(*given)
            except HexKVError as error:
                ask = asking.throw(error)
            else:
                ask = asking.send(answer)
    except StopIteration as end:
        result: T = end.value
        return result
