"""Loads that requests wait for outside of any step."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from concurrent.futures import Future, wait

from hexkv.adapters.vllm.messages import Load

log = logging.getLogger("vllm.hexkv")


class Outside:
    """The loads of one rank, each with the token up to which all arrived. For vLLM's thread."""

    def __init__(self) -> None:
        self.running: dict[str, tuple[Load, Future[int]]] = {}
        """By request; those that are over stay until :meth:`over` has given them."""

    def over(self, *, lost: bool = False) -> Iterator[tuple[Load, int]]:
        """Loads that are over. With *lost*, nothing of any of them arrived.

        Each one is forgotten when the iterator goes on to the next.
        """
        for name in [name for name, (_, done) in self.running.items() if done.done()]:
            load, done = self.running[name]
            error = None if lost else done.exception()
            if error is not None:
                log.warning("loading failed: %s: %s", type(error).__name__, error)
            yield load, load.start if lost or error is not None else done.result()
            del self.running[name]

    def failed(self, load: Load) -> None:
        """Note that *load* is over, and nothing of it arrived."""
        over: Future[int] = Future()
        over.set_result(load.start)
        self.running[load.request] = load, over

    def lose(self, seconds: float) -> bool:
        """Wait until all loads are over, of which then nothing arrived. False if some are not."""
        if wait([done for _, done in self.running.values()], seconds).not_done:
            return False
        for load, _ in list(self.running.values()):
            self.failed(load)
        return True
