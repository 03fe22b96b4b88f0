"""Questions between the two sides of a connector in one process, without a socket.

On one GPU vLLM schedules and computes in the same process. A thread of the process then takes
a question and returns its answer: two threads to wake in place of eight.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Empty, SimpleQueue

Json = Mapping[str, object]
Answer = Callable[[Json, memoryview], Json]
"""Returns the answer to a question and its tokens. An exception becomes ``{"error": ...}``."""

PENDING = 1024
"""Questions that may wait on either side; more are refused."""


class InProcessLookupServer:
    """Answers the questions that come from its own process. Closed by :meth:`close`.

    Args:
        path: its name.
        answer: called from several threads at once. Raises nothing.
        threads: how many questions are answered at once.
    """

    def __init__(self, path: Path, answer: Answer, threads: int) -> None:
        self._path = path
        self._answer = answer
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="hexkv-near")
        # A fork has the entry, but not the threads.
        self._name = os.getpid(), path
        _SERVERS[self._name] = self

    def hand_in(self, question: Json, tokens: bytes, answers: SimpleQueue[Json]) -> bool:
        """Queue a question; its answer goes to *answers*. False once this is closed."""
        try:
            self._threads.submit(self._respond, question, tokens, answers)
        except RuntimeError:  # it was closed
            return False
        return True

    def close(self) -> None:
        """Refuse further questions. Twice is allowed."""
        if _SERVERS.get(self._name) is self:
            del _SERVERS[self._name]
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _respond(self, question: Json, tokens: bytes, answers: SimpleQueue[Json]) -> None:
        answers.put(self._answer(question, memoryview(tokens)))


_SERVERS: dict[tuple[int, Path], InProcessLookupServer] = {}


class InProcessLookupClient:
    """A connection to a respondent of this process. For one thread."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._answers: SimpleQueue[Json] = SimpleQueue()
        self._waiting = 0

    @staticmethod
    def leads_to(path: Path) -> bool:
        """True if there is a respondent of that name in this process."""
        return (os.getpid(), path) in _SERVERS

    def send(self, question: Json, tokens: bytes) -> bool:
        """Send a question. Return False if no respondent takes it."""
        server = _SERVERS.get((os.getpid(), self._path))
        if server is None or self._waiting >= PENDING:
            return False
        taken = server.hand_in(question, tokens, self._answers)
        self._waiting += taken
        return taken

    def receive(self, seconds: float) -> list[Json]:
        """Return the answers that have arrived; if there are none, wait for one."""
        answers = []
        try:
            if seconds > 0:
                answers.append(self._answers.get(timeout=seconds))
            while True:
                answers.append(self._answers.get_nowait())
        except Empty:
            self._waiting -= len(answers)
            return answers

    def reachable(self, seconds: float) -> bool:
        """True if there is a respondent. Does not wait for one."""
        del seconds
        return self.leads_to(self._path)

    def close(self) -> None:
        """Do nothing: no resource is held."""
