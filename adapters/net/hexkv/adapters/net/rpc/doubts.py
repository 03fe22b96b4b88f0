"""Timeouts of a server's answers, and which calls may still wait for it.

A request that was not answered within its whole deadline makes the server *suspect*, and everything
else goes on without it. Minor requests have a deadline of their own, whatever the caller's are, and
no call depends on their answers. A busy machine is late for them sooner, so they affect each other
only: while the server is *slow*, they are sent, and not waited for.
"""

from __future__ import annotations

from collections.abc import Collection

from hexkv.adapters.net.rpc.answer import Answer

NOTICED = 0.1
"""Seconds of waiting without an answer; a shorter wait means nothing."""


class Doubts:
    """Timeouts since the server's last message; *minor* verbs have a deadline of their own."""

    def __init__(self, minor: Collection[int] = ()) -> None:
        self._minor = minor
        self.suspect = self.slow = False
        self._vain = 0.0

    def late(self, answer: Answer, now: float) -> None:
        """Note an answer that has not come by *now*. Before its deadline, it does not count."""
        if now < answer.until:
            return
        if answer.verb in self._minor:
            self.slow = True
        else:
            self.waited(now - answer.asked)

    def waited(self, seconds: float) -> None:
        """Note *seconds* of waiting without an answer."""
        self._vain += seconds
        self.suspect = self.suspect or self._vain >= NOTICED

    def end(self) -> None:
        """Note a message from the server."""
        self.suspect, self.slow, self._vain = False, False, 0.0
