"""What answers that do not come say about a node: which calls may still wait for it.

A request that was not answered in all the time that its caller had makes the node *suspect*, and
everything else goes on without it. Announcements and pins have a time of their own instead, a
second whatever the caller's deadlines are, and nobody depends on their answers. A busy machine is
late for them sooner, so they speak for each other alone: while the node is *slow*, they are sent,
and not waited for.
"""

from __future__ import annotations

from hexkv.adapters.node.answer import Answer
from hexkv.adapters.node.wire import Verb

NOTICED = 0.1
"""Seconds: whose waits in vain come to less than that knows nothing about the node."""

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
"""Verbs with a time of their own."""


class Doubts:
    """Waits in vain since the node last said anything."""

    def __init__(self) -> None:
        self.suspect = self.slow = False
        self._vain = 0.0

    def late(self, answer: Answer, now: float) -> None:
        """An answer has not come by *now*. Before its time is over, that says nothing."""
        if now < answer.until:
            return
        if answer.verb in MINOR:
            self.slow = True
        else:
            self.waited(now - answer.asked)

    def waited(self, seconds: float) -> None:
        """So long it was waited in vain."""
        self._vain += seconds
        self.suspect = self.suspect or self._vain >= NOTICED

    def end(self) -> None:
        """The node has said something."""
        self.suspect, self.slow, self._vain = False, False, 0.0
