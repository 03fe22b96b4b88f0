"""Timeouts of a node's answers, and which calls may still wait for it.

A request that was not answered within its whole deadline makes the node *suspect*, and everything
else goes on without it. Announcements and pins have a deadline of their own instead, a second
whatever the caller's deadlines are, and no call depends on their answers. A busy machine is late
for them sooner, so they affect each other only: while the node is *slow*, they are sent, and not
waited for.
"""

from __future__ import annotations

from hexkv.adapters.node.client.answer import Answer
from hexkv.adapters.node.wire import Verb

NOTICED = 0.1
"""Seconds of waiting without an answer; less than that says nothing about the node."""

MINOR = frozenset(
    (
        Verb.PIN,
        Verb.UNPIN,
        Verb.ANNOUNCE,
        Verb.WITHDRAW,
        Verb.EXPECT,
        Verb.PUSH_TO,
        Verb.SEEK,
    )
)
"""Verbs with a deadline of their own."""


class Doubts:
    """Timeouts since the node's last message."""

    def __init__(self) -> None:
        self.suspect = self.slow = False
        self._vain = 0.0

    def late(self, answer: Answer, now: float) -> None:
        """Note an answer that has not come by *now*. Before its deadline, it does not count."""
        if now < answer.until:
            return
        if answer.verb in MINOR:
            self.slow = True
        else:
            self.waited(now - answer.asked)

    def waited(self, seconds: float) -> None:
        """Note *seconds* of waiting without an answer."""
        self._vain += seconds
        self.suspect = self.suspect or self._vain >= NOTICED

    def end(self) -> None:
        """Note a message from the node."""
        self.suspect, self.slow, self._vain = False, False, 0.0
