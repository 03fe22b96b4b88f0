"""The answer to one request, as a client receives it."""

from __future__ import annotations

from hexkv.adapters.net.rpc.wire import Status


class Answer:
    """The answer to one request, as far as it has arrived.

    Made by :meth:`hexkv.adapters.net.rpc.link.Link.ask`.
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

    def __init__(self, request: int, verb: int, asked: float, until: float) -> None:
        self.request = request
        self.verb = verb
        self.asked = asked
        self.until = until
        """The end of its time, which starts at *asked*."""

        self.told = False
        """True once a part of the answer has arrived."""

        self.final = False
        self.status = Status.FAILED
        self.body = b""

    def is_there(self, *, begun: bool) -> bool:
        """True once the answer is whole, or with *begun* once a part has arrived."""
        return self.final or (begun and self.told)
