"""What a client has been told of one request."""

from __future__ import annotations

from hexkv.adapters.node.wire import Status, Verb


class Answer:
    """What a node says to one request, as far as it has come.

    Made by :meth:`hexkv.adapters.node.link.Link.ask`.
    """

    __slots__ = (
        "__weakref__",
        "asked",
        "body",
        "final",
        "request",
        "status",
        "told",
        "until",
        "verb",
    )

    def __init__(self, request: int, verb: Verb, asked: float, until: float) -> None:
        self.request = request
        self.verb = verb
        self.asked = asked
        self.until = until
        """When the time is over that it has from *asked* on."""

        self.told = False
        """True once something was said."""

        self.final = False
        self.status = Status.FAILED
        self.body = b""

    def is_there(self, *, begun: bool) -> bool:
        """True once it is whole, or with *begun* once anything was said."""
        return self.final or (begun and self.told)
