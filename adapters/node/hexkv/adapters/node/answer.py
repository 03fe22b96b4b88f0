"""What a client has been told of one request."""

from __future__ import annotations

from hexkv.adapters.node.wire import Status


class Answer:
    """What a node says to one request, as far as it has come. Made by :meth:`Link.ask`."""

    __slots__ = ("__weakref__", "body", "final", "request", "status", "told")

    def __init__(self, request: int) -> None:
        self.request = request
        self.told = False
        """True once something was said."""

        self.final = False
        self.status = Status.FAILED
        self.body = b""

    def is_there(self, *, begun: bool) -> bool:
        """True once it is whole, or with *begun* once anything was said."""
        return self.final or (begun and self.told)
